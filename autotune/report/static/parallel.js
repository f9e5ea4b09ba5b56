"use strict";
// The fastest trials of a shape: as lines over the most important parameters, which can be brushed, and as a table.
{
  const { element, figures, colour, more, hint } = autotune;
  const MOST_LINES = 300; // of trials that are drawn: more are a carpet
  const [MOST_AXES, MOST_ON_PHONES] = [8, 4];
  const MOST_ROWS = 10;

  const columns = () => [
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

  // Trials with the parameters that differ among them in few words.
  const briefly = (rows, order) => {
    const points = rows.map((row) => row.point);
    const names = autotune.differing(points, order).slice(0, MOST_AXES);
    return rows.map((row) => ({
      ...row,
      brief: names.map((name) => `${name}=${row.point[name]}`).join(" "),
    }));
  };

  // The table of some trials, fastest first; `update` takes others.
  autotune.trialTable = (caption, rows, order) => {
    const made = autotune.table(caption, columns(), briefly(rows, order));
    const update = made.update;
    made.update = (others) => update(briefly(others, order));
    return made;
  };

  // The parameters that vary among trials, the most important first.
  const axesOf = (rows, found) => {
    const points = rows.map((row) => row.point);
    const varying = autotune.differing(points, found.order);
    const important = found.importance
      .map((parameter) => parameter.name)
      .filter((name) => varying.includes(name));
    const names = [...important, ...varying.filter((name) => !important.includes(name))];
    return names.slice(0, autotune.isNarrow() ? MOST_ON_PHONES : MOST_AXES);
  };

  const axisLooks = () => ({
    nameTextStyle: { color: colour("text"), fontWeight: 600 },
    nameLocation: "start",
    nameGap: 14,
    axisLabel: { color: colour("faint"), fontSize: 11, hideOverlap: true },
    axisLine: { lineStyle: { color: colour("faint") } },
    inverse: true,
    areaSelectStyle: { width: 22, borderColor: colour("link"), color: colour("link"), opacity: 0.25 },
    realtime: false,
  });

  // `rows` are what is drawn, slowest first so that the fastest lie on top; `all` is what axes have room for.
  const option = (rows, names, all) => {
    const [slowest, fastest] = [rows[0].us, rows[rows.length - 1].us];
    const axes = names.map((name, dim) => {
      const data = autotune.valuesOf(all, name).map(String);
      return { dim, name, type: "category", data, inverse: false };
    });
    const time = { dim: names.length, ...autotune.timeSpan(fastest, slowest, { isLog: true }) };
    return {
      parallel: { left: 36, right: 64, top: 44, bottom: 24, parallelAxisDefault: axisLooks() },
      parallelAxis: [...axes, time],
      visualMap: {
        show: false,
        dimension: names.length,
        min: fastest,
        max: Math.max(Math.min(slowest, 1.5 * fastest), 1.001 * fastest),
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
          data: rows.map((row) => ({
            value: [...names.map((name) => String(row.point[name])), row.us],
            row,
          })),
        },
      ],
    };
  };

  // Places of the lines that pass all areas of a brush; null without an area.
  const brushedIn = (instance) => {
    const axes = instance.getModel().queryComponents({ mainType: "parallelAxis" });
    const hasAreas = axes.some((axis) => axis.activeIntervals && axis.activeIntervals.length);
    return hasAreas ? instance.getModel().getSeriesByIndex(0).getRawIndicesByActiveState("active") : null;
  };

  autotune.parallelCard = (get, { updates, form }) => {
    const chosen = {}; // parameter -> value: the keyboard's brush
    let brushed = null;
    const ok = () => get().rows.filter((row) => row.is_ok);
    const fastest = () => autotune.fastest(get().rows, MOST_LINES);
    const isChosen = (row) =>
      Object.entries(chosen).every(([name, value]) => value === "" || String(row.point[name]) === value);
    const drawn = () => fastest().filter(isChosen).reverse();
    let names = [];
    const table = autotune.trialTable("The fastest trials that were chosen", [], get().document.order);
    const count = element("p", { class: "hint", role: "status" });
    const tell = () => {
      const rows = drawn();
      const kept = autotune.fastest(brushed ? brushed.map((place) => rows[place]).filter(Boolean) : rows);
      const best = kept.length ? `; the best of them ${figures.us(kept[0].us)}` : "";
      count.textContent = `${figures.number(kept.length)} of the ${figures.number(fastest().length)} fastest trials${best}.`;
      table.update(kept.slice(0, MOST_ROWS));
    };
    const listen = (instance) => {
      instance.on("axisareaselected", () => {
        brushed = brushedIn(instance);
        selects.keep();
        tell();
      });
      autotune.openTrialOnClick(instance);
    };
    const picture = autotune.chart(
      "The fastest trials as lines over the most important parameters; drag along an axis to choose among them",
      () => (drawn().length ? option(drawn(), names, ok()) : null),
      { height: autotune.isNarrow() ? 280 : 340, name: "parallel", listen },
    );
    const draw = () => {
      picture.update();
      tell();
    };
    const selects = form(() => {
      names = axesOf(fastest(), get().document);
      return names.map((name) => {
        const values = autotune.valuesOf(ok(), name).map((value) => [String(value), String(value)]);
        return autotune.choice(name, [["", "any"], ...values], "", (value) => {
          chosen[name] = value;
          brushed = null;
          draw();
        });
      });
    });
    draw();
    updates.push(() => brushed || draw()); // what is brushed stays as it is
    return more(
      "Parallel coordinates",
      { open: !autotune.isNarrow(), name: "parallel-card" },
      hint("Drag along an axis to keep what passes there, or choose a value. Blue is fast."),
      selects,
      picture,
      count,
      table,
    );
  };
}
