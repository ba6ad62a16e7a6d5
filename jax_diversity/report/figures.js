// Every figure as a function of the report's values: { data, layout } for plotly. No element of the page is touched
// here. Text goes through `plain`, because plotly reads a few tags in labels.
"use strict";
const figures = (() => {
  // Colours that stay apart for colour-blind readers (after Okabe and Ito); line styles differ as well.
  const palettes = {
    light: { orders: ["#0072b2", "#d55e00", "#009e73", "#b0578d", "#7a6a00"], baseline: "#858c94", floor: "#1c2024",
      ideal: "#8a5fbf", ink: "#1c2024", soft: "#59616a", line: "#e9eaeb", axis: "#c9cdd1", surface: "#ffffff",
      bar: "#8fb9d9", topics: ["#0072b2", "#d55e00", "#009e73", "#b0578d", "#7a6a00", "#56b4e9", "#e69f00"] },
    dark: { orders: ["#56b4e9", "#f2a65a", "#35c79b", "#e3a3c9", "#f0e442"], baseline: "#98a1ab", floor: "#e8eaed",
      ideal: "#bda3e6", ink: "#e8eaed", soft: "#a9b1ba", line: "#272d33", axis: "#454d56", surface: "#191d21",
      bar: "#3f6f95", topics: ["#56b4e9", "#f2a65a", "#35c79b", "#e3a3c9", "#f0e442", "#8d9bff", "#ff8f8f"] },
  };
  const dashes = ["solid", "10px,3px", "3px,3px", "12px,3px,3px,3px", "6px,6px"];
  const symbols = ["circle", "square", "diamond", "triangle-up", "cross"];
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const label = (text) => plain(text.length > 40 ? `${text.slice(0, 39)}…` : text);
  const faded = (colour, alpha) => {
    const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
    return `rgba(${red},${green},${blue},${alpha})`;
  };

  function layout(palette, { x, y, legend = true }) {
    const axis = (about) => ({
      gridcolor: palette.line, linecolor: palette.axis, zerolinecolor: palette.axis, showline: true, ticks: "outside",
      tickcolor: palette.axis, ticklen: 4, automargin: true, exponentformat: "none", ...about,
      title: { text: about.title, font: { size: 12.5, color: palette.soft }, standoff: 10 },
    });
    return {
      paper_bgcolor: palette.surface, plot_bgcolor: palette.surface,
      font: { family: 'system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif', size: 12, color: palette.soft },
      margin: { l: 56, r: 14, t: 42, b: 48 },
      xaxis: axis({ showgrid: false, zeroline: false, ...x }), yaxis: axis(y),
      showlegend: legend,
      legend: { orientation: "h", x: 0, y: 0, yref: "container", yanchor: "bottom", font: { color: palette.ink }, itemwidth: 34 },
      hovermode: "x unified", hoverlabel: { bgcolor: palette.surface, bordercolor: palette.axis, font: { color: palette.ink } },
      modebar: { orientation: "h", bgcolor: "rgba(0,0,0,0)", color: palette.soft, activecolor: palette.ink },
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
      uirevision: "same",
    };
  }

  function styles(values, palette) {
    let next = 0;
    return new Map(values.ordering.orders.map((order) => {
      if (order.is_baseline && order.name === values.ordering.baseline)
        return [order.name, { colour: palette.baseline, dash: "5px,3px", symbol: "circle-open", layer: 0 }];
      const at = next++ % dashes.length;
      // From the sixth on colours come again, with another line and another symbol.
      const other = (at + Math.floor((next - 1) / dashes.length)) % dashes.length;
      return [order.name, { colour: palette.orders[at], dash: dashes[other], symbol: symbols[other], layer: 1 }];
    }));
  }

  // A mean line, and where neighbouring values share a point, the band from their least to their largest.
  function curveTraces(name, curve, style, more = {}) {
    const traces = [];
    if (curve.min.some((least, at) => least !== curve.max[at])) {
      const edge = { x: curve.position, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false, legendgroup: name };
      traces.push({ ...edge, y: curve.min }, { ...edge, y: curve.max, fill: "tonexty", fillcolor: faded(style.colour, 0.2) });
    }
    traces.push({
      x: curve.position, y: curve.mean, name: label(name), legendgroup: name,
      mode: curve.position.length > 1 ? "lines" : "markers", marker: { color: style.colour, size: 8, symbol: style.symbol },
      line: { color: style.colour, dash: style.dash, width: 2 }, hovertemplate: "%{y:.4~g}", ...more,
    });
    return traces;
  }

  const level = (name, x, height, colour, dash) => ({
    x, y: x.map(() => height), name, mode: "lines", line: { color: colour, dash, width: 1.5 }, hovertemplate: "%{y:.4~g}",
  });
  const reference = (values, family, size) =>
    values.ordering.references.find((row) => row.family === family && row.window_size === size) ?? {};
  const drawn = (values) => [...values.ordering.orders].sort((first, second) => second.is_baseline - first.is_baseline);

  function windows(values, palette, { family, size }) {
    const look = styles(values, palette);
    const rows = drawn(values).flatMap((order) => order.windows
      .filter((row) => row.family === family && row.window_size === size).map((row) => [order.name, row.curve]));
    const few = rows.every(([, curve]) => curve.position.length <= 40);
    const data = rows.flatMap(([name, curve]) => curveTraces(name, curve, look.get(name),
      few ? { mode: "lines+markers", marker: { size: 6, symbol: look.get(name).symbol } } : {}));
    const ends = rows.flatMap(([, curve]) => curve.position);
    const span = ends.length ? [Math.min(...ends), Math.max(...ends)] : [];
    const { floor, ideal_token_tv: ideal } = reference(values, family, size);
    if (ends.length && floor != null) data.push(level("floor of the mean", span, floor, palette.floor, "2px,3px"));
    if (ends.length && ideal != null) data.push(level("ideal token shuffle", span, ideal, palette.ideal, "8px,3px,2px,3px"));
    return { data, layout: layout(palette, {
      x: { title: "sequences read", tickformat: ",d", hoverformat: ",d" }, y: { title: "TV of a window", rangemode: "tozero" } }) };
  }

  function sizes(values, palette, { family }) {
    const look = styles(values, palette);
    const all = values.ordering.window_sizes;
    const orders = drawn(values);
    const data = orders.flatMap((order, at) => {
      const rows = order.windows.filter((row) => row.family === family);
      if (!rows.length) return [];
      const style = look.get(order.name);
      const shift = (at - (orders.length - 1) / 2) * Math.min(0.16, 0.7 / orders.length);
      return [{
        x: rows.map((row) => all.indexOf(row.window_size) + shift), y: rows.map((row) => row.mean), name: label(order.name),
        mode: "lines+markers", line: { color: style.colour, dash: style.dash, width: 1.2 },
        marker: { color: style.colour, symbol: style.symbol, size: 8 },
        error_y: { type: "data", symmetric: false, array: rows.map((row) => row.worst - row.mean),
          arrayminus: rows.map((row) => row.mean - row.best), color: style.colour, thickness: 2.5, width: 5 },
        customdata: rows.map((row) => [row.best, row.worst]),
        hovertemplate: "%{customdata[0]:.4~g} / <b>%{y:.4~g}</b> / %{customdata[1]:.4~g}",
      }];
    });
    for (const [key, name, colour, dash] of [["floor", "floor of the mean", palette.floor, "2px,3px"],
      ["ideal_token_tv", "ideal token shuffle", palette.ideal, "8px,3px,2px,3px"]]) {
      const rows = values.ordering.references.filter((row) => row.family === family && row[key] != null);
      if (rows.length && data.length)
        data.push({ x: rows.map((row) => all.indexOf(row.window_size)), y: rows.map((row) => row[key]), name, mode: "lines+markers",
          line: { color: colour, dash, width: 1.5 }, marker: { size: 4, color: colour }, hovertemplate: "%{y:.4~g}" });
    }
    return { data, layout: { ...layout(palette, {
      x: { title: "sequences in a window", tickvals: all.map((_, at) => at), ticktext: all.map((size) => size.toLocaleString("en-US")),
        range: [-0.5, all.length - 0.5] },
      y: { title: "TV: best / mean / worst", rangemode: "tozero" } }), hovermode: "closest" } };
  }

  function prefix(values, palette, { family, log }) {
    const look = styles(values, palette);
    const data = drawn(values).flatMap((order) => order.prefix.filter((row) => row.family === family)
      .flatMap((row) => curveTraces(order.name, log ? positive(row.curve) : row.curve, look.get(order.name))));
    return { data, layout: layout(palette, { x: { title: "sequences read", tickformat: ",d", hoverformat: ",d" },
      y: { title: "deviation (sequence lengths)", type: log ? "log" : "linear", ...(log ? { dtick: 1 } : { rangemode: "tozero" }) } }) };
  }

  // After the last sequence the deviation is zero (or a rounding error), which a logarithmic axis cannot show.
  function positive(curve) {
    const shown = curve.min.map((least) => least > 1e-6);
    return Object.fromEntries(Object.entries(curve).map(([key, list]) => [key, list.filter((_, at) => shown[at])]));
  }

  function drift(values, palette) {
    const look = styles(values, palette);
    const data = drawn(values).flatMap((order) => curveTraces(order.name, order.norm_drift.curve, look.get(order.name)));
    return { data, layout: layout(palette, { x: { title: "sequences read", tickformat: ",d", hoverformat: ",d" },
      y: { title: "drift (sequences)" } }) };
  }

  function loss(values, palette) {
    const look = styles(values, palette);
    const data = values.training.flatMap((run, at) => {
      const style = look.get(run.ordering) ?? { colour: palette.orders[at % 5], dash: "solid", symbol: "circle" };
      const { curve } = run.validation_loss;
      return [
        ...curveTraces(`${run.ordering}, training`, run.loss.curve, style),
        { x: curve.position, y: curve.mean, name: label(`${run.ordering}, validation`), mode: "lines+markers",
          line: { color: palette.ink, width: 1, dash: "2px,3px" }, hovertemplate: "%{y:.4f}",
          marker: { size: 9, symbol: style.symbol, color: style.colour, line: { width: 1.5, color: palette.ink } } },
      ].filter((trace) => trace.x.length);
    });
    return { data, layout: layout(palette, { x: { title: "optimiser steps", tickformat: ",d" }, y: { title: "loss (nats a token)" } }) };
  }

  // 1, 2, 5, 10 ... would crowd a logarithmic axis of lengths: powers of four are enough.
  const short = (count) => (count >= 1e6 ? `${+(count / 1e6).toPrecision(3)}M` : count >= 1e4 ? `${+(count / 1e3).toPrecision(3)}k` : count.toLocaleString("en-US"));
  function lengths(values, palette) {
    const { edges, documents, tokens } = values.corpus.lengths;
    const left = edges.slice(0, -1).map(Math.log2);
    const right = edges.slice(1).map(Math.log2);
    const shares = (counts) => { const sum = counts.reduce((a, b) => a + b, 0) || 1; return counts.map((count) => (100 * count) / sum); };
    const ranges = left.map((_, at) => `${edges[at].toLocaleString("en-US")} to ${(edges[at + 1] - 1).toLocaleString("en-US")} tokens`);
    const powers = Array.from({ length: 24 }, (_, at) => 4 ** at).filter((power) => power < (edges.at(-1) ?? 0) * 2 && power >= (edges[0] ?? 0) / 2);
    const x = left.map((low, at) => (low + right[at]) / 2);
    const data = !documents.length ? [] : [
      { type: "bar", x, y: shares(documents), width: left.map((low, at) => right[at] - low), name: "documents", customdata: ranges,
        marker: { color: palette.bar, line: { color: palette.surface, width: 1 } }, hovertemplate: "%{customdata}: %{y:.3~g} % of documents<extra></extra>" },
      { x, y: shares(tokens), mode: "lines", line: { shape: "hvh", color: palette.orders[1], width: 2 }, name: "tokens",
        hovertemplate: "%{y:.3~g} % of tokens<extra></extra>" },
    ];
    const first = documents.findIndex((count) => count > 0);
    return { data, layout: { ...layout(palette, {
      x: { title: "tokens in a document", tickvals: powers.map(Math.log2), ticktext: powers.map(short),
        range: first < 0 ? [0, 1] : [left[first] - 0.3, right.at(-1) + 0.3] },
      y: { title: "share", ticksuffix: " %", rangemode: "tozero" } }), bargap: 0, hovermode: "x" } };
  }

  // The largest circles' names, each where no larger one's name stands already.
  function written(rows) {
    const kept = [];
    for (const row of rows) {
      if (kept.length === 24) break;
      if (row.name && kept.every((other) => Math.abs(other.x - row.x) > 0.36 || Math.abs(other.y - row.y) > 0.07)) kept.push(row);
    }
    return kept;
  }

  function topics(values, palette) {
    const { labels, rows } = values.clusters.map;
    const largest = Math.max(...rows.map((row) => row.share), 1e-9);
    const widest = Math.min(54, 420 / Math.sqrt(rows.length || 1));
    const trace = (group, name, colour) => ({
      x: group.map((row) => row.x), y: group.map((row) => row.y), name: label(name), mode: "markers", type: "scatter",
      marker: { color: faded(colour, 0.55), size: group.map((row) => Math.max(5, widest * Math.sqrt(row.share / largest))),
        line: { color: colour, width: 1 } },
      customdata: group.map((row) => [plain(row.name), 100 * row.share, row.documents]),
      hovertemplate: "%{customdata[0]}<br>%{customdata[1]:.3~g} % of tokens, %{customdata[2]:,d} documents<extra></extra>",
    });
    const data = [...labels.map((name, at) => [rows.filter((row) => row.label === at), name, palette.topics[at]]),
      [rows.filter((row) => row.label < 0), labels.length ? "others" : "clusters", labels.length ? palette.baseline : palette.topics[0]]]
      .filter(([group]) => group.length).map((parts) => trace(...parts));
    const named = written(rows);
    if (named.length) data.push({ x: named.map((row) => row.x), y: named.map((row) => row.y), mode: "text", hoverinfo: "skip",
      text: named.map((row) => label(row.name.split(", ").slice(0, 2).join(", "))), textfont: { color: palette.ink, size: 11 }, showlegend: false });
    const bare = { showgrid: false, zeroline: false, showline: false, showticklabels: false, ticks: "", title: "", range: [-1.12, 1.12] };
    return { data: rows.length ? data : [], layout: { ...layout(palette, { x: bare, y: bare, legend: labels.length > 0 }),
      hovermode: "closest", margin: { l: 8, r: 8, t: 42, b: 8 } } };
  }

  function ranks(values, palette) {
    const { position, mean } = values.clusters.share_by_rank;
    const data = [{ x: position, y: mean.map((share) => 100 * share), mode: "lines", line: { color: palette.orders[0], width: 2 },
      fill: "tozeroy", fillcolor: faded(palette.orders[0], 0.1), hovertemplate: "%{y:.3~g} % of tokens<extra></extra>" }];
    return { data: position.length ? data : [], layout: layout(palette, { legend: false,
      x: { title: "rank of the cluster", type: "log", tickformat: ",d", dtick: position.length > 20 ? 1 : "L1" },
      y: { title: "share of tokens", type: "log", ticksuffix: " %", dtick: 1 } }) };
  }

  function segments(values, palette) {
    const { edges, frequency } = values.packing.segments_per_sequence;
    const wide = edges.length > 1 && edges[1] - edges[0] > 1;
    const names = frequency.map((_, at) => (wide ? `${edges[at]} to ${edges[at + 1] - 1}` : `${edges[at]}`));
    const data = [{ type: "bar", x: frequency.map((_, at) => (edges[at] + edges[at + 1] - 1) / 2), y: frequency, customdata: names,
      width: frequency.map((_, at) => 0.9 * (edges[at + 1] - edges[at])),
      marker: { color: palette.bar }, hovertemplate: "%{customdata} segments: %{y:,} sequences<extra></extra>" }];
    const few = edges.length && edges[edges.length - 1] - edges[0] <= 12; // left alone, plotly marks halves too
    return { data: frequency.length ? data : [], layout: { ...layout(palette, { legend: false,
      x: { title: "segments in a sequence", tickformat: ",d", ...(few ? { dtick: 1 } : {}) }, y: { title: "sequences", tickformat: "~s" } }), hovermode: "closest" } };
  }

  return { palettes, windows, sizes, prefix, drift, loss, lengths, topics, ranks, segments };
})();
