"use strict";
// The page of one shape: how its search went, its finalists, its roofline; parameters are choices.js's.
{
  const { element, figures, colour, chart, card, more, tiles, hint } = autotune;
  const NEAR = [
    ["1.1", "within 1.1x"],
    ["1.35", "within 1.35x"],
    ["3", "within 3x"],
    ["", "all"],
  ];
  const RUG = 14; // pixels per outcome of trials that failed

  const view = { near: "1.35", by: "number" }; // kept from shape to shape

  const headline = (line, study) =>
    tiles([
      ["best", figures.us(line.best_us), `${figures.number(line.tflops, 1)} TFLOP/s`],
      ["against cuBLAS", figures.times(line.speedup), `${figures.us(line.cublas_us)} cuBLAS`],
      ["of the limit", figures.percent(line.share_of_limit), `${figures.us(line.limit_us)} limit`],
      ["trials", figures.number(line.num_trials), `${figures.number(line.num_failed)} failed`],
      study.finalists.length ? ["tied", figures.number(line.num_tied), "cannot be told apart"] : null,
      ["error", figures.times(line.error), "over cuBLAS's"],
    ]);

  // ---------------------------------------------------------------------------------------------- history

  // Up to which time the history is drawn: so many times the best, cuBLAS and the limit within it.
  const ceiling = (study) => {
    if (!view.near || !study.best_us) return null;
    const most = Number(view.near) * study.best_us;
    return study.cublas_us && study.cublas_us < 1.6 * most ? Math.max(most, 1.02 * study.cublas_us) : most;
  };

  const history = (get) => () => {
    const { line: study, rows, document: found } = get();
    const timed = rows.filter((row) => row.is_ok);
    if (!timed.length) return null;
    const key = view.by;
    const top = ceiling(study);
    const end = rows[rows.length - 1][key];
    const failed = rows.filter((row) => !row.is_ok);
    const outcomes = [...new Set(failed.map((row) => row.outcome))];
    const groups = Object.keys(autotune.groups).filter((group) => timed.some((row) => row.group === group));
    const steps = found.best_so_far.map(([number, s, us]) => [key === "s" ? s : number, us]);
    const floor = 0.97 * study.best_us;
    const isNearLimit = study.limit_us && study.limit_us > 0.9 * study.best_us;
    const bottom = isNearLimit ? 0.985 * study.limit_us : floor;
    const rug = outcomes.length * RUG;
    const base = autotune.isNarrow() ? 240 : 330;
    const levels = [
      ["cuBLAS", study.cublas_us, "cublas"],
      ["limit", study.limit_us, "limit"],
    ].filter(([, us]) => us && (!top || (us <= top && us >= bottom)));
    const x = { type: "value", min: key === "s" ? 0 : 1, max: Math.max(end, 2) };
    return {
      height: base + rug + 66,
      legend: { data: [...groups.map((group) => autotune.groups[group]), "best so far"] },
      dataZoom: [
        {
          type: "slider",
          xAxisIndex: [0, 1],
          height: 16,
          bottom: 6,
          showDetail: false,
          showDataShadow: false,
          filterMode: "none",
          borderColor: colour("line"),
          fillerColor: "rgba(128,128,128,.18)",
          handleStyle: { color: colour("faint") },
          brushSelect: false,
        },
      ],
      tooltip: { trigger: "item" },
      grid: [
        { left: 62, right: 16, top: 34, height: base - 34 },
        { left: 62, right: 16, top: base + 30, height: Math.max(rug, 1) },
      ],
      xAxis: [
        { ...x, name: key === "s" ? "seconds" : "trials", nameGap: 22 },
        {
          ...x,
          gridIndex: 1,
          axisLabel: { show: false },
          axisTick: { show: false },
          splitLine: { show: false },
          axisLine: { show: false },
        },
      ],
      yAxis: [
        top
          ? { type: "value", min: floored(bottom), max: ceiled(top), name: "time (us)", nameGap: 46 }
          : { type: "log", logBase: 2, name: "time (us)", nameGap: 46, min: "dataMin" },
        {
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
        },
      ],
      series: [
        ...groups.map((group) => ({
          name: autotune.groups[group],
          type: "scatter",
          symbol: autotune.symbols[group],
          symbolSize: group === "polish" ? 8 : 7,
          itemStyle: {
            color: colour(group),
            opacity: 0.75,
            borderColor: group === "random" ? colour("random") : undefined,
          },
          data: timed.filter((row) => row.group === group).map((row) => ({ value: [row[key], row.us], row })),
          tooltip: { formatter: ({ data }) => autotune.toldOfTrial(data.row) },
          clip: true,
        })),
        {
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
            data: levels.map(([name, us, of]) => ({
              yAxis: us,
              name,
              lineStyle: { color: colour(of), type: "dashed", width: 1.5 },
              label: { formatter: `${name} ${figures.us(us)}`, position: "insideEndTop", color: colour(of) },
            })),
          },
        },
        {
          name: "failed",
          type: "scatter",
          xAxisIndex: 1,
          yAxisIndex: 1,
          symbol: "rect",
          symbolSize: [2, 10],
          itemStyle: { color: colour("cublas") },
          data: failed.map((row) => ({ value: [row[key], row.outcome], row })),
          tooltip: { formatter: ({ data }) => autotune.toldOfTrial(data.row) },
        },
      ],
    };
  };

  const digits = (value) => 10 ** Math.floor(Math.log10(value) - 1) / 2;
  const floored = (value) => Math.floor(value / digits(value)) * digits(value);
  const ceiled = (value) => Math.ceil(value / digits(value)) * digits(value);

  const openTrial = (instance) =>
    instance.on("click", ({ data }) => {
      if (data && data.row) autotune.openTrial(data.row.id);
    });

  const historyCard = (get, updates) => {
    const picture = chart(
      "Times of trials and the best so far, with cuBLAS and the limit; below, the trials that failed",
      history(get),
      { height: 340, listen: openTrial, name: "history" },
    );
    const note = element("p", { class: "hint" });
    const tell = () => {
      const { line, rows } = get();
      const top = ceiling(line);
      const above = top ? rows.filter((row) => row.is_ok && row.us > top).length : 0;
      note.textContent = `${above ? `${figures.number(above)} slower trials lie above. ` : ""}Choose a point for its whole config.`;
    };
    const choose = (name) => (value) => {
      view[name] = value;
      picture.update();
      tell();
    };
    tell();
    updates.push(() => {
      picture.update();
      tell();
    });
    return card(
      "History",
      { wide: true, name: "history-card" },
      element(
        "div",
        { class: "choices" },
        autotune.choice("times", NEAR, view.near, choose("near")),
        autotune.choice(
          "over",
          [
            ["number", "trials"],
            ["s", "seconds"],
          ],
          view.by,
          choose("by"),
        ),
      ),
      picture,
      note,
    );
  };

  // ---------------------------------------------------------------------------------------------- finalists

  const intervals = (get) => () => {
    const { document: found, rows } = get();
    const all = found.finalists;
    if (!all.length) return null;
    const shown = [...all].reverse();
    const points = new Map(rows.map((row) => [row.id, row.point]));
    const winner = points.get(all[0].trial);
    const brief = (one) => {
      // what differs from the winner
      const point = points.get(one.trial);
      if (one.rank === 1 || !point || !winner) return one.label;
      return autotune
        .differing([winner, point], found.order)
        .map((name) => `${name}=${point[name]}`)
        .join(" ");
    };
    const names = shown.map((one) => (one.rank ? `${one.rank}  ${brief(one)}` : "cuBLAS"));
    const colourOf = (one) => (one.rank ? (one.is_tied ? "ours" : "random") : "cublas");
    const percent = (ratio) => 100 * (ratio - 1);
    const ends = shown.flatMap((one) => [one.low ?? one.ratio, one.high ?? one.ratio]).map(percent);
    const isFar = shown.map(
      (one) =>
        !one.rank &&
        percent(one.low ?? one.ratio) >
          3 * Math.max(1, ...shown.filter((o) => o.rank).map((o) => percent(o.high ?? o.ratio))),
    );
    const most = Math.max(0.5, ...ends.filter((_, i) => !isFar[Math.floor(i / 2)]));
    const least = Math.min(0, ...ends);
    return {
      height: 62 + 26 * shown.length,
      grid: { left: autotune.isNarrow() ? 130 : 236, right: 20, top: 8, bottom: 40, outerBoundsMode: "none" },
      tooltip: {
        trigger: "item",
        formatter: ({ dataIndex }) => {
          const one = shown[dataIndex];
          const row = rows.find((r) => r.id === one.trial);
          const facts = autotune.told(one.label, [
            ["time", figures.us(one.time_us)],
            ["over the winner's", figures.times(one.ratio)],
            one.low
              ? ["19 of 20 times within", `${figures.times(one.low)} to ${figures.times(one.high)}`]
              : null,
            one.joules ? ["energy", `${(1e3 * one.joules).toPrecision(3)} mJ per launch`] : null,
            one.rank ? ["tied with the winner", one.is_tied ? "yes" : "no"] : null,
          ]);
          return row ? element("div", {}, facts, autotune.toldOfTrial(row)) : facts;
        },
      },
      xAxis: {
        type: "value",
        name: "% slower than the winner",
        min: Math.floor(10 * least) / 10,
        max: ceiledTo(most),
      },
      yAxis: {
        type: "category",
        data: names,
        axisLabel: {
          color: colour("text"),
          fontSize: 12,
          width: autotune.isNarrow() ? 116 : 220,
          overflow: "truncate",
        },
        splitLine: { show: false },
        axisTick: { show: false },
      },
      series: [
        {
          type: "custom",
          silent: true,
          data: shown.map((one, at) => [percent(one.low ?? one.ratio), percent(one.high ?? one.ratio), at]),
          encode: { x: [0, 1], y: 2 },
          renderItem: (params, api) => {
            const [from, to] = [
              api.coord([api.value(0), api.value(2)]),
              api.coord([api.value(1), api.value(2)]),
            ];
            const stroke = colour(colourOf(shown[params.dataIndex]));
            const bar = (x1, y1, x2, y2) => ({
              type: "line",
              shape: { x1, y1, x2, y2 },
              style: { stroke, lineWidth: 2 },
            });
            return {
              type: "group",
              children: [
                bar(...from, ...to),
                bar(from[0], from[1] - 5, from[0], from[1] + 5),
                bar(to[0], to[1] - 5, to[0], to[1] + 5),
              ],
            };
          },
          clip: true,
        },
        {
          type: "scatter",
          symbolSize: 10,
          data: shown.map((one, at) => ({
            value: [isFar[at] ? ceiledTo(most) : percent(one.ratio), at],
            row: rows.find((row) => row.id === one.trial),
            symbol: one.rank ? "circle" : "diamond",
            itemStyle: { color: colour(colourOf(one)) },
            label: isFar[at]
              ? {
                  show: true,
                  position: "left",
                  formatter: `${percent(one.ratio).toFixed(0)} %  ▸`,
                  color: colour("text"),
                }
              : undefined,
          })),
        },
      ],
    };
  };
  const ceiledTo = (value) => (value > 5 ? Math.ceil(value / 5) * 5 : Math.ceil(value));

  const finalistTable = (get) => {
    const columns = [
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
    return autotune.table("Finalists", columns, get().document.finalists);
  };

  // ---------------------------------------------------------------------------------------------- roofline

  const roofline = (get) => () => {
    const { line: study, document: found } = get();
    if (!found.fma_tflops || !study.flops_per_byte || !study.tflops) return null;
    const others = autotune.overview.studies.filter(
      (s) => s.gpu === study.gpu && s.id !== study.id && s.tflops && s.flops_per_byte,
    );
    const knee = (1e3 * found.fma_tflops) / found.bandwidth_gbs;
    const places = [...others, study].map((s) => s.flops_per_byte);
    const [left, right] = [Math.min(knee, ...places) / 2, 2 * Math.max(knee, ...places)];
    const roof = (x) => Math.min(found.fma_tflops, (x * found.bandwidth_gbs) / 1e3);
    const speed = (us) => (study.tflops * study.best_us) / us;
    const own = found.finalists.length
      ? found.finalists
      : [
          { rank: 1, label: study.config, time_us: study.best_us, is_tied: true },
          ...(study.cublas_us ? [{ rank: 0, label: "cuBLAS", time_us: study.cublas_us }] : []),
        ];
    const floor = Math.min(
      ...[...others.map((s) => s.tflops), ...own.map((f) => speed(f.time_us))].filter(Boolean),
    );
    const bottom = 10 ** Math.floor(Math.log10(floor));
    const point = (f, x) => ({
      value: [x, speed(f.time_us)],
      symbol: f.rank ? "circle" : "diamond",
      one: f,
      itemStyle: {
        color: colour(f.rank ? (f.is_tied ? "ours" : "random") : "cublas"),
        borderColor: colour("card"),
        borderWidth: 1,
      },
    });
    const near = [...own.map((f) => speed(f.time_us)), roof(study.flops_per_byte)];
    const [low, high] = [0.97 * Math.min(...near), 1.02 * Math.max(...near)];
    const tell = ({ data }) =>
      data.one
        ? autotune.told(data.one.label, [
            ["speed", `${figures.number(data.value[1], 2)} TFLOP/s`],
            ["of the roof", figures.percent(data.value[1] / roof(study.flops_per_byte))],
            ["time", figures.us(data.one.time_us)],
          ])
        : "";
    return {
      grid: [
        { left: 48, right: "40%", top: 26, bottom: 44 },
        { left: "68%", right: 14, top: 26, bottom: 44 },
      ],
      tooltip: { trigger: "item" },
      title: [
        { text: "all shapes", left: 48, top: 2, textStyle: { fontSize: 12, color: colour("text") } },
        { text: "finalists", left: "68%", top: 2, textStyle: { fontSize: 12, color: colour("text") } },
      ],
      xAxis: [
        {
          type: "log",
          min: left,
          max: right,
          name: "FLOP per byte",
          axisLabel: { formatter: (v) => figures.number(v, v < 1 ? 1 : 0) },
        },
        {
          type: "category",
          gridIndex: 1,
          data: own.map((f) => (f.rank ? String(f.rank) : "cuBLAS")),
          name: "rank",
          axisLabel: { interval: 0, fontSize: 10, rotate: own.length > 6 || autotune.isNarrow() ? 60 : 0 },
        },
      ],
      yAxis: [
        {
          type: "log",
          min: bottom,
          max: 10 ** Math.ceil(Math.log10(found.fma_tflops)),
          name: "TFLOP/s",
          nameGap: 34,
        },
        {
          type: "value",
          gridIndex: 1,
          min: Number(low.toPrecision(2)),
          max: Number(high.toPrecision(2)) > high ? Number(high.toPrecision(2)) : high,
          axisLabel: { formatter: (v) => Number(v.toPrecision(3)) },
        },
      ],
      series: [
        {
          type: "line",
          symbol: "none",
          silent: true,
          data: [
            [left, roof(left)],
            [knee, found.fma_tflops],
            [right, found.fma_tflops],
          ],
          lineStyle: { color: colour("limit"), width: 2 },
        },
        {
          type: "scatter",
          symbolSize: 7,
          itemStyle: { color: colour("random"), opacity: 0.6 },
          data: others.map((s) => ({ value: [s.flops_per_byte, s.tflops], study: s })),
          tooltip: {
            formatter: ({ data }) =>
              autotune.told(data.study.label, [
                ["speed", `${figures.number(data.study.tflops, 1)} TFLOP/s`],
                ["of the limit", figures.percent(data.study.share_of_limit)],
              ]),
          },
        },
        {
          type: "scatter",
          symbolSize: 12,
          z: 3,
          data: [...own].reverse().map((f) => point(f, study.flops_per_byte)),
          tooltip: { formatter: tell },
        },
        {
          type: "scatter",
          symbolSize: 10,
          xAxisIndex: 1,
          yAxisIndex: 1,
          data: own.map((f, at) => point(f, at)),
          tooltip: { formatter: tell },
          markLine: {
            silent: true,
            symbol: "none",
            data: [{ yAxis: roof(study.flops_per_byte) }],
            lineStyle: { color: colour("limit"), type: "solid", width: 2 },
            label: { formatter: "roof", position: "insideStartBottom", color: colour("text") },
          },
        },
      ],
    };
  };

  // ---------------------------------------------------------------------------------------------- the rest, in words

  const failures = (get) =>
    autotune.table(
      "Failed trials by reason",
      [
        { title: "trials", number: true, value: (f) => f.count, show: (f) => figures.number(f.count) },
        { title: "outcome", value: (f) => f.outcome, show: (f) => f.outcome.replaceAll("_", " ") },
        { title: "reason of the newest", value: (f) => f.reason.slice(0, 300) },
        { title: "newest", value: (f) => f.trial, show: (f) => autotune.trialLink(f.trial) },
      ],
      get().document.failures,
    );

  const ledger = ({ line, document: { ledger: spent, num_cut_short: cut, pause_s: pause } }) =>
    element(
      "div",
      {},
      tiles([
        ["compiling", figures.seconds(spent.compile_s), "added up over threads"],
        ["verifying", figures.seconds(spent.verify_s), "on the GPU"],
        ["timing", figures.seconds(spent.measure_s), "on the GPU"],
        [
          line.recorded_on ? "all of it" : "on the clock",
          figures.seconds(spent.elapsed_s),
          line.recorded_on ? "one after another" : "other shapes of the search included",
        ],
      ]),
      hint(
        `${figures.number(spent.num_compiled)} of ${figures.number(line.num_trials)} trials compiled their kernel, the others shared one or took it from the cache; ` +
          `timing of ${figures.number(cut)} stopped early, as clearly slower. ${line.recorded_on ? "" : `Pauses of more than ${pause} s are left out.`}`,
      ),
    );

  const conditions = ({ line, document: found }) =>
    element(
      "dl",
      { class: "facts" },
      [
        ["measured on", line.measured_on],
        ["kernel source", found.source_hash.slice(0, 12)],
        ["cuBLAS", found.environment.cublas_version || "-"],
        ["GPU", found.environment.gpu_uuid || "-"],
        ["final", figures.time(found.final_at)],
        ["seen during the final", found.final_marks.join(", ") || "nothing"],
      ].map(([name, text]) => element("div", {}, element("dt", {}, name), element("dd", {}, text))),
    );

  // The steps from a naive kernel to the tuned one, in percent of the limit.
  const climb = (ladder) => () => {
    const steps = [...ladder.steps].reverse();
    const paint = (step) => ({ tuned: "ours", cuBLAS: "cublas" })[step.name] || "random";
    return {
      height: 62 + 24 * steps.length,
      grid: { left: autotune.isNarrow() ? 110 : 170, right: 70, top: 8, bottom: 40, outerBoundsMode: "none" },
      tooltip: {
        trigger: "item",
        formatter: ({ dataIndex }) => {
          const step = steps[dataIndex];
          return autotune.told(step.name, [
            ["adds", step.adds],
            ["time", figures.us(step.time_us)],
            ["speed", step.gflops ? `${figures.number(step.gflops)} GFLOP/s` : step.reason],
            ["against cuBLAS", figures.times(step.speedup)],
          ]);
        },
      },
      xAxis: { type: "value", name: "% of the limit", min: 0, max: 100 },
      yAxis: {
        type: "category",
        data: steps.map((step) => step.name),
        axisLabel: { color: colour("text"), width: autotune.isNarrow() ? 100 : 160, overflow: "truncate" },
        splitLine: { show: false },
        axisTick: { show: false },
      },
      series: [
        {
          type: "bar",
          barWidth: 13,
          data: steps.map((step) => ({
            value: 100 * (step.share_of_limit || 0),
            itemStyle: { color: colour(paint(step)) },
            label: {
              show: true,
              position: "right",
              color: colour("text"),
              formatter: step.share_of_limit ? figures.percent(step.share_of_limit) : "not here",
            },
          })),
        },
      ],
    };
  };

  const ladderCard = (ladder, picture) =>
    more(
      "Ladder",
      { open: !autotune.isNarrow(), name: "ladder" },
      picture(
        "The steps from a naive kernel to the tuned one, and cuBLAS, in percent of the limit",
        climb(ladder),
        {
          name: "climb",
        },
      ),
      hint(`Timed interleaved, in ${ladder.num_rounds} rounds.`),
      autotune.table(
        "Steps of the ladder",
        [
          { title: "step", value: (step) => step.name },
          { title: "adds", least: "tablet", value: (step) => step.reason || step.adds },
          {
            title: "time",
            number: true,
            value: (step) => step.time_us,
            show: (step) => figures.us(step.time_us),
          },
          {
            title: "GFLOP/s",
            number: true,
            value: (step) => step.gflops,
            show: (step) => figures.number(step.gflops),
          },
          {
            title: "vs cuBLAS",
            number: true,
            value: (step) => step.speedup,
            show: (step) => figures.times(step.speedup),
          },
        ],
        ladder.steps,
      ),
    );

  autotune.drawShape = (main, id) => {
    const get = () => ({ line: autotune.lineOf(id), ...autotune.studyOf(id) });
    const updates = [];
    const slot = (build) => {
      const made = element("div", {}, build());
      updates.push(() => made.replaceChildren(build()));
      return made;
    };
    const picture = (...given) => {
      const made = chart(...given);
      updates.push(() => made.update());
      return made;
    };
    const table = (made, rows) => {
      updates.push(() => made.update(rows()));
      return made;
    };
    const has = get().document.finalists.length > 0;
    const { shape, gpu } = get().line;
    const ladder = autotune.overview.ladders.find((one) => one.shape === shape && one.gpu === gpu);
    main.append(
      element("h1", {}, get().line.label),
      autotune.recordedNote(get().line) || "",
      slot(() => headline(get().line, get().document)),
      get().rows.some((row) => row.is_ok)
        ? historyCard(get, updates)
        : card("History", { wide: true }, hint("No trial was timed.")),
      card(
        "Finalists",
        {},
        has
          ? picture("Finalists and cuBLAS: how much slower than the winner, with intervals", intervals(get), {
              name: "finalists",
              listen: openTrial,
            })
          : hint("There was no final yet: the best is the fastest trial."),
        has
          ? hint(
              "Below the winner: what differs from it. Paired within rounds; bars hold the median ratio 19 of 20 times. Blue: tied with the winner.",
            )
          : null,
        has
          ? element(
              "details",
              {},
              element("summary", {}, "As a table"),
              table(finalistTable(get), () => get().document.finalists),
            )
          : null,
      ),
      card(
        "Roofline",
        {},
        get().document.fma_tflops
          ? picture(
              "Speed over arithmetic intensity: the roof, other shapes, this shape's finalists and cuBLAS",
              roofline(get),
              { height: autotune.isNarrow() ? 240 : 300, name: "roofline" },
            )
          : hint("The limits of this GPU are not known."),
      ),
      ...autotune.parameterCards(get, updates, picture, slot, table),
      ladder ? ladderCard(ladder, picture) : "",
      more(
        "What failed and why",
        { name: "failures" },
        get().line.num_failed
          ? table(failures(get), () => get().document.failures)
          : hint("No trial failed."),
      ),
      more(
        "Where the time went",
        { name: "ledger" },
        slot(() => ledger(get())),
      ),
      more(
        "How it was measured",
        { name: "conditions" },
        slot(() => conditions(get())),
      ),
    );
    return () => updates.forEach((update) => update());
  };
}
