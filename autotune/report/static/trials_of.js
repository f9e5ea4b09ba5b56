"use strict";
// Trials of a study as rows, from the columns that a document has (autotune/report/documents.py).
{
  const at = (column, row) => {
    if (Array.isArray(column)) return column[row];
    return "all" in column ? column.all : column.values[column.rows[row]];
  };

  // What proposed a trial, in groups that a picture can tell apart.
  const GROUPS = {
    seed: ["seed", "later-seed", "transfer"],
    random: ["random"],
    bandit: ["bandit"],
    reuse: ["reuse", "fill"],
    polish: ["polish"],
  };
  const groupOf = (origin) => Object.keys(GROUPS).find((group) => GROUPS[group].includes(origin)) || "model";

  // Rows: { number, id, s, us, origin, group, outcome, ..., point }, oldest first.
  autotune.rowsOf = (trials) => {
    const names = Object.keys(trials.point);
    const rows = [];
    for (let row = 0; row < trials.count; row += 1) {
      const made = { number: trials.first + row, point: {} };
      for (const [name, column] of Object.entries(trials.columns)) made[name] = at(column, row);
      for (const name of names) made.point[name] = at(trials.point[name], row);
      made.group = groupOf(made.origin);
      made.is_ok = made.outcome === "ok";
      rows.push(made);
    }
    return rows;
  };

  // The fastest ok trials, fastest first.
  autotune.fastest = (rows, most = Infinity) =>
    rows
      .filter((row) => row.is_ok)
      .sort((a, b) => a.us - b.us)
      .slice(0, most);

  // The values of a parameter that trials have: numbers by size, words by the alphabet.
  autotune.valuesOf = (rows, name) =>
    [...new Set(rows.map((row) => row.point[name]))].sort((a, b) =>
      typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en"),
    );

  autotune.symbols = {
    // series that share a picture differ in shape as well as in colour
    model: "circle",
    seed: "triangle",
    bandit: "diamond",
    reuse: "rect",
    random: "path://M5,0A5,5,0,1,1,5,10A5,5,0,1,1,5,0ZM5,2A3,3,0,1,0,5,8A3,3,0,1,0,5,2Z",
    polish: "path://M-1,-5 h2 v4 h4 v2 h-4 v4 h-2 v-4 h-4 v-2 h4 z",
  };
  autotune.groups = {
    seed: "kernels that ship",
    random: "drawn at random",
    model: "the model",
    bandit: "the bandit",
    reuse: "from other shapes",
    polish: "polish",
  };

  // Parameters that differ between points, in the order of the space: all of them may be of different parameters.
  autotune.differing = (points, order) => {
    const names = order.filter((name) => points.some((point) => name in point));
    const others = [...new Set(points.flatMap(Object.keys))].filter((name) => !order.includes(name));
    return [...names, ...others].filter((name) => new Set(points.map((point) => point[name])).size > 1);
  };
}
