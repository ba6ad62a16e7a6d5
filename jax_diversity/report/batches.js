// The best and the worst batches of an ordering, with their documents.
"use strict";
const batches = (() => {
  const { count, decimal, noun, percent } = wording;
  const { element, foreign, identifier, series } = elements;

  // A bar from a group's share of the corpus to its share of the batch, both relative to the largest share.
  function difference({ name, share, target }, largest) {
    const width = (part) => ({ width: `${Math.min(100, (100 * part) / largest)}%` });
    return element("li", {}, foreign(name), element("span", { class: "num" }, `${percent(share)} instead of ${percent(target)}`),
      element("span", { class: "track", "aria-hidden": "true" },
        element("i", { style: width(share) }), element("b", { style: { left: width(target).width } })));
  }

  function segment(about) {
    const meta = [about.document, about.source, about.language, about.cluster].filter((part) => part != null && part !== "");
    return element("li", {},
      element("div", { class: "document" }, about.title ? foreign(about.title, { class: "name" }) : identifier(about.document, { class: "name" }),
        element("span", { class: "meta" }, series(meta, " · ", (text) => identifier(text)))),
      element("span", { class: "num" }, noun(about.tokens, "token")));
  }

  function row(about) {
    const more = about.num_more_segments ? element("li", { class: "rest" }, `and ${noun(about.num_more_segments, "segment")} more`) : null;
    return element("li", {}, element("p", { class: "row" }, `Row ${count(about.row)}`, element("span", {}, `sequence ${count(about.sequence_index)}`)),
      element("ul", {}, about.segments.map(segment), more));
  }

  function content(batch) {
    const largest = Math.max(...batch.differences.flatMap(({ share, target }) => [share, target]), 1e-9);
    const more = batch.num_more_rows ? element("p", { class: "hint" }, `${noun(batch.num_more_rows, "row")} more.`) : null;
    return element("div", { class: "opened" },
      element("div", {}, element("h5", {}, "Largest differences from the corpus"),
        element("ul", { class: "differences" }, batch.differences.map((about) => difference(about, largest)))),
      element("div", {}, element("h5", {}, "Its sequences and their documents"),
        element("ol", { class: "sequences", tabindex: "0", role: "group", "aria-label": "Rows of the batch" }, batch.rows.map(row)), more));
  }

  // Its documents are added when it is opened for the first time: a page with thousands of them would start slowly.
  function opening(batch) {
    const node = element("details", { class: "batch" }, element("summary", {},
      element("span", { class: "tv" }, `TV ${decimal(batch.tv, 3)}`),
      element("span", {}, `Step ${count(batch.step)}`), element("span", { class: "meta" }, `from position ${count(batch.position)}`)));
    node.addEventListener("toggle", () => { if (node.open && node.children.length === 1) node.append(content(batch)); });
    return node;
  }

  // Two lists of batches; nothing if the report has no batches of this ordering and family.
  function lists(values, { focus, family }) {
    const about = values.ordering.batches?.orders[focus]?.[family];
    if (!about) return [];
    const list = (title, found) => (found.length ? element("div", {}, element("h4", {}, title), found.map(opening)) : null);
    return [list("The worst", about.worst), list("The best", about.best)].filter(Boolean);
  }

  return { lists };
})();
