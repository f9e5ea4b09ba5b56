"use strict";
// Importance of parameters of one shape's trials, and pairs of them.
{
  const { element, figures, colour, more, hint } = autotune;

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
              `${figures.percent(best / v.best_us)} (${figures.counted(v.num_trials, "trial")})`,
            ]),
          );
        },
      },
      xAxis: { type: "value", name: "% of the variance of log time", min: 0 },
      yAxis: autotune.categories(shown.map((p) => p.name)),
      series: [
        {
          type: "bar",
          barWidth: 12,
          itemStyle: { color: colour("faint") },
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
    const [xs, ys] = [autotune.valuesOf(ok, a), autotune.valuesOf(ok, b)];
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

  const importanceAndPairs = (get, changing) =>
    element(
      "div",
      { class: "halves" },
      element(
        "div",
        {},
        changing.picture("How much of the variance of log time each parameter explains alone", importance(get), {
          name: "importance",
        }),
        hint(
          "Share of the variance of log time that lies between a parameter's values, less what chance would explain. ",
          "A search tries good regions more often: a description of the trials, not a law.",
        ),
      ),
      element("div", {}, pairCards(get, changing)),
    );

  const pairCards = (get, { picture, slot, form }) => {
    if (get().document.pairs.length === 0) return [];
    const chosen = [];
    const choose = ({ first, second }) => {
      [chosen[0], chosen[1]] = [first, second];
    };
    const choices = () => {
      const names = get().document.importance.map((parameter) => [parameter.name, parameter.name]);
      return [0, 1].map((place) =>
        autotune.choice(place ? "and" : "parameters", names, chosen[place], (name) => {
          chosen[place] = name;
          map.update();
        }),
      );
    };
    const selects = form(() => {
      choose(get().document.pairs[0]);
      return choices();
    });
    const map = picture(
      "The best speed at each pair of values of two parameters",
      pairs(get, () => chosen),
      { height: 340, name: "pairs" },
    );
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
                    choose(pair);
                    selects.keep();
                    selects.replaceChildren(...choices());
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

  const NUM_FASTEST = 20; // trials that are listed

  autotune.parameterCards = (get, changing) => {
    const { document: found } = get();
    const fastest = () => autotune.fastest(get().rows, NUM_FASTEST);
    const isTimed = fastest().length > 0;
    return [
      isTimed ? autotune.parallelCard(get, changing) : null,
      more(
        "Importance of parameters",
        { open: !autotune.isNarrow(), name: "importance-card" },
        found.importance.length
          ? importanceAndPairs(get, changing)
          : hint(`Told from ${found.least_trials} timed trials on.`),
      ),
      isTimed
        ? more(
            "Fastest trials, and two side by side",
            { name: "fastest" },
            autotune.compareForm(get, changing),
            changing.table(autotune.trialTable("The fastest trials", fastest(), found.order), fastest),
          )
        : null,
    ];
  };
}
