"use strict";
// The page of the service: asks every two seconds what stands, and draws it (autotune/service/overview.py).
{
  const PAUSE_MS = 2000;
  const { card, element, figures, table, tiles } = autotune;
  const main = document.getElementById("main");
  const status = document.getElementById("following");
  const nav = document.getElementById("pages");
  nav.append(element("a", { href: "/" }, "Searches"), element("a", { href: "/service", "aria-current": "page" }, "Service"));
  document.querySelector("label.jump").hidden = true;

  const ago = (seconds) => (seconds ? `${figures.seconds(Math.max(0, Date.now() / 1000 - seconds))} ago` : "-");
  const column = (title, value, rest = {}) => ({ title, value, ...rest });
  const requests = table("Requests", [
    column("Id", (one) => one.id, { number: true }),
    column("Shape", (one) => one.shape),
    column("GPU", (one) => one.gpu || "any"),
    column("State", (one) => one.state),
    column("Calls", (one) => one.calls, { number: true, show: (one) => figures.number(one.calls) }),
    column("May gain", (one) => one.priority, { number: true, show: (one) => figures.us(one.priority) }),
    column("Tries", (one) => one.num_tries, { number: true, least: "tablet" }),
    column("Asked", (one) => one.asked_s, { show: (one) => ago(one.asked_s), least: "tablet" }),
    column("Worker", (one) => one.worker, { least: "desktop" }),
    column("Reason", (one) => one.reason, { least: "desktop" }),
  ], []);
  const workers = table("Workers", [
    column("Worker", (one) => one.name),
    column("Does", (one) => one.kind),
    column("GPU", (one) => one.gpu || "-"),
    column("At", (one) => one.doing || "idle"),
    column("For", (one) => one.doing_s, { number: true, show: (one) => figures.seconds(one.doing_s) }),
    column("Done", (one) => one.num_done, { number: true }),
    column("Health", (one) => (one.is_alive ? "alive" : one.ended_s ? "ended" : "lost")),
  ], []);
  const gpus = table("GPU models", [
    column("GPU", (one) => one.name),
    column("Tuned calls", (one) => one.hits, { number: true, show: (one) => figures.number(one.hits) }),
    column("Other calls", (one) => one.misses, { number: true, show: (one) => figures.number(one.misses) }),
    column("Saved, predicted", (one) => one.predicted_saved_us, {
      number: true, show: (one) => figures.us(one.predicted_saved_us),
    }),
    column("Saved, measured", (one) => one.measured.saved_us, {
      number: true,
      show: (one) => (one.measured.pairs ? `${figures.us(one.measured.saved_us)} in ${one.measured.pairs} pairs` : "-"),
    }),
  ], []);
  const tables = table("Tables", [
    column("Address", (one) => one.address, { show: (one) => one.address.slice(0, 12) }),
    column("GPU", (one) => one.gpu_name),
    column("Driver", (one) => one.driver, { least: "tablet" }),
    column("cuBLAS", (one) => one.cublas, { least: "tablet" }),
    column("Shapes", (one) => one.num_shapes, { number: true }),
    column("Over cuBLAS", (one) => one.gain, { number: true, show: (one) => figures.times(one.gain) }),
    column("Published", (one) => one.published_at, { show: (one) => figures.time(one.published_at.slice(0, 16)) }),
    column("State", (one) => (one.is_pinned ? "pinned" : one.is_current ? "current" : one.is_taken_back ? "taken back" : "-")),
    column("Stale", (one) => one.stale || "-", { least: "tablet" }),
  ], []);
  const head = element("div", {});
  main.append(
    head,
    card("Queue", { wide: true }, requests),
    card("Workers", { wide: true }, workers),
    card("What GPU models gained", { wide: true }, gpus),
    card("Tables", { wide: true }, tables),
  );

  const draw = (found) => {
    const { counts } = found;
    const alive = found.workers.filter((one) => one.is_alive).length;
    head.replaceChildren(tiles([
      ["Waiting", figures.number(counts.waiting)],
      ["Being tuned", figures.number(counts.tuning)],
      ["Tuned", figures.number(counts.tuned)],
      ["Refused, given up", figures.number(counts.refused + counts["given up"])],
      ["Workers", figures.number(alive), alive ? null : "none: `autotune worker` starts one"],
    ]));
    requests.update(found.requests);
    workers.update(found.workers);
    gpus.update(found.gpus);
    tables.update(found.tables);
    document.body.dataset.ready = "";
  };
  const look = async () => {
    if (!document.hidden) {
      try {
        const answer = await fetch("/api/service");
        if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
        draw(await answer.json());
        status.textContent = "";
      } catch (error) {
        status.textContent = `not followed: ${error.message}`;
      }
    }
    setTimeout(look, PAUSE_MS);
  };
  followTheme(() => {}).restore();
  look();
}
