"use strict";
// Follows a search: asks once a second whether something is new, and draws it. Loaded behind all others.
{
  const PAUSE_MS = 1000;
  const FOLLOWED_S = 90; // after its newest trial a search counts as running
  const status = document.getElementById("following");

  // What is shown may be a little older than what is there: a server spares itself (autotune/report/feed.py).
  const shown = () => {
    const study = autotune.place.page === "shape" && autotune.studyOf(autotune.place.id);
    return Math.min(autotune.overview.version, study ? study.document.version : Infinity);
  };

  const newest = () => autotune.overview.studies.reduce((a, s) => (s.updated_at > a ? s.updated_at : a), "");

  const tell = () => {
    const ago = autotune.figures.ago(newest());
    const isRunning = ago !== null && ago < FOLLOWED_S;
    status.className = isRunning ? "live" : "";
    status.textContent = isRunning ? "following a search" : "no search is running";
  };

  const look = async () => {
    if (document.hidden) return;
    try {
      const found = await autotune.document("version");
      if (found.version !== shown()) await autotune.reload();
      tell();
    } catch (error) {
      status.className = "";
      status.textContent = `not followed: ${error.message}`;
    }
  };

  const follow = async () => {
    await look();
    setTimeout(follow, PAUSE_MS);
  };
  autotune.begun.then(follow);
}
