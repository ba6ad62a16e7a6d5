// Draws one figure of the catalogue on a white page, with a sentence that describes it.
"use strict";
(() => {
  const { name, values, choices } = JSON.parse(document.getElementById("values").textContent);
  const orders = values.ordering.orders.map((order) => order.name);
  const state = {
    log: false, half: false, wide: true, place: 0, narrow: false, wideMap: false, printing: false, family: values.ordering.families[0],
    size: values.ordering.window_sizes[0], focus: orders.find((order) => order !== values.ordering.baseline) ?? orders[0], ...choices, shown: new Set(orders),
  };
  const plot = document.getElementById("plot");
  const about = document.getElementById("about");
  library.unpack().then(() => {
    const { data, layout, height, about: words, instead } = catalogue[name].make(values, look.palettes.paper, state);
    const missing = instead ?? (data.length ? look.undrawable({ data, layout }) : "There are no values for this figure.");
    plot.hidden = Boolean(missing);
    if (height) plot.style.setProperty("height", `${height}px`);
    plot.setAttribute("aria-label", words);
    about.textContent = missing ?? words;
    const savers = ["png", "svg"].map((format) => ({
      name: `Save ${format.toUpperCase()}`, icon: Plotly.Icons[format === "png" ? "camera" : "disk"],
      click: (graph) => Plotly.downloadImage(graph, { format, filename: name, scale: format === "png" ? 2 : 1 }),
    }));
    if (!missing) return Plotly.newPlot(plot, data, layout, {
      responsive: true, displaylogo: false, plotlyServerURL: "", displayModeBar: true, modeBarButtons: [savers],
    });
  }).then(() => { document.documentElement.dataset.ready = String(Math.max(1, Math.round(performance.now()))); });
})();
