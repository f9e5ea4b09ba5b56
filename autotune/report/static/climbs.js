"use strict";
// The best so far of every shape of a run, over its seconds, against cuBLAS (or the limit where cuBLAS is unknown).
{
  const { figures, colour } = autotune;
  const MOST_NAMED = 8; // lines that have room for their names
  const APART = 0.05; // of an axis: names that stand closer would overlap

  const levelOf = (name) => (study) => study[name];

  // The best so far as steps: how many times as fast as the level it was from when on; to the end of the run.
  const climb = (steps, level, end) => {
    const times = steps.map(([s, us]) => [s, level / us]);
    return times.length ? [...times, [end, times[times.length - 1][1]]] : [];
  };

  // The geometric mean over all climbs, from the time on at which each has begun.
  const meanOf = (climbs, end) => {
    if (climbs.length < 2) return [];
    const times = [...new Set(climbs.flatMap((steps) => steps.map(([s]) => s)))].sort((a, b) => a - b);
    const places = climbs.map(() => -1);
    const mean = [];
    for (const s of times) {
      climbs.forEach((steps, at) => {
        while (places[at] + 1 < steps.length && steps[places[at] + 1][0] <= s) places[at] += 1;
      });
      if (places.every((place) => place >= 0)) {
        mean.push([s, figures.mean(climbs.map((steps, at) => steps[places[at]][1]))]);
      }
    }
    return mean.length ? [...mean, [end, mean[mean.length - 1][1]]] : [];
  };

  const thin = (name, data, isNamed) => ({
    name,
    type: "line",
    step: "end",
    symbol: "none",
    data,
    lineStyle: { color: colour("faint"), width: 1, opacity: 0.7 },
    itemStyle: { color: colour("faint") },
    endLabel: { show: isNamed, formatter: "{a}", color: colour("faint"), fontSize: 11, distance: 6 },
    emphasis: { lineStyle: { width: 2.5, opacity: 1, color: colour("text") } },
    triggerLineEvent: true,
  });

  const thick = (name, data, step) => ({
    name,
    type: "line",
    symbol: "none",
    z: 5,
    step,
    data,
    lineStyle: { color: colour("ours"), width: 3 },
    itemStyle: { color: colour("ours") },
    triggerLineEvent: true,
  });

  const levels = (lines) => ({
    silent: true,
    symbol: "none",
    data: lines.map(([name, yAxis]) => ({ name, yAxis })),
    label: { formatter: "{b}", position: "insideStartBottom", color: colour("text") },
    lineStyle: { color: colour("cublas"), type: "dashed", width: 1.5 },
  });

  // The lines whose names have room beside their ends, from the fastest on.
  const namedAmong = (lines, { min, max }) => {
    const placeOf = ({ data }) => Math.log(data.at(-1)[1] / min) / Math.log(max / min);
    const named = new Set();
    let last = Infinity;
    for (const line of [...lines].sort((a, b) => placeOf(b) - placeOf(a))) {
      if (last - placeOf(line) < APART) continue;
      last = placeOf(line);
      named.add(line);
    }
    return named;
  };

  // The lines of a run: { name, study, data }, those that can be compared.
  const linesOf = (run, studies) => {
    const told = run.progress
      .map(({ study: id, steps }) => ({ steps, study: studies.find((study) => study.id === id) }))
      .filter(({ study, steps }) => study && steps.length);
    const level = told.some(({ study }) => study.cublas_us) ? "cublas_us" : "limit_us";
    const lines = told
      .filter(({ study }) => study[level])
      .map(({ study, steps }) => ({ study, data: climb(steps, levelOf(level)(study), run.seconds) }));
    return { lines, level: level === "cublas_us" ? "cuBLAS" : "the limit" };
  };

  autotune.climbs = (run, studies) => () => {
    if (!run()) return null;
    const { lines, level } = linesOf(run(), studies());
    if (!lines.length) return null;
    const mean = meanOf(
      lines.map((line) => line.data),
      run().seconds,
    );
    const [{ study, data }] = lines;
    const settled = 3; // the first few steps are slow ones: they need not be seen
    const early = lines.map((line) => line.data[Math.min(line.data.length - 1, settled)][1]);
    const most = Math.max(1, ...lines.map((line) => line.data[line.data.length - 1][1]));
    const y = autotune.span(0.97 * Math.min(1, ...early), 1.03 * most, { isLog: true });
    const isNamed = lines.length > 1 && lines.length <= MOST_NAMED && !autotune.isNarrow();
    const named = isNamed ? namedAmong(lines, y) : new Set();
    const series =
      lines.length === 1
        ? [thick(study.label, data, "end")]
        : [
            ...lines.map((line) => thin(line.study.label, line.data, named.has(line))),
            thick("geometric mean", mean),
          ];
    const marks = [[level, 1]];
    if (lines.length === 1 && level === "cuBLAS" && study.limit_us) {
      marks.push(["limit", study.cublas_us / study.limit_us]);
    }
    series[series.length - 1].markLine = levels(marks);
    return {
      grid: { left: 44, right: isNamed ? 140 : 16, top: 30, bottom: 40 },
      legend: lines.length > 1 ? { data: ["geometric mean"] } : undefined,
      tooltip: {
        trigger: "item",
        formatter: ({ seriesName, data: at }) =>
          at &&
          autotune.told(seriesName, [
            ["after", figures.seconds(at[0])],
            [`against ${level}`, figures.times(at[1])],
          ]),
      },
      xAxis: { ...autotune.span(0, run().seconds), name: "seconds" },
      yAxis: { ...y, axisLabel: { ...y.axisLabel, formatter: (value) => `${Number(value.toFixed(3))}x` } },
      series,
    };
  };
}
