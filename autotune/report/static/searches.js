"use strict";
// The page of all searches: each shape against cuBLAS and the limit, and a run over time.
{
  const { element, figures, colour, chart, card, tiles, hint } = autotune;
  const ROW = 22; // pixels per shape

  const shown = { run: 0 }; // the run that is looked at: its place in the list

  const linkTo = (study) => element("a", { href: `#/shape/${study.id}` }, study.label);

  const headline = (overview) => {
    const compared = overview.studies.filter((study) => study.speedup);
    const least = compared.reduce((a, b) => (a && a.speedup <= b.speedup ? a : b), null);
    const trials = overview.studies.reduce((sum, study) => sum + study.num_trials, 0);
    const failed = overview.studies.reduce((sum, study) => sum + study.num_failed, 0);
    return tiles([
      ["shapes", figures.number(overview.studies.length)],
      ["trials", figures.number(trials), `${figures.percent(trials ? failed / trials : 0)} failed`],
      compared.length
        ? [
            "against cuBLAS",
            figures.times(figures.mean(compared.map((s) => s.speedup))),
            compared.length > 1 ? "in the geometric mean" : "as fast",
          ]
        : null,
      compared.length > 1 ? ["least", figures.times(least.speedup), least.label] : null,
    ]);
  };

  // Every shape as a line from cuBLAS to ours, in percent of the limit.
  const limits = (studies) => () => {
    const rows = studies()
      .filter((study) => study.share_of_limit)
      .sort((a, b) => a.share_of_limit - b.share_of_limit);
    if (!rows.length) return null;
    const names = rows.map((study) => study.label);
    const percent = (share) => (share ? 100 * share : null);
    const most = Math.max(
      100,
      ...rows.map((s) => percent(Math.max(s.share_of_limit, s.cublas_share_of_limit || 0))),
    );
    return {
      height: 92 + ROW * rows.length,
      grid: { left: 12, right: 24, top: 34, bottom: 42 },
      legend: { data: ["ours", "cuBLAS"] },
      tooltip: {
        trigger: "axis",
        axisPointer: { type: "shadow" },
        formatter: ([{ dataIndex }]) => {
          const s = rows[dataIndex];
          return autotune.told(s.label, [
            ["ours", `${figures.us(s.best_us)}, ${figures.percent(s.share_of_limit)} of the limit`],
            ["cuBLAS", `${figures.us(s.cublas_us)}, ${figures.percent(s.cublas_share_of_limit)}`],
            ["against cuBLAS", figures.times(s.speedup)],
            ["config", s.config],
          ]);
        },
      },
      xAxis: { type: "value", min: 0, max: Math.ceil(most / 10) * 10, name: "% of the limit" },
      yAxis: {
        type: "category",
        data: names,
        splitLine: { show: false },
        axisTick: { show: false },
        axisLabel: { color: colour("text"), fontSize: 12 },
      },
      series: [
        {
          type: "custom",
          silent: true,
          tooltip: { show: false },
          encode: { x: [0, 1], y: 2 },
          data: rows.map((s, at) => [
            percent(s.cublas_share_of_limit ?? s.share_of_limit),
            percent(s.share_of_limit),
            at,
          ]),
          renderItem: (_, api) => {
            const [from, to] = [
              api.coord([api.value(0), api.value(2)]),
              api.coord([api.value(1), api.value(2)]),
            ];
            const stroke = api.value(1) >= api.value(0) ? colour("ours") : colour("cublas");
            return {
              type: "line",
              shape: { x1: from[0], y1: from[1], x2: to[0], y2: to[1] },
              style: { stroke, lineWidth: 3, opacity: 0.45 },
            };
          },
        },
        {
          name: "ours",
          type: "scatter",
          symbol: "circle",
          symbolSize: 11,
          itemStyle: { color: colour("ours") },
          data: rows.map((s) => percent(s.share_of_limit)),
        },
        {
          name: "cuBLAS",
          type: "scatter",
          symbol: "diamond",
          symbolSize: 11,
          itemStyle: { color: colour("cublas") },
          data: rows.map((s) => percent(s.cublas_share_of_limit)),
        },
      ],
    };
  };

  const columns = () => [
    { title: "shape", value: (s) => s.label, show: linkTo },
    { title: "best", number: true, value: (s) => s.best_us, show: (s) => figures.us(s.best_us) },
    { title: "vs cuBLAS", number: true, value: (s) => s.speedup, show: (s) => figures.times(s.speedup) },
    {
      title: "of limit",
      number: true,
      value: (s) => s.share_of_limit,
      show: (s) => figures.percent(s.share_of_limit),
    },
    {
      title: "TFLOP/s",
      number: true,
      least: "tablet",
      value: (s) => s.tflops,
      show: (s) => figures.number(s.tflops, 1),
    },
    {
      title: "cuBLAS",
      number: true,
      least: "tablet",
      value: (s) => s.cublas_us,
      show: (s) => figures.us(s.cublas_us),
    },
    {
      title: "error",
      number: true,
      least: "desktop",
      value: (s) => s.error,
      show: (s) => figures.times(s.error),
    },
    {
      title: "trials",
      number: true,
      least: "tablet",
      value: (s) => s.num_trials,
      show: (s) => figures.number(s.num_trials),
    },
    {
      title: "failed",
      number: true,
      least: "desktop",
      value: (s) => s.num_failed,
      show: (s) => figures.number(s.num_failed),
    },
    {
      title: "tied",
      number: true,
      least: "desktop",
      value: (s) => s.num_tied,
      show: (s) => figures.number(s.num_tied),
    },
    {
      title: "config",
      least: "desktop",
      value: (s) => s.config,
      show: (s) => element("code", {}, s.config || "-"),
    },
  ];

  // ---------------------------------------------------------------------------------------------- a run over time

  // The best so far of a study at each time: cuBLAS's time over it, or the limit's share where cuBLAS is unknown.
  const climb = (progress, study, end) => {
    const level = study.cublas_us || study.limit_us;
    const steps = progress.steps.map(([s, us]) => [s, level / us]);
    return steps.length ? [...steps, [end, steps[steps.length - 1][1]]] : [];
  };

  // The geometric mean over all climbs, from the time on at which each has begun.
  const meanClimb = (climbs, end) => {
    const begun = climbs.filter((steps) => steps.length);
    if (begun.length < 2) return [];
    const times = [...new Set(begun.flatMap((steps) => steps.map(([s]) => s)))].sort((a, b) => a - b);
    const places = begun.map(() => -1);
    const mean = [];
    for (const s of times) {
      begun.forEach((steps, at) => {
        while (places[at] + 1 < steps.length && steps[places[at] + 1][0] <= s) places[at] += 1;
      });
      if (places.every((place) => place >= 0)) {
        mean.push([s, figures.mean(begun.map((steps, at) => steps[places[at]][1]))]);
      }
    }
    return mean.length ? [...mean, [end, mean[mean.length - 1][1]]] : [];
  };

  const bestSoFar = (run, studies) => () => {
    const [r, all] = [run(), studies()];
    if (!r) return null;
    const told = r.progress
      .map((progress) => [progress, all.find((study) => study.id === progress.study)])
      .filter(([, study]) => study && (study.cublas_us || study.limit_us));
    const climbs = told.map(([progress, study]) => climb(progress, study, r.seconds));
    const values = climbs.flat().map(([, value]) => value);
    if (!values.length) return null;
    const isOne = told.length === 1;
    const isFew = !isOne && told.length <= 8 && !autotune.isNarrow();
    const [low, high] = [
      Math.min(...climbs.map((c) => (c.length ? c[Math.min(c.length - 1, 3)][1] : 1))),
      Math.max(...values),
    ];
    const series = climbs.map((data, at) => ({
      name: told[at][1].label,
      type: "line",
      step: "end",
      symbol: "none",
      data,
      lineStyle: {
        color: isOne ? colour("ours") : colour("random"),
        width: isOne ? 3 : 1,
        opacity: isOne ? 1 : 0.7,
      },
      endLabel: { show: isFew, formatter: `{a}`, color: colour("faint"), fontSize: 11, distance: 6 },
      labelLayout: { hideOverlap: true },
      emphasis: { lineStyle: { width: 2.5, opacity: 1, color: colour("text") } },
      triggerLineEvent: true,
      itemStyle: { color: colour("random") },
    }));
    const mean = meanClimb(climbs, r.seconds);
    if (mean.length) {
      series.push({
        name: "geometric mean",
        type: "line",
        symbol: "none",
        data: mean,
        z: 5,
        lineStyle: { color: colour("ours"), width: 3 },
        itemStyle: { color: colour("ours") },
      });
    }
    const lines = [{ yAxis: 1, name: "cuBLAS" }];
    const study = told[0][1];
    if (isOne && study.limit_us && study.cublas_us)
      lines.push({ yAxis: study.cublas_us / study.limit_us, name: "limit" });
    series[series.length - 1].markLine = {
      silent: true,
      symbol: "none",
      data: lines,
      label: { formatter: "{b}", position: "insideStartBottom", color: colour("text") },
      lineStyle: { color: colour("cublas"), type: "dashed", width: 1.5 },
    };
    return {
      grid: { left: 44, right: isFew ? 140 : 16, top: 30, bottom: 40 },
      tooltip: {
        trigger: "item",
        formatter: ({ seriesName, data }) =>
          autotune.told(seriesName, [
            ["after", figures.seconds(data[0])],
            ["against cuBLAS", figures.times(data[1])],
          ]),
      },
      legend: mean.length ? { data: ["geometric mean"] } : undefined,
      xAxis: { type: "value", min: 0, max: r.seconds, name: "seconds" },
      yAxis: {
        type: "value",
        min: Math.max(0, Math.floor(10 * Math.min(low, 1) - 1) / 10),
        max: Math.ceil(10.5 * Math.max(high, 1)) / 10,
        axisLabel: { formatter: (value) => `${value}x` },
      },
      series,
    };
  };

  // Rows of one timeline: they share the seconds, so that what happened at once stands in one column.
  const timeline = (run) => () => {
    const r = run();
    if (!r) return null;
    const { bins, bin_s: width } = r;
    const at = (values) => values.map((value, i) => [(i + 0.5) * width, value]);
    const share = (values) => at(values.map((s) => Math.min(100, (100 * s) / width)));
    const marks = Object.keys(r.marks);
    const rows = [
      {
        title: "trials per second",
        series: [
          bars("ok", at(bins.num_ok.map((n) => n / width)), "ours", "trials"),
          bars("failed", at(bins.num_failed.map((n) => n / width)), "cublas", "trials"),
        ],
      },
      {
        title: "GPU busy, % of the clock",
        max: 100,
        series: [
          bars("timing", share(bins.measure_s), "reuse", "busy"),
          bars("verifying", share(bins.verify_s), "seed", "busy"),
        ],
      },
      {
        title: "compiling threads",
        series: [bars("compiling", at(bins.compile_s.map((s) => s / width)), "random", "compile")],
      },
    ];
    const known = (name) => bins[name].some((value) => value !== null);
    if (known("clock_mhz"))
      rows.push({
        title: "SM clock, MHz",
        scale: true,
        series: [curve("clock", at(bins.clock_mhz), "ours")],
      });
    if (known("power_w"))
      rows.push({ title: "power, W", scale: true, series: [curve("power", at(bins.power_w), "bandit")] });
    if (known("temperature_c"))
      rows.push({
        title: "temperature, °C",
        scale: true,
        series: [curve("temperature", at(bins.temperature_c), "seed")],
      });
    if (marks.length || bins.num_repeated.some(Boolean)) {
      const names = { drift: "drift", neighbour: "neighbour", sw_power_cap: "power limit" };
      rows.push({
        title: "disturbed trials",
        series: [
          bars("timed again", at(bins.num_repeated), "random", "marks"),
          ...marks.map((mark, i) =>
            bars(
              names[mark] || mark,
              at(r.marks[mark]),
              ["bandit", "seed", "cublas", "reuse"][i % 4],
              "marks",
            ),
          ),
        ],
      });
    }
    const each = autotune.isNarrow() ? 88 : 96;
    const gap = 30;
    return {
      height: 20 + rows.length * (each + gap),
      title: rows.map((row, i) => ({
        text: row.title,
        left: 8,
        top: 26 + i * (each + gap),
        textStyle: { fontSize: 12, fontWeight: 600, color: colour("text") },
      })),
      legend: {},
      axisPointer: { link: [{ xAxisIndex: "all" }] },
      tooltip: {
        trigger: "axis",
        formatter: (points) =>
          autotune.told(
            figures.seconds(points[0].data[0]),
            points.map((point) => [point.seriesName, figures.number(point.data[1], 1)]),
          ),
      },
      grid: rows.map((_, i) => ({ left: 52, right: 16, top: 46 + i * (each + gap), height: each - 22 })),
      xAxis: rows.map((_, i) => ({
        type: "value",
        gridIndex: i,
        min: 0,
        max: bins.num_ok.length * width,
        splitLine: { show: false },
        axisLabel: { show: i === rows.length - 1, formatter: "{value} s" },
      })),
      yAxis: rows.map((row, i) => ({
        type: "value",
        gridIndex: i,
        scale: row.scale,
        max: row.max,
        splitNumber: 2,
        axisLabel: { fontSize: 11 },
      })),
      series: rows.flatMap((row, i) => row.series.map((one) => ({ ...one, xAxisIndex: i, yAxisIndex: i }))),
    };
  };

  const bars = (name, data, colourName, stack) => ({
    name,
    data,
    stack,
    type: "bar",
    barWidth: `${Math.max(60, Math.min(95, data.length))}%`,
    barCategoryGap: 0,
    itemStyle: { color: colour(colourName) },
  });
  const curve = (name, data, colourName) => ({
    name,
    data,
    type: "line",
    symbol: "circle",
    symbolSize: 3,
    connectNulls: true,
    lineStyle: { color: colour(colourName), width: 2 },
    itemStyle: { color: colour(colourName) },
  });

  const runFacts = (r, studies) => {
    const share = (name) =>
      figures.percent(r.seconds ? Math.min(1, r.bins[name].reduce((a, b) => a + b, 0) / r.seconds) : 0, 0);
    const disturbed = Object.entries(r.marks).map(([mark, counts]) => [
      mark,
      counts.reduce((a, b) => a + b, 0),
    ]);
    return tiles([
      [r.is_recorded ? "recorded seconds" : "ran for", figures.seconds(r.seconds), figures.time(r.began_at)],
      [
        "trials per second",
        figures.number(r.seconds ? r.num_trials / r.seconds : 0, 1),
        `${figures.number(r.num_trials)} trials on ${r.progress.length} of ${studies.length} shapes`,
      ],
      ["GPU timing", share("measure_s"), `${share("verify_s")} verifying`],
      [
        "disturbed",
        figures.number(disturbed.reduce((sum, [, n]) => sum + n, 0)),
        disturbed.map(([mark, n]) => `${mark} ${n}`).join(", ") || "nothing was noticed",
      ],
    ]);
  };

  const runName = (r, at) =>
    `${figures.time(r.began_at)}, ${figures.number(r.num_trials)} trials, ${r.gpu}${at === 0 ? " (newest)" : ""}`;

  autotune.drawSearches = (main) => {
    const overview = () => autotune.overview;
    const studies = () => overview().studies;
    const run = () => overview().runs[Math.min(shown.run, overview().runs.length - 1)];
    const updates = [];
    const live = (made, update) => {
      updates.push(() => update(made));
      return made;
    };
    const picture = (...given) => live(chart(...given), (made) => made.update());
    const slot = (build) => {
      const made = element("div", {}, build());
      updates.push(() => made.replaceChildren(build()));
      return made;
    };
    const groups = [...new Set(studies().map((study) => study.measured_on))];
    const one = (group) => () => studies().filter((study) => study.measured_on === group);
    const progress = picture(
      "The best so far of each shape against cuBLAS, over the seconds of the run",
      bestSoFar(run, studies),
      { height: autotune.isNarrow() ? 260 : 340, name: "progress" },
    );
    const rows = picture(
      "Trials per second, how busy the GPU was, its clock, power and temperature, and what was disturbed, over the seconds of the run",
      timeline(run),
      { name: "timeline" },
    );
    const choose = (value) => {
      shown.run = Number(value);
      autotune.refresh();
    };
    const runs = overview().runs;
    main.append(
      element("h1", {}, "Searches"),
      slot(() => headline(overview())),
      runs.length
        ? card(
            "Best so far",
            {},
            runs.length > 1
              ? autotune.choice(
                  "run",
                  runs.map((r, at) => [at, runName(r, at)]),
                  shown.run,
                  choose,
                )
              : null,
            slot(() => runFacts(run(), studies())),
            progress,
            hint(
              "How many times as fast as cuBLAS each shape's best kernel is, as it was found. Thick: the geometric mean.",
            ),
          )
        : null,
      ...groups.map((group) =>
        card(
          groups.length > 1 ? `Share of the limit: ${group}` : "Share of the limit",
          {},
          autotune.recordedNote(one(group)()[0]),
          picture(
            `Share of the hardware's limit that each shape reaches, ours and cuBLAS, on ${group}`,
            limits(one(group)),
            { name: `limits-${groups.indexOf(group)}` },
          ),
          hint(
            "The limit: the larger of 2mnk over the FMA rate and the least memory traffic over the bandwidth. ",
            groups.length > 1 ? "" : group,
          ),
        ),
      ),
      runs.length
        ? autotune.more(
            "The run over time",
            { open: !autotune.isNarrow(), name: "over-time" },
            rows,
            hint(
              "Seconds since the run's first trial. Compiling adds up over threads; what the GPU does besides trials (duels, finals, cuBLAS) is not stored.",
            ),
          )
        : null,
      card(
        "Shapes",
        { wide: true },
        live(autotune.table("All shapes", columns(), studies()), (made) => made.update(studies())),
      ),
    );
    return () => updates.forEach((update) => update());
  };

  autotune.recordedNote = (study) =>
    study && study.recorded_on
      ? element(
          "p",
          { class: "recorded" },
          `Recorded on ${study.gpu}, ${study.recorded_on}: these times come from a file, not from a GPU of this machine.`,
        )
      : null;
}
