"use strict";
// The page of one shape. Its pictures are in history.js, finals.js, roofline.js, parallel.js, choices.js and ladder.js.
{
  const { element, figures, card, more, tiles, hint } = autotune;

  const trialsNote = (line) =>
    `${figures.number(line.num_failed)} failed` +
    (line.num_shown < line.num_trials ? `, ${figures.number(line.num_shown)} drawn` : "");

  const headline = (line, study) =>
    tiles([
      ["best", figures.us(line.best_us), `${figures.number(line.tflops, 1)} TFLOP/s`],
      ["against cuBLAS", figures.times(line.speedup), `${figures.us(line.cublas_us)} cuBLAS`],
      ["of the limit", figures.percent(line.share_of_limit), `${figures.us(line.limit_us)} limit`],
      ["trials", figures.number(line.num_trials), trialsNote(line)],
      study.finalists.length ? ["tied", figures.number(line.num_tied), "cannot be told apart"] : null,
      ["error", figures.times(line.error), "over cuBLAS's"],
    ]);

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
        `${figures.number(spent.num_compiled)} of ${figures.counted(line.num_trials, "trial")} compiled their kernel, `,
        "the others shared one or took it from the cache; ",
        `timing of ${figures.number(cut)} stopped early, as clearly slower. `,
        line.recorded_on ? "" : `Pauses of more than ${pause} s are left out.`,
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

  // Parts that come into being while a search runs: with another of them the page is made anew.
  const partsOf = ({ line, document: found, rows }) =>
    [found.finalists, found.importance, found.pairs, rows.filter((row) => row.is_ok)]
      .map((part) => Math.min(part.length, 2))
      .join() +
    (line.num_failed > 0);

  autotune.drawShape = (main, id) => {
    const get = () => ({ line: autotune.lineOf(id), ...autotune.studyOf(id) });
    const changing = autotune.changing();
    const { updates, slot, picture, table } = changing;
    const parts = partsOf(get());
    const isTimed = get().rows.some((row) => row.is_ok);
    const failed = () => get().document.failures;
    main.append(
      ...[
        element("h1", {}, get().line.label),
        autotune.recordedNote(get().line),
        slot(() => headline(get().line, get().document)),
        isTimed
          ? autotune.historyCard(get, updates)
          : card("History", { wide: true }, hint("No trial was timed.")),
        autotune.finalsCard(get, picture, table),
        autotune.rooflineCard(get, picture),
        ...autotune.parameterCards(get, changing),
        autotune.ladderCard(get().line, picture),
        more(
          "What failed and why",
          { name: "failures" },
          failed().length ? table(failures(get), failed) : hint("No trial failed."),
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
      ].filter(Boolean),
    );
    return () => {
      if (partsOf(get()) !== parts) autotune.redraw();
      else updates.forEach((update) => update());
    };
  };
}
