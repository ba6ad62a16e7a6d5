// Fills the page from the values in it. Text of the corpus is always set as text, never as markup.
"use strict";
(() => {
  const { count, percent, decimal, fixed, noun } = wording;
  const { choice, element, find, foreign, sentence, series, table } = elements;
  const root = document.documentElement;
  const values = JSON.parse(find("values").textContent);

  const ordering = values.ordering;

  // ---- the summary
  function summary() {
    find("title").textContent = values.title;
    const { verdict, sentences } = values.summary;
    find("first").append(sentence(verdict));
    // One line a family, or one line an order, so that the table fits a narrow page.
    const [[title, ...families] = [], ...lines] = values.summary.table;
    find("first-table").hidden = find("first-legend").hidden = !title;
    // The closed gap, which the sentence is about, comes first: the end of a wide table is hidden on a narrow page.
    const isGap = ([name]) => name.startsWith("gap closed");
    const rows = lines.filter((line) => !isGap(line));
    const columns = [...lines.filter(isGap), ...rows];
    const byOrder = rows.length > families.length;
    if (title && byOrder) {
      const gaps = new Map(values.summary.gaps_closed.map(({ ordering: name, mean }) => [name, percent(mean)]));
      find("first-table").append(table([title, "gap closed", ...families.map((family) => foreign(family))],
        rows.map(([name, ...cells]) => [foreign(name), gaps.get(name) ?? "–", ...cells.map((cell) => (cell === "-" ? "–" : cell))]),
        (at) => (rows[at][0] === values.summary.main_ordering ? "main" : null)));
    } else if (title) {
      find("first-table").append(table([title, ...columns.map(([name]) => foreign(name))],
        families.map((family, at) => [foreign(family), ...columns.map((line) => line[at + 1])])));
    }
    find("sentences").append(...[...sentences, ordering.unbalanced].filter(Boolean).map(sentence));
    find("sentences").lastElementChild?.classList.toggle("small", Boolean(ordering.unbalanced));
    find("course-family").textContent = values.summary.main_family ?? "";
    find("next").hidden = !values.summary.next.length;
    find("next").append(element("ul", {}, values.summary.next.map((text) => element("li", {}, ...sentence(text).childNodes))));
    find("figures").append(...values.summary.cards.map((card) => element("div", {},
      element("dt", {}, foreign(card.label)), element("dd", { class: "value" }, card.value), element("dd", { class: "detail" }, foreign(card.detail)))));
  }

  // ---- the ordering, and the reader's choices
  const orders = ordering.orders.map((order) => order.name);
  const narrow = matchMedia("(max-width: 40rem)");
  const spacious = matchMedia("(min-width: 60rem)");
  const state = {
    family: values.summary.main_family, size: values.summary.main_window ?? ordering.window_sizes[0], log: false, half: false, wide: false, dark: false, printing: false, place: 0,
    narrow: narrow.matches, wideMap: spacious.matches, shown: new Set(orders), focus: values.summary.main_ordering ?? orders.find((name) => name !== ordering.baseline) ?? orders[0],
  };
  const byFamily = ["windows", "profile", "prefix", "heat"];

  function change(what, figures) {
    Object.assign(state, what);
    return drawing.refresh(figures);
  }

  function orderingSwitches() {
    if (orders.length < 2) return null;
    const inputs = orders.map((name) => {
      const input = element("input", { type: "checkbox", name: "shown", value: name });
      input.checked = true;
      input.addEventListener("change", () => {
        if (input.checked) state.shown.add(name); else state.shown.delete(name);
        measures();
        documents();
        drawing.refresh(["windows", "profile", "prefix", "drift", "loss", "diversity", "rank", "wait", "worth"]);
      });
      return element("label", {}, input, element("span", {}, element("i", { class: "swatch", "data-ordering": name, "aria-hidden": "true" }), foreign(name)));
    });
    return element("fieldset", { class: "choice shown" }, element("legend", {}, "Orderings"), element("div", { class: "options apart" }, inputs));
  }

  function swatches() {
    const styles = look.styles(values, look.palettes[state.dark ? "dark" : "light"]);
    for (const node of document.querySelectorAll(".swatch")) node.style.setProperty("--swatch", styles.get(node.dataset.ordering).colour);
  }

  // The ordering of the heat map and of the batches: one choice, which can be made in either place.
  function focusChoices() {
    const pickers = [...document.querySelectorAll("select.focus")];
    for (const picker of pickers) {
      picker.append(...orders.map((name) => element("option", { value: name }, name)));
      picker.value = state.focus;
      picker.closest(".pick").hidden = orders.length < 2;
      picker.addEventListener("change", () => {
        for (const other of pickers) other.value = picker.value;
        change({ focus: picker.value }, ["heat"]);
        openedBatches();
      });
    }
  }

  function controls() {
    const redraw = (what) => { change(what, byFamily); verdict(); measures(); openedBatches(); };
    const families = ordering.families.length
      ? choice("Family", "family", ordering.families, state.family, (name) => foreign(name), (family) => redraw({ family })) : null;
    const sizes = ordering.window_sizes.length
      ? choice("Window", "size", ordering.window_sizes, state.size, count, (size) => redraw({ size })) : null;
    find("ordering-controls").append(...[orderingSwitches(), families, sizes].filter(Boolean));
    find("log").addEventListener("change", (event) => change({ log: event.target.checked }, ["prefix"]));
    // Sizes far from the batch say little about the training run of the reader.
    const [least, most] = orderFigures.sizesNear(values);
    find("profile-span").textContent = `Sizes from ${count(least)} to ${count(most)} are drawn: a quarter of a batch to 16 batches.`;
    find("wide-choice").hidden = find("profile-span").hidden = !orderFigures.isLimited(values);
    find("wide").addEventListener("change", (event) => {
      find("profile-span").hidden = event.target.checked;
      change({ wide: event.target.checked }, ["profile"]);
    });
    find("half").append(choice("Windows", "half", [false, true], false, (half) => (half ? "half a window later" : "aligned"),
      (half) => change({ half }, ["profile"])));
    focusChoices();
  }

  function openedBatches() {
    const lists = batches.lists(values, state);
    find("batch-lists").replaceChildren(...lists);
    find("batches").hidden = !ordering.batches;
    const about = ordering.batches;
    find("batches-words").textContent = !about ? "" : lists.length
      ? `The batches of ${noun(about.batch_size, "sequence")} that are farthest from the corpus's mixture by ${state.family}, and the nearest ones.`
      : "There are no batches of this ordering and family to open.";
  }

  function verdict() {
    const rows = values.verdicts.filter((row) => row.family === state.family && row.window_size === state.size);
    const compared = values.verdicts.filter((row) => row.gap_closed != null); // otherwise a shuffle is at the floor
    const held = compared.filter((row) => row.holds).length;
    const better = (row) => row.mean < row.baseline_mean;
    const about = rows.map((row) => element("div", { class: "verdict" },
      row.gap_closed == null ? element("span") // nothing to judge: a shuffle is at the floor
        : element("span", { class: `tag ${better(row) ? "good" : "warn"}` }, better(row) ? "✓ better" : row.mean > row.baseline_mean ? "worse" : "equal"), sentence(row.sentence)));
    if (!rows.length && values.verdicts.length)
      about.push(element("p", { class: "hint" }, "Too few windows of this size to compare; choose a smaller one."));
    if (compared.length > 1)
      about.push(element("p", { class: "hint" }, `Over all orderings, families and window sizes, the mean is better than the shuffle's in ` +
        `${compared.filter(better).length} of ${compared.length} comparisons; in ${held}, every window is better than every window of the shuffle.`));
    if (!values.verdicts.length) about.push(element("div", { class: "note" }, sentence(values.summary.verdict)));
    find("verdict").replaceChildren(...about);
  }

  function measures() {
    const gaps = new Map(values.verdicts.map((row) => [JSON.stringify([row.ordering, row.family, row.window_size]), row.gap_closed]));
    const floors = new Map(ordering.references.filter((row) => row.family === state.family).map((row) => [row.window_size, row.floor]));
    const rows = ordering.orders.filter((order) => state.shown.has(order.name))
      .flatMap((order) => order.windows.filter((row) => row.family === state.family).map((row) => ({ order, row })));
    const gap = ({ order, row }) => gaps.get(JSON.stringify([order.name, row.family, row.window_size]));
    find("measures").hidden = find("measures-title").hidden = !rows.length;
    find("measures").replaceChildren(table(
      ["Ordering", "Window", "Windows", "Mean TV", "Best", "Worst", "Floor", "Gap closed", "Largest error of a group"],
      rows.map(({ order, row }) => [foreign(order.name), count(row.window_size), count(row.num_windows), fixed(row.mean), fixed(row.best),
        fixed(row.worst), fixed(floors.get(row.window_size)), gap({ order, row }) == null ? "–" : percent(gap({ order, row })), fixed(row.window_max)]),
      (at) => (rows[at].order.name === values.summary.main_ordering ? "main" : null)));
  }

  const documents = () => ["documents", "copies"].forEach(spread);

  function spread(part) {
    const orders = ordering.orders.filter((order) => state.shown.has(order.name) && order[part]?.windows.length);
    for (const id of [part, `${part}-title`, `${part}-words`]) find(id).hidden = !orders.length;
    if (!orders.length) return;
    const sizes = orders[0][part].windows.map((row) => row.window_size);
    const known = (value) => (value == null ? "–" : value.toFixed(2).replace(/^-(0\.00)$/, "$1"));
    const at = (order, size, figure) => known(order[part].windows.find((row) => row.window_size === size)?.[figure]);
    const readingOrder = (cell) => (part === "documents" ? [cell] : []); // copies have no reading order
    find(part).replaceChildren(table(
      ["Ordering", ...sizes.map((size) => `Repeats, ${count(size)}`), "Gaps, 5 %", "Gaps, 50 %", ...readingOrder("Reading order")],
      [...orders.map((order) => [foreign(order.name), ...sizes.map((size) => at(order, size, "repeats_mean")),
        known(order[part].gap_low), known(order[part].gap_median), ...readingOrder(known(order[part].place_correlation))]),
      ["floor", ...sizes.map((size) => at(orders[0], size, "repeats_floor")), "–", "–", ...readingOrder("–")]],
      (row) => (orders[row]?.name === values.summary.main_ordering ? "main" : null)));
  }

  // ---- a run
  function run() {
    const about = values.run;
    find("run").hidden = !about;
    if (!about) return;
    find("kind").textContent = `Run report, version ${about.version}`;
    const lists = (each) => (about.datasets.some((other) => other.checked_against.length) ? [each] : []);
    find("datasets").append(table(["Dataset", "Sequences", "Their length", "Positions", "Share", "Epochs", ...lists("Checked against")], about.datasets.map((each) =>
      [foreign(each.path), count(each.num_sequences), count(each.sequence_length), count(each.positions), percent(each.share), each.epochs.toFixed(2),
        ...lists(each.checked_against.length ? foreign(each.checked_against.join("; ")) : "nothing")])));
    find("versions").append(table(["Version", "Change", "First new position", "Positions"], about.versions.map((each) =>
      [String(each.version), foreign(each.change), each.changed_at == null ? "–" : count(each.changed_at), count(each.positions)])));
  }

  // ---- the corpus
  const absent = (id, about) => { find(id).hidden = !about; return !about; };

  function groups(id, about) {
    find(`${id}-part`).hidden = !about;
    if (!about) return;
    const largest = Math.max(...about.rows.map((row) => row.share), 1e-9);
    const bar = (share) => element("span", { class: "track" }, element("i", { style: { width: `${Math.min(100, (100 * share) / largest)}%` } }));
    const line = (row) => element("li", { title: `${noun(row.documents, "document")}, ${noun(row.tokens, "token")}` },
      foreign(row.name), element("span", { class: "num" }, percent(row.share)), bar(row.share));
    const rest = about.rest.groups ? element("li", { class: "rest" }, `${count(about.rest.groups)} more`,
      element("span", { class: "num" }, percent(about.rest.share)), bar(about.rest.share)) : null;
    find(id).append(element("ul", { class: "rows", tabindex: "0" }, about.rows.map(line), rest));
  }

  function duplicates({ num_duplicates: copies, num_duplicate_groups: texts, largest_duplicate_group: most }) {
    if (!copies) return "No text occurs twice.";
    return `${noun(copies, "document")} repeat${copies === 1 ? "s" : ""} the text of another: ${noun(texts, "text")} ` +
      `occur${texts === 1 ? "s" : ""} more than once, one of them ${noun(most, "time")}.`;
  }

  function corpus() {
    const about = values.corpus;
    if (absent("corpus", about)) return;
    const words = [`${noun(about.num_documents, "document")}, ${noun(about.num_tokens, "token")}.`];
    const span = about.length_summary;
    if (span.median != null) words.push(`The median document has ${noun(span.median, "token")}, nine in ten have ` +
      `at most ${count(span.nine_tenths)}, the longest has ${count(span.longest)}.`);
    words.push(duplicates(about));
    if (about.num_empty) words.push(`${noun(about.num_empty, "document")} ${about.num_empty === 1 ? "holds" : "hold"} no token.`);
    find("corpus-words").textContent = words.join(" ");
    groups("sources", about.sources);
    groups("languages", about.languages);
    find("languages-part").parentElement.classList.toggle("single", !about.sources || !about.languages);
    if (about.skipped.length) find("skipped").append(element("h3", {}, "Left out while reading"),
      element("div", { class: "scroll" }, table(["Reason", "Records"], about.skipped.map((row) => [foreign(row.reason), count(row.records)]))));
  }

  const preparation = () => prepared.fill(values, (place) => change({ place }, ["flow"]));

  // ---- the clusters
  function clusters() {
    const about = values.clusters;
    if (absent("clusters", about)) return;
    const rest = about.rest.groups ? ` The table shows the ${about.rows.length} largest; the other ${count(about.rest.groups)} hold ` +
      `${percent(about.rest.share)} of the tokens.` : "";
    const empty = about.num_empty ? ` ${count(about.num_empty)} hold no document.` : "";
    find("clusters-words").textContent = `${noun(about.num_clusters, "cluster")} of similar documents (about ${count(Math.round(values.corpus.num_documents / Math.max(about.num_clusters, 1)))} each). ` +
      `These terms distinguish a cluster from the rest of the corpus.${empty}${rest}`;
    find("purity").append(...sentence(about.purity).childNodes);
    const largest = Math.max(...about.rows.map((row) => row.share), 1e-9);
    const rows = about.rows.map((row) => ({
      text: [...row.terms, ...row.titles].join("\n").toLowerCase(),
      node: element("tr", {},
        element("td", { class: "num" }, element("span", { class: "share" }, percent(row.share),
          element("i", { style: { width: `${(100 * row.share) / largest}%` } }))),
        element("td", {}, series(row.terms)),
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
    if (absent("packing", about)) return;
    find("packing-words").textContent = `Packing (${about.method}) made ${noun(about.num_sequences, "training sequence")} and ` +
      `${noun(about.num_validation_sequences, "validation sequence")} of ${noun(about.sequence_length, "token")}; ` +
      `${noun(about.num_documents_cut, "document")} lie${about.num_documents_cut === 1 ? "s" : ""} in more than one sequence` +
      `${about.mean_segments == null ? "." : `, and a training sequence holds ${decimal(about.mean_segments, 3)} segments on average.`}`;
    if (about.clusters_per_sequence != null) find("packing-words").textContent +=
      ` They come from ${decimal(about.clusters_per_sequence, 3)} clusters, the largest of which takes ` +
      `${percent(about.largest_cluster_share)} of a sequence's tokens.`;
    find("packing-bar").append(...stack([[`${noun(about.num_tokens_kept, "token")} kept in sequences`, about.num_tokens_kept, "var(--bar)"],
      [`${noun(about.num_tokens_dropped, "token")} dropped`, about.num_tokens_dropped, "var(--warn)"]]));
    const others = [["taken by tokens that are repeated", about.num_tokens_repeated, "var(--good)"],
      ["taken by end tokens that packing inserted", about.num_inserted_ends, "var(--soft)"],
      ["left empty (padding)", about.num_padding_tokens, "var(--warn)"]];
    const used = others.filter(([, number]) => number > 0).map(([name, number, colour]) => [`${noun(number, "place")} ${name}`, number, colour]);
    if (used.length) find("packing-bar").append(element("p", { class: "hint" }, "Content of the sequences' places:"),
      ...stack([[`${noun(about.num_tokens_kept, "token")} of documents`, about.num_tokens_kept, "var(--bar)"], ...used]));
  }

  function training() {
    find("training").hidden = !values.training.length;
    find("training-words").append(...values.training.map((run) => sentence(run.sentence)));
    explained();
  }

  function explained() {
    const found = values.training.flatMap((run) => run.explained.map((each) => ({ run, ...each })));
    find("explained").hidden = !found.length;
    if (!found.length) return;
    const latest = values.training.filter((run) => run.explained.length).map((run) => [run.ordering, run.explained.at(-1)]);
    find("explained-words").append(...latest.map(([name, about]) =>
      sentence(`In the run on \`${name}\`, at the checkpoint after ${noun(about.num_steps, "step")}: ${about.sentence}`)));
    const kinds = [...new Set(found.flatMap((about) => about.shares.map((row) => row.of)))];
    const cell = (row) => (row ? `${row.value.toFixed(3)}${row.low == null ? "" : ` ± ${((row.high - row.low) / 2).toFixed(3)}`}` : "–");
    const rows = found.flatMap(({ run, num_steps: step, shares }) => [...new Set(shares.map((row) => row.family))].map((family) => {
      const own = shares.filter((row) => row.family === family);
      return [foreign(run.ordering), count(step), foreign(family), count(own[0].num_groups), ...kinds.map((kind) => cell(own.find((row) => row.of === kind)))];
    }));
    find("explained-shares").append(table(["Model trained on", "Steps", "Family", "Groups", ...kinds.map((kind) => `Share of the ${kind}`)], rows));
  }

  function flat(value, path = "") {
    if (value === null || typeof value !== "object" || Array.isArray(value))
      return [[foreign(path), foreign(typeof value === "string" ? value : JSON.stringify(value))]];
    return Object.entries(value).flatMap(([key, part]) => flat(part, path ? `${path}.${key}` : key));
  }

  function settings() {
    if (absent("settings", Object.keys(values.settings).length)) return;
    const orders = Object.fromEntries(ordering.orders.map((order) => [order.name, { method: order.method, ...order.info }]));
    for (const [id, about] of [["settings", values.settings], ["orderings", orders], ["fingerprints", values.fingerprints]]) {
      const rows = flat(about);
      find(`${id}-table`).parentElement.hidden = !rows.length;
      find(`${id}-table`).append(table(["Name", "Value"], rows));
    }
  }

  // ---- theme and sections
  function theme() {
    const system = matchMedia("(prefers-color-scheme: dark)");
    const apply = () => {
      const chosen = find("theme").value;
      if (chosen) root.dataset.theme = chosen; else delete root.dataset.theme;
      state.dark = chosen ? chosen === "dark" : system.matches;
      swatches();
    };
    const redraw = () => { apply(); drawing.refresh(); };
    find("theme").addEventListener("change", redraw);
    system.addEventListener("change", redraw);
    narrow.addEventListener("change", () => change({ narrow: narrow.matches }));
    spacious.addEventListener("change", () => change({ wideMap: spacious.matches }, ["topics"]));
    apply();
  }

  function navigation() {
    const sections = [...document.querySelectorAll("section[data-nav]")].filter((section) => !section.hidden);
    find("nav").append(...sections.map((section) => element("a", { href: `#${section.id}` }, section.dataset.nav)));
  }

  for (const part of [summary, controls, verdict, measures, documents, openedBatches, run, preparation, corpus, clusters, packing, training, settings, navigation, theme]) part();
  const loading = drawing.begin(values, state);
  root.dataset.interactive = String(Math.round(performance.now())); // milliseconds until all parts except the figures can be used
  loading.then(() => { root.dataset.ready = String(Math.round(performance.now())); }, (error) => { find("undrawn").hidden = false; throw error; });
})();
