// The figures of the attached training runs.
"use strict";
const trainingFigures = (() => {
  const { count, decimal, listing } = wording;
  const { layout, styles, edges, curveTraces, curveNumbers, wholeTicks, label, level } = look;
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

  const withValue = (runs, key) => runs.filter((run) => run[key]?.curve.position.length);

  // Some values mean nothing alone: they are drawn if a run on the shuffle has them, and another run.
  function isCompared(values, key) {
    const runs = withValue(values.training, key);
    return runs.length > 1 && runs.some((run) => run.ordering === values.ordering.baseline);
  }

  // A figure of one value per step, if any run has this value.
  const curveFigure = (key, title, name, { compared = false, ...about } = {}) => (values, palette, state) => {
    const styleOf = styled(values, palette);
    const runs = compared && !isCompared(values, key) ? [] : withValue(runsOf(values, state), key);
    return { data: runs.flatMap((run) => curveTraces(run.ordering, run[key].curve, styleOf(run))),
      about: `Line chart over optimiser steps: ${name}. First and last: ` +
        `${listing(runs.map((run) => `${run.ordering} ${decimal(run[key].first, 3)} and ${decimal(run[key].last, 3)}`))}.`,
      numbers: () => curveNumbers("Step", runs.map((run) => [run.ordering, run[key].curve])),
      layout: layout(palette, { switched: true, x: steps(runs.map((run) => run[key].curve)), y: { title, ...about } }) };
  };

  // What a sequence of an order is worth, at the last explained checkpoint of every run.
  function worth(values, palette, state) {
    const styleOf = styled(values, palette);
    const shown = runsOf(values, state).filter((run) => run.explained.length).map((run) => ({ run, ...run.explained.at(-1) }));
    const curves = shown.flatMap(({ run, num_steps: step, shares, windows }) => {
      const own = windows.filter((row) => row.of === shares[0].of && row.value > 0);
      return [...new Set(own.map((row) => row.order))].map((order) => ({ run, shares, rows: own.filter((row) => row.order === order),
        name: `${order}, model of ${run.ordering} at step ${count(step)}` }));
    });
    const bound = (row, end) => (row[end] > 0 ? Math.abs(1 / row[end] - 1 / row.value) : 0);
    const data = curves.flatMap(({ run, shares, rows, name }) => {
      const style = styleOf(run);
      const x = rows.map((row) => row.window_size);
      const share = shares.findLast((row) => row.of === shares[0].of).value; // of all families together
      return [
        { x, y: rows.map((row) => 1 / row.value), name: label(name, 80), mode: "lines+markers", hovertemplate: "%{y:.3f}",
          error_y: { type: "data", symmetric: false, array: rows.map((row) => bound(row, "low")), arrayminus: rows.map((row) => bound(row, "high")), width: 3, thickness: 1 },
          line: { color: style.colour, dash: style.dash, width: 2 }, marker: { color: style.colour, size: 8, symbol: style.symbol } },
        ...(share < 1 ? [level(label(`1 / (1 − R²) of ${run.ordering}`, 60), [x[0], x.at(-1)], 1 / (1 - share), style.colour, "8px,4px")] : []),
      ];
    });
    const sizes = curves.flatMap(({ rows }) => rows.map((row) => row.window_size));
    if (data.length) data.push(level("a shuffle", [Math.min(...sizes), Math.max(...sizes)], 1, palette.baseline, "5px,3px"));
    const ticks = [...new Set(sizes)].sort((first, second) => first - second);
    return { data, about: "Line chart over window sizes: how many shuffled sequences one sequence of an order is worth. " +
        `${curves.map(({ name, rows }) => `${name}: ${listing(rows.map((row) => `${decimal(1 / row.value, 3)} at ${count(row.window_size)}`))}.`).join(" ")}`,
      numbers: () => ({ head: ["Window", ...curves.map(({ name }) => name)],
        rows: ticks.map((size) => [count(size), ...curves.map(({ rows }) => {
          const row = rows.find((each) => each.window_size === size);
          return row ? decimal(1 / row.value, 4) : "–";
        })]) }),
      layout: layout(palette, { switched: true, x: { title: "sequences in a window", type: "log", tickvals: ticks, ticktext: ticks.map(count) },
        y: { title: "shuffled sequences" } }) };
  }

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

  return { loss, groups, worth, diversity: curveFigure("gradient_diversity", "gradient diversity", "gradient diversity", { compared: true }),
    rank: curveFigure("stable_rank", "stable rank", "stable rank of the gradients", { compared: true }),
    wait: curveFigure("input_wait", "seconds a step", "time that a step waited for its batch", { rangemode: "tozero" }) };
})();
