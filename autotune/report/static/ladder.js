"use strict";
// The ladder of a shape: the steps from a naive kernel to the tuned one, in percent of the limit.
{
  const { figures, colour, more, hint } = autotune;
  const PAINTS = { tuned: "ours", cuBLAS: "cublas" };

  const tell = (step) =>
    autotune.told(step.name, [
      ["adds", step.adds],
      ["time", figures.us(step.time_us)],
      ["speed", step.gflops ? `${figures.number(step.gflops)} GFLOP/s` : step.reason],
      ["against cuBLAS", figures.times(step.speedup)],
    ]);

  const bar = (step) => ({
    value: 100 * (step.share_of_limit || 0),
    itemStyle: { color: colour(PAINTS[step.name] || "faint") },
    label: {
      show: true,
      position: "right",
      color: colour("text"),
      formatter: step.share_of_limit ? figures.percent(step.share_of_limit) : "not here",
    },
  });

  const option = (ladder) => () => {
    const steps = [...ladder.steps].reverse(); // the lowest step stands on top
    const isNarrow = autotune.isNarrow();
    return {
      height: 62 + 24 * steps.length,
      grid: { left: isNarrow ? 110 : 170, right: 70, top: 8, bottom: 40, outerBoundsMode: "none" },
      tooltip: { trigger: "item", formatter: ({ dataIndex }) => tell(steps[dataIndex]) },
      xAxis: { type: "value", name: "% of the limit", min: 0, max: 100 },
      yAxis: autotune.categories(
        steps.map((step) => step.name),
        isNarrow ? 100 : 160,
      ),
      series: [{ type: "bar", barWidth: 13, data: steps.map(bar) }],
    };
  };

  const columns = () => [
    { title: "step", value: (s) => s.name },
    { title: "adds", least: "tablet", value: (s) => s.reason || s.adds },
    { title: "time", number: true, value: (s) => s.time_us, show: (s) => figures.us(s.time_us) },
    { title: "GFLOP/s", number: true, value: (s) => s.gflops, show: (s) => figures.number(s.gflops) },
    { title: "vs cuBLAS", number: true, value: (s) => s.speedup, show: (s) => figures.times(s.speedup) },
  ];

  // The card of the ladder that was given for a shape; null where none was.
  autotune.ladderCard = ({ shape, gpu }, picture) => {
    const ladder = autotune.overview.ladders.find((one) => one.shape === shape && one.gpu === gpu);
    if (!ladder) return null;
    return more(
      "Ladder",
      { open: !autotune.isNarrow(), name: "ladder" },
      picture("The steps from a naive kernel to the tuned one, and cuBLAS", option(ladder), {
        name: "climb",
      }),
      hint(`Timed interleaved, in ${figures.counted(ladder.num_rounds, "round")}.`),
      autotune.table("Steps of the ladder", columns(), ladder.steps),
    );
  };
}
