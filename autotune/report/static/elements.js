"use strict";
// Elements of pages: made node by node, so that no text ever becomes markup.
const autotune = {};

// element("p", { class: "hint" }, "text", node): attributes by name, handlers as functions, null children left out.
autotune.element = (name, attributes = {}, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(key, value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
};

autotune.hint = (...text) => autotune.element("p", { class: "hint" }, ...text);

// A card with a heading; `wide` spans the page. Its heading names it.
autotune.card = (title, { wide = false, name = null } = {}, ...children) => {
  const { element } = autotune;
  return element(
    "section",
    { class: wide ? "card wide" : "card", "aria-label": title, id: name },
    element("h2", {}, title),
    ...children,
  );
};

// The same, shut until somebody wants it; open at once where there is room.
autotune.more = (title, { open = false, name = null } = {}, ...children) => {
  const { element } = autotune;
  return element(
    "details",
    { class: "card wide", open, id: name },
    element("summary", {}, element("h2", {}, title)),
    ...children,
  );
};

// Tiles of one figure each: [[label, text, note]].
autotune.tiles = (facts) => {
  const { element } = autotune;
  return element(
    "dl",
    { class: "tiles" },
    facts
      .filter(Boolean)
      .map(([label, text, note]) =>
        element(
          "div",
          {},
          element("dt", {}, label),
          element("dd", {}, text, note ? element("span", { class: "note" }, note) : null),
        ),
      ),
  );
};

// A choice among words: [[value, text]]; `choose` gets the value.
autotune.choice = (label, options, value, choose) => {
  const { element } = autotune;
  const select = element(
    "select",
    { change: (event) => choose(event.target.value) },
    options.map(([key, text]) =>
      element("option", { value: key, selected: String(key) === String(value) }, text),
    ),
  );
  return element("label", { class: "choice" }, element("span", {}, label), select);
};

// A table whose headings sort it. Columns: { title, value(row), show(row)?, number?, least? }; `least` is the width
// of screens that have room for it: "tablet" or "desktop". The order that was chosen outlasts new rows.
autotune.table = (caption, columns, rows, { most = Infinity, sort = null } = {}) => {
  const { element } = autotune;
  let order = sort;
  const body = element("tbody");
  const heads = columns.map((column, at) => {
    const sortBy = () => {
      order = [at, order && order[0] === at ? -order[1] : 1];
      fill();
    };
    return element(
      "th",
      { scope: "col", class: classOf(column) },
      element("button", { type: "button", click: sortBy }, column.title),
    );
  });
  const made = element(
    "table",
    {},
    element("caption", { class: "unseen" }, caption),
    element("thead", {}, element("tr", {}, heads)),
    body,
  );
  const scroller = element(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    made,
  );

  function classOf(column) {
    return [column.number ? "number" : "", column.least || ""].join(" ").trim() || null;
  }
  function sorted() {
    if (!order) return rows;
    const [at, direction] = order;
    const key = columns[at].value;
    const rank = (value) => (value === null || value === undefined ? Infinity : value);
    return [...rows].sort((a, b) => {
      const [x, y] = [rank(key(a)), rank(key(b))];
      if (x === y) return 0;
      if (x === Infinity || y === Infinity) return x === Infinity ? 1 : -1; // what is unknown comes last
      return direction * (typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y);
    });
  }
  function fill() {
    heads.forEach((head, at) => {
      const is = order && order[0] === at ? (order[1] > 0 ? "ascending" : "descending") : "none";
      head.setAttribute("aria-sort", is);
    });
    body.replaceChildren(
      ...sorted()
        .slice(0, most)
        .map((row) =>
          element(
            "tr",
            {},
            columns.map((column) =>
              element(
                "td",
                { class: classOf(column) },
                column.show ? column.show(row) : String(column.value(row) ?? "-"),
              ),
            ),
          ),
        ),
    );
  }
  fill();
  scroller.update = (newRows) => {
    rows = newRows;
    fill();
  };
  return scroller;
};
