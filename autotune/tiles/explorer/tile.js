// A block's tile: its warps, and what a lane owns and reads.

const TILE = { size: 400, side: 76, gap: 10, top: 16 };

function tileScale(tile) {
  const wide = tile.bn >= tile.bm;
  const width = wide ? TILE.size : between((TILE.size * tile.bn) / tile.bm, 130, TILE.size);
  const height = wide ? between((TILE.size * tile.bm) / tile.bn, 130, TILE.size) : TILE.size;
  const middle = (TILE.size - width) / 2; // a narrow tile stands in the middle
  return {
    from: 12 + middle,
    left: TILE.side + TILE.gap + 12 + middle,
    top: TILE.side + TILE.gap + TILE.top,
    width,
    height,
    x: width / tile.bn,
    y: height / tile.bm,
  };
}
function drawTile() {
  const tile = view().tile,
    scale = tileScale(tile),
    warp = tile.warps[state.warp];
  const parts = [
    ...operandSheets(tile, scale),
    ...warpSheets(tile, scale),
    ...laneChunks(tile, scale, warp),
    ...laneReads(tile, scale, warp),
  ];
  figure(
    "tile",
    `Tile of ${tile.bm} x ${tile.bn} with ${tile.warps.length} warps`,
    scale.left + TILE.size + 6,
    scale.top + scale.height + 6,
    ...parts,
  );
  tellTile(tile, warp);
}
function operandSheets(tile, scale) {
  const sheet = (x, y, width, height, words) => [
    draw("rect", { class: "operand", x, y, width, height }),
    draw("text", { class: "axis", x: x + width / 2, y: y - 5 }, words),
  ];
  const { left, top, width, height } = scale;
  return [
    ...sheet(left, TILE.top, width, TILE.side, `B: ${tile.bk} x ${tile.bn}`),
    ...sheet(scale.from, top, TILE.side, height, `A: ${tile.bm} x ${tile.bk}`),
  ];
}
function warpSheets(tile, scale) {
  return tile.warps.flatMap((warp, w) => {
    if (warp.slice !== tile.warps[state.warp].slice) return [];
    const x = scale.left + warp.n * scale.x,
      y = scale.top + warp.m * scale.y;
    const width = Math.min(tile.wn, tile.bn) * scale.x,
      height = Math.min(tile.wm, tile.bm) * scale.y;
    const box = draw(
      "rect",
      { class: w === state.warp ? "warp on" : "warp", x, y, width, height },
      draw("title", {}, `warp ${w}`),
    );
    box.addEventListener("click", () => change({ warp: w }));
    const isNamed = w !== state.warp && width > 13 && height > 11;
    const name = draw("text", { class: "warp-name", x: x + width / 2, y: y + height / 2 }, String(w));
    return isNamed ? [box, name] : [box];
  });
}
// A lane's elements as runs of neighbours, in rows and in columns.
function runs(positions) {
  const found = [];
  for (const at of positions) {
    const last = found[found.length - 1];
    if (last && last.first + last.size === at) last.size += 1;
    else found.push({ first: at, size: 1 });
  }
  return found;
}
function laneChunks(tile, scale, warp) {
  const made = [];
  for (let lane = 0; lane < tile.rows.length; lane++) {
    for (const down of runs(tile.rows[lane]))
      for (const across of runs(tile.columns[lane])) {
        const box = draw(
          "rect",
          {
            class: lane === state.lane ? "chunk on" : "chunk",
            x: scale.left + (warp.n + across.first) * scale.x,
            y: scale.top + (warp.m + down.first) * scale.y,
            width: across.size * scale.x,
            height: down.size * scale.y,
          },
          draw("title", {}, `lane ${lane}`),
        );
        box.addEventListener("pointerenter", () => change({ lane }));
        made.push(box);
      }
  }
  return made;
}
function laneReads(tile, scale, warp) {
  const share = TILE.side / tile.slices,
    at = warp.slice * share,
    made = [];
  for (const down of runs(tile.rows[state.lane])) {
    const y = scale.top + (warp.m + down.first) * scale.y,
      height = down.size * scale.y;
    made.push(draw("rect", { class: "read", x: scale.from + at, y, width: share, height }));
    made.push(
      draw("rect", {
        class: "beam",
        x: scale.from + TILE.side,
        y,
        width: scale.left - scale.from - TILE.side + warp.n * scale.x,
        height,
      }),
    );
  }
  for (const across of runs(tile.columns[state.lane])) {
    const x = scale.left + (warp.n + across.first) * scale.x,
      width = across.size * scale.x;
    made.push(draw("rect", { class: "read", x, y: TILE.top + at, width, height: share }));
    made.push(
      draw("rect", {
        class: "beam",
        x,
        y: TILE.top + TILE.side,
        width,
        height: scale.top - TILE.top - TILE.side + warp.m * scale.y,
      }),
    );
  }
  for (const box of made) box.setAttribute("pointer-events", "none");
  return made;
}
function tellTile(tile, warp) {
  const [down, across, along] = tile.lanes;
  const stand =
    along > 1
      ? `the ${along} lanes of a warp share out k and hold the same elements`
      : `the lanes of a warp stand ${down} x ${across}`;
  const slices =
    tile.slices > 1 ? ` ${tile.slices} slices of warps compute the same tile, each with its part of k.` : "";
  text(
    "#tile .say",
    `${tile.threads} threads in ${tile.warps.length} warps of ${tile.wm} x ${tile.wn}; ${stand}, with ${tile.tm} x ${tile.tn} elements each.${slices}`,
  );
  const span = (first, positions) =>
    runs(positions)
      .map((r) => (r.size > 1 ? `${first + r.first}–${first + r.first + r.size - 1}` : `${first + r.first}`))
      .join(", ");
  told(
    "#tile .told",
    [`Lane ${state.lane}`],
    ` of warp ${state.warp}${tile.slices > 1 ? ` (slice ${warp.slice})` : ""}: rows `,
    [span(warp.m, tile.rows[state.lane])],
    " and columns ",
    [span(warp.n, tile.columns[state.lane])],
    ". For each k it reads these of A and of B, and multiplies each by each.",
  );
}
