// One instruction of a warp: where its lanes ask, in banks or in lines, and what serves them.

const LANE_CELL = { size: 26, height: 20, left: 58, top: 18 };

function drawGroups() {
  find("#accesses .groups").replaceChildren(
    ...view().accesses.map((group, i) => {
      const choice = node("input", { type: "radio", name: "group", value: i });
      choice.checked = i === state.group;
      choice.addEventListener("change", () => change({ group: i, instruction: 0 }));
      return node("label", {}, choice, group.title);
    }),
  );
}
function drawAccess() {
  const group = view().accesses[state.group],
    at = group.at[state.instruction];
  keepInSight(find("#accesses .groups"), find("#accesses .groups :checked").parentNode);
  const isShared = group.space === "shared";
  text("#accesses .say", `${group.text} (kernels/${group.where})`);
  text(
    "#accesses .which",
    `${group.labels[state.instruction]} (a block has ${number(group.num_instructions)})`,
  );
  told("#accesses .told", ...accessSentence(group));
  const rows = [...new Set(at.filter((a) => a >= 0).map((a) => Math.floor(a / COLUMNS)))].sort(
    (a, b) => a - b,
  );
  const width = LANE_CELL.left + COLUMNS * LANE_CELL.size,
    parts = [...columnNames(isShared)];
  rows.forEach((row, i) =>
    parts.push(...memoryRow(group, at, row, LANE_CELL.top + i * (LANE_CELL.height + 3))),
  );
  const label = isShared ? "Banks of shared memory, by row" : "Lines of global memory";
  figure("accesses", label, width + 2, LANE_CELL.top + rows.length * (LANE_CELL.height + 3) + 2, ...parts);
  drawAccessKey(group);
  tellLane(group, at);
}
function columnNames(isShared) {
  const made = [
    draw("text", { class: "row-name", x: LANE_CELL.left - 6, y: 8 }, isShared ? "bank" : "float"),
  ];
  for (let column = 0; column < COLUMNS; column += 4) {
    made.push(
      draw(
        "text",
        { class: "axis", x: LANE_CELL.left + (column + 0.5) * LANE_CELL.size, y: 11 },
        String(column),
      ),
    );
  }
  return made;
}
function memoryRow(group, at, row, y) {
  const x = (column) => LANE_CELL.left + column * LANE_CELL.size;
  const made = [
    draw(
      "text",
      { class: "row-name", x: LANE_CELL.left - 6, y: y + LANE_CELL.height / 2 },
      number(row * COLUMNS),
    ),
  ];
  const lanes = at
    .map((a, lane) => ({ a, lane }))
    .filter(({ a }) => a >= 0 && Math.floor(a / COLUMNS) === row);
  const touched = new Set(lanes.map(({ a }) => Math.floor((a % COLUMNS) / SECTOR)));
  for (let column = 0; column < COLUMNS; column++) {
    const isTouched = group.space === "global" && touched.has(Math.floor(column / SECTOR));
    made.push(
      draw("rect", {
        class: isTouched ? "empty sector" : "empty",
        x: x(column),
        y,
        width: LANE_CELL.size,
        height: LANE_CELL.height,
      }),
    );
  }
  for (const a of new Set(lanes.map((entry) => entry.a))) {
    made.push(
      ...laneCell(
        group,
        lanes.filter((entry) => entry.a === a).map((entry) => entry.lane),
        x(a % COLUMNS),
        y,
      ),
    );
  }
  if (group.space === "global") {
    for (let column = 0; column <= COLUMNS; column += SECTOR) {
      made.push(
        draw("line", {
          class: "sector-edge",
          x1: x(column),
          x2: x(column),
          y1: y - 1,
          y2: y + LANE_CELL.height + 1,
        }),
      );
    }
  }
  return made;
}
function laneCell(group, lanes, x, y) {
  const wave = group.space === "shared" ? group.served[state.instruction][lanes[0]] : 0;
  const most = group.space === "shared" ? group.wavefronts[state.instruction] : 1;
  const color = waveColor(wave, most),
    width = group.vec * LANE_CELL.size;
  const box = draw(
    "rect",
    {
      class: `cell ${lanes.includes(state.lane) ? "on" : ""}`,
      x,
      y,
      width,
      height: LANE_CELL.height,
      rx: 3,
      fill: color.fill,
    },
    draw("title", {}, `lane ${lanes.join(", ")}`),
  );
  box.addEventListener("pointerenter", () =>
    change({ lane: lanes.includes(state.lane) ? state.lane : lanes[0] }),
  );
  const words =
    lanes.length > 1 && group.vec > 1
      ? laneRange(lanes)
      : lanes.length > 1
        ? `${lanes[0]}+`
        : String(lanes[0]);
  return [
    box,
    draw(
      "text",
      { class: "cell-name", x: x + width / 2, y: y + LANE_CELL.height / 2, style: `fill:${color.ink}` },
      words,
    ),
  ];
}
function laneRange(lanes) {
  const found = runs(lanes).map((run) =>
    run.size > 1 ? `${run.first}–${run.first + run.size - 1}` : `${run.first}`,
  );
  return found.length > 3 ? `${lanes[0]}+` : found.join(",");
}
function waveColor(wave, most) {
  const shade = most > 1 ? Math.round((wave * (RAMP.length - 1)) / (most - 1)) : ONLY;
  return { fill: RAMP[shade], ink: shade > 4 ? "#111" : "#fff" };
}
function drawAccessKey(group) {
  const swatch = (fill, words, name = "") => {
    const box = node("span", { class: "swatch" }, name);
    box.style.background = fill;
    return node("li", {}, box, words);
  };
  const key = find("#accesses .key");
  if (group.space === "global") {
    key.replaceChildren(
      swatch(RAMP[ONLY], "asked for (number: the lane)"),
      swatch("var(--soft)", "moved: a sector is 32 bytes"),
      swatch("var(--ground)", "not touched"),
    );
    return;
  }
  const most = group.wavefronts[state.instruction],
    shown = Array.from({ length: Math.min(most, 8) }, (_, i) =>
      Math.round((i * (most - 1)) / Math.max(Math.min(most, 8) - 1, 1)),
    );
  key.replaceChildren(...shown.map((wave) => swatch(waveColor(wave, most).fill, `wavefront ${wave + 1}`)));
}
function accessSentence(group) {
  const i = state.instruction,
    lanes = group.at[i].filter((a) => a >= 0).length;
  const asked = `${lanes} lanes ask for ${number(lanes * group.vec * 4)} bytes, ${group.vec * 4} each: `;
  if (group.space === "global")
    return [
      asked,
      [counted(group.sectors[i], "sector")],
      " in ",
      [counted(group.lines[i], "line")],
      ` of 128 bytes.`,
    ];
  const more = group.conflicts[i];
  return [
    asked,
    [counted(group.wavefronts[i], "wavefront")],
    more ? ", of which " : ", ",
    more ? [`${more} ${more === 1 ? "is a bank conflict" : "are bank conflicts"}`] : ["no bank conflict"],
    ".",
  ];
}
function tellLane(group, at) {
  const a = at[state.lane];
  if (a < 0) return told("#accesses .lanes-told", [`Lane ${state.lane}`], " asks for nothing here.");
  const where =
    group.space === "shared"
      ? `float ${number(a)} of shared memory, bank ${a % COLUMNS}${group.vec > 1 ? `–${(a % COLUMNS) + group.vec - 1}` : ""}; served by wavefront ${group.served[state.instruction][state.lane] + 1}.`
      : `bytes ${number(a * 4)}–${number((a + group.vec) * 4 - 1)} from where the tile begins.`;
  told("#accesses .lanes-told", [`Lane ${state.lane}`], `: ${where}`);
}
