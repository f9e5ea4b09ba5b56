"use strict";
// Pictures: drawn by ECharts when they come into view, drawn anew when the colours or the data change.
{
  const { figures } = autotune;
  const drawn = new Set();

  autotune.colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  autotune.isNarrow = () => window.innerWidth < 640;

  const tooltip = () => ({
    confine: true,
    enterable: false,
    transitionDuration: 0,
    backgroundColor: autotune.colour("card"),
    borderColor: autotune.colour("line"),
    textStyle: { color: autotune.colour("text"), fontSize: 12 },
  });

  // What labels of an axis say.
  const rounded = (value) => Number(value.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 9 });
  const isNumeric = (given) => given.type === "value" || given.type === "log";

  const axis = (given) => ({
    nameTextStyle: { color: autotune.colour("faint") },
    axisLabel: {
      color: autotune.colour("faint"),
      hideOverlap: true,
      ...(isNumeric(given) ? { formatter: rounded } : {}),
      ...given.axisLabel,
    },
    axisLine: { lineStyle: { color: autotune.colour("line") } },
    splitLine: { lineStyle: { color: autotune.colour("line"), opacity: 0.6 } },
    axisTick: { lineStyle: { color: autotune.colour("line") } },
    nameLocation: "middle",
    nameGap: 28,
    ...Object.fromEntries(Object.entries(given).filter(([key]) => key !== "axisLabel")),
  });

  // The option of a picture with the house's looks under it.
  const dressed = (option) => {
    const each = (axes) => (axes === undefined ? undefined : [axes].flat().map(axis));
    return {
      animation: false,
      textStyle: { fontFamily: getComputedStyle(document.body).fontFamily, color: autotune.colour("text") },
      ...option,
      tooltip: { ...tooltip(), ...option.tooltip },
      legend: option.legend && {
        textStyle: { color: autotune.colour("text"), fontSize: 12 },
        itemHeight: 10,
        itemWidth: 16,
        top: 0,
        left: 0,
        inactiveColor: autotune.colour("line"),
        type: "scroll",
        pageTextStyle: { color: autotune.colour("text") },
        pageIconColor: autotune.colour("link"),
        ...option.legend,
      },
      xAxis: each(option.xAxis),
      yAxis: each(option.yAxis),
    };
  };

  const stepOf = (size) => {
    const unit = 10 ** Math.floor(Math.log10(size));
    return unit * [1, 2, 2.5, 5, 10].find((step) => step * unit >= 0.999 * size);
  };
  const LADDERS = [[1, 2, 5], [1]]; // of a decade, marked where there is room for so many

  // Marks of a logarithmic axis: of 1, 2 and 5, or powers of ten where those would be many; null over a short span.
  const marksOf = (low, high, parts) => {
    for (const ladder of LADDERS) {
      const found = [];
      for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1)
        ladder.forEach((step) => found.push(Number(`${step}e${power}`)));
      const from = found.findLastIndex((mark) => mark <= 1.001 * low);
      const marks = found.slice(from, found.findIndex((mark) => mark >= 0.999 * high) + 1);
      if (marks.length < 4) return null;
      if (marks.length <= parts + 3) return marks;
    }
    return null;
  };

  // An axis whose ends and marks are round numbers, outwards from `low` and `high`, in some `parts`.
  autotune.span = (low, high, { parts = 6, isLog = false } = {}) => {
    const marks = isLog && marksOf(low, high, parts);
    if (marks) {
      const shown = { customValues: marks };
      return { type: "log", min: marks[0], max: marks.at(-1), axisTick: shown, axisLabel: shown };
    }
    const step = stepOf((high - low || Math.abs(high) || 1) / parts);
    const snapped = (value) => Number((value * step).toPrecision(12));
    const [from, to] = [Math.floor(low / step + 1e-6), Math.ceil(high / step - 1e-6)];
    const [min, max] = [snapped(from), snapped(Math.max(to, from + 1))];
    if (!isLog || min <= 0) return { type: "value", min, max, interval: step };
    const all = { customValues: Array.from({ length: to - from + 1 }, (_, at) => snapped(from + at)) };
    return { type: "log", min, max, axisTick: all, axisLabel: all };
  };

  // The same of times in us, in ms where us would have five digits.
  autotune.timeSpan = (low, high, options) => {
    const [unit, us] = figures.unitOf(high);
    const axis = autotune.span(low, high, options);
    const formatter = (value) => rounded(value / us);
    return { ...axis, name: unit, axisLabel: { ...axis.axisLabel, formatter } };
  };

  // Saves a picture as PNG, twice as fine as the screen shows it.
  const save = (instance, name) => {
    const url = instance.getDataURL({ pixelRatio: 2, backgroundColor: autotune.colour("card") });
    autotune.element("a", { href: url, download: `${name}.png` }).click();
  };

  // A picture. `build` gives ECharts' option, or null where there is nothing to draw; `label` says in words what
  // it shows; `listen` gets the instance once. The element's `update` draws it anew; a button saves it as PNG.
  autotune.chart = (label, build, { height = 300, listen = null, name = null } = {}) => {
    const made = autotune.element("div", { class: "chart", role: "img", "aria-label": label, id: name });
    made.style.height = `${height}px`;
    const png = autotune.element(
      "button",
      { type: "button", class: "png", "aria-label": `Save as PNG: ${label}`, click: () => save(instance, name || "chart") },
      "PNG",
    );
    const whole = autotune.element("div", { class: "picture" }, made, png);
    let instance = null;
    const draw = () => {
      const option = build();
      whole.hidden = option === null;
      if (option === null) return;
      const { height: wanted, ...drawable } = option;
      if (wanted) made.style.height = `${wanted}px`;
      if (!instance) {
        instance = echarts.init(made, null, { renderer: "canvas" });
        if (listen) listen(instance);
      } else if (wanted) instance.resize();
      instance.setOption(dressed(drawable), { notMerge: true });
    };
    const resized = new ResizeObserver(() => instance && made.clientWidth && instance.resize());
    const seen = new IntersectionObserver(
      (entries) => {
        if (entries.some((entry) => entry.isIntersecting) && !instance) draw();
      },
      { rootMargin: "200px" },
    );
    seen.observe(made);
    resized.observe(made);
    const handle = {
      redraw: (all) => (instance || all ? draw() : undefined),
      forget: () => {
        seen.disconnect();
        resized.disconnect();
        if (instance) instance.dispose();
      },
    };
    whole.update = () => (instance ? draw() : undefined);
    made.instance = () => instance;
    drawn.add(handle);
    return whole;
  };

  // An axis of names, which are cut at so many pixels.
  autotune.categories = (data, width) => ({
    type: "category",
    data,
    axisLabel: {
      color: autotune.colour("text"),
      fontSize: 12,
      ...(width ? { width, overflow: "truncate" } : {}),
    },
    splitLine: { show: false },
    axisTick: { show: false },
  });

  // What a page is made of that changes with the data: each part adds how to draw itself anew to `updates`.
  autotune.changing = () => {
    const updates = [];
    const kept = (made, update) => {
      updates.push(update);
      return made;
    };
    const slot = (build) => {
      const made = autotune.element("div", {}, build());
      return kept(made, () => made.replaceChildren(build()));
    };
    // What a reader chooses from: it follows the data until they have chosen, or have it in hand.
    const form = (build) => {
      let isKept = false;
      const made = autotune.element("div", { class: "choices" }, build());
      made.keep = () => {
        isKept = true;
      };
      made.addEventListener("change", made.keep);
      return kept(made, () => {
        if (!isKept && !made.contains(document.activeElement)) made.replaceChildren(...build());
      });
    };
    const picture = (...given) => {
      const made = autotune.chart(...given);
      return kept(made, made.update);
    };
    const table = (made, rows) => kept(made, () => made.update(rows()));
    return { updates, slot, form, picture, table };
  };

  // Before another page comes.
  autotune.forgetCharts = () => {
    drawn.forEach((handle) => handle.forget());
    drawn.clear();
  };
  autotune.redrawCharts = ({ all = false } = {}) => drawn.forEach((handle) => handle.redraw(all));

  // A tooltip: a title and lines of [name, text].
  autotune.told = (title, lines) => {
    const { element } = autotune;
    return element(
      "div",
      { class: "told" },
      element("strong", {}, title),
      element(
        "dl",
        {},
        lines
          .filter(Boolean)
          .map(([name, text]) => [element("dt", {}, name), element("dd", {}, text)])
          .flat(),
      ),
    );
  };

  // A tooltip of a trial: how it did, and its whole config.
  autotune.toldOfTrial = (row) => {
    const { element, figures } = autotune;
    return element(
      "div",
      { class: "told" },
      element(
        "strong",
        {},
        row.is_ok ? `${figures.us(row.us)}, trial ${row.id}` : `trial ${row.id}: ${row.outcome}`,
      ),
      element(
        "div",
        { class: "faint" },
        `${autotune.groups[row.group]} (${row.origin}), number ${row.number}, ` +
          `after ${figures.seconds(row.s)}${row.marks ? `, ${row.marks}` : ""}`,
      ),
      row.reason ? element("div", {}, row.reason.slice(0, 160)) : null,
      element(
        "dl",
        { class: "config" },
        Object.entries(row.point).map(([name, value]) =>
          element("div", {}, element("dt", {}, name), element("dd", {}, String(value))),
        ),
      ),
    );
  };
}
