"use strict";
// One trial in full, beside another: a dialog with an address of its own.
{
  const { element, figures } = autotune;

  const path = (study, trial, against) =>
    `#/shape/${study}/trial/${trial}${against ? `/against/${against}` : ""}`;

  autotune.openTrial = (trial) => {
    location.hash = path(autotune.place.id, trial);
  };

  autotune.trialLink = (trial, text = null) =>
    element("a", { href: path(autotune.place.id, trial) }, text || String(trial));

  const facts = [
    ["time", (row) => figures.us(row.us)],
    ["outcome", (row) => row.outcome.replaceAll("_", " ") + (row.is_cut_short ? ", cut short" : "")],
    ["proposed by", (row) => `${row.origin} (${autotune.groups[row.group]})`],
    ["number in the search", (row) => `${figures.number(row.number)}, after ${figures.seconds(row.s)}`],
    ["error over cuBLAS's", (row) => figures.times(row.error)],
    ["registers per thread", (row) => figures.number(row.registers)],
    [
      "shared memory",
      (row) => (row.smem_bytes === null ? "-" : `${figures.number(row.smem_bytes / 1024, 1)} KiB`),
    ],
    [
      "workspace of a launch",
      (row) =>
        row.workspace_bytes === null ? "-" : `${figures.number(row.workspace_bytes / 2 ** 20, 1)} MiB`,
    ],
    ["spilled", (row) => (row.spill_bytes === null ? "-" : `${figures.number(row.spill_bytes)} bytes`)],
    ["SM clock", (row) => (row.clock_mhz === null ? "-" : `${figures.number(row.clock_mhz)} MHz`)],
    [
      "power, temperature",
      (row) =>
        row.power_w === null
          ? "-"
          : `${figures.number(row.power_w)} W, ${figures.number(row.temperature_c)} °C`,
    ],
    ["disturbed by", (row) => row.marks || "nothing"],
  ];

  const sideBySide = (row, other, order) => {
    const pair = other ? [row, other] : [row];
    const differ = new Set(
      autotune.differing(
        pair.map((one) => one.point),
        order,
      ),
    );
    const names = [
      ...order.filter((name) => name in row.point),
      ...Object.keys(row.point).filter((name) => !order.includes(name)),
    ];
    const sorted = [
      ...names.filter((name) => differ.has(name)),
      ...names.filter((name) => !differ.has(name)),
    ];
    const line = (name, cells, isDifferent, meaning = "") =>
      element(
        "tr",
        { class: isDifferent ? "differs" : null },
        element("th", { scope: "row", title: meaning }, name),
        cells.map((cell) => element("td", {}, cell)),
      );
    return element(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Config" },
      element(
        "table",
        { class: "pair" },
        element("caption", { class: "unseen" }, "Facts and parameters"),
        element(
          "thead",
          {},
          element(
            "tr",
            {},
            element("th", { scope: "col" }, "what"),
            pair.map((one) => element("th", { scope: "col" }, `trial ${one.id}`)),
          ),
        ),
        element(
          "tbody",
          {},
          facts.map(([name, tell]) => line(name, pair.map(tell), false)),
          sorted.map((name) =>
            line(
              name,
              pair.map((one) => String(one.point[name] ?? "-")),
              differ.has(name),
              autotune.meaningOf(name),
            ),
          ),
        ),
      ),
    );
  };

  // What a trial may be held against: the winner, the other finalists, the fastest trials.
  const candidates = (rows, document) => {
    const finalists = document.finalists
      .filter((one) => one.trial)
      .map((one) => [one.trial, `finalist ${one.rank}: ${one.label}`]);
    const named = new Set(finalists.map(([id]) => id));
    const fastest = autotune
      .fastest(
        rows.filter((row) => !named.has(row.id)),
        20,
      )
      .map((row) => [row.id, `trial ${row.id}: ${figures.us(row.us)}`]);
    return [...finalists, ...fastest];
  };

  autotune.showTrial = (study, id, against) => {
    const dialog = document.getElementById("trial");
    const { rows, document: found } = autotune.studyOf(study);
    const row = rows.find((one) => one.id === id);
    const close = () => dialog.close();
    if (!row) {
      dialog.replaceChildren(
        element("h2", { id: "trial-title" }, `Trial ${id} is not of this shape`),
        element("button", { type: "button", click: close }, "Close"),
      );
    } else {
      const line = autotune.lineOf(study);
      const wanted = against || (line.best_trial !== id ? line.best_trial : null);
      const other = rows.find((one) => one.id === wanted) || null;
      const options = [["", "nothing"], ...candidates(rows, found).filter(([key]) => key !== id)];
      if (other && !options.some(([key]) => key === other.id)) options.push([other.id, `trial ${other.id}`]);
      dialog.replaceChildren(
        element(
          "div",
          { class: "dialog-head" },
          element("h2", { id: "trial-title" }, `Trial ${id}, ${line.label}`),
          element("button", { type: "button", click: close, "aria-label": "Close" }, "Close"),
        ),
        autotune.choice("beside", options, other ? other.id : "", (value) => {
          location.replace(path(study, id, value || id));
        }),
        row.reason ? element("p", { class: "reason" }, row.reason) : "",
        sideBySide(row, other && other.id !== id ? other : null, found.order),
        element("p", { class: "hint" }, "The whole config, as commands take it:"),
        element(
          "code",
          { class: "key" },
          Object.entries(row.point)
            .map(([name, value]) => `${name}=${value}`)
            .join(", "),
        ),
        autotune.isLive
          ? element("p", {}, element("a", { href: `/tiles/${study}/${id}` }, "What its warps do with memory"))
          : "",
      );
    }
    if (!dialog.open) dialog.showModal();
  };

  // Two trials by choice.
  autotune.compareForm = (get, { form }) => {
    if (candidates(get().rows, get().document).length < 2) return null;
    const chosen = [];
    const build = () => {
      const options = candidates(get().rows, get().document);
      [chosen[0], chosen[1]] = [options[0][0], options[1][0]];
      const select = (place, label) =>
        autotune.choice(label, options, chosen[place], (value) => {
          chosen[place] = Number(value);
        });
      const show = () => {
        location.hash = path(autotune.place.id, ...chosen);
      };
      return [
        select(0, "compare"),
        select(1, "with"),
        element("button", { type: "button", id: "compare", click: show }, "Side by side"),
      ];
    };
    return form(build);
  };
}
