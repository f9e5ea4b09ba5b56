"use strict";
// Parameters of one shape's trials: parallel coordinates that can be brushed, importance, pairs.
{
  const { element, figures, colour, more, hint } = autotune;
  const MOST_LINES = 300; // of trials that are drawn: more are a carpet
  const MOST_AXES = 8;
  const MOST_ROWS = 10;

  const byValue = (a, b) =>
    typeof a === "number" && typeof b === "number"
      ? a - b
      : String(a).localeCompare(String(b), "en", { numeric: true });
  const valuesOf = (rows, name) => [...new Set(rows.map((row) => row.point[name]))].sort(byValue);

  const trialColumns = () => [
    { title: "trial", number: true, value: (row) => row.id, show: (row) => autotune.trialLink(row.id) },
    { title: "time", number: true, value: (row) => row.us, show: (row) => figures.us(row.us) },
    { title: "from", value: (row) => row.origin },
    {
      title: "config",
      least: "tablet",
      value: (row) => row.brief,
      show: (row) => element("code", {}, row.brief),
    },
  ];

  // Trials, fastest first, with the parameters that differ among them in few words.
  const told = (rows, names) =>
    rows.map((row) => ({ ...row, brief: names.map((name) => `${name}=${row.point[name]}`).join(" ") }));

  const parallel = (get, updates) => {
    const briefly = (rows) =>
      told(
        rows,
        autotune.differing(
          rows.map((row) => row.point),
          get().document.order,
        ),
      );
    const chosen = {}; // parameter -> value, by keyboard
    let brushed = null; // places in what is drawn, by mouse
    let shown = [];
    let names = [];
    const compute = () => {
      const { rows, document: found } = get();
      const ok = rows
        .filter((row) => row.is_ok)
        .sort((a, b) => a.us - b.us)
        .slice(0, MOST_LINES);
      const important = found.importance.map((p) => p.name);
      const varying = autotune.differing(
        ok.map((row) => row.point),
        found.order,
      );
      names = [
        ...important.filter((name) => varying.includes(name)),
        ...varying.filter((name) => !important.includes(name)),
      ].slice(0, autotune.isNarrow() ? 4 : MOST_AXES);
      shown = ok.filter((row) =>
        Object.entries(chosen).every(([name, value]) => value === "" || String(row.point[name]) === value),
      );
      return ok;
    };
    const option = () => {
      compute();
      if (!shown.length) return null;
      const { line } = get();
      const axes = names.map((name) =>
        valuesOf(
          get().rows.filter((row) => row.is_ok),
          name,
        ).map(String),
      );
      const [fastest, slowest] = [shown[0].us, shown[shown.length - 1].us];
      return {
        parallel: {
          left: 36,
          right: 64,
          top: 44,
          bottom: 24,
          parallelAxisDefault: {
            nameTextStyle: { color: colour("text"), fontWeight: 600 },
            nameLocation: "start",
            nameGap: 14,
            axisLabel: { color: colour("faint"), fontSize: 11, hideOverlap: true },
            axisLine: { lineStyle: { color: colour("faint") } },
            inverse: true,
            areaSelectStyle: { width: 22, borderColor: colour("link"), color: colour("link"), opacity: 0.25 },
            realtime: false,
          },
        },
        parallelAxis: [
          ...names.map((name, dim) => ({ dim, name, type: "category", data: axes[dim], inverse: false })),
          {
            dim: names.length,
            name: "us",
            type: "value",
            min: fastest,
            max: Math.max(slowest, 1.001 * fastest),
            axisLabel: { formatter: (v) => Number(v.toPrecision(4)) },
          },
        ],
        visualMap: {
          show: false,
          dimension: names.length,
          min: fastest,
          max: Math.max(Math.min(slowest, 1.5 * line.best_us), 1.001 * fastest),
          inRange: { color: [colour("ours"), colour("line")] },
        },
        tooltip: { trigger: "item", formatter: ({ data }) => autotune.toldOfTrial(data.row) },
        series: [
          {
            type: "parallel",
            smooth: 0.2,
            inactiveOpacity: 0.02,
            activeOpacity: 0.9,
            lineStyle: { width: 1.4, opacity: 0.45 },
            emphasis: { lineStyle: { width: 3, opacity: 1 } },
            data: [...shown]
              .reverse()
              .map((row) => ({ value: [...names.map((name) => String(row.point[name])), row.us], row })),
          },
        ],
      };
    };
    compute();
    const table = autotune.table(
      "The fastest trials that were chosen",
      trialColumns(),
      briefly(shown.slice(0, MOST_ROWS)),
    );
    const count = element("p", { class: "hint", role: "status" });
    const tell = () => {
      const kept = brushed
        ? brushed
            .map((place) => shown[shown.length - 1 - place])
            .filter(Boolean)
            .sort((a, b) => a.us - b.us)
        : shown;
      count.textContent =
        `${figures.number(kept.length)} of the ${figures.number(Math.min(MOST_LINES, get().rows.filter((row) => row.is_ok).length))} fastest trials` +
        `${kept.length ? `; the best of them ${figures.us(kept[0].us)}` : ""}.`;
      table.update(briefly(kept.slice(0, MOST_ROWS)));
    };
    const picture = autotune.chart(
      "The fastest trials as lines over the most important parameters; drag along an axis to choose among them",
      option,
      {
        height: autotune.isNarrow() ? 280 : 340,
        name: "parallel",
        listen: (instance) => {
          instance.on("axisareaselected", () => {
            const series = instance.getModel().getSeriesByIndex(0);
            const active = series.getRawIndicesByActiveState("active");
            brushed = series.hasSelection === false || !hasAreas(instance) ? null : active;
            tell();
          });
          instance.on("click", ({ data }) => data && data.row && autotune.openTrial(data.row.id));
        },
      },
    );
    const hasAreas = (instance) =>
      instance
        .getModel()
        .queryComponents({ mainType: "parallelAxis" })
        .some((axis) => axis.activeIntervals && axis.activeIntervals.length);
    const all = get().rows.filter((row) => row.is_ok);
    const selects = names.map((name) =>
      autotune.choice(
        name,
        [["", "any"], ...valuesOf(all, name).map((value) => [String(value), String(value)])],
        "",
        (value) => {
          chosen[name] = value;
          brushed = null;
          picture.update();
          compute();
          tell();
        },
      ),
    );
    tell();
    updates.push(() => {
      if (!brushed) {
        picture.update();
        compute();
        tell();
      }
    });
    return [
      hint("Drag along an axis to keep what passes there, or choose a value. Blue is fast."),
      element("div", { class: "choices" }, selects),
      picture,
      count,
      table,
    ];
  };

  const importance = (get) => () => {
    const shown = get().document.importance.slice(0, 12).reverse();
    if (!shown.length) return null;
    return {
      height: 60 + 20 * shown.length,
      grid: { left: 8, right: 24, top: 8, bottom: 40 },
      tooltip: {
        trigger: "item",
        formatter: ({ dataIndex }) => {
          const parameter = shown[dataIndex];
          const best = Math.min(...parameter.values.map((v) => v.best_us));
          return autotune.told(
            `${parameter.name}: ${autotune.meaningOf(parameter.name)}`,
            parameter.values.map((v) => [
              String(v.value),
              `${figures.percent(best / v.best_us)} (${figures.number(v.num_trials)} trials)`,
            ]),
          );
        },
      },
      xAxis: { type: "value", name: "% of the variance of log time", min: 0 },
      yAxis: {
        type: "category",
        data: shown.map((p) => p.name),
        axisLabel: { color: colour("text") },
        splitLine: { show: false },
        axisTick: { show: false },
      },
      series: [
        {
          type: "bar",
          barWidth: 12,
          itemStyle: { color: colour("model") },
          data: shown.map((p) => 100 * p.share),
        },
      ],
    };
  };

  // The best speed at each pair of values, in percent of the best of all.
  const pairs = (get, pair) => () => {
    const ok = get().rows.filter((row) => row.is_ok);
    const [a, b] = pair();
    if (!ok.length || !a || !b) return null;
    const [xs, ys] = [valuesOf(ok, a), valuesOf(ok, b)];
    const cells = new Map();
    for (const row of ok) {
      const key = `${xs.indexOf(row.point[a])},${ys.indexOf(row.point[b])}`;
      const cell = cells.get(key) || { us: Infinity, count: 0 };
      cells.set(key, { us: Math.min(cell.us, row.us), count: cell.count + 1 });
    }
    const best = Math.min(...ok.map((row) => row.us));
    const data = [...cells].map(([key, cell]) => ({
      value: [...key.split(",").map(Number), (100 * best) / cell.us],
      cell,
    }));
    const least = Math.max(0, Math.floor(Math.min(...data.map((d) => d.value[2])) / 10) * 10);
    return {
      grid: { left: 62, right: 16, top: 8, bottom: 88 },
      tooltip: {
        trigger: "item",
        formatter: ({ data: { value, cell } }) =>
          autotune.told(`${a}=${xs[value[0]]}, ${b}=${ys[value[1]]}`, [
            ["best", figures.us(cell.us)],
            ["of the best of all", `${value[2].toFixed(1)} %`],
            ["trials", figures.number(cell.count)],
          ]),
      },
      xAxis: { type: "category", data: xs.map(String), name: a, splitLine: { show: false } },
      yAxis: { type: "category", data: ys.map(String), name: b, nameGap: 44, splitLine: { show: false } },
      visualMap: {
        min: Math.min(least, 99),
        max: 100,
        orient: "horizontal",
        left: "center",
        bottom: 0,
        itemHeight: 120,
        itemWidth: 12,
        calculable: false,
        text: ["100 % of the best", `${least} %`],
        textStyle: { color: colour("text") },
        inRange: { color: [colour("page"), colour("ours")] },
      },
      series: [
        {
          type: "heatmap",
          data,
          itemStyle: { borderColor: colour("card"), borderWidth: 1 },
          label: {
            show: data.length <= 60,
            formatter: ({ value }) => value[2].toFixed(0),
            fontSize: 10,
            color: "#101318",
            textBorderColor: "#fff",
            textBorderWidth: 2,
          },
        },
      ],
    };
  };

  const importanceAndPairs = (get, picture, slot) =>
    element(
      "div",
      { class: "halves" },
      element(
        "div",
        {},
        picture("How much of the variance of log time each parameter explains alone", importance(get), {
          name: "importance",
        }),
        hint(
          "Share of the variance of log time that lies between a parameter's values, less what chance would explain. A search tries good regions more often: a description of the trials, not a law.",
        ),
      ),
      element("div", {}, pairCards(get, picture, slot)),
    );

  const pairCards = (get, picture, slot) => {
    const found = get().document;
    const first = found.pairs[0];
    const chosen = first ? [first.first, first.second] : [];
    const names = found.importance.map((parameter) => parameter.name);
    if (chosen.length === 0) return [];
    const map = picture(
      "The best speed at each pair of values of two parameters",
      pairs(get, () => chosen),
      { height: 340, name: "pairs" },
    );
    const selects = element("div", { class: "choices" });
    const draw = () => {
      selects.replaceChildren(
        ...[0, 1].map((place) =>
          autotune.choice(
            place ? "and" : "parameters",
            names.map((name) => [name, name]),
            chosen[place],
            (name) => {
              chosen[place] = name;
              map.update();
            },
          ),
        ),
      );
    };
    draw();
    const ranking = slot(() =>
      element(
        "ol",
        { class: "pairs" },
        get()
          .document.pairs.slice(0, 6)
          .map((pair) =>
            element(
              "li",
              {},
              element(
                "button",
                {
                  type: "button",
                  click: () => {
                    [chosen[0], chosen[1]] = [pair.first, pair.second];
                    draw();
                    map.update();
                  },
                },
                `${pair.first} and ${pair.second}`,
              ),
              ` explain ${figures.percent(pair.share, 0)} together`,
            ),
          ),
      ),
    );
    return [element("h3", {}, "Pairs that explain most"), ranking, selects, map];
  };

  autotune.parameterCards = (get, updates, picture, slot, table) => {
    const open = !autotune.isNarrow();
    const { rows, document: found } = get();
    const fastest = () =>
      told(
        get()
          .rows.filter((row) => row.is_ok)
          .sort((a, b) => a.us - b.us)
          .slice(0, 20),
        autotune
          .differing(
            get()
              .rows.filter((row) => row.is_ok)
              .sort((a, b) => a.us - b.us)
              .slice(0, 20)
              .map((row) => row.point),
            get().document.order,
          )
          .slice(0, 8),
      );
    const isEnough = found.importance.length > 0;
    return [
      rows.some((row) => row.is_ok)
        ? more("Parallel coordinates", { open, name: "parallel-card" }, parallel(get, updates))
        : null,
      more(
        "Importance of parameters",
        { open, name: "importance-card" },
        isEnough
          ? importanceAndPairs(get, picture, slot)
          : hint(`Told from ${found.least_trials} timed trials on.`),
      ),
      rows.some((row) => row.is_ok)
        ? more(
            "Fastest trials, and two side by side",
            { name: "fastest" },
            autotune.compareForm(get),
            table(autotune.table("The fastest trials", trialColumns(), fastest()), fastest),
          )
        : null,
    ].filter(Boolean);
  };
}
