// The figures of the attached training runs.
"use strict";
const trainingFigures = (() => {
  const { decimal, listing } = wording;
  const { layout, styles, edges, curveTraces, curveNumbers, wholeTicks, label } = look;
  const steps = (curves) => ({ title: "optimiser step, the first is 0", tickformat: ",d", hoverformat: ",d", ...wholeTicks(curves.flatMap((curve) => curve.position)) });

  const runsOf = (values, state) => values.training.filter((run) => state.shown.has(run.ordering)
    || !values.ordering.orders.some((order) => order.name === run.ordering));

  function styled(values, palette) {
    const known = styles(values, palette);
    return (run) => known.get(run.ordering)
      ?? { colour: palette.orders[values.training.indexOf(run) % palette.orders.length], dash: "solid", symbol: "circle" };
  }

  function loss(values, palette, state) {
    const styleOf = styled(values, palette);
    const runs = runsOf(values, state);
    const data = runs.flatMap((run) => {
      const style = styleOf(run);
      const { curve } = run.validation_loss;
      const band = run.validation_interval;
      return [
        ...curveTraces(`${run.ordering}, training`, run.loss.curve, style),
        ...(band ? edges(band.low.position, band.low.mean, band.high.mean, style.colour, 0.25, label(`${run.ordering}, validation`)) : []),
        { x: curve.position, y: curve.mean, name: label(`${run.ordering}, validation`), mode: "lines+markers", legendgroup: label(`${run.ordering}, validation`),
          line: { color: palette.ink, width: 1, dash: "2px,3px" }, hovertemplate: "%{y:.4f}",
          marker: { size: 9, symbol: style.symbol, color: style.colour, line: { width: 1.5, color: palette.ink } } },
      ].filter((trace) => trace.x.length);
    });
    return { data, about: `Line chart over optimiser steps: ${runs.map((run) => run.sentence).join(" ")}`.replaceAll("`", ""),
      numbers: () => curveNumbers("Step", runs.flatMap((run) => [[`${run.ordering}, training`, run.loss.curve],
        ...(run.validation_loss.curve.position.length ? [[`${run.ordering}, validation`, run.validation_loss.curve]] : [])])),
      layout: layout(palette, { switched: true, x: steps(runs.map((run) => run.loss.curve)), y: { title: "loss (nats per token)" } }) };
  }

  // A figure of one value per step, if any run has this value.
  const curveFigure = (key, title, name, about = {}) => (values, palette, state) => {
    const styleOf = styled(values, palette);
    const runs = runsOf(values, state).filter((run) => run[key]?.curve.position.length);
    return { data: runs.flatMap((run) => curveTraces(run.ordering, run[key].curve, styleOf(run))),
      about: `Line chart over optimiser steps: ${name}. First and last: ` +
        `${listing(runs.map((run) => `${run.ordering} ${decimal(run[key].first, 3)} and ${decimal(run[key].last, 3)}`))}.`,
      numbers: () => curveNumbers("Step", runs.map((run) => [run.ordering, run[key].curve])),
      layout: layout(palette, { switched: true, x: steps(runs.map((run) => run[key].curve)), y: { title, ...about } }) };
  };

  // The validation loss of every group: a colour for a group, a line and a symbol for a run.
  function groups(values, palette, state) {
    const styleOf = styled(values, palette);
    const runs = runsOf(values, state).filter((run) => Object.keys(run.groups).length);
    const names = [...new Set(runs.flatMap((run) => Object.keys(run.groups)))];
    const curves = runs.flatMap((run) => Object.entries(run.groups).map(([name, group]) => [run, name, group]));
    const title = (run, name) => (runs.length > 1 ? `${name}, ${run.ordering}` : name);
    const data = curves.filter(([, , group]) => group.curve.position.length).map(([run, name, { curve }]) => {
      const [style, colour] = [styleOf(run), palette.topics[names.indexOf(name) % palette.topics.length]];
      return { x: curve.position, y: curve.mean, name: label(title(run, name)), mode: "lines+markers", hovertemplate: "%{y:.4f}",
        line: { color: colour, dash: names.indexOf(name) < palette.topics.length ? style.dash : "3px,3px", width: 1.5 },
        marker: { size: 7, symbol: style.symbol, color: colour } };
    });
    const ends = curves.map(([run, name, group]) => `${title(run, name)} ${decimal(group.first, 3)} and ${decimal(group.last, 3)}`);
    return { data, about: `Line chart over optimiser steps: validation loss by group. First and last: ${ends.length ? listing(ends) : "none"}.`,
      numbers: () => curveNumbers("Step", curves.map(([run, name, { curve }]) => [title(run, name), curve])),
      layout: layout(palette, { switched: true, x: steps(curves.map(([, , { curve }]) => curve)), y: { title: "loss (nats per token)" } }) };
  }

  return { loss, groups, diversity: curveFigure("gradient_diversity", "gradient diversity", "gradient diversity"),
    rank: curveFigure("stable_rank", "stable rank", "stable rank of the gradients"),
    wait: curveFigure("input_wait", "seconds a step", "time that a step waited for its batch", { rangemode: "tozero" }) };
})();
