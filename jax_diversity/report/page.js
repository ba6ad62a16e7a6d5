// Fills the page from the values it carries. Text of the corpus is only ever set as text, never as markup.
"use strict";
(() => {
  const root = document.documentElement;
  const values = JSON.parse(document.getElementById("values").textContent);
  const find = (id) => document.getElementById(id);
  const count = (number) => number.toLocaleString("en-US");
  const percent = (share) => (share > 0 && share < 0.0005 ? "< 0.1 %" : `${(100 * share).toFixed(1)} %`);
  const decimal = (number, digits = 4) => (number == null ? "–" : number.toLocaleString("en-US", { maximumSignificantDigits: digits }));
  const fixed = (number) => (number == null ? "–" : number.toFixed(4));
  const noun = (number, name) => `${count(number)} ${name}${number === 1 ? "" : "s"}`;

  function element(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes))
      if (name === "style") for (const [property, setting] of Object.entries(value)) node.style.setProperty(property, setting);
      else if (value != null) node.setAttribute(name, value);
    node.append(...children.flat().filter((child) => child != null));
    return node;
  }
  const foreign = (text, attributes = {}) => element("bdi", { dir: "auto", ...attributes }, text);
  // `name` in a sentence becomes code.
  const sentence = (text) => element("p", {}, text.replace(/(\d) %/g, "$1\u00a0%").split("`").map((part, at) => (at % 2 ? element("code", {}, part) : part)));

  function table(head, rows, rowClass = () => null) {
    const isNumber = (column) => rows.length > 0 && column > 0 && rows.every((row) => typeof row[column] === "string" && /^[<–\d-]/.test(row[column]));
    const numeric = head.map((_, column) => isNumber(column));
    return element("table", {},
      element("thead", {}, element("tr", {}, head.map((text, column) => element("th", { scope: "col", class: numeric[column] ? "num" : null }, text)))),
      element("tbody", {}, rows.map((row, at) => element("tr", { class: rowClass(at) },
        row.map((cell, column) => element("td", { class: numeric[column] ? "num" : null }, cell))))));
  }

  // ---- the summary
  function summary() {
    find("title").textContent = values.title;
    find("sentences").append(...values.summary.sentences.map(sentence));
    find("cards").append(...values.summary.cards.map((card) => element("div", {},
      element("dt", {}, foreign(card.label)), element("dd", { class: "value" }, card.value), element("dd", { class: "detail" }, foreign(card.detail)))));
  }

  // ---- the ordering
  const ordering = values.ordering;
  const mainWindow = values.summary.main_window ?? ordering.window_sizes[0];
  const state = { family: ordering.families[0], size: mainWindow, log: false, dark: false };

  function choice(legend, name, options, chosen, show, choose) {
    const inputs = options.map((option) => {
      const input = element("input", { type: "radio", name, value: String(option) });
      input.checked = option === chosen;
      input.addEventListener("change", () => choose(option));
      return element("label", {}, input, element("span", {}, show(option)));
    });
    return element("fieldset", { class: "choice" }, element("legend", {}, legend), element("div", { class: "options" }, inputs));
  }

  function controls() {
    const redraw = (change) => { Object.assign(state, change); verdict(); measures(); return draw(["windows", "sizes", "prefix"]); };
    if (ordering.families.length)
      find("ordering-controls").append(choice("Balance by", "family", ordering.families, state.family, (name) => foreign(name), (family) => redraw({ family })));
    if (ordering.window_sizes.length)
      find("ordering-controls").append(choice("Sequences in a window", "size", ordering.window_sizes, state.size, count, (size) => redraw({ size })));
    find("log").addEventListener("change", (event) => { state.log = event.target.checked; draw(["prefix"]); });
  }

  function verdict() {
    const rows = values.verdicts.filter((row) => row.family === state.family && row.window_size === state.size);
    const held = values.verdicts.filter((row) => row.holds).length;
    const about = rows.map((row) => element("div", { class: "verdict" },
      element("span", { class: `tag ${row.holds ? "good" : "warn"}` }, row.holds ? "✓ better" : "not better"), sentence(row.sentence)));
    if (!rows.length && values.verdicts.length)
      about.push(element("p", { class: "hint" }, "Too few windows of this size to compare; choose a smaller one."));
    if (values.verdicts.length > 1)
      about.push(element("p", { class: "hint" }, held === values.verdicts.length
        ? `The same holds in all ${values.verdicts.length} comparisons (orderings, families and window sizes).`
        : `Over all families and window sizes, it holds in ${held} of ${values.verdicts.length} comparisons.`));
    if (!values.verdicts.length) about.push(element("div", { class: "note" }, sentence(values.summary.sentences.at(-1))));
    find("verdict").replaceChildren(...about);
  }

  function measures() {
    const gaps = new Map(values.verdicts.map((row) => [JSON.stringify([row.ordering, row.family, row.window_size]), row.gap_closed]));
    const floors = new Map(ordering.references.filter((row) => row.family === state.family).map((row) => [row.window_size, row.floor]));
    const rows = ordering.orders.flatMap((order) => order.windows.filter((row) => row.family === state.family).map((row) => ({ order, row })));
    const gap = ({ order, row }) => gaps.get(JSON.stringify([order.name, row.family, row.window_size]));
    find("measures").hidden = find("measures-title").hidden = !rows.length;
    find("measures").replaceChildren(table(
      ["Ordering", "Window", "Windows", "Mean TV", "Best", "Worst", "Floor", "Gap closed", "Largest error of a group"],
      rows.map(({ order, row }) => [foreign(order.name), count(row.window_size), count(row.num_windows), fixed(row.mean), fixed(row.best),
        fixed(row.worst), fixed(floors.get(row.window_size)), gap({ order, row }) == null ? "–" : percent(gap({ order, row })), fixed(row.window_max)]),
      (at) => (rows[at].order.name === values.summary.main_ordering ? "main" : null)));
  }

  // ---- the corpus
  function groups(id, about) {
    find(`${id}-card`).hidden = !about;
    if (!about) return;
    const largest = Math.max(...about.rows.map((row) => row.share), 1e-9);
    const bar = (share) => element("span", { class: "track" }, element("i", { style: { width: `${Math.min(100, (100 * share) / largest)}%` } }));
    const line = (row) => element("li", { title: `${noun(row.documents, "document")}, ${noun(row.tokens, "token")}` },
      foreign(row.name), element("span", { class: "num" }, percent(row.share)), bar(row.share));
    const rest = about.rest.groups ? element("li", { class: "rest" }, `${count(about.rest.groups)} more`,
      element("span", { class: "num" }, percent(about.rest.share)), bar(about.rest.share)) : null;
    find(id).append(element("ul", { class: "rows", tabindex: "0" }, about.rows.map(line), rest));
  }

  function corpus() {
    const about = values.corpus;
    const words = [`${noun(about.num_documents, "document")}, ${noun(about.num_tokens, "token")}.`];
    const span = about.length_summary;
    if (span.median != null) words.push(`The median document has ${noun(span.median, "token")}, nine in ten have ` +
      `at most ${count(span.nine_tenths)}, the longest has ${count(span.longest)}.`);
    if (about.num_duplicates != null) words.push(about.num_duplicates
      ? `${noun(about.num_duplicates, "document")} repeat${about.num_duplicates === 1 ? "s" : ""} the text of another.` : "No text occurs twice.");
    if (about.num_empty) words.push(`${noun(about.num_empty, "document")} ${about.num_empty === 1 ? "holds" : "hold"} no token.`);
    find("corpus-words").textContent = words.join(" ");
    groups("sources", about.sources);
    groups("languages", about.languages);
    find("languages-card").parentElement.classList.toggle("single", !about.sources || !about.languages);
    if (about.skipped.length) find("skipped").append(element("h3", {}, "Left out while reading"),
      element("div", { class: "scroll" }, table(["Reason", "Records"], about.skipped.map((row) => [foreign(row.reason), count(row.records)]))));
  }

  // ---- the clusters
  function clusters() {
    const about = values.clusters;
    const rest = about.rest.groups ? ` The table shows the ${about.rows.length} largest; the other ${count(about.rest.groups)} hold ${percent(about.rest.share)} of the tokens.` : "";
    const empty = about.num_empty ? ` ${count(about.num_empty)} hold no document.` : "";
    find("clusters-words").textContent = `Documents with similar vocabulary were put into ${noun(about.num_clusters, "cluster")}. The terms are those that tell a cluster from the rest of the corpus.${empty}${rest}`;
    find("purity").append(...(about.purity ? sentence(about.purity).childNodes : []));
    find("purity").hidden = !about.purity;
    const largest = Math.max(...about.rows.map((row) => row.share), 1e-9);
    const rows = about.rows.map((row) => ({
      text: [...row.terms, ...row.titles].join("\n").toLowerCase(),
      node: element("tr", {},
        element("td", { class: "num" }, element("span", { class: "share" }, percent(row.share),
          element("i", { style: { width: `${(100 * row.share) / largest}%` } }))),
        element("td", {}, element("div", { class: "terms" }, row.terms.map((term) => foreign(term)))),
        element("td", {}, row.titles.map((title) => foreign(title, { title }))),
        element("td", { class: "num" }, count(row.documents)), element("td", { class: "num" }, count(row.tokens))),
    }));
    find("cluster-table").tBodies[0].append(...rows.map((row) => row.node));
    find("filter").addEventListener("input", (event) => {
      const wanted = event.target.value.trim().toLowerCase();
      let shown = 0;
      for (const row of rows) { row.node.hidden = !row.text.includes(wanted); shown += !row.node.hidden; }
      find("filter-count").textContent = wanted ? `${shown} of ${rows.length} clusters` : "";
    });
  }

  // ---- packing, training, settings
  function stack(parts) {
    const all = parts.reduce((sum, [, number]) => sum + number, 0) || 1;
    return [element("div", { class: "track", "aria-hidden": "true" }, parts.filter(([, number]) => number > 0).map(([, number, colour]) =>
        element("i", { style: { flex: `${number / all} 1 0`, background: colour } }))),
      element("ul", {}, parts.map(([name, number, colour]) => element("li", { style: { "--swatch": colour } }, `${name} (${percent(number / all)})`)))];
  }

  function packing() {
    const about = values.packing;
    find("packing-words").textContent = `Packing (${about.method}) made ${noun(about.num_sequences, "training sequence")} and ` +
      `${noun(about.num_validation_sequences, "validation sequence")} of ${noun(about.sequence_length, "token")}; ` +
      `${noun(about.num_documents_cut, "document")} lie${about.num_documents_cut === 1 ? "s" : ""} in more than one sequence` +
      `${about.mean_segments == null ? "." : `, and a training sequence holds ${decimal(about.mean_segments, 3)} segments on average.`}`;
    if (about.clusters_per_sequence != null) find("packing-words").textContent +=
      ` They come from ${decimal(about.clusters_per_sequence, 3)} clusters, the largest of which takes ${percent(about.largest_cluster_share)} of a sequence's tokens.`;
    find("packing-bar").append(...stack([[`${noun(about.num_tokens_kept, "token")} kept in sequences`, about.num_tokens_kept, "var(--bar)"],
      [`${noun(about.num_tokens_dropped, "token")} dropped`, about.num_tokens_dropped, "var(--warn)"]]));
    const others = [["taken by tokens that stand elsewhere too", about.num_tokens_repeated, "var(--good)"],
      ["taken by end tokens that packing inserted", about.num_inserted_ends, "var(--faint)"], ["left empty (padding)", about.num_padding_tokens, "var(--warn)"]];
    const used = others.filter(([, number]) => number > 0).map(([name, number, colour]) => [`${noun(number, "place")} ${name}`, number, colour]);
    if (used.length) find("packing-bar").append(element("p", { class: "hint" }, "What fills the sequences' places:"),
      ...stack([[`${noun(about.num_tokens_kept, "token")} of documents`, about.num_tokens_kept, "var(--bar)"], ...used]));
  }

  function training() {
    find("training").hidden = !values.training.length;
    find("training-words").append(...values.training.map((run) => sentence(run.sentence)));
  }

  function flat(value, path = "") {
    if (value === null || typeof value !== "object" || Array.isArray(value))
      return [[foreign(path), foreign(typeof value === "string" ? value : JSON.stringify(value))]];
    return Object.entries(value).flatMap(([key, part]) => flat(part, path ? `${path}.${key}` : key));
  }

  function settings() {
    const orders = Object.fromEntries(ordering.orders.map((order) => [order.name, { method: order.method, ...order.info }]));
    for (const [id, about] of [["settings", values.settings], ["orderings", orders], ["fingerprints", values.fingerprints]]) {
      const rows = flat(about);
      find(`${id}-table`).parentElement.hidden = !rows.length;
      find(`${id}-table`).append(table(["Name", "Value"], rows));
    }
  }

  // ---- figures and theme
  const all = ["windows", "sizes", "prefix", "drift", "loss", "lengths", "topics", "ranks", "segments"];
  const config = {
    responsive: true, displaylogo: false, displayModeBar: true, plotlyServerURL: "",
    // The whole list of buttons: plotly's own would offer to send the figure to a server.
    modeBarButtons: [[...["png", "svg"].map((format) => ({
      name: `Save as ${format.toUpperCase()}`, icon: format === "png" ? Plotly.Icons.camera : Plotly.Icons.disk,
      click: (figure) => Plotly.downloadImage(figure, { format, filename: figure.id, scale: format === "png" ? 2 : 1 }),
    })), "resetScale2d"]],
  };

  function draw(names) {
    const palette = figures.palettes[state.dark ? "dark" : "light"];
    return Promise.all(names.map((name) => {
      const { data, layout } = figures[name](values, palette, state);
      find(name).closest("figure").hidden = !data.length;
      return data.length ? Plotly.react(find(name), data, layout, config) : null;
    }));
  }

  function theme() {
    const system = matchMedia("(prefers-color-scheme: dark)");
    const apply = () => { state.dark = root.dataset.theme ? root.dataset.theme === "dark" : system.matches; return draw(all); };
    find("theme").addEventListener("click", () => { root.dataset.theme = state.dark ? "light" : "dark"; apply(); });
    system.addEventListener("change", apply);
    return apply();
  }

  function navigation() {
    const sections = [...document.querySelectorAll("section[data-nav]")].filter((section) => !section.hidden);
    find("nav").append(...sections.map((section) => element("a", { href: `#${section.id}` }, section.dataset.nav)));
  }

  for (const part of [summary, controls, verdict, measures, corpus, clusters, packing, training, settings, navigation]) part();
  theme().then(() => { root.dataset.ready = "true"; });
})();
