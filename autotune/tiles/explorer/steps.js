// Stages over the steps of k.

const DOINGS = {
  start: "a copy starts",
  flight: "it is on its way",
  there: "it is there",
  multiply: "read and multiplied",
};

function drawTimeline() {
  const line = view().timeline;
  text("#timeline .say", line.note);
  find("#timeline .scroll").hidden = find("#timeline .key").hidden = line.steps.length === 0;
  find("#timeline .controls").hidden = find("#timeline .told").hidden = line.steps.length === 0;
  if (!line.steps.length) return;
  const isGap = (i) => i > 1 && line.steps[i] - line.steps[i - 1] > 1;
  const head = node("tr", {}, node("td", {}));
  line.steps.forEach((step, i) => {
    if (isGap(i)) head.append(node("th", { class: "gap" }, "…"));
    head.append(node("th", { scope: "col", class: i === state.step ? "now" : null }, String(step)));
  });
  const body = line.rows.map((row) => {
    const made = node("tr", {}, node("th", { scope: "row" }, row.label));
    row.cells.forEach((cell, i) => {
      if (isGap(i)) made.append(node("td", { class: "gap" }, "…"));
      made.append(stepCell(cell, i === state.step));
    });
    return made;
  });
  const table = node("table", { class: "steps" }, node("thead", {}, head), node("tbody", {}, ...body));
  table.firstChild.firstChild.firstChild.style.background = "none";
  find("#timeline .scroll").replaceChildren(table);
  find("#timeline .told").replaceChildren(
    ...line.sentences[state.step].map((words) => node("li", {}, words)),
  );
  keepInSight(find("#timeline .scroll"), table.querySelector("th.now"));
}
// Moves what scrolls sideways, not the page.
function keepInSight(scroller, shown) {
  const box = scroller.getBoundingClientRect(),
    own = shown.getBoundingClientRect(),
    margin = 90; // of the rows' names
  if (own.right > box.right) scroller.scrollLeft += own.right - box.right;
  if (own.left < box.left + margin) scroller.scrollLeft += own.left - box.left - margin;
}
function stepCell(cell, isNow) {
  const ends = cell.ends ? `ends-${cell.ends}` : "",
    doing = cell.doing === "free" ? "" : cell.doing;
  const words =
    cell.tile === null
      ? "free"
      : `tile ${cell.tile}: ${DOINGS[cell.doing] ?? ""} ${cell.ends ? `then ${cell.ends}` : ""}`;
  const name = cell.tile === null ? [] : [node("span", {}, String(cell.tile))];
  return node("td", { class: `${doing} ${ends} ${isNow ? "now" : ""}`, title: words }, ...name);
}
function drawTimelineKey() {
  const entry = (kind, words) => node("li", {}, node("span", { class: `swatch ${kind}` }), words);
  find("#timeline .key").replaceChildren(
    ...Object.entries(DOINGS).map(([kind, words]) => entry(kind, words)),
    entry("ends-wait", "each thread waits for its copies, then a barrier"),
    entry("ends-store", "stored from registers, then a barrier"),
  );
}
