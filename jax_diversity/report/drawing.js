// Draws each figure when it comes near the window's edge, saves figures, and shows their numbers.
"use strict";
const drawing = (() => {
  const { button, element, find, table } = elements;
  let names = []; // of the figures whose section has values
  const config = { responsive: true, displayModeBar: false, plotlyServerURL: "" };
  // A figure for a paper: on white, in a common font, independent of the page's current look.
  const paper = { width: 900, height: 480, fontSize: 14 };
  const near = new Set();
  const stale = new Set();
  const turns = new Map(); // how often the zoom of a figure was reset
  let values, state;
  let drawable = false; // the library is unpacked

  const title = (name) => find(name).closest("figure").querySelector("h2, h3").textContent;
  const revision = (name) => JSON.stringify([catalogue[name].by.map((key) => state[key]), turns.get(name) ?? 0]);

  function make(name, given = state, palette = look.palettes[state.printing ? "paper" : state.dark ? "dark" : "light"]) {
    const figure = catalogue[name].make(values, palette, given);
    figure.layout.uirevision = revision(name);
    return figure;
  }

  // If there is too little to draw, a sentence is shown instead of the figure.
  const insteadOf = (figure) => figure.instead ?? look.undrawable(figure);

  function drawOne(name) {
    stale.delete(name);
    const { data, layout, about } = make(name);
    const plot = find(name);
    plot.setAttribute("aria-label", about);
    const known = Boolean(plot.data);
    return Plotly.react(plot, data, layout, config).then(() => { if (!known) watch(name); });
  }

  const flush = () => Promise.all([...stale].filter((name) => drawable && near.has(name)).map(drawOne));

  // A figure without values is not shown at all; a figure whose orderings are switched off stays in its place.
  function refresh(wanted = names) {
    const everything = { ...state, shown: new Set(values.ordering.orders.map((order) => order.name)) };
    for (const name of wanted.filter((each) => names.includes(each))) {
      const figure = find(name).closest("figure");
      const { data, height, about, instead } = make(name, everything);
      const sentence = insteadOf(make(name));
      find(name).setAttribute("aria-label", about);
      figure.hidden = !data.length && !instead;
      if (figure.parentElement.matches(".more")) figure.parentElement.hidden = figure.hidden;
      if (height) find(name).style.setProperty("height", `${height}px`); // now, so that the page does not jump when the figure is drawn
      find(name).hidden = Boolean(sentence);
      find(`${name}-instead`).hidden = !sentence;
      find(`${name}-instead`).textContent = sentence ?? "";
      for (const saver of figure.querySelectorAll("[data-format]")) saver.hidden = Boolean(sentence);
      if (!figure.hidden && !sentence) stale.add(name); else stale.delete(name);
      if (!find(`${name}-numbers`).hidden) fill(name);
    }
    return flush();
  }

  function fill(name) {
    const { head, rows } = make(name).numbers();
    find(`${name}-numbers`).replaceChildren(table(head, rows));
  }

  function save(name, format) {
    const figure = make(name, { ...state, narrow: false, wideMap: true }, look.palettes.paper);
    const shown = find(name).layout ?? {};
    for (const key of Object.keys(figure.layout).filter((key) => /^[xy]axis/.test(key)))
      if (shown[key]?.range && find(name).dataset.zoomed) Object.assign(figure.layout[key], { range: [...shown[key].range], autorange: false });
    figure.layout.font = { ...figure.layout.font, family: look.fonts.paper, size: paper.fontSize };
    const height = { topics: 820, heat: figure.height, flow: figure.height }[name] ?? paper.height;
    const chosen = catalogue[name].by.filter((key) => ["family", "size", "focus"].includes(key)).map((key) => state[key]);
    return Plotly.downloadImage({ data: figure.data, layout: figure.layout, config },
      { format, width: paper.width, height, scale: format === "png" ? 2 : 1, filename: wording.slug(catalogue[name].file, ...chosen) });
  }

  function watch(name) {
    const plot = find(name);
    const reset = find(`${name}-reset`);
    const mark = (zoomed) => { plot.dataset.zoomed = zoomed ? "yes" : ""; reset.hidden = !zoomed; };
    plot.on("plotly_relayout", (change) => {
      const keys = Object.keys(change);
      if (keys.some((key) => key.includes("axis"))) mark(keys.some((key) => key.endsWith("range[0]")));
    });
    reset.addEventListener("click", () => {
      turns.set(name, (turns.get(name) ?? 0) + 1);
      mark(false);
      drawOne(name);
      plot.closest("figure").querySelector(".foot button").focus();
    });
  }

  // Under every figure: its numbers, and buttons that save it.
  function foot(name) {
    const plot = find(name);
    plot.setAttribute("role", "img");
    const heading = plot.closest("figure").querySelector("h2, h3");
    heading.id = `${name}-heading`;
    plot.closest("figure").setAttribute("aria-labelledby", heading.id);
    const instead = element("p", { class: "note", id: `${name}-instead` });
    instead.hidden = true;
    plot.after(instead);
    const numbers = element("div", { class: "scroll numbers", id: `${name}-numbers`, tabindex: "0", role: "region",
      "aria-label": `${title(name)}, in numbers` });
    numbers.hidden = true;
    const toggle = button("In numbers", () => {
      numbers.hidden = !numbers.hidden;
      toggle.setAttribute("aria-expanded", String(!numbers.hidden));
      if (!numbers.hidden) fill(name);
    }, { "aria-expanded": "false", "aria-controls": numbers.id, "aria-label": `In numbers: ${title(name)}` });
    const savers = ["png", "svg"].map((format) => button(`Save ${format.toUpperCase()}`, () => drawable && save(name, format),
      { "data-format": format, "aria-label": `Save ${format.toUpperCase()}: ${title(name)}` }));
    const reset = element("button", { type: "button", id: `${name}-reset` }, "Reset zoom");
    reset.hidden = true;
    plot.closest("figure").append(element("div", { class: "foot" }, toggle, savers, reset), numbers);
  }

  // Keeps `near` up to date; resolves when it is known for the first time.
  const watchWindow = () => new Promise((resolve) => {
    const observer = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) if (isIntersecting) near.add(target.id); else near.delete(target.id);
      flush();
      resolve();
    }, { rootMargin: "500px 0px" });
    for (const name of names) observer.observe(find(name));
  });

  // When this returns, all parts of the page except the figures work; the promise resolves when every figure near the window is drawn.
  function begin(given, switches) {
    [values, state] = [given, switches];
    names = Object.keys(catalogue).filter((name) => !find(name).closest("section").hidden);
    for (const name of names) foot(name);
    refresh();
    // Paper is white and narrow, whatever the page's theme and width.
    const print = (printing) => {
      state.printing = printing;
      if (drawable) names.filter((name) => !find(name).hidden && !find(name).closest("[hidden], details:not([open])")).forEach(drawOne);
    };
    addEventListener("beforeprint", () => print(true));
    addEventListener("afterprint", () => print(false));
    return Promise.all([library.unpack(), watchWindow()]).then(() => { drawable = true; return flush(); })
      .then(() => find("js-plotly-tester")?.setAttribute("aria-hidden", "true")); // where the library measures text
  }

  return { begin, refresh };
})();
