"use strict";
// The finalists of a shape: how much slower than the winner each is, and how surely.
{
  const { element, figures, colour, chart, card, hint } = autotune;
  const FAR = 3; // times as far as the slowest finalist: cuBLAS is drawn at the edge, with its figure

  const percent = (ratio) => 100 * (ratio - 1);
  const paintOf = (one) => (one.rank ? (one.is_tied ? "ours" : "faint") : "cublas");
  const low = (one) => percent(one.low ?? one.ratio);
  const high = (one) => percent(one.high ?? one.ratio);

  // A finalist in few words: what differs from the winner.
  const briefly = (rows, found) => {
    const points = new Map(rows.map((row) => [row.id, row.point]));
    const winner = points.get(found.finalists[0].trial);
    return (one) => {
      const point = points.get(one.trial);
      if (one.rank === 1 || !point || !winner) return one.label;
      const names = autotune.differing([winner, point], found.order);
      return names.map((name) => `${name}=${point[name]}`).join(" ");
    };
  };

  const tell = (one, rows) => {
    const row = rows.find((r) => r.id === one.trial);
    const within = one.low && `${figures.times(one.low)} to ${figures.times(one.high)}`;
    const facts = autotune.told(one.label, [
      ["time", figures.us(one.time_us)],
      ["over the winner's", figures.times(one.ratio)],
      within ? ["19 of 20 times within", within] : null,
      one.joules ? ["energy", `${(1e3 * one.joules).toPrecision(3)} mJ per launch`] : null,
      one.rank ? ["tied with the winner", one.is_tied ? "yes" : "no"] : null,
    ]);
    return row ? element("div", {}, facts, autotune.toldOfTrial(row)) : facts;
  };

  // From the low to the high end, with a stroke across each.
  const bars = (shown) => ({
    type: "custom",
    silent: true,
    clip: true,
    encode: { x: [0, 1], y: 2 },
    data: shown.map((one, at) => [low(one), high(one), at]),
    renderItem: ({ dataIndex }, api) => {
      const [[left, y], [right]] = [0, 1].map((end) => api.coord([api.value(end), api.value(2)]));
      const style = { stroke: colour(paintOf(shown[dataIndex])), lineWidth: 2 };
      const stroke = (x1, y1, x2, y2) => ({ type: "line", shape: { x1, y1, x2, y2 }, style });
      const ends = [left, right].map((x) => stroke(x, y - 5, x, y + 5));
      return { type: "group", children: [stroke(left, y, right, y), ...ends] };
    },
  });

  const medians = (shown, rows, isFar, edge) => ({
    type: "scatter",
    symbolSize: 10,
    data: shown.map((one, at) => ({
      value: [isFar(one) ? edge : percent(one.ratio), at],
      row: rows.find((row) => row.id === one.trial),
      symbol: one.rank ? "circle" : "diamond",
      itemStyle: { color: colour(paintOf(one)) },
      label: {
        show: isFar(one),
        position: "left",
        formatter: `${percent(one.ratio).toFixed(0)} %  ▸`,
        color: colour("text"),
      },
    })),
  });

  const option = (get) => () => {
    const { document: found, rows } = get();
    if (!found.finalists.length) return null;
    const shown = [...found.finalists].reverse(); // the first stands on top
    const brief = briefly(rows, found);
    const slowest = Math.max(1, ...shown.filter((one) => one.rank).map(high));
    const isNarrow = autotune.isNarrow();
    const isFar = (one) => !one.rank && low(one) > FAR * slowest;
    const furthest = Math.max(0.5, ...shown.filter((one) => !isFar(one)).map(high));
    const x = autotune.span(Math.min(0, ...shown.map(low)), furthest, { parts: isNarrow ? 4 : 6 });
    return {
      height: 62 + 26 * shown.length,
      grid: { left: isNarrow ? 130 : 236, right: 20, top: 8, bottom: 40, outerBoundsMode: "none" },
      tooltip: { trigger: "item", formatter: ({ dataIndex }) => tell(shown[dataIndex], rows) },
      xAxis: { ...x, name: "% slower than the winner" },
      yAxis: autotune.categories(
        shown.map((one) => (one.rank ? `${one.rank}  ${brief(one)}` : "cuBLAS")),
        isNarrow ? 116 : 220,
      ),
      series: [bars(shown), medians(shown, rows, isFar, x.max)],
    };
  };

  const columns = () => [
    { title: "rank", number: true, value: (f) => f.rank || null },
    {
      title: "config",
      value: (f) => f.label,
      show: (f) => (f.trial ? autotune.trialLink(f.trial, f.label) : f.label),
    },
    { title: "time", number: true, value: (f) => f.time_us, show: (f) => figures.us(f.time_us) },
    { title: "of the winner's", number: true, value: (f) => f.ratio, show: (f) => figures.times(f.ratio) },
    { title: "tied", least: "tablet", value: (f) => (f.rank ? (f.is_tied ? "yes" : "no") : "-") },
    {
      title: "mJ",
      number: true,
      least: "tablet",
      value: (f) => f.joules,
      show: (f) => figures.number(f.joules && 1e3 * f.joules, 2),
    },
  ];

  autotune.finalsCard = (get, picture, table) => {
    const finalists = () => get().document.finalists;
    if (!finalists().length) {
      return card("Finalists", {}, hint("There was no final yet: the best is the fastest trial."));
    }
    const label = "Finalists and cuBLAS: how much slower than the winner, with intervals";
    return card(
      "Finalists",
      {},
      picture(label, option(get), { name: "finalists", listen: autotune.openTrialOnClick }),
      hint(
        "Below the winner: what differs from it. Paired within rounds; bars hold the median ratio 19 of 20 times. ",
        "Blue: tied with the winner.",
      ),
      element(
        "details",
        {},
        element("summary", {}, "As a table"),
        table(autotune.table("Finalists", columns(), finalists()), finalists),
      ),
    );
  };
}
