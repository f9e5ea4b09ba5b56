"use strict";
// Figures as text: one place for units and digits.
autotune.figures = {
  number: (value, digits = 0) =>
    value === null || value === undefined
      ? "-"
      : value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }),
  counted: (value, one) => `${value.toLocaleString("en")} ${one}${value === 1 ? "" : "s"}`,
  // What times up to so many us are told in: a unit, and how many us it has.
  unitOf: (us) => (us >= 1e6 ? ["s", 1e6] : us >= 1e4 ? ["ms", 1e3] : ["us", 1]),
  us: (value) => {
    if (value === null || value === undefined) return "-";
    const [unit, us] = autotune.figures.unitOf(value);
    return `${value >= 1e3 && us === 1 ? value.toFixed(0) : (value / us).toPrecision(4)} ${unit}`;
  },
  times: (value) => (value === null || value === undefined ? "-" : `${value.toFixed(value < 10 ? 3 : 1)}x`),
  percent: (share, digits = 1) =>
    share === null || share === undefined ? "-" : `${(100 * share).toFixed(digits)} %`,
  seconds: (value) => {
    if (value === null || value === undefined) return "-";
    if (value >= 3600) return `${(value / 3600).toFixed(1)} h`;
    return value >= 120 ? `${(value / 60).toFixed(1)} min` : `${value.toFixed(value < 10 ? 1 : 0)} s`;
  },
  time: (text) => (text ? text.replace("T", " ").replace("Z", " UTC") : "-"),
  ago: (text) => (text ? Math.max(0, (Date.now() - Date.parse(text)) / 1000) : null),
  mean: (values) =>
    values.length ? Math.exp(values.reduce((sum, v) => sum + Math.log(v), 0) / values.length) : null,
};
