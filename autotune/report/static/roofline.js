"use strict";
// The roofline of a shape's GPU: this shape's finalists and cuBLAS beneath it, all shapes, and close by.
{
  const { figures, colour, card, hint } = autotune;

  // What is drawn of the shape itself: the finalists, or before a final the best, and cuBLAS.
  const ownOf = (study, found) => {
    if (found.finalists.length) return found.finalists;
    const best = { rank: 1, label: study.config, time_us: study.best_us, is_tied: true };
    const cublas = { rank: 0, label: "cuBLAS", time_us: study.cublas_us };
    return study.cublas_us ? [best, cublas] : [best];
  };

  const othersOf = (study) =>
    autotune.overview.studies.filter(
      (s) => s.gpu === study.gpu && s.id !== study.id && s.tflops && s.flops_per_byte,
    );

  const speedOf = (study) => (one) => (study.tflops * study.best_us) / one.time_us;
  const roofOf = (found) => (x) => Math.min(found.peak_tflops, (x * found.bandwidth_gbs) / 1e3);

  const mark = (one, x, speed) => ({
    value: [x, speed(one)],
    symbol: one.rank ? "circle" : "diamond",
    one,
    itemStyle: {
      color: colour(one.rank ? (one.is_tied ? "ours" : "faint") : "cublas"),
      borderColor: colour("card"),
      borderWidth: 1,
    },
  });

  const roofLine = (found, left, right) => {
    const knee = (1e3 * found.peak_tflops) / found.bandwidth_gbs;
    return {
      type: "line",
      symbol: "none",
      silent: true,
      data: [left, knee, right].map((x) => [x, roofOf(found)(x)]),
      lineStyle: { color: colour("limit"), width: 2 },
    };
  };

  const otherShapes = (others) => ({
    type: "scatter",
    symbolSize: 7,
    itemStyle: { color: colour("faint"), opacity: 0.6 },
    data: others.map((study) => ({ value: [study.flops_per_byte, study.tflops], study })),
    tooltip: {
      formatter: ({ data: { study } }) =>
        autotune.told(study.label, [
          ["speed", `${figures.number(study.tflops, 1)} TFLOP/s`],
          ["of the limit", figures.percent(study.share_of_limit)],
        ]),
    },
  });

  const tell =
    (top) =>
    ({ data: { one, value } }) =>
      autotune.told(one.label, [
        ["speed", `${figures.number(value[1], 2)} TFLOP/s`],
        ["of the roof", figures.percent(value[1] / top)],
        ["time", figures.us(one.time_us)],
      ]);

  const roofMark = (top) => ({
    silent: true,
    symbol: "none",
    data: [{ yAxis: top }],
    lineStyle: { color: colour("limit"), type: "solid", width: 2 },
    label: { formatter: "roof", position: "insideStartBottom", color: colour("text") },
  });

  // The axes of the two halves: logarithmic over all shapes, linear and close over the ranks.
  const axes = (found, own, speeds, places, top) => {
    const near = [...own.map((one) => speeds.of(one)), top];
    const [low, high] = [0.97 * Math.min(...near), 1.02 * Math.max(...near)];
    const ranks = own.map((one) => (one.rank ? String(one.rank) : "cuBLAS"));
    const rotate = own.length > 6 || autotune.isNarrow() ? 60 : 0;
    return {
      xAxis: [
        { ...places, name: "FLOP per byte" },
        {
          type: "category",
          gridIndex: 1,
          data: ranks,
          name: "rank",
          axisLabel: { interval: 0, fontSize: 10, rotate },
        },
      ],
      yAxis: [
        {
          ...autotune.span(speeds.least, 1.05 * found.peak_tflops, { isLog: true, parts: 5 }),
          name: "TFLOP/s",
          nameGap: 34,
        },
        { ...autotune.span(low, high), gridIndex: 1 },
      ],
    };
  };

  const option = (get) => () => {
    const { line: study, document: found } = get();
    if (!found.peak_tflops || !study.flops_per_byte || !study.tflops) return null;
    const [own, others, speed] = [ownOf(study, found), othersOf(study), speedOf(study)];
    const knee = (1e3 * found.peak_tflops) / found.bandwidth_gbs;
    const x = [...others, study].map((s) => s.flops_per_byte);
    const places = autotune.span(Math.min(knee, ...x), Math.max(knee, ...x), { isLog: true, parts: 4 });
    const top = roofOf(found)(study.flops_per_byte);
    const least = Math.min(...others.map((s) => s.tflops), ...own.map(speed));
    const title = (text, left) => ({
      text,
      left,
      top: 2,
      textStyle: { fontSize: 12, color: colour("text") },
    });
    const tooltip = { formatter: tell(top) };
    const close = { xAxisIndex: 1, yAxisIndex: 1, symbolSize: 10, markLine: roofMark(top) };
    return {
      grid: [
        { left: 48, right: "40%", top: 26, bottom: 44 },
        { left: "68%", right: 14, top: 26, bottom: 44 },
      ],
      tooltip: { trigger: "item" },
      title: [title("all shapes", 48), title("finalists", "68%")],
      ...axes(found, own, { of: speed, least }, places, top),
      series: [
        roofLine(found, places.min, places.max),
        otherShapes(others),
        {
          type: "scatter",
          symbolSize: 12,
          z: 3,
          data: [...own].reverse().map((one) => mark(one, study.flops_per_byte, speed)),
          tooltip,
        },
        { type: "scatter", ...close, data: own.map((one, at) => mark(one, at, speed)), tooltip },
      ],
    };
  };

  autotune.rooflineCard = (get, picture) =>
    card(
      "Roofline",
      {},
      get().document.peak_tflops
        ? picture(
            "Speed over arithmetic intensity: the roof, other shapes, this shape's finalists and cuBLAS",
            option(get),
            { height: autotune.isNarrow() ? 240 : 300, name: "roofline" },
          )
        : hint("The limits of this GPU are not known."),
    );
}
