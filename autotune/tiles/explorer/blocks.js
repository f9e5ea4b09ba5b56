// C and its blocks, wave by wave.

const SHEET = { size: 480, strip: 16, gap: 6, shades: 9 };

function gridScale(grid) {
  const width = SHEET.size,
    height = between((width * grid.tiles_m * grid.bm) / (grid.tiles_n * grid.bn), 110, 560);
  const first = SHEET.strip + SHEET.gap;
  return { first, width, height, x: width / grid.tiles_n, y: height / grid.tiles_m };
}
function blockPath(grid, scale, blocks) {
  const seam = Math.min(scale.x, scale.y) > 5 ? 1 : 0;
  const w = (scale.x - seam).toFixed(2),
    h = (scale.y - seam).toFixed(2);
  return blocks
    .map(
      (b) =>
        `M${(scale.first + grid.column[b] * scale.x).toFixed(2)} ${(scale.first + grid.row[b] * scale.y).toFixed(2)}h${w}v${h}h-${w}z`,
    )
    .join("");
}
function waveBlocks(grid, wave) {
  const first = wave * grid.wave,
    product = productOf(grid, Math.min(first, grid.row.length - 1)),
    found = [];
  for (let b = first; b < Math.min(first + grid.wave, grid.row.length); b++) {
    if (productOf(grid, b) === product) found.push(b);
  }
  return found;
}
const productOf = (grid, block) => (grid.product.length ? grid.product[block] : 0);

function drawGrid() {
  const grid = view().grid,
    scale = gridScale(grid),
    blocks = waveBlocks(grid, state.wave);
  const { first, width, height } = scale;
  const parts = [
    draw("rect", { class: "c-sheet", x: first, y: first, width, height }),
    draw("rect", { class: "strip", x: 0, y: first, width: SHEET.strip, height }),
    draw("rect", { class: "strip", x: first, y: 0, width, height: SHEET.strip }),
    draw("path", { class: "past", d: blockPath(grid, scale, pastBlocks(grid)) }),
  ];
  const size = Math.ceil(blocks.length / SHEET.shades);
  for (let shade = 0; shade * size < blocks.length; shade++) {
    const some = blocks.slice(shade * size, (shade + 1) * size);
    parts.push(draw("path", { fill: RAMP[shade], d: blockPath(grid, scale, some) }));
  }
  parts.push(...neededStrips(grid, scale, blocks), chosenBlock(grid, scale), ...gridNames(scale));
  const drawing = figure(
    "grid",
    `C in ${grid.tiles_m} x ${grid.tiles_n} tiles`,
    first + width + 4,
    first + height + 4,
    ...parts,
  );
  drawing.addEventListener("click", (event) => chooseBlockAt(event, drawing, scale));
  drawGridKey(blocks.length);
  tellGrid(grid, blocks.length);
}
function gridNames(scale) {
  return [
    draw("text", { class: "strip-name", x: SHEET.strip / 2, y: scale.first + 12 }, "A"),
    draw("text", { class: "strip-name", x: scale.first + 9, y: 12 }, "B"),
  ];
}
function drawGridKey(shown) {
  const ramp = node("span", { class: "swatch" });
  ramp.style.width = "4.5rem";
  ramp.style.background = `linear-gradient(90deg, ${RAMP.join(",")})`;
  const entry = (kind, words) => node("li", {}, node("span", { class: `swatch ${kind}` }), words);
  find("#grid .key").replaceChildren(
    node("li", {}, ramp, `this wave, first to last of ${number(shown)}`),
    entry("done", "waves before"),
    entry("strip-needed", "of A and B, what this wave reads"),
  );
}
function pastBlocks(grid) {
  const end = Math.min(state.wave * grid.wave, grid.row.length),
    product = productOf(grid, Math.min(end, grid.row.length - 1));
  return Array.from({ length: end }, (_, b) => b).filter((b) => productOf(grid, b) === product);
}
function neededStrips(grid, scale, blocks) {
  const rows = [...new Set(blocks.map((b) => grid.row[b]))],
    columns = [...new Set(blocks.map((b) => grid.column[b]))];
  const a = rows
    .map((r) => `M2 ${scale.first + r * scale.y}h${SHEET.strip - 4}v${scale.y}h-${SHEET.strip - 4}z`)
    .join("");
  const b = columns
    .map((c) => `M${scale.first + c * scale.x} 2h${scale.x}v${SHEET.strip - 4}h-${scale.x}z`)
    .join("");
  return [draw("path", { class: "needed", d: a }), draw("path", { class: "needed", d: b })];
}
function chosenBlock(grid, scale) {
  const b = Math.min(state.block, grid.row.length - 1);
  return draw("rect", {
    class: "chosen",
    x: scale.first + grid.column[b] * scale.x,
    y: scale.first + grid.row[b] * scale.y,
    width: Math.max(scale.x, 3),
    height: Math.max(scale.y, 3),
  });
}
function chooseBlockAt(event, drawing, scale) {
  const grid = view().grid,
    box = drawing.getBoundingClientRect();
  const unit = (scale.first + scale.width + 4) / box.width;
  const column = Math.floor(((event.clientX - box.left) * unit - scale.first) / scale.x);
  const row = Math.floor(((event.clientY - box.top) * unit - scale.first) / scale.y);
  const inWave = waveBlocks(grid, state.wave).find((b) => grid.row[b] === row && grid.column[b] === column);
  const block = inWave ?? grid.row.findIndex((r, b) => r === row && grid.column[b] === column);
  if (block >= 0) change({ block, wave: Math.floor(block / grid.wave) });
}
function tellGrid(grid, shown) {
  const first = state.wave * grid.wave,
    [rows, columns] = grid.needed[state.wave] ?? [0, 0];
  text(
    "#grid .say",
    `${number(grid.num_blocks)} blocks of ${grid.bm} x ${grid.bn} for C of ${number(grid.m)} x ${number(grid.n)}. ${grid.order}`,
  );
  const b = state.block,
    split = grid.split.length ? `, split ${grid.split[b]}` : "";
  told(
    "#grid .told",
    "Wave ",
    [`${state.wave + 1} of ${grid.num_waves}`],
    `: the GPU holds ${number(grid.wave)} blocks at a time, from block ${number(first)} on here${shown < grid.wave ? ` (${number(shown)} of them)` : ""}. `,
    "They need ",
    [counted(rows, "row")],
    " of A's tiles and ",
    [counted(columns, "column")],
    ` of B's. Block ${number(b)}: rows from ${number(grid.row[b] * grid.bm)}, columns from ${number(grid.column[b] * grid.bn)}${split}.`,
  );
}
