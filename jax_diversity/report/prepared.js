// The documents that preparation removed and edited: the rules, and examples. Text of the corpus is always set as text.
"use strict";
const prepared = (() => {
  const { count, decimal, noun, percent } = wording;
  const { element, find, foreign, identifier, series, table } = elements;

  const about = (example) => element("p", { class: "meta" },
    series([example.id, example.source, example.language].filter((part) => part != null && part !== ""), " · ", (text) => identifier(text)));
  const line = (text, mark) => element({ "-": "del", "+": "ins" }[mark] ?? "div", {}, foreign(mark === "…" ? mark : text));

  const removed = (example) => element("li", {}, about(example),
    element("p", { class: "hint" }, `measured ${decimal(example.value)}, threshold ${decimal(example.threshold)}`),
    element("div", { class: "excerpt" }, example.text.map((text) => line(text))));
  const edited = (example) => element("li", {}, about(example),
    element("div", { class: "excerpt diff" }, example.lines.map(([mark, text]) => line(text, mark))));

  // Its documents are added when it is opened for the first time, as for the batches.
  function opening(names, number, examples, show) {
    const node = element("details", { class: "opens" }, element("summary", {}, element("span", { class: "tv" }, series(names, " · ")),
      element("span", { class: "meta" }, `${examples.length} of ${noun(number, "document")}`)));
    node.addEventListener("toggle", () => {
      if (node.open && node.children.length === 1) node.append(element("ol", { class: "examples" }, examples.map(show)));
    });
    return node;
  }

  function list(title, hint, nodes) {
    return nodes.length ? [element("h3", { class: "titled" }, title), element("p", { class: "hint" }, hint), ...nodes] : [];
  }

  function places(picker, about, choose) {
    const groups = [["", "all"], ["Sources", "source"], ["Languages", "language"]].map(([title, kind]) => {
      const options = about.places.flatMap((place, at) => (place.kind !== kind ? []
        : [element("option", { value: at }, preparationFigures.placeName(place))]));
      return title && options.length ? element("optgroup", { label: title }, options) : options;
    });
    picker.append(...groups.flat());
    picker.addEventListener("change", () => choose(Number(picker.value)));
  }

  function fill({ preparation: all }, choose) {
    find("preparation").hidden = !all;
    if (!all) return;
    const bytes = all.places[0].bytes;
    const megabytes = (number) => `${decimal(number / 1e6, 3)} MB`;
    find("preparation-words").textContent = `${noun(all.read, "document")} (${megabytes(bytes[0])} of text) were read and passed ` +
      `${noun(all.steps.length, "step")}; ${count(all.kept)} were kept (${percent(all.kept / (all.read || 1))}, ${megabytes(bytes.at(-1))}).`;
    places(find("place"), all, choose);
    find("rules-title").hidden = find("rules").hidden = !all.rules.length;
    find("rules").append(table(["Step", "Rule", "Reason", "Removed", "Share of its input"],
      all.rules.map((rule) => [foreign(rule.step), foreign(rule.rule), foreign(rule.phrase || "–"), count(rule.removed), percent(rule.share)])));
    find("found-title").hidden = find("found").hidden = !all.found.length;
    find("found").append(table(["Step", "Kind", "Number"], all.found.flatMap((step) => [
      ...step.kinds.map(({ kind, number }) => [foreign(step.step), foreign(kind), count(number)]),
      ...(step.num_more ? [[foreign(step.step), `${noun(step.num_more, "more kind")}`, "–"]] : [])])));
    find("examples").append(
      ...list("Removed documents to look at", "The beginnings of some documents that each rule removed, with the measured values. Personal data is masked.",
        all.rules.filter((rule) => rule.examples.length).map((rule) => opening([rule.step, rule.rule, rule.phrase].filter(Boolean), rule.removed, rule.examples, removed))),
      ...list("Edited documents to look at", "Lines that a step removed from some documents, and lines that it added.",
        all.edited.filter((step) => step.examples.length).map((step) => opening([step.step], step.documents, step.examples, edited))));
  }

  return { fill };
})();
