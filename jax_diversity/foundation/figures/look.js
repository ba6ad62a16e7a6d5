// Shared by all figures: colours, line styles, axes, and the traces that several of them draw.
// Text goes through `plain`, because plotly reads a few tags in labels.
"use strict";
const look = (() => {
  const { cut, decimal } = wording;
  // Colours that colour-blind readers can distinguish (after Okabe and Ito); line styles and symbols differ as well.
  const palettes = {
    light: { orders: ["#0072b2", "#d55e00", "#009e73", "#b0578d", "#7a6a00"], baseline: "#7b828a", floor: "#1c2024",
      ideal: "#8a5fbf", ink: "#1b1f23", soft: "#535b63", line: "#e9eaeb", axis: "#c9cdd1", surface: "#fcfcfa",
      bar: "#8fb9d9", topics: ["#0072b2", "#d55e00", "#009e73", "#b0578d", "#7a6a00", "#56b4e9", "#e69f00"],
      // From half of a share through the share itself to twice the share: blue to orange, equal in lightness at both ends.
      diverging: ["#135d9e", "#3f8fc9", "#93c1e2", "#f4f3ef", "#f3b57c", "#d97a26", "#a34d00"] },
    dark: { orders: ["#56b4e9", "#f2a65a", "#35c79b", "#e3a3c9", "#f0e442"], baseline: "#98a1ab", floor: "#e8eaed",
      ideal: "#bda3e6", ink: "#e6e8eb", soft: "#aab3bd", line: "#242b33", axis: "#4a535d", surface: "#10141a",
      bar: "#3f6f95", topics: ["#56b4e9", "#f2a65a", "#35c79b", "#e3a3c9", "#f0e442", "#8d9bff", "#ff8f8f"],
      diverging: ["#8fd0ff", "#4a98d3", "#2c5778", "#1e242b", "#7a5026", "#cf8436", "#ffbd7a"] },
  };
  palettes.paper = { ...palettes.light, surface: "#ffffff" };
  const fonts = { page: 'system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif', paper: "Arial, Helvetica, sans-serif" };
  const dashes = ["solid", "10px,3px", "3px,3px", "12px,3px,3px,3px", "6px,6px"];
  const symbols = ["circle", "square", "diamond", "triangle-up", "cross"];
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const label = (text, length = 40) => plain(cut(String(text), length));
  const faded = (colour, alpha) => {
    const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
    return `rgba(${red},${green},${blue},${alpha})`;
  };

  function axis(palette, about) {
    return {
      gridcolor: palette.line, linecolor: palette.axis, zerolinecolor: palette.axis, showline: true, ticks: "outside",
      tickcolor: palette.axis, ticklen: 4, automargin: true, exponentformat: "none", ...about,
      title: { text: about.title, font: { size: 12.5, color: palette.soft }, standoff: 10 },
    };
  }

  function layout(palette, { x, y, legend = true, switched = false }) {
    return {
      paper_bgcolor: palette.surface, plot_bgcolor: palette.surface,
      font: { family: fonts.page, size: 12, color: palette.soft },
      margin: { l: 56, r: 14, t: 14, b: 48 },
      xaxis: axis(palette, { showgrid: false, zeroline: false, ...x }), yaxis: axis(palette, y),
      showlegend: legend,
      // If the page's switches select the orderings, a click on the legend does nothing.
      legend: { orientation: "h", x: 0, y: 0, yref: "container", yanchor: "bottom", font: { color: palette.ink }, itemwidth: 34,
        ...(switched ? { itemclick: false, itemdoubleclick: false } : {}) },
      hovermode: "x unified", hoverdistance: -1, // the nearest point, however far
      hoverlabel: { bgcolor: palette.surface, bordercolor: palette.axis, font: { color: palette.ink } },
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    };
  }

  // One colour, line and symbol for an ordering, the same in every figure, for any selection of orderings.
  function styles(values, palette) {
    let next = 0;
    return new Map(values.ordering.orders.map((order) => {
      if (order.is_baseline && order.name === values.ordering.baseline)
        return [order.name, { colour: palette.baseline, dash: "5px,3px", symbol: "circle-open" }];
      const at = next++ % dashes.length;
      // From the sixth ordering on colours are repeated, with another line and another symbol.
      const other = (at + Math.floor((next - 1) / dashes.length)) % dashes.length;
      return [order.name, { colour: palette.orders[at], dash: dashes[other], symbol: symbols[other] }];
    }));
  }

  // The shown orderings, shuffles first, so that they are drawn beneath the others.
  const drawn = (values, state) => values.ordering.orders.filter((order) => state.shown.has(order.name))
    .sort((first, second) => second.is_baseline - first.is_baseline);

  const edges = (x, low, high, colour, alpha, group) => {
    const edge = { x, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false, legendgroup: group };
    return [{ ...edge, y: low }, { ...edge, y: high, fill: "tonexty", fillcolor: faded(colour, alpha) }];
  };

  // A mean line; if neighbouring values share a point, also the band from their smallest to their largest.
  function curveTraces(name, curve, style, more = {}) {
    const traces = curve.min.some((least, at) => least !== curve.max[at])
      ? edges(curve.position, curve.min, curve.max, style.colour, 0.2, name) : [];
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

  // Curves as a table of at most a dozen positions; a curve is read at its own nearest position.
  function curveNumbers(title, curves, show = decimal) {
    const positions = curves[0]?.[1].position ?? [];
    const chosen = [...new Set(Array.from({ length: 12 }, (_, at) => Math.round((at * (positions.length - 1)) / 11)))]
      .filter((at) => at >= 0).map((at) => positions[at]);
    const nearest = ({ position, mean }, wanted) => mean[position.reduce((best, here, at) =>
      (Math.abs(here - wanted) < Math.abs(position[best] - wanted) ? at : best), 0)];
    return { head: [title, ...curves.map(([name]) => name)],
      rows: chosen.map((wanted) => [decimal(Math.round(wanted), 12), ...curves.map(([, curve]) => show(nearest(curve, wanted)))]) };
  }

  // Ticks of a logarithmic axis: 1, 2, 5, 10 ...; powers of ten for a wide range, plotly's own ticks for a narrow one.
  function logTicks(numbers) {
    const shown = numbers.filter((number) => number > 0);
    const span = shown.reduce((most, number) => Math.max(most, number), 0) / shown.reduce((least, number) => Math.min(least, number), Infinity);
    return { tickformat: "~g", ...(span < 6 ? {} : { dtick: span < 1e5 ? "D2" : 1 }) };
  }

  // By default plotly marks halves if only a few whole numbers are shown.
  const wholeTicks = (numbers) => (numbers.length && Math.max(...numbers) - Math.min(...numbers) <= 8 ? { dtick: 1 } : {});

  // The reason why a figure of curves is not drawn, or null. A curve needs two positions, and a value.
  function undrawable({ data, layout: { xaxis, yaxis } }) {
    const points = data.filter((trace) => trace.hoverinfo !== "skip" && /lines|markers/.test(trace.mode)).flatMap((trace) => trace.x.map((x, at) => [x, trace.y[at]]))
      .filter(([x, y]) => x != null && y != null && (xaxis.type !== "log" || x > 0) && (yaxis.type !== "log" || y > 0));
    if (!data.length || data.some((trace) => ["bar", "heatmap"].includes(trace.type))) return null;
    if (!points.length) return "There is nothing to draw: no value is above zero.";
    if (points.every(([, y]) => y === 0)) return "There is nothing to draw: all values are zero.";
    return new Set(points.map(([x]) => x)).size < 2 ? "There is nothing to draw: a curve needs at least two points, and there is one." : null;
  }

  // Powers of two that leave room between their labels on a logarithmic axis.
  function powers(least, largest, room) {
    const all = Array.from({ length: 54 }, (_, at) => 2 ** at).filter((power) => power >= least && power <= largest);
    const step = Math.ceil(all.length / room);
    return all.filter((_, at) => at % step === 0);
  }

  return { palettes, fonts, plain, label, faded, axis, layout, styles, drawn, edges, curveTraces, level, curveNumbers, logTicks, wholeTicks, undrawable, powers };
})();
