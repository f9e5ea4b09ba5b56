// What is shown, and how it changes: by the inputs, the mouse, the keyboard, the address.

const DRAWN = {
  grid: [drawGrid, ["view", "wave", "block"]],
  tile: [drawTile, ["view", "warp", "lane"]],
  timeline: [drawTimeline, ["view", "step"]],
  groups: [drawGroups, ["view"]],
  accesses: [drawAccess, ["view", "group", "instruction", "lane"]],
  counts: [drawCounts, ["view"]],
  resources: [drawResources, ["view"]],
  parameters: [drawParameters, ["view"]],
};
const INPUTS = {
  wave: "#grid .wave",
  block: "#grid .block",
  warp: "#tile input.warp",
  lane: "#tile .lane",
  step: "#timeline .step",
  instruction: "#accesses .instruction",
};

// The most that each part of the state may be, in the kernel that is shown.
function bounds() {
  const { grid, tile, timeline, accesses } = view();
  const group = accesses[Math.min(state.group, accesses.length - 1)];
  return {
    wave: Math.ceil(grid.row.length / grid.wave) - 1,
    block: grid.row.length - 1,
    warp: tile.warps.length - 1,
    lane: LANES - 1,
    step: Math.max(timeline.steps.length - 1, 0),
    group: accesses.length - 1,
    instruction: group.at.length - 1,
  };
}
// The first instruction that is drawn of a warp; as it is, where none is.
function firstOfWarp(warp) {
  const found = view().accesses[state.group].labels.findIndex((label) => label.startsWith(`warp ${warp},`));
  return found < 0 ? state.instruction : found;
}
function change(asked) {
  const before = { ...state };
  Object.assign(state, asked);
  state.view = between(Math.trunc(state.view) || 0, 0, data.views.length - 1);
  const isDrawn = view().broken.length === 0;
  if (isDrawn) {
    state.group = between(Math.trunc(state.group) || 0, 0, view().accesses.length - 1);
    for (const [name, most] of Object.entries(bounds()))
      state[name] = between(Math.trunc(state[name]) || 0, 0, most);
    if ("wave" in asked && !("block" in asked)) state.block = state.wave * view().grid.wave;
    if ("warp" in asked && !("instruction" in asked)) state.instruction = firstOfWarp(state.warp);
    if ("block" in asked) state.wave = Math.floor(state.block / view().grid.wave);
  }
  const changed = Object.keys(state).filter((name) => state[name] !== before[name]);
  if (changed.length) show(changed, isDrawn);
}
function show(changed, isDrawn) {
  if (changed.includes("view")) showHead(isDrawn);
  if (isDrawn) {
    for (const [name, most] of Object.entries(bounds()))
      if (INPUTS[name]) Object.assign(find(INPUTS[name]), { max: most, value: state[name] });
    for (const [redraw, names] of Object.values(DRAWN))
      if (names.some((name) => changed.includes(name))) redraw();
  } else if (changed.includes("view")) drawParameters();
  history.replaceState(null, "", `#${REMEMBERED.map((name) => `${name}=${state[name]}`).join("&")}`);
}
function showHead(isDrawn) {
  const own = view();
  find("#view").value = state.view;
  text("#adds", own.adds ? `${own.adds[0].toUpperCase()}${own.adds.slice(1)}.` : "");
  text("#on", `${own.shape} on ${own.gpu}`);
  find("#before").disabled = state.view === 0;
  find("#after").disabled = state.view === data.views.length - 1;
  find("#broken").hidden = isDrawn;
  for (const name of ["grid", "tile", "timeline", "accesses", "counts", "resources"])
    find(`#${name}`).hidden = !isDrawn;
  find("#broken ul").replaceChildren(
    ...own.broken.map((rule) =>
      node(
        "li",
        {},
        `${rule.sentence} `,
        node("span", { class: "quiet" }, `(rule ${rule.id}, ${rule.kind})`),
      ),
    ),
  );
}
// A button that moves a part of the state on by itself, and begins again behind its end.
function player(section, name, pause) {
  const button = find(`#${section} .play`);
  let timer = null;
  const stop = () => {
    clearInterval(timer);
    timer = null;
    button.setAttribute("aria-pressed", "false");
    button.textContent = "Play";
  };
  button.addEventListener("click", () => {
    if (timer) return stop();
    button.setAttribute("aria-pressed", "true");
    button.textContent = "Pause";
    timer = setInterval(() => change({ [name]: state[name] >= bounds()[name] ? 0 : state[name] + 1 }), pause);
  });
  find("#view").addEventListener("change", stop);
}
function begin() {
  const named = new Map();
  data.views.forEach((v, i) => {
    if (!named.has(v.family)) named.set(v.family, node("optgroup", { label: v.family }));
    named.get(v.family).append(node("option", { value: i }, v.name));
  });
  find("#view").append(...named.values());
  find("#view").addEventListener("change", (event) => change({ view: Number(event.target.value) }));
  find("#before").addEventListener("click", () => change({ view: state.view - 1 }));
  find("#after").addEventListener("click", () => change({ view: state.view + 1 }));
  for (const [name, selector] of Object.entries(INPUTS))
    find(selector).addEventListener("input", (event) => change({ [name]: Number(event.target.value) }));
  document.addEventListener("keydown", (event) => {
    if (event.target.matches("input, select, textarea") || event.ctrlKey || event.altKey || event.metaKey)
      return;
    if (event.key === "n") change({ view: state.view + 1 });
    if (event.key === "p") change({ view: state.view - 1 });
  });
  player("grid", "wave", 700);
  player("timeline", "step", 900);
  document.querySelectorAll("section:has(figure)").forEach(pngButton);
  followTheme(() => {}).restore();
  drawTimelineKey();
  text("footer", data.foot);
  const asked = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const remembered = Object.fromEntries(
    REMEMBERED.filter((name) => name in asked).map((name) => [name, Number(asked[name])]),
  );
  state.view = NaN; // nothing is shown yet
  change({ view: 0, ...remembered });
  document.body.dataset.ready = "drawn";
}
begin();
