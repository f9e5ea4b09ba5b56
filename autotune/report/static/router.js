"use strict";
// Which page is shown, where its documents come from, light and dark. Loaded last: it begins.
{
  const { element, figures } = autotune;
  const main = document.getElementById("main");
  const dialog = document.getElementById("trial");
  const studies = new Map(); // id -> { document, rows }
  let update = null; // of the page that is shown
  let drawn = null; // the address of that page

  // Pages that the head leads to: their place in an address, and what draws them. One more is one more line.
  const pages = [
    { name: "searches", title: "Searches", is: () => true, draw: (into) => autotune.drawSearches(into) },
    {
      name: "table",
      title: "Table",
      is: () => Boolean(autotune.tableMaps),
      draw: (into) => autotune.drawTable(into),
    },
  ];
  const pageOf = (name) => (name ? pages.find((page) => page.name === name && page.is()) : pages[0]);

  // Documents of the one-file report are in it; a server has them under /api.
  const own = (name) => {
    const found = document.querySelector(`script[data-document="${CSS.escape(name)}"]`);
    return found ? JSON.parse(found.textContent) : null;
  };
  autotune.isLive = !document.querySelector("script[data-document]");
  autotune.document = async (name, query = "") => {
    if (!autotune.isLive) return own(name);
    const answer = await fetch(`/api/${name}${query}`);
    if (!answer.ok) throw new Error(`${name}: ${answer.status} ${answer.statusText}`);
    return answer.json();
  };

  autotune.lineOf = (id) => autotune.overview.studies.find((study) => study.id === id);
  autotune.studyOf = (id) => studies.get(id);
  autotune.meaningOf = (name) => (autotune.overview.parameters[name] || { meaning: "" }).meaning;

  const load = async (id) => {
    const known = studies.get(id);
    if (known && !autotune.isLive) return;
    const after = known && known.rows.length ? known.rows[known.rows.length - 1].id : 0;
    let found = await autotune.document(`study/${id}`, `?after=${after}`);
    if (known && found.epoch !== known.document.epoch) found = await autotune.document(`study/${id}`); // all was read again
    const rows = autotune.rowsOf(found.trials);
    const isWhole = found.trials.first === 1;
    studies.set(id, { document: found, rows: isWhole || !known ? rows : [...known.rows, ...rows] });
  };

  const parse = (hash) => {
    const parts = hash.replace(/^#\/?/, "").split("/");
    if (parts[0] === "shape") {
      return {
        page: "shape",
        id: Number(parts[1]),
        trial: parts[2] === "trial" ? Number(parts[3]) : null,
        against: Number(parts[5]) || null,
      };
    }
    const page = pageOf(parts[0]);
    return { page: page ? page.name : "none", id: page ? null : parts[0] };
  };

  const heading = (place) => {
    if (place.page === "shape")
      return autotune.lineOf(place.id) ? autotune.lineOf(place.id).label : "No such shape";
    return place.page === "none" ? "No such page" : pageOf(place.page).title;
  };

  const show = async () => {
    const place = parse(location.hash);
    autotune.place = place;
    const address = `${place.page} ${place.id || ""}`;
    if (address !== drawn) {
      if (place.page === "shape" && autotune.lineOf(place.id)) await load(place.id);
      if (autotune.place !== place) return; // the reader went on
      autotune.forgetCharts();
      main.replaceChildren();
      update = draw(place);
      document.title = `${heading(place)} - autotune`;
      if (drawn) {
        window.scrollTo(0, 0);
        main.focus({ preventScroll: true });
      }
      drawn = address;
      mark(place);
    }
    if (place.trial) autotune.showTrial(place.id, place.trial, place.against);
    else if (dialog.open) dialog.close();
    document.body.dataset.ready = address;
  };

  const draw = (place) => {
    if (place.page === "none" || (place.page === "shape" && !autotune.lineOf(place.id))) {
      main.append(
        element("h1", {}, heading(place)),
        autotune.hint(element("a", { href: "#/" }, "All shapes")),
      );
      return null;
    }
    if (place.page === "shape") return autotune.drawShape(main, place.id);
    return pageOf(place.page).draw(main);
  };

  const mark = (place) => {
    document.getElementById("pages").replaceChildren(
      ...pages
        .filter((page) => page.is())
        .map((page) =>
          element(
            "a",
            {
              href: page === pages[0] ? "#/" : `#/${page.name}`,
              "aria-current": place.page === page.name ? "page" : null,
            },
            page.title,
          ),
        ),
    );
    document.getElementById("jump").value = place.page === "shape" ? String(place.id) : "";
  };

  const fillJump = () => {
    const jump = document.getElementById("jump");
    const chosen = jump.value;
    jump.replaceChildren(
      element("option", { value: "" }, "choose"),
      ...autotune.overview.studies.map((study) => element("option", { value: study.id }, study.label)),
    );
    jump.value = chosen;
  };

  // ---------------------------------------------------------------------------------------------- looks

  const look = followTheme(() => autotune.redrawCharts());
  window.addEventListener("beforeprint", () => {
    main.querySelectorAll("details").forEach((details) => {
      details.open = true;
    });
    look.dress("light");
    autotune.redrawCharts({ all: true });
  });

  // ---------------------------------------------------------------------------------------------- begin

  // The page anew from the documents that are known.
  autotune.refresh = () => update && update();

  // The page made anew, as when its parts have changed.
  autotune.redraw = () => {
    drawn = "";
    return show();
  };

  // After news: the overview, and the trials of the shape that is shown.
  autotune.reload = async () => {
    autotune.overview = await autotune.document("overview");
    fillJump();
    if (autotune.place.page === "shape" && autotune.lineOf(autotune.place.id)) await load(autotune.place.id);
    autotune.refresh();
  };

  const begin = async () => {
    look.restore();
    autotune.overview = await autotune.document("overview");
    const hasTable = autotune.isLive ? autotune.overview.has_table : true;
    autotune.tableMaps = hasTable ? await autotune.document("table") : null;
    document.getElementById("source").textContent =
      `${autotune.overview.source}, ${autotune.isLive ? "live" : `written ${figures.time(autotune.overview.written_at)}`}`;
    fillJump();
    document.getElementById("jump").addEventListener("change", (event) => {
      location.hash = event.target.value ? `#/shape/${event.target.value}` : "#/";
    });
    dialog.addEventListener("close", () => {
      if (autotune.place.trial) location.hash = `#/shape/${autotune.place.id}`;
    });
    window.addEventListener("hashchange", show);
    await show();
  };
  autotune.begun = begin();
}
