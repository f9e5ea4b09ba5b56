"use strict";
// The history of a shape's search: trials and the best so far, near the optimum or whole; below, what failed.
{
  const { element, figures, colour, chart, card } = autotune;
  const NEAR = [
    ["1.1", "within 1.1x"],
    ["1.35", "within 1.35x"],
    ["3", "within 3x"],
    ["", "all"],
  ];
  const OVER = [
    ["number", "trials"],
    ["s", "seconds"],
  ];
  const RUG = 14; // pixels per outcome of trials that failed
  const SCALES = [
    ["", "linear"],
    ["log", "logarithmic"],
  ];
  const view = { near: "1.35", by: "number", scale: "" }; // kept from shape to shape

  // Up to which time trials are drawn: so many times the best, cuBLAS within it where it is not far.
  const ceiling = (study) => {
    if (!view.near || !study.best_us) return null;
    const most = Number(view.near) * study.best_us;
    return study.cublas_us && study.cublas_us < 1.6 * most ? Math.max(most, 1.02 * study.cublas_us) : most;
  };

  // From which time on: a little below the best, or below the limit where that is near.
  const bottomOf = (study) => {
    const isNearLimit = study.limit_us && study.limit_us > 0.9 * study.best_us;
    return isNearLimit ? 0.985 * study.limit_us : 0.97 * study.best_us;
  };

  const trialTooltip = { formatter: ({ data }) => autotune.toldOfTrial(data.row) };

  const dots = (timed) => (group) => ({
    name: autotune.groups[group],
    type: "scatter",
    symbol: autotune.symbols[group],
    symbolSize: group === "polish" ? 8 : 7,
    itemStyle: { color: colour(group), opacity: 0.75 },
    data: timed.filter((row) => row.group === group).map((row) => ({ value: [row[view.by], row.us], row })),
    tooltip: trialTooltip,
    clip: true,
  });

  const bestLine = (found, end, levels) => {
    const steps = found.best_so_far.map(([number, s, us]) => [view.by === "s" ? s : number, us]);
    return {
      name: "best so far",
      type: "line",
      step: "end",
      symbol: "none",
      z: 4,
      data: steps.length ? [...steps, [end, steps[steps.length - 1][1]]] : [],
      lineStyle: { color: colour("ours"), width: 2.5 },
      itemStyle: { color: colour("ours") },
      tooltip: { show: false },
      silent: true,
      markLine: {
        silent: true,
        symbol: "none",
        data: levels.map(([name, us, paint]) => ({
          yAxis: us,
          name,
          lineStyle: { color: colour(paint), type: "dashed", width: 1.5 },
          label: { formatter: `${name} ${figures.us(us)}`, position: "insideEndTop", color: colour(paint) },
        })),
      },
    };
  };

  const rug = (failed) => ({
    name: "failed",
    type: "scatter",
    xAxisIndex: 1,
    yAxisIndex: 1,
    symbol: "rect",
    symbolSize: [2, 10],
    itemStyle: { color: colour("fault") },
    data: failed.map((row) => ({ value: [row[view.by], row.outcome], row })),
    tooltip: trialTooltip,
  });

  const zoom = () => ({
    type: "slider",
    xAxisIndex: [0, 1],
    height: 16,
    bottom: 6,
    showDetail: false,
    showDataShadow: false,
    filterMode: "none",
    brushSelect: false,
    borderColor: colour("line"),
    fillerColor: "rgba(128,128,128,.18)",
    handleStyle: { color: colour("faint") },
  });

  // Of all trials the slowest is a hundred times slower than the best: those are seen by the logarithm alone.
  const timeAxis = (study, top, timed) => {
    const slowest = timed.reduce((most, row) => Math.max(most, row.us), 0);
    const isLog = view.scale === "log" || !top;
    const axis = autotune.timeSpan(bottomOf(study), top || slowest, { isLog, parts: 7 });
    return { ...axis, name: `time (${axis.name})`, nameGap: 46 };
  };

  const outcomeAxis = (outcomes) => ({
    type: "category",
    gridIndex: 1,
    data: outcomes,
    axisLabel: {
      fontSize: 10,
      width: 58,
      overflow: "truncate",
      formatter: (word) => word.replaceAll("_", " "),
    },
    axisLine: { show: false },
    axisTick: { show: false },
  });

  const option = (get) => () => {
    const { line: study, rows, document: found } = get();
    const [timed, failed] = [rows.filter((row) => row.is_ok), rows.filter((row) => !row.is_ok)];
    if (!timed.length) return null;
    const outcomes = [...new Set(failed.map((row) => row.outcome))];
    const groups = Object.keys(autotune.groups).filter((group) => timed.some((row) => row.group === group));
    const [top, end] = [ceiling(study), rows[rows.length - 1][view.by]];
    const levels = [
      ["cuBLAS", study.cublas_us, "cublas"],
      ["limit", study.limit_us, "limit"],
    ].filter(([, us]) => us && (!top || (us <= top && us >= bottomOf(study))));
    const base = autotune.isNarrow() ? 240 : 330;
    const hidden = { show: false };
    const x = autotune.span(0, end, { parts: autotune.isNarrow() ? 4 : 8 });
    return {
      height: base + outcomes.length * RUG + 66,
      legend: { data: [...groups.map((group) => autotune.groups[group]), "best so far"] },
      dataZoom: [zoom()],
      tooltip: { trigger: "item" },
      grid: [
        { left: 62, right: 16, top: 34, height: base - 34 },
        { left: 62, right: 16, top: base + 30, height: Math.max(outcomes.length * RUG, 1) },
      ],
      xAxis: [
        { ...x, name: view.by === "s" ? "seconds" : "trials", nameGap: 22 },
        { ...x, gridIndex: 1, axisLabel: hidden, axisTick: hidden, splitLine: hidden, axisLine: hidden },
      ],
      yAxis: [timeAxis(study, top, timed), outcomeAxis(outcomes)],
      series: [...groups.map(dots(timed)), bestLine(found, end, levels), rug(failed)],
    };
  };

  // Has a click on a point open its trial.
  autotune.openTrialOnClick = (instance) =>
    instance.on("click", ({ data }) => {
      if (data && data.row) autotune.openTrial(data.row.id);
    });

  autotune.historyCard = (get, updates) => {
    const picture = chart(
      "Times of trials and the best so far, with cuBLAS and the limit; below, the trials that failed",
      option(get),
      { height: 340, listen: autotune.openTrialOnClick, name: "history" },
    );
    const note = autotune.hint();
    const draw = () => {
      const { line, rows } = get();
      const top = ceiling(line);
      const above = top ? rows.filter((row) => row.is_ok && row.us > top).length : 0;
      const hidden = above ? `${figures.number(above)} slower trials lie above. ` : "";
      note.textContent = `${hidden}Choose a point for its whole config.`;
      picture.update();
    };
    const choose = (name) => (value) => {
      view[name] = value;
      draw();
    };
    draw();
    updates.push(draw);
    const choices = element(
      "div",
      { class: "choices" },
      autotune.choice("times", NEAR, view.near, choose("near")),
      autotune.choice("over", OVER, view.by, choose("by")),
      autotune.choice("scale", SCALES, view.scale, choose("scale")),
    );
    return card("History", { wide: true, name: "history-card" }, choices, picture, note);
  };
}
