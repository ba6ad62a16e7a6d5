// The figures of the corpus, its clusters and the packing: { data, layout, about, numbers }, as in the orderings' figures.
"use strict";
const corpusFigures = (() => {
  const { count, cut, decimal, noun, percent, short } = wording;
  const { curveNumbers, faded, label, layout, logTicks, plain, wholeTicks } = look;

  function lengths(values, palette) {
    const { edges, documents, tokens } = values.corpus.lengths;
    const left = edges.slice(0, -1).map(Math.log2);
    const right = edges.slice(1).map(Math.log2);
    const shares = (counts) => { const sum = counts.reduce((a, b) => a + b, 0) || 1; return counts.map((count) => (100 * count) / sum); };
    const ranges = left.map((_, at) => `${count(edges[at])} to ${count(edges[at + 1] - 1)} tokens`);
    // 1, 2, 5, 10 ... are too many labels for an axis of lengths: powers of four are enough, or of two if lengths differ little.
    const base = right.at(-1) - left[0] < 4 ? 2 : 4;
    const ticks = Array.from({ length: 48 }, (_, at) => base ** at).filter((power) => power < (edges.at(-1) ?? 0) * 2 && power >= (edges[0] ?? 0) / 2);
    const x = left.map((low, at) => (low + right[at]) / 2);
    const data = !documents.length ? [] : [
      { type: "bar", x, y: shares(documents), width: left.map((low, at) => right[at] - low), name: "documents", customdata: ranges,
        marker: { color: palette.bar, line: { color: palette.surface, width: 1 } }, hovertemplate: "%{customdata}: %{y:.3~g} % of documents<extra></extra>" },
      { x, y: shares(tokens), mode: "lines", line: { shape: "hvh", color: palette.orders[1], width: 2 }, name: "tokens",
        hovertemplate: "%{y:.3~g} % of tokens<extra></extra>" },
    ];
    const span = values.corpus.length_summary;
    return { data, about: `Bars and a line: the numbers of documents and of tokens in each range of lengths. The median document has ` +
        `${noun(span.median ?? 0, "token")}, the longest ${count(span.longest ?? 0)}.`,
      numbers: () => ({ head: ["Length", "Documents", "Tokens"], rows: ranges.map((range, at) => [range, count(documents[at]), count(tokens[at])]) }),
      layout: { ...layout(palette, {
        x: { title: "tokens in a document", tickvals: ticks.map(Math.log2), ticktext: ticks.map(short),
          range: data.length ? [left[0] - 0.3, right.at(-1) + 0.3] : [0, 1] },
        y: { title: "share", ticksuffix: " %", rangemode: "tozero" } }), bargap: 0, hovermode: "x" } };
  }

  // A place on the map in pixels: the axes reach from -REACH to REACH.
  const REACH = 1.16;
  const LETTER = 6.4; // pixels of an average letter in the map's names, rather too many
  const LINE = 17;

  // The largest circles' names with the box of each, in pixels, except names that would touch a larger circle's name or the map's edge.
  function written(rows, { width, height, letters, size }) {
    const kept = [];
    for (const row of rows) {
      if (kept.length === 24) break;
      const text = cut(row.name.split(", ").slice(0, 2).join(", "), letters);
      const [x, bottom] = [(row.x / REACH + 1) * width / 2, (1 - row.y / REACH) * height / 2 - size(row) / 2];
      const box = { left: x - text.length * LETTER / 2, right: x + text.length * LETTER / 2, top: bottom - LINE, bottom };
      const isInside = box.left >= 0 && box.right <= width && box.top >= 0;
      const isApart = (other) => box.left > other.right || box.right < other.left || box.top > other.bottom || box.bottom < other.top;
      if (text && isInside && kept.every(({ box: other }) => isApart(other))) kept.push({ row, text, box });
    }
    return kept;
  }

  function topics(values, palette, { narrow, wideMap }) {
    const room = wideMap ? 880 : 560;
    const { labels, rows } = values.clusters.map;
    const largest = Math.max(...rows.map((row) => row.share), 1e-9);
    const widest = Math.min(54, 420 / Math.sqrt(rows.length || 1)) * (narrow ? 0.6 : 1);
    const size = (row) => Math.max(5, widest * Math.sqrt(row.share / largest));
    const trace = (group, name, colour) => ({
      x: group.map((row) => row.x), y: group.map((row) => row.y), name: label(name), mode: "markers", type: "scatter",
      marker: { color: faded(colour, 0.55), size: group.map(size),
        line: { color: colour, width: 1 } },
      customdata: group.map((row) => [plain(row.name), 100 * row.share, row.documents]),
      hovertemplate: "%{customdata[0]}<br>%{customdata[1]:.3~g} % of tokens, %{customdata[2]:,d} documents<extra></extra>",
    });
    const data = [...labels.map((name, at) => [rows.filter((row) => row.label === at), name, palette.topics[at]]),
      [rows.filter((row) => row.label < 0), labels.length ? "others" : "clusters", labels.length ? palette.baseline : palette.topics[0]]]
      .filter(([group]) => group.length).map((parts) => trace(...parts));
    // The narrowest map of either kind, so that names do not touch in a wider one.
    const named = written(rows, { ...(narrow ? { width: 310, height: 290, letters: 22 } : { width: room, height: 520, letters: 40 }), size });
    if (named.length) data.push({ x: named.map(({ row }) => row.x), y: named.map(({ row }) => row.y), mode: "markers+text", hoverinfo: "skip",
      text: named.map(({ text }) => plain(text)), textfont: { color: palette.ink, size: 11 },
      // Invisible circles of the same sizes: the names are above them.
      textposition: "top center", marker: { opacity: 0, size: named.map(({ row }) => size(row)) }, cliponaxis: false, showlegend: false });
    const bare = { showgrid: false, zeroline: false, showline: false, showticklabels: false, ticks: "", title: "", range: [-REACH, REACH] };
    const base = layout(palette, { x: bare, y: bare, legend: labels.length > 0 });
    return { data: rows.length ? data : [], instead: rows.length === 1 ? "There is nothing to draw: a map needs at least two clusters, and there is one." : null,
      about: `Map of ${noun(rows.length, "cluster")} as circles; clusters with similar vocabulary are near each other. The table below lists the largest.`,
      numbers: () => ({ head: ["Cluster", "Label", "Share", "Documents"], rows: rows.slice(0, 60).map((row) => [row.name, labels[row.label] ?? "–",
        percent(row.share), count(row.documents)]) }),
      layout: { ...base, legend: { ...base.legend, itemsizing: "constant" }, hovermode: "closest", hoverdistance: 20, margin: { l: 8, r: 8, t: 8, b: 8 } } };
  }

  function ranks(values, palette) {
    const { position, mean } = values.clusters.share_by_rank;
    const data = [{ x: position, y: mean.map((share) => 100 * share), mode: "lines", line: { color: palette.orders[0], width: 2 },
      fill: "tozeroy", fillcolor: faded(palette.orders[0], 0.1), hovertemplate: "%{y:.3~g} % of tokens<extra></extra>" }];
    // Labels of neighbouring ranks would overlap on a logarithmic axis.
    const ticks = [1, 2, 3, 5, 10, 20, 50, 100].filter((rank) => rank <= position.at(-1));
    return { data: position.length ? data : [],
      about: `Line chart with two logarithmic axes: the clusters' shares of all tokens by rank, from ${percent(mean[0] ?? 0)} to ${percent(mean.at(-1) ?? 0)}.`,
      numbers: () => curveNumbers("Rank", [["Share of all tokens", values.clusters.share_by_rank]], (share) => `${decimal(100 * share, 3)} %`),
      layout: layout(palette, { legend: false,
        x: { title: "rank of the cluster", type: "log", tickformat: ",d", hoverformat: ",d", ...(position.at(-1) > 100 ? { dtick: 1 } : { tickvals: ticks }) },
        y: { title: "share of tokens", type: "log", ticksuffix: " %", ...logTicks(data[0].y) } }) };
  }

  function segments(values, palette) {
    const { edges, frequency } = values.packing.segments_per_sequence;
    const wide = edges.length > 1 && edges[1] - edges[0] > 1;
    const names = frequency.map((_, at) => (wide ? `${edges[at]} to ${edges[at + 1] - 1}` : `${edges[at]}`));
    const data = [{ type: "bar", x: frequency.map((_, at) => (edges[at] + edges[at + 1] - 1) / 2), y: frequency, customdata: names,
      width: frequency.map((_, at) => 0.9 * (edges[at + 1] - edges[at])),
      marker: { color: palette.bar }, hovertemplate: "%{customdata} segments: %{y:,} sequences<extra></extra>" }];
    const few = edges.length && edges[edges.length - 1] - edges[0] <= 12; // by default plotly marks halves, too
    return { data: frequency.length ? data : [],
      about: `Bars: the number of segments in a training sequence; on average ${decimal(values.packing.mean_segments, 3)}.`,
      numbers: () => ({ head: ["Segments in a sequence", "Sequences"], rows: frequency.map((number, at) => [names[at], count(number)]) }),
      layout: { ...layout(palette, { legend: false,
        x: { title: "segments in a sequence", tickformat: ",d", ...(few ? { dtick: 1 } : {}) },
        y: { title: "sequences", tickformat: "~s", ...wholeTicks([0, ...frequency]) } }), hovermode: "closest" } };
  }

  return { lengths, topics, ranks, segments };
})();
