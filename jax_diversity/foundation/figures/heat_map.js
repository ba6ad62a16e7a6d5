// The largest groups over training time: the chosen ordering beside the shuffle; a row is a group, a column a part of training.
"use strict";
const heatMap = (() => {
  const { count, cut, noun, percent } = wording;
  const { axis, layout, plain, wholeTicks } = look;
  const mostBins = 9; // columns of the table of numbers

  // The orderings that have a heat map of this family, the chosen one first, then the shuffle.
  function panels(values, { family, focus }) {
    const known = values.ordering.orders.filter((order) => order.heat_map?.[family]?.groups.length);
    const names = [focus, values.ordering.baseline];
    return [...new Set(names)].map((name) => known.find((order) => order.name === name)).filter(Boolean)
      .map((order) => ({ name: order.name, ...order.heat_map[family] }));
  }

  const ratio = (share, target) => (share > 0 && target > 0 ? Math.log2(share / target) : -8);
  function inWords(share, target) {
    if (share == null || !(target > 0)) return "";
    return `${percent(share)}, ${(share / target).toFixed(2)} times its share of ${percent(target)}`;
  }
  const stretch = ({ bin_size: size }, bin) => `sequences ${count(bin * size + 1)} to ${count((bin + 1) * size)}`;

  function trace(panel, at) {
    return {
      type: "heatmap", x0: panel.bin_size / 2, dx: panel.bin_size, y0: 0, dy: 1, coloraxis: "coloraxis",
      z: panel.share.map((row, group) => row.map((share) => (share == null ? null : ratio(share, panel.groups[group].target)))),
      text: panel.share.map((row, group) => row.map((share, bin) => `${plain(cut(panel.groups[group].name, 60))}<br>${stretch(panel, bin)}<br>` +
        inWords(share, panel.groups[group].target))),
      hovertemplate: "%{text}<extra></extra>", name: plain(panel.name), xaxis: at ? "x2" : "x", yaxis: at ? "y2" : "y",
    };
  }

  // The height of the rows of all panels, and of what is between and around them; of a narrow page, one panel below the other.
  const ROW = 18;
  const [BETWEEN, ABOVE, BELOW] = [62, 34, 96];
  const heightOf = (shown, narrow) => Math.max(90, (narrow ? shown.length : 1) * (shown[0]?.groups.length ?? 0) * ROW) +
    (narrow ? (shown.length - 1) * BETWEEN : 0);

  function axes(shown, palette, narrow) {
    const gap = narrow ? BETWEEN / heightOf(shown, narrow) : 0.03;
    const about = {};
    shown.forEach((panel, at) => {
      const [low, high] = shown.length === 1 ? [0, 1] : at === 0 ? [0, (1 - gap) / 2] : [(1 + gap) / 2, 1];
      const names = panel.groups.map((group) => plain(cut(group.name, narrow ? 16 : 30)));
      const suffix = at ? "2" : "";
      about[`xaxis${suffix}`] = axis(palette, { title: narrow && shown.length > 1 && !at ? "" : "sequences read", tickformat: ",d", showgrid: false, ...wholeTicks([0, panel.share[0].length * panel.bin_size]),
        zeroline: false, nticks: narrow ? 4 : 6, anchor: `y${suffix}`, domain: narrow ? [0, 1] : [low, high] });
      about[`yaxis${suffix}`] = axis(palette, { title: "", autorange: "reversed", showgrid: false, zeroline: false, ticks: "", anchor: `x${suffix}`,
        tickvals: names.map((_, row) => row), ticktext: names, showticklabels: narrow || !at, tickfont: { size: 11, color: palette.ink },
        domain: narrow ? [1 - high, 1 - low] : [0, 1] });
    });
    return about;
  }

  function titles(shown, palette) {
    return shown.map((panel, at) => ({ text: `<b>${plain(cut(panel.name, 40))}</b>`, showarrow: false, font: { size: 13, color: palette.ink },
      xref: `x${at ? "2" : ""} domain`, yref: `y${at ? "2" : ""} domain`, x: 0, y: 1, xanchor: "left", yanchor: "bottom", yshift: 3 }));
  }

  function insteadOf(values, { family }, shown) {
    if (shown[0]?.share[0].length === 1) return "There is nothing to draw: a course needs at least two parts of training, and there is one.";
    const isEmpty = !shown.length && values.ordering.orders.some((order) => order.heat_map?.[family]);
    return isEmpty ? `There is nothing to draw: no group by ${family} is large enough for a part of training.` : null;
  }

  function numbers(shown) {
    if (!shown.length) return { head: ["Group"], rows: [] };
    const bins = shown[0].share[0].length;
    const chosen = [...new Set(Array.from({ length: mostBins }, (_, at) => Math.round((at * (bins - 1)) / (mostBins - 1))))];
    return { head: ["Group", "Ordering", "Share of all tokens", ...chosen.map((bin) => `From ${count(bin * shown[0].bin_size + 1)}`)],
      rows: shown.flatMap((panel) => panel.groups.map((group, row) => [group.name, panel.name, percent(group.target),
        ...chosen.map((bin) => (panel.share[row][bin] == null ? "–" : percent(panel.share[row][bin])))])) };
  }

  function heat(values, palette, state) {
    const shown = panels(values, state);
    const { narrow } = state;
    const rows = shown[0]?.groups.length ?? 0;
    const scale = palette.diverging.map((colour, at, all) => [at / (all.length - 1), colour]);
    const base = layout(palette, { x: {}, y: {}, legend: false });
    const [least, middle, most] = narrow ? ["half", "its share", "twice"] : ["half its share or less", "its share", "twice its share or more"];
    return {
      data: shown.map((panel, at) => trace(panel, at)),
      instead: insteadOf(values, state, shown),
      height: heightOf(shown, narrow) + ABOVE + BELOW,
      about: `Heat map: ${noun(rows, "group")} by ${state.family} over training, for ${shown.map((panel) => panel.name).join(" beside ")}. ` +
        "Blue is less than a group's share of the corpus, orange is more.",
      numbers: () => numbers(shown),
      layout: { ...base, ...axes(shown, palette, narrow), annotations: titles(shown, palette), hovermode: "closest", dragmode: false,
        margin: { ...base.margin, t: ABOVE, b: BELOW, l: 20 },
        coloraxis: { cmin: -1, cmax: 1, colorscale: scale, colorbar: { orientation: "h", x: 0.5, xanchor: "center", y: 0, yref: "container", yanchor: "bottom",
          thickness: 10, len: narrow ? 0.8 : 0.5, outlinewidth: 0, tickvals: [-0.97, 0, 0.97], ticktext: [least, middle, most], ticks: "",
          tickfont: { color: palette.ink, size: 11.5 } } } },
    };
  }

  return { heat };
})();
