"use strict";
// A run over time, in rows that share the seconds: what happened at once stands in one column.
{
  const { figures, colour } = autotune;
  const GAP = 30; // pixels between rows, for their titles
  const MARKS = { drift: "drift", neighbour: "neighbour", sw_power_cap: "power limit" };
  const MARK_PAINTS = ["bandit", "seed", "cublas", "reuse"];

  const bars = (name, data, paint) => ({
    name,
    data,
    type: "bar",
    barWidth: `${Math.max(60, Math.min(95, data.length))}%`,
    itemStyle: { color: colour(paint) },
  });
  const curve = (name, data, paint) => ({
    name,
    data,
    type: "line",
    symbol: "circle",
    symbolSize: 3,
    connectNulls: true,
    lineStyle: { color: colour(paint), width: 2 },
    itemStyle: { color: colour(paint) },
  });

  // Parts of a run's time at the middle of which a value is drawn.
  const parted = (run) => {
    const at = (values) => values.map((value, i) => [(i + 0.5) * run.bin_s, value]);
    return {
      at,
      perSecond: (values) => at(values.map((value) => value / run.bin_s)),
      percent: (values) => at(values.map((s) => Math.min(100, (100 * s) / run.bin_s))),
    };
  };

  const gpuRows = ({ bins }, { at }) =>
    [
      ["SM clock, MHz", "clock", "clock_mhz", "ours"],
      ["power, W", "power", "power_w", "bandit"],
      ["temperature, °C", "temperature", "temperature_c", "seed"],
    ]
      .filter(([, , column]) => bins[column].some((value) => value !== null))
      .map(([title, name, column, paint]) => ({
        title,
        scale: true,
        series: [curve(name, at(bins[column]), paint)],
      }));

  const disturbedRows = ({ bins, marks }, { at }) => {
    const names = Object.keys(marks);
    if (!names.length && !bins.num_repeated.some(Boolean)) return [];
    const seen = names.map((mark, i) => bars(MARKS[mark] || mark, at(marks[mark]), MARK_PAINTS[i % 4]));
    return [
      { title: "disturbed trials", series: [bars("timed again", at(bins.num_repeated), "random"), ...seen] },
    ];
  };

  const rowsOf = (run) => {
    const [{ bins }, parts] = [run, parted(run)];
    return [
      {
        title: "trials per second",
        series: [
          bars("ok", parts.perSecond(bins.num_ok), "ours"),
          bars("failed", parts.perSecond(bins.num_failed), "cublas"),
        ],
      },
      {
        title: "GPU busy, % of the clock",
        max: 100,
        series: [
          bars("timing", parts.percent(bins.measure_s), "reuse"),
          bars("verifying", parts.percent(bins.verify_s), "seed"),
        ],
      },
      { title: "compiling threads", series: [bars("compiling", parts.perSecond(bins.compile_s), "random")] },
      ...gpuRows(run, parts),
      ...disturbedRows(run, parts),
    ];
  };

  const tell = (points) =>
    autotune.told(
      figures.seconds(points[0].data[0]),
      points.map((point) => [point.seriesName, figures.number(point.data[1], 1)]),
    );

  autotune.timeline = (run) => () => {
    if (!run()) return null;
    const rows = rowsOf(run());
    const each = autotune.isNarrow() ? 88 : 96;
    const top = (row) => 26 + row * (each + GAP);
    const style = { fontSize: 12, fontWeight: 600, color: colour("text") };
    const end = run().bins.num_ok.length * run().bin_s;
    return {
      height: 20 + rows.length * (each + GAP),
      title: rows.map((row, i) => ({ text: row.title, left: 8, top: top(i), textStyle: style })),
      legend: {},
      axisPointer: { link: [{ xAxisIndex: "all" }] },
      tooltip: { trigger: "axis", formatter: tell },
      grid: rows.map((_, i) => ({ left: 52, right: 16, top: top(i) + 20, height: each - 22 })),
      xAxis: rows.map((_, i) => ({
        type: "value",
        gridIndex: i,
        min: 0,
        max: end,
        splitLine: { show: false },
        axisLabel: { show: i === rows.length - 1, formatter: (value) => `${Number(value.toPrecision(4))} s` },
      })),
      yAxis: rows.map(({ scale, max }, i) => ({
        type: "value",
        gridIndex: i,
        scale,
        max,
        splitNumber: 2,
        axisLabel: { fontSize: 11 },
      })),
      series: rows.flatMap((row, i) =>
        row.series.map((one) => ({
          ...one,
          stack: one.type === "bar" ? `row ${i}` : undefined,
          xAxisIndex: i,
          yAxisIndex: i,
        })),
      ),
    };
  };
}
