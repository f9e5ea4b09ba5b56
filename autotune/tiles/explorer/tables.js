// Counts, what a block takes of an SM, the config, and the form for another one.

const COUNTED = [
  ["accesses", "accesses of warps"],
  ["num_bytes", "bytes asked for"],
  ["sectors", "sectors"],
  ["lines", "lines"],
  ["wavefronts", "wavefronts"],
  ["conflicts", "conflicts"],
];

function drawCounts() {
  drawAccessCounts(view().counts);
  drawMetrics(view().ncu ?? []);
}
function drawAccessCounts(counts) {
  find("#counts .sentences").replaceChildren(...counts.sentences.map((words) => node("li", {}, words)));
  const head = node(
    "tr",
    {},
    ...["kernel", "where", "what"].map((n) => node("th", { class: "text", scope: "col" }, n)),
    ...COUNTED.map(([, words]) => node("th", { scope: "col" }, words)),
  );
  const rows = counts.rows.map((row) =>
    node(
      "tr",
      {},
      node("td", {}, row.kernel),
      node("td", { class: "text" }, row.where),
      node("td", { class: "text" }, `${row.what}: ${row.space} ${row.kind}`),
      ...COUNTED.map(([name]) =>
        node(
          "td",
          { class: name === "conflicts" && row[name] ? "bad" : null },
          row[name] ? number(row[name]) : "–",
        ),
      ),
    ),
  );
  find("#counts .scroll").replaceChildren(
    node("table", { class: "counts" }, node("thead", {}, head), node("tbody", {}, ...rows)),
  );
}
function tableOf(kind, heads, rows) {
  const cells = (row) => row.map((words) => node("td", { class: "text" }, words));
  return node(
    "table",
    { class: kind },
    node("thead", {}, node("tr", {}, ...heads.map((words) => node("th", { class: "text", scope: "col" }, words)))),
    node("tbody", {}, ...rows.map((row) => node("tr", {}, ...cells(row)))),
  );
}
// What ncu counts of this launch beside the model's count, and the command that asks it.
function drawMetrics(metrics) {
  find("#counts .ncu").hidden = metrics.length === 0;
  const told = (one) => (one.relation === "equal" ? number(one.expected) : `${one.relation} ${number(one.expected)}`);
  const rows = metrics.map((one) => [one.meaning, told(one), one.name]);
  find("#counts .ncu .scroll").replaceChildren(
    tableOf("counts", ["what", "the model's count", "metric of ncu"], rows),
  );
  const names = metrics.map((one) => one.name).join(",");
  const config = view().parameters.map((p) => `${p.name}=${p.value}`).join(",");
  const counted = "--target-processes all --kernel-name sgemm --launch-count 1 --cache-control all";
  text(
    "#counts .ncu .command",
    `ncu ${counted} --metrics ${names} autotune time --shape ${view().shape} ${config}`,
  );
}
function drawResources() {
  const found = view().resources,
    most = Math.max(...found.fits.map((f) => Math.min(f.blocks, 32)));
  text("#resources .say", found.say);
  const parts = found.fits.flatMap((fit, i) => {
    const y = i * 26 + 4,
      decides = found.decides.includes(fit.by),
      width = (Math.min(fit.blocks, 32) / most) * 250;
    return [
      draw("text", { class: "fit-name", x: 108, y: y + 9 }, fit.by),
      draw("rect", {
        class: decides ? "fit decides" : "fit",
        x: 116,
        y,
        width: Math.max(width, 2),
        height: 18,
        rx: 3,
      }),
      draw(
        "text",
        { class: "fit-blocks", x: 122 + Math.max(width, 2), y: y + 9 },
        `${fit.blocks} ${fit.blocks === 1 ? "block" : "blocks"}${decides ? " ◂ decides" : ""}`,
      ),
    ];
  });
  figure(
    "resources",
    "Blocks that fit an SM, by each of its means",
    490,
    found.fits.length * 26 + 4,
    ...parts,
  );
  find("#resources .takes").replaceChildren(
    ...found.takes.map((taken) =>
      node(
        "div",
        { class: "row" },
        node("span", {}, `${taken.what}${taken.note ? ` (${taken.note})` : ""}`),
        node("span", {}, `${number(taken.amount)} of ${number(taken.most)}`),
        node("meter", { min: 0, max: taken.most, value: taken.amount, "aria-label": taken.what }),
      ),
    ),
  );
}
function drawParameters() {
  const own = view().parameters,
    before = data.views[state.view - 1]?.parameters ?? [];
  const old = Object.fromEntries(before.map((p) => [p.name, p.value])),
    isCompared = before.length > 0 && own.length > 0;
  text(
    "#parameters .say",
    !own.length
      ? "This kernel is no instance of the template: it has no parameters."
      : isCompared
        ? `Marked: what differs from “${data.views[state.view - 1].name}”.`
        : "",
  );
  find("#parameters dl").replaceChildren(
    ...own.map((p) =>
      node(
        "div",
        { title: p.meaning, class: isCompared && old[p.name] !== p.value ? "changed" : null },
        node("dt", {}, p.name),
        node("dd", {}, String(p.value)),
      ),
    ),
  );
  find("#parameters details").hidden = own.length === 0;
  find("#parameters .fields").replaceChildren(
    ...own.map((p) => {
      const choice = node(
        "select",
        { "data-name": p.name },
        ...p.values.map((v) => node("option", {}, String(v))),
      );
      choice.value = String(p.value);
      choice.addEventListener("change", writeCommand);
      return node("label", { title: p.meaning }, p.name, choice);
    }),
  );
  writeCommand();
}
function writeCommand() {
  const chosen = [...document.querySelectorAll("#parameters select")]
    .map((s) => `${s.dataset.name}=${s.value}`)
    .join(",");
  text(
    "#parameters .command",
    `autotune explain --gpu ${data.gpu} --shape ${view().shape} --config ${chosen}`,
  );
}
