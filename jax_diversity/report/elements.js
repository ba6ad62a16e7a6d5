// Elements of the page. Text of the corpus is always set as text, never as markup.
"use strict";
const elements = (() => {
  const find = (id) => document.getElementById(id);

  function element(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes))
      if (name === "style") for (const [property, setting] of Object.entries(value)) node.style.setProperty(property, setting);
      else if (value != null) node.setAttribute(name, value);
    node.append(...children.flat().filter((child) => child != null));
    return node;
  }
  // Text that may be in any script: its writing direction does not affect the text around it.
  const foreign = (text, attributes = {}) => element("bdi", { dir: "auto", ...attributes }, text);
  // An id: shortened if it is long, complete under the mouse.
  const identifier = (text, attributes = {}) => {
    const shown = wording.middle(text, 60);
    return foreign(shown, { ...(shown === text ? {} : { title: text }), ...attributes });
  };
  // `name` in a sentence becomes code.
  const sentence = (text) => element("p", {}, text.replace(/(\d) %/g, "$1\u00a0%").split("`").map((part, at) => (at % 2 ? element("code", {}, part) : part)));

  function table(head, rows, rowClass = () => null) {
    const isNumber = (column) => rows.length > 0 && column > 0 && rows.every((row) => typeof row[column] === "string" && /^[<>–\d-]/.test(row[column]));
    const numeric = head.map((_, column) => isNumber(column));
    return element("table", {},
      element("thead", {}, element("tr", {}, head.map((text, column) => element("th", { scope: "col", class: numeric[column] ? "num" : null }, text)))),
      element("tbody", {}, rows.map((row, at) => element("tr", { class: rowClass(at) },
        row.map((cell, column) => element("td", { class: numeric[column] ? "num" : null }, cell))))));
  }

  // Texts one after the other, each with its own writing direction.
  const series = (texts, between = ", ", show = foreign) => texts.flatMap((text, at) => (at ? [between, show(text)] : [show(text)]));

  function choice(legend, name, options, chosen, show, choose) {
    const inputs = options.map((option) => {
      const input = element("input", { type: "radio", name, value: String(option) });
      input.checked = option === chosen;
      input.addEventListener("change", () => choose(option));
      return element("label", {}, input, element("span", {}, show(option)));
    });
    return element("fieldset", { class: "choice" }, element("legend", {}, legend), element("div", { class: "options" }, inputs));
  }

  function button(text, press, attributes = {}) {
    const node = element("button", { type: "button", ...attributes }, text);
    node.addEventListener("click", press);
    return node;
  }

  return { find, element, foreign, identifier, sentence, series, table, choice, button };
})();
