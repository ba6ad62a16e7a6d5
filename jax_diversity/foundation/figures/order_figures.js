// The figures of the orderings. A figure is a function of the report's values, a palette and the page's switches; it returns
// { data, layout } for plotly, `about` (a sentence that describes it) and `numbers` (the same as a table).
"use strict";
const orderFigures = (() => {
  const { count, decimal, fixed, listing, noun, short } = wording;
  const { layout, styles, drawn, edges, curveTraces, level, curveNumbers, logTicks, wholeTicks, powers, label, faded } = look;
  const FLOOR = "2px,3px";
  const IDEAL = "8px,3px,2px,3px";
  const read = (curves) => ({ title: "sequences read", tickformat: ",d", hoverformat: ",d", ...wholeTicks(curves.flatMap((curve) => curve.position)) });

  function windows(values, palette, state) {
    const { family, size } = state;
    const style = styles(values, palette);
    const rows = drawn(values, state).flatMap((order) => order.windows.filter((row) => row.family === family && row.window_size === size)
      .map((row) => [order.name, row]));
    const few = rows.every(([, row]) => row.curve.position.length <= 24);
    const data = rows.flatMap(([name, row]) => curveTraces(name, row.curve, style.get(name),
      few ? { mode: "lines+markers", marker: { size: 6, symbol: style.get(name).symbol } } : {}));
    const ends = rows.flatMap(([, row]) => row.curve.position);
    const span = ends.length ? [Math.min(...ends), Math.max(...ends)] : [];
    const { floor, ideal_token_tv: ideal } = values.ordering.references.find((row) => row.family === family && row.window_size === size) ?? {};
    if (ends.length && floor != null) data.push(level("floor of the mean", span, floor, palette.floor, FLOOR));
    if (ends.length && ideal != null) data.push(level("ideal token shuffle", span, ideal, palette.ideal, IDEAL));
    const means = rows.map(([name, row]) => `${name} ${decimal(row.mean, 3)} (worst ${decimal(row.worst, 3)})`);
    return { data, about: `Line chart over training: TV of every window of ${noun(size ?? 0, "sequence")} by ${family}. ` +
        `Mean over the windows: ${listing(means)}.`,
      numbers: () => curveNumbers("Sequences read", rows.map(([name, row]) => [name, row.curve]), fixed),
      layout: layout(palette, { switched: true, x: read(rows.map(([, row]) => row.curve)), y: { title: "TV of a window", rangemode: "tozero" } }) };
  }

  const profileOf = (order, { family, half }) => order.profile[family]?.[half ? "half" : "0"];
  // The sizes that matter for training: from a quarter of a batch to 16 batches, as powers of two.
  const sizesNear = ({ summary: { batch_size: batch, main_window: main } }) => [0.25, 16].map((times) => 2 ** Math.round(Math.log2((batch ?? main ?? 256) * times)))
    .map((size) => Math.max(size, 1));
  const allSizes = (values) => [...new Set(values.ordering.orders.flatMap((order) => Object.values(order.profile).flatMap((offsets) => Object.values(offsets).flatMap(({ sizes }) => sizes))))];
  const inSpan = (values, size) => { const [least, most] = sizesNear(values); return size >= least && size <= most; };
  // Whether the sizes that matter are fewer than all, and enough for a curve.
  function isLimited(values) {
    const sizes = allSizes(values);
    const kept = sizes.filter((size) => inSpan(values, size));
    return kept.length >= 3 && kept.length < sizes.length;
  }
  // Lists by size, only of the sizes that are drawn.
  function limited(values, { wide }, about) {
    if (wide || !about || !isLimited(values)) return about;
    const kept = about.sizes.map((size) => inSpan(values, size));
    return Object.fromEntries(Object.entries(about).map(([key, list]) => [key, Array.isArray(list) ? list.filter((_, at) => kept[at]) : list]));
  }

  const referencesOf = (values, { family }) => values.ordering.profile_references[family] ?? { sizes: [], floor: [], ideal: [] };

  // Values for a logarithmic axis, which cannot show a deviation of zero (all sequences in one window).
  const LEAST = 1e-7;
  const onLog = (list) => list.map((value) => (value > LEAST ? value : null));

  function shuffleBands(values, palette, state) {
    const references = referencesOf(values, state);
    const band = limited(values, state, references.shuffle?.[state.half ? "half" : "0"]);
    if (!band?.sizes.length || !state.shown.has(values.ordering.baseline)) return [];
    const { sizes } = band;
    const draw = (low, high, alpha) => {
      const kept = sizes.map((_, at) => at).filter((at) => low[at] > LEAST && high[at] > LEAST);
      return edges(kept.map((at) => sizes[at]), kept.map((at) => low[at]), kept.map((at) => high[at]), palette.baseline, alpha, "seeds");
    };
    const traces = [...draw(band.worst_low, band.worst_high, 0.22), ...draw(band.mean_low, band.mean_high, 0.4)];
    const name = `${values.ordering.baseline}, ${noun(references.shuffle.num_seeds, "seed")}`;
    traces.push({ x: [sizes[0]], y: [null], name: label(name), legendgroup: "seeds", mode: "markers", hoverinfo: "skip",
      marker: { symbol: "square", size: 11, color: faded(palette.baseline, 0.4) } });
    return traces;
  }

  function profileTraces(order, profile, style) {
    const shared = { x: profile.sizes, legendgroup: order.name };
    return [
      { ...shared, y: onLog(profile.worst), name: label(`${order.name}, worst window`), mode: "lines", showlegend: false, hoverinfo: "skip",
        line: { color: style.colour, dash: "4px,3px", width: 1.4 } },
      { ...shared, y: onLog(profile.mean), name: label(order.name), mode: "lines+markers", line: { color: style.colour, width: 2 },
        marker: { color: style.colour, symbol: style.symbol, size: 7 }, customdata: profile.sizes.map((_, at) => [profile.best[at], profile.worst[at]]),
        hovertemplate: "<b>%{y:.3~g}</b> (best %{customdata[0]:.3~g}, worst %{customdata[1]:.3~g})" },
    ];
  }

  function profile(values, palette, state) {
    const style = styles(values, palette);
    const rows = drawn(values, state).map((order) => [order, limited(values, state, profileOf(order, state))]).filter(([, about]) => about?.sizes.length);
    const references = limited(values, state, referencesOf(values, state));
    const data = rows.length ? [...shuffleBands(values, palette, state),
      ...rows.flatMap(([order, about]) => profileTraces(order, about, style.get(order.name)))] : [];
    for (const [key, name, colour, dash] of [["floor", "floor of the mean", palette.floor, FLOOR], ["ideal", "ideal token shuffle", palette.ideal, IDEAL]])
      if (rows.length && references[key].some((value) => value > LEAST))
        data.push({ x: references.sizes, y: onLog(references[key]), name, mode: "lines",
          line: { color: colour, dash, width: 1.5 }, hovertemplate: "%{y:.3~g}" });
    const sizes = [...new Set(rows.flatMap(([, about]) => about.sizes))].sort((first, second) => first - second);
    const ticks = powers(sizes[0] ?? 1, sizes.at(-1) ?? 1, state.narrow ? 6 : 12);
    const at = (about, size, key) => fixed(about[key][about.sizes.indexOf(size)]);
    return { data,
      about: `Line chart with two logarithmic axes: mean and worst TV of windows of ${count(sizes[0] ?? 1)} to ${noun(sizes.at(-1) ?? 1, "sequence")} ` +
        `by ${state.family}, ${state.half ? "each window beginning half a window later" : "windows side by side"}, for ${listing(rows.map(([order]) => order.name))}.`,
      numbers: () => ({
        head: ["Sequences in a window", ...rows.flatMap(([order]) => [`${order.name}, mean`, `${order.name}, worst`]), "Floor", "Ideal token shuffle"],
        rows: sizes.map((size) => [count(size), ...rows.flatMap(([, about]) => [at(about, size, "mean"), at(about, size, "worst")]),
          at(references, size, "floor"), at(references, size, "ideal")]) }),
      layout: layout(palette, { switched: true,
        x: { title: "sequences in a window", type: "log", tickvals: ticks, ticktext: ticks.map(short), hoverformat: ",d" },
        y: { title: "TV of the windows", type: "log", ...logTicks(data.flatMap((trace) => trace.y)) } }) };
  }

  // After the last sequence the deviation is zero (or a rounding error), which a logarithmic axis cannot show.
  function positive(curve) {
    const shown = curve.min.map((least) => least > 1e-6);
    return Object.fromEntries(Object.entries(curve).map(([key, list]) => [key, list.filter((_, at) => shown[at])]));
  }

  function prefix(values, palette, state) {
    const { family, log } = state;
    const style = styles(values, palette);
    const rows = drawn(values, state).flatMap((order) => order.prefix.filter((row) => row.family === family).map((row) => [order.name, row]));
    return { data: rows.flatMap(([name, row]) => curveTraces(name, log ? positive(row.curve) : row.curve, style.get(name))),
      about: `Line chart over training: deviation of everything read so far by ${family}, in sequence lengths. ` +
        `Largest: ${listing(rows.map(([name, row]) => `${name} ${decimal(row.max, 3)}`))}.`,
      numbers: () => curveNumbers("Sequences read", rows.map(([name, row]) => [name, row.curve])),
      layout: layout(palette, { switched: true, x: read(rows.map(([, row]) => row.curve)),
        y: { title: "deviation (sequence lengths)", type: log ? "log" : "linear",
          ...(log ? logTicks(rows.flatMap(([, row]) => positive(row.curve).mean)) : { rangemode: "tozero" }) } }) };
  }

  // The head of the page: all orders, by the first family, in steps if the batch size is known. The legend hides and shows
  // them. The shuffle is drawn first, and the order that is judged last, above the others.
  function course(values, palette) {
    const { main_ordering: main, main_family: family, batch_size: batch } = values.summary;
    const style = styles(values, palette);
    const steps = (curve) => (batch ? { ...curve, position: curve.position.map((position) => position / batch) } : curve);
    const rows = (main ? [...values.ordering.orders] : [])
      .sort((first, second) => second.is_baseline - first.is_baseline || (first.name === main) - (second.name === main))
      .map((order) => [order.name, order.prefix.find((row) => row.family === family)]).filter(([, row]) => row)
      .map(([name, row]) => [name, { ...row, curve: steps(row.curve) }]);
    const title = batch ? `training steps (batches of ${count(batch)} sequences)` : "sequences read";
    return { data: rows.flatMap(([name, row]) => curveTraces(name, row.curve, style.get(name))),
      about: `Line chart over training: deviation of everything read so far by ${family}, in sequence lengths. ` +
        `Largest: ${listing(rows.map(([name, row]) => `${name} ${decimal(row.max, 3)}`))}.`,
      numbers: () => curveNumbers(batch ? "Steps" : "Sequences read", rows.map(([name, row]) => [name, row.curve])),
      layout: layout(palette, { x: { ...read(rows.map(([, row]) => row.curve)), title }, y: { title: "sequence lengths", rangemode: "tozero" } }) };
  }

  function drift(values, palette, state) {
    const style = styles(values, palette);
    const rows = drawn(values, state).filter((order) => order.norm_drift.curve.position.length);
    return { data: rows.flatMap((order) => curveTraces(order.name, order.norm_drift.curve, style.get(order.name))),
      about: `Line chart over training: drift of the norm, in sequences. Largest distance from zero: ` +
        `${listing(rows.map((order) => `${order.name} ${decimal(order.norm_drift.max, 3)}`))}.`,
      numbers: () => curveNumbers("Sequences read", rows.map((order) => [order.name, order.norm_drift.curve])),
      layout: layout(palette, { switched: true, x: read(rows.map((order) => order.norm_drift.curve)), y: { title: "drift (sequences)" } }) };
  }

  return { windows, profile, prefix, course, drift, sizesNear, isLimited };
})();
