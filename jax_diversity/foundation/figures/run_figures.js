// The figure of a run: which datasets and epochs each part (stretch) of the run reads.
"use strict";
const runFigures = (() => {
  const { count, noun, percent } = wording;
  const { faded, label, layout, plain } = look;

  function reading({ run }, palette) {
    const { datasets, stretches, changes } = run;
    const parts = stretches.flatMap(({ start, stop, parts: held }) => held.map((part) => ({ start, stop, ...part })));
    // One trace for a dataset's even epochs and one for its odd ones: neighbouring epochs differ in strength.
    const data = datasets.flatMap(({ path }, dataset) => [0, 1].flatMap((odd) => {
      const own = parts.filter((part) => part.dataset === dataset && part.epoch % 2 === odd);
      if (!own.length) return [];
      const colour = palette.topics[dataset % palette.topics.length];
      return [{ type: "bar", name: label(path), legendgroup: path, showlegend: !odd || !parts.some((part) => part.dataset === dataset && part.epoch % 2 === 0),
        x: own.map(({ start, stop }) => (start + stop) / 2), width: own.map(({ start, stop }) => stop - start), y: own.map(({ share }) => 100 * share),
        marker: { color: odd ? faded(colour, 0.55) : colour, line: { color: palette.surface, width: 0.5 } },
        customdata: own.map(({ start, stop, epoch }) => [`${count(start)} to ${count(stop)}`, epoch]),
        hovertemplate: `positions %{customdata[0]}: %{y:.3~g} % from ${plain(label(path))}, epoch %{customdata[1]}<extra></extra>` }];
    }));
    const base = layout(palette, { x: { title: "position", tickformat: ",d", range: [0, run.num_positions] },
      y: { title: "share of the part", ticksuffix: " %", range: [0, 100] } });
    const marks = changes.map(({ position, version }) => ({ type: "line", x0: position, x1: position, y0: 0, y1: 1, yref: "paper",
      line: { color: palette.ink, width: 1.4, dash: "4px,3px" }, name: `version ${version}` }));
    return { data, about: `Stacked bars over ${noun(run.num_positions, "position")}: the datasets and epochs that each part of the run reads.`,
      numbers: () => ({ head: ["Positions", "Dataset", "Epoch", "Share"],
        rows: parts.map(({ start, stop, dataset, epoch, share }) => [`${count(start)} to ${count(stop)}`, datasets[dataset].path, String(epoch), percent(share)]) }),
      layout: { ...base, barmode: "stack", bargap: 0, hovermode: "closest", shapes: marks } };
  }

  return { reading };
})();
