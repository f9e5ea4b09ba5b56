"use strict";
// A run over time, in rows that share the seconds: what happened at once stands in one column.
{
  const { figures, colour } = autotune;
  const GAP = 30; // pixels between rows, for their titles
  const MARKS = { drift: "drift", neighbour: "neighbour", sw_power_cap: "power limit" };
  const MARK_SHADES = [1, 0.7, 0.45, 0.25]; // of the colour of faults

  const bars = (name, data, paint, opacity = 1) => ({
    name,
    data,
    type: "bar",
    barWidth: `${Math.max(60, Math.min(95, data.length))}%`,
    itemStyle: { color: colour(paint), opacity },
  });
  const curve = (name, data) => ({
    name,
    data,
    type: "line",
    symbol: "circle",
    symbolSize: 3,
    connectNulls: true,
    lineStyle: { color: colour("faint"), width: 2 },
    itemStyle: { color: colour("faint") },
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
      ["SM clock, MHz", "clock", "clock_mhz"],
      ["power, W", "power", "power_w"],
      ["temperature, °C", "temperature", "temperature_c"],
    ]
      .filter(([, , column]) => bins[column].some((value) => value !== null))
      .map(([title, name, column]) => ({
        title,
        scale: true,
        series: [curve(name, at(bins[column]))],
      }));

  const disturbedRows = ({ bins, marks }, { at }) => {
    const names = Object.keys(marks);
    if (!names.length && !bins.num_repeated.some(Boolean)) return [];
    const seen = names.map((mark, i) =>
      bars(MARKS[mark] || mark, at(marks[mark]), "fault", MARK_SHADES[i % MARK_SHADES.length]),
    );
    return [
      { title: "disturbed trials", series: [bars("timed again", at(bins.num_repeated), "faint"), ...seen] },
    ];
  };

  const rowsOf = (run) => {
    const [{ bins }, parts] = [run, parted(run)];
    return [
      {
        title: "trials per second",
        series: [
          bars("ok", parts.perSecond(bins.num_ok), "faint"),
          bars("failed", parts.perSecond(bins.num_failed), "fault"),
        ],
      },
      {
        title: "GPU busy, % of the clock",
        max: 100,
        series: [
          bars("timing", parts.percent(bins.measure_s), "faint"),
          bars("verifying", parts.percent(bins.verify_s), "faint", 0.45),
        ],
      },
      { title: "compiling threads", series: [bars("compiling", parts.perSecond(bins.compile_s), "faint")] },
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
      grid: rows.map((_, i) => ({ left: 52, right: 16, top: top(i) + 24, height: each - 26 })),
      xAxis: rows.map((_, i) => ({
        ...autotune.span(0, end, { parts: autotune.isNarrow() ? 4 : 8 }),
        gridIndex: i,
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
