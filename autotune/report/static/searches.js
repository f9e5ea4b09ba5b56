"use strict";
// The page of all searches: each shape against cuBLAS and the limit, and a run over time.
{
  const { element, figures, colour, card, tiles, hint } = autotune;
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
      xAxis: { ...autotune.span(0, most, { parts: 5 }), name: "% of the limit" },
      yAxis: autotune.categories(names),
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

  // ---------------------------------------------------------------------------------------------- the page

  const runFacts = (r, studies) => {
    const share = (name) =>
      figures.percent(r.seconds ? Math.min(1, r.bins[name].reduce((a, b) => a + b, 0) / r.seconds) : 0, 0);
    const disturbed = Object.entries(r.marks).map(([mark, counts]) => [
      mark,
      counts.reduce((a, b) => a + b, 0),
    ]);
    return tiles([
      [r.is_recorded ? "simulated" : "ran for", figures.seconds(r.seconds), figures.time(r.began_at)],
      [
        "trials per second",
        figures.number(r.seconds ? r.num_trials / r.seconds : 0, 1),
        `${figures.counted(r.num_trials, "trial")} on ${r.progress.length} of ${figures.counted(studies.length, "shape")}`,
      ],
      ["GPU timing", share("measure_s"), `${share("verify_s")} verifying`],
      [
        "disturbed",
        figures.number(r.num_disturbed),
        disturbed.map(([mark, n]) => `${mark} ${n}`).join(", ") || "nothing was noticed",
      ],
    ]);
  };

  const runName = (r, at) =>
    `${figures.time(r.began_at)}, ${figures.counted(r.num_trials, "trial")}, ${r.gpu}${at === 0 ? " (newest)" : ""}`;

  const runCard = (run, studies, { slot, picture }) => {
    const runs = autotune.overview.runs;
    const choose = (value) => {
      shown.run = Number(value);
      autotune.refresh();
    };
    const names = runs.map((r, at) => [at, runName(r, at)]);
    return card(
      "Best so far",
      {},
      runs.length > 1 ? autotune.choice("run", names, shown.run, choose) : null,
      slot(() => runFacts(run(), studies())),
      picture(
        "The best so far of each shape against cuBLAS, over the seconds of the run",
        autotune.climbs(run, studies),
        { height: autotune.isNarrow() ? 260 : 340, name: "progress" },
      ),
      hint(
        "How many times as fast as cuBLAS each shape's best is, as it was found. Thick: the geometric mean.",
      ),
    );
  };

  const timelineCard = (run, { picture }) =>
    autotune.more(
      "The run over time",
      { open: !autotune.isNarrow(), name: "over-time" },
      picture(
        "Trials per second, how busy the GPU was, its clock and power, and what was disturbed, over the seconds of the run",
        autotune.timeline(run),
        { name: "timeline" },
      ),
      hint(
        "Seconds since the run's first trial. Compiling adds up over threads; what the GPU does besides trials ",
        "(duels, finals, cuBLAS) is not stored.",
      ),
    );

  const limitCard =
    (studies, groups, { picture }) =>
    (group, at) => {
      const ofGroup = () => studies().filter((study) => study.measured_on === group);
      return card(
        groups.length > 1 ? `Share of the limit: ${group}` : "Share of the limit",
        {},
        autotune.recordedNote(ofGroup()[0]),
        picture(
          `Share of the hardware's limit that each shape reaches, ours and cuBLAS, on ${group}`,
          limits(ofGroup),
          {
            name: `limits-${at}`,
          },
        ),
        hint(
          "The limit: the larger of 2mnk over the FMA rate and the least memory traffic over the bandwidth. ",
          groups.length > 1 ? "" : group,
        ),
      );
    };

  autotune.drawSearches = (main) => {
    const studies = () => autotune.overview.studies;
    const run = () => autotune.overview.runs[Math.min(shown.run, autotune.overview.runs.length - 1)];
    const groupsOf = () => [...new Set(studies().map((study) => study.measured_on))];
    const partsOf = () => `${autotune.overview.runs.map((r) => r.began_at)} ${groupsOf()}`;
    const changing = autotune.changing();
    const [groups, parts] = [groupsOf(), partsOf()];
    main.append(
      ...[
        element("h1", {}, "Searches"),
        changing.slot(() => headline(autotune.overview)),
        run() ? runCard(run, studies, changing) : null,
        ...groups.map(limitCard(studies, groups, changing)),
        run() ? timelineCard(run, changing) : null,
        card(
          "Shapes",
          { wide: true },
          changing.table(autotune.table("All shapes", columns(), studies()), studies),
        ),
      ].filter(Boolean),
    );
    return () => {
      if (partsOf() !== parts)
        autotune.redraw(); // another run, or another GPU
      else changing.updates.forEach((update) => update());
    };
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
