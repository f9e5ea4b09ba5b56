"use strict";
// The page of an exported table: maps over m, n and k.
{
  const { element, figures, colour, chart, card, more, tiles, hint } = autotune;
  // How much of the colour of ours the kernels have that serve the most cells, so that neighbours by rank differ.
  const SHADES = [1, 0.4, 0.75, 0.25, 0.9, 0.55];
  const PALEST = 0.12; // of all others
  const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  const view = { layout: null, depth: null };

  const read = (column, at) => {
    if (Array.isArray(column)) return column[at];
    return "all" in column ? column.all : column.values[column.rows[at]];
  };

  // Of these sizes, powers of two, the one that is nearest by the logarithm.
  const nearest = (sizes, value) =>
    sizes.reduce((a, b) => (Math.abs(Math.log(b / value)) < Math.abs(Math.log(a / value)) ? b : a));

  // The map to begin with: the layout and k that have the most tuned shapes nearby.
  const beginning = (found) => {
    const counts = new Map();
    for (const { k, layout } of found.tuned) {
      const place = `${layout} ${nearest(found.depths, k)}`;
      counts.set(place, (counts.get(place) || 0) + 1);
    }
    const middle = found.depths[Math.floor(found.depths.length / 2)];
    const [most] = [...counts].sort((a, b) => b[1] - a[1])[0] || [`NN ${middle}`];
    const [layout, depth] = most.split(" ");
    return { layout, depth: Number(depth) };
  };

  // Cells of one layout and depth, and whether a shape near them was tuned: { m, n, row, column, kernel, provider, ... }.
  const cellsOf = (found, layout, depth) => {
    const size = found.sides.length;
    const from = found.depths.indexOf(depth) * size * size;
    const columns = Object.entries(found.layouts[layout]);
    const near = found.tuned
      .filter((one) => one.layout === layout && nearest(found.depths, one.k) === depth)
      .map(({ m, n }) => `${nearest(found.sides, m)}x${nearest(found.sides, n)}`);
    const tuned = new Set(near);
    return Array.from({ length: size * size }, (_, at) => ({
      m: found.sides[Math.floor(at / size)],
      n: found.sides[at % size],
      row: Math.floor(at / size),
      column: at % size,
      isTuned: tuned.has(`${found.sides[Math.floor(at / size)]}x${found.sides[at % size]}`),
      ...Object.fromEntries(columns.map(([name, values]) => [name, read(values, from + at)])),
    }));
  };

  // Kernels of these cells by how many they serve, each with a letter and, the first ones, a colour.
  const namedKernels = (found, cells) => {
    const counts = new Map();
    for (const cell of cells) {
      if (cell.provider !== "cublas") counts.set(cell.kernel, (counts.get(cell.kernel) || 0) + 1);
    }
    const sorted = [...counts].sort((a, b) => b[1] - a[1]);
    return new Map(
      sorted.map(([kernel, count], at) => [
        kernel,
        { ...found.kernels[kernel], count, letter: LETTERS[at] || "*", shade: SHADES[at] || PALEST },
      ]),
    );
  };

  const tellCell = (found, depth) => (cell) =>
    autotune.told(`${cell.m}x${cell.n}x${depth}:${view.layout}`, [
      ["served by", cell.provider === "cublas" ? "cuBLAS" : found.kernels[cell.kernel].config],
      ["matched", `${cell.how}, ${cell.split_k} splits`],
      ["expected", figures.us(cell.us)],
      ["cuBLAS", figures.us(cell.cublas_us)],
      ["kernel against cuBLAS", figures.times(cell.cublas_us && cell.us ? cell.cublas_us / cell.us : null)],
      ["of the limit", figures.percent(cell.us ? cell.limit_us / cell.us : null)],
      ["model is off by", figures.percent(cell.error)],
      ["may lose", figures.percent(cell.risk)],
    ]);

  // A map: one rectangle for each cell, in the colour and with the text that it is given.
  const map = (found, cells, paint, text, depth) => () => ({
    grid: { left: 56, right: 10, top: 8, bottom: 46 },
    tooltip: { trigger: "item", formatter: ({ dataIndex }) => tellCell(found, depth())(cells()[dataIndex]) },
    xAxis: { type: "category", data: found.sides.map(String), name: "n", splitLine: { show: false } },
    yAxis: {
      type: "category",
      data: found.sides.map(String),
      name: "m",
      nameGap: 42,
      splitLine: { show: false },
    },
    series: [
      {
        type: "custom",
        data: cells().map((cell) => [cell.column, cell.row]),
        renderItem: ({ dataIndex }, api) => {
          const cell = cells()[dataIndex];
          const [x, y] = api.coord([cell.column, cell.row]);
          const [width, height] = api.size([1, 1]);
          const shape = {
            x: x - width / 2 + 0.5,
            y: y - height / 2 + 0.5,
            width: width - 1,
            height: height - 1,
          };
          const label = text(cell);
          return {
            type: "rect",
            shape,
            style: { fill: paint(cell), stroke: colour("text"), lineWidth: cell.isTuned ? 2 : 0 },
            textContent: label
              ? {
                  style: { text: label, fill: colour("text"), fontSize: 10, stroke: colour("card"), lineWidth: 2 },
                }
              : undefined,
            textConfig: { position: "inside" },
          };
        },
      },
    ],
  });

  const between = (low, high, value) => Math.min(1, Math.max(0, (value - low) / (high - low)));

  // From slower than cuBLAS over as fast to faster, by the logarithm.
  const speedPaint = (cell) => {
    if (!cell.us || !cell.cublas_us) return colour("line");
    const twice = Math.log2(cell.cublas_us / cell.us);
    const end = twice > 0 ? "ours" : "cublas";
    return echarts.color.lerp(between(0, 1, Math.abs(twice)), [colour("page"), colour(end)]);
  };
  const riskPaint = (cell) =>
    cell.risk === null
      ? colour("line")
      : echarts.color.lerp(between(0, 0.25, cell.risk), [colour("page"), colour("text")]);

  // What colours mean, as a bar with words at its ends.
  const scale = (colours, words) =>
    element(
      "div",
      { class: "scale" },
      element("span", {}, words[0]),
      element("span", {
        class: "ramp",
        style: `background: linear-gradient(to right, ${colours.map((name) => `var(--${name})`).join(", ")})`,
      }),
      element("span", {}, words[1]),
    );

  const coverage = (found) => {
    const cells = found.depths.flatMap((depth) => cellsOf(found, view.layout, depth));
    const share = (is) => figures.percent(cells.filter(is).length / cells.length, 0);
    const risks = cells.map((cell) => cell.risk).filter((risk) => risk !== null);
    const all = found.left_out.find((group) => group.group === "all");
    return tiles([
      [
        "kernels",
        figures.number(found.kernels.length),
        `${new Set(cells.map((c) => c.kernel)).size} serve ${view.layout}`,
      ],
      [
        "modelled",
        share((cell) => cell.how === "modelled"),
        `${share((cell) => cell.how === "exact")} exact`,
      ],
      ["by cuBLAS", share((cell) => cell.provider === "cublas"), "of the cells of all k"],
      risks.length
        ? [
            "may lose",
            figures.percent(risks.reduce((a, b) => a + b, 0) / risks.length),
            "on the mean, by the models' own errors",
          ]
        : null,
      all
        ? ["does lose", figures.percent(1 - all.pick), `on ${figures.counted(all.num_shapes, "shape")} that were left out`]
        : null,
    ]);
  };

  const kernelTable = (named) =>
    autotune.table(
      "Kernels of the map",
      [
        { title: "on the map", value: (k) => k.letter },
        { title: "cells", number: true, value: (k) => k.count },
        { title: "kernel", value: (k) => k.config, show: (k) => element("code", {}, k.config) },
        { title: "model off by", number: true, value: (k) => k.error, show: (k) => figures.percent(k.error) },
        { title: "timed on shapes", number: true, least: "tablet", value: (k) => k.num_samples },
        { title: "registers", number: true, least: "tablet", value: (k) => k.registers },
        { title: "blocks per SM", number: true, least: "desktop", value: (k) => k.blocks_per_sm },
      ],
      named,
    );

  // Of the best known speed: what the pick loses is a part of what the choice of kernels leaves.
  const lost = (group, key) => (key === "pick" ? group.portfolio * (1 - group.pick) : 1 - group.portfolio);

  const leftOut = (groups) => () => ({
    height: 70 + 24 * groups.length,
    grid: { left: 12, right: 20, top: 30, bottom: 40 },
    legend: { data: ["lost by the pick", "lost by the choice of kernels"] },
    tooltip: {
      trigger: "axis",
      axisPointer: { type: "shadow" },
      formatter: ([{ dataIndex }]) => {
        const group = [...groups].reverse()[dataIndex];
        return autotune.told(`${group.group}, ${figures.counted(group.num_shapes, "shape")}`, [
          ["lost by the choice of kernels", figures.percent(1 - group.portfolio)],
          ["lost by the pick", figures.percent(1 - group.pick)],
          ["by the best of the first four", figures.percent(1 - group.first)],
          group.cublas ? ["as served, against cuBLAS", figures.times(group.cublas.served)] : null,
          group.cublas ? ["served by cuBLAS", figures.percent(group.cublas.by_cublas)] : null,
          group.cublas ? ["slower than cuBLAS", figures.percent(group.cublas.served_slower)] : null,
        ]);
      },
    },
    xAxis: { type: "value", name: "% of speed lost", min: 0 },
    yAxis: autotune.categories(groups.map((group) => group.group).reverse()),
    series: [
      ["lost by the pick", "pick", 1],
      ["lost by the choice of kernels", "portfolio", 0.45],
    ].map(([name, key, opacity]) => ({
      name,
      type: "bar",
      stack: "lost",
      barWidth: 12,
      itemStyle: { color: colour("faint"), opacity },
      data: groups.map((group) => 100 * lost(group, key)).reverse(),
    })),
  });

  const served = (rows) =>
    autotune.table(
      "Shapes of the database",
      [
        {
          title: "shape",
          value: (s) => s.shape,
          show: (s) => element("a", { href: `#/shape/${s.study}` }, s.shape),
        },
        { title: "served by", value: (s) => (s.cell.provider === "cublas" ? "cuBLAS" : s.cell.kernel) },
        { title: "matched", least: "tablet", value: (s) => s.cell.how },
        { title: "measured", number: true, value: (s) => s.picked_us, show: (s) => figures.us(s.picked_us) },
        {
          title: "best known",
          number: true,
          least: "tablet",
          value: (s) => s.best_us,
          show: (s) => figures.us(s.best_us),
        },
        { title: "regret", number: true, value: (s) => s.regret, show: (s) => figures.percent(s.regret) },
      ],
      rows,
    );

  // What is drawn of the chosen layout and depth: computed anew when another is chosen.
  const chosenCells = (found) => {
    const chosen = {};
    chosen.compute = () => {
      chosen.cells = cellsOf(found, view.layout, view.depth);
      chosen.named = namedKernels(found, chosen.cells);
    };
    chosen.compute();
    return chosen;
  };

  const servesMap = (make, chosen) => {
    const kernelOf = (cell) => chosen.named.get(cell.kernel);
    const isCublas = (cell) => cell.provider === "cublas";
    const shaded = (share) => echarts.color.lerp(share, [colour("card"), colour("ours")]);
    const made = make(
      "serves",
      "Which kernel serves each m and n",
      (cell) => (isCublas(cell) ? colour("cublas") : shaded(kernelOf(cell).shade)),
      (cell) => (isCublas(cell) ? "•" : kernelOf(cell).letter),
    );
    const text =
      "A letter for each kernel, a shade for those that serve the most. Red with a dot: cuBLAS serves. A frame: tuned there.";
    return [made, card("Which kernel serves what", {}, made, hint(text))];
  };

  const speedMap = (make) => {
    const label = "How fast kernels are expected to be against cuBLAS";
    const made = make("speed", label, speedPaint, (cell) => (cell.provider === "cublas" ? "•" : ""));
    const colours = scale(["cublas", "page", "ours"], ["half as fast", "twice as fast"]);
    const text =
      "The kernel's expected time; a dot where cuBLAS serves, because no kernel is predicted to be clearly faster.";
    return [made, card("Against cuBLAS", {}, made, colours, hint(text))];
  };

  const riskMap = (make, found) => {
    const made = make("risk", "What the pick may lose, by the errors of the models", riskPaint, () => "");
    const colours = scale(["page", "text"], ["loses nothing", "may lose 25 % and more"]);
    const text = hint(
      `How much slower the pick is than the best of the first ${found.num_first} launches, if each kernel is off `,
      "by its model's own error, independently. Errors go together, so the truth is less.",
    );
    return [made, card("Where the model is unsure", {}, made, colours, text)];
  };

  const leftOutCard = (groups) =>
    card(
      "Shapes that were left out",
      {},
      chart("Speed lost on shapes left out, by group", leftOut(groups), { name: "left-out" }),
      hint("Measured when the table was exported: against the best of all kernels that were timed."),
    );

  // The choice of layout and k; `redraw` is called for another.
  const controls = (found, redraw) => {
    const told = element("output", {}, String(view.depth));
    const slide = ({ target }) => {
      view.depth = found.depths[Number(target.value)];
      target.setAttribute("aria-valuetext", String(view.depth));
      told.textContent = view.depth;
      redraw();
    };
    const slider = element("input", {
      type: "range",
      id: "depth",
      min: 0,
      max: found.depths.length - 1,
      step: 1,
      value: found.depths.indexOf(view.depth),
      "aria-valuetext": String(view.depth),
      input: slide,
    });
    const layouts = Object.keys(found.layouts).map((layout) => [layout, layout]);
    const choose = (layout) => {
      view.layout = layout;
      redraw();
    };
    return element(
      "div",
      { class: "choices" },
      autotune.choice("layout", layouts, view.layout, choose),
      element("label", { class: "choice" }, element("span", {}, "k"), slider, told),
    );
  };

  autotune.drawTable = (main) => {
    const found = autotune.tableMaps;
    if (view.depth === null) Object.assign(view, beginning(found));
    const chosen = chosenCells(found);
    const depth = () => view.depth;
    const height = autotune.isNarrow() ? 340 : 430;
    const make = (name, label, paint, text) =>
      chart(
        label,
        map(found, () => chosen.cells, paint, text, depth),
        { height, name },
      );
    const drawn = [servesMap(make, chosen), speedMap(make), riskMap(make, found)];
    const facts = element("div", {}, coverage(found));
    const kernels = kernelTable([...chosen.named.values()]);
    const redraw = () => {
      chosen.compute();
      facts.replaceChildren(coverage(found));
      kernels.update([...chosen.named.values()]);
      drawn.forEach(([picture]) => picture.update());
    };
    main.append(
      ...[
        element("h1", {}, `Table: ${found.folder}`),
        autotune.recordedNote(found),
        found.other_gpus.length
          ? hint(`For ${found.gpu}. The folder also holds the tables for ${found.other_gpus.join(", ")}, in kinds/.`)
          : null,
        facts,
        controls(found, redraw),
        ...drawn.map(([, made]) => made),
        found.left_out.length ? leftOutCard(found.left_out) : null,
        found.served.length
          ? more("Shapes of the database", { open: true, name: "served" }, served(found.served))
          : null,
        more("Kernels of this layout and k", { name: "kernels" }, kernels),
      ].filter(Boolean),
    );
    return null;
  };
}
