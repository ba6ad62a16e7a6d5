// The figures of the attached training runs.
"use strict";
const trainingFigures = (() => {
  const { decimal, listing } = wording;
  const { layout, styles, curveTraces, curveNumbers, wholeTicks, label } = look;
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
      return [
        ...curveTraces(`${run.ordering}, training`, run.loss.curve, style),
        { x: curve.position, y: curve.mean, name: label(`${run.ordering}, validation`), mode: "lines+markers",
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

  return { loss, diversity: curveFigure("gradient_diversity", "gradient diversity", "gradient diversity"),
    rank: curveFigure("stable_rank", "stable rank", "stable rank of the gradients"),
    wait: curveFigure("input_wait", "seconds a step", "time that a step waited for its batch", { rangemode: "tozero" }) };
})();
