// The figure of preparation: the part left by every step, as { data, layout, about, numbers, height }.
"use strict";
const preparationFigures = (() => {
  const { count, decimal, noun, percent } = wording;
  const { label, layout, plain } = look;
  const placeName = (place) => (place.kind === "all" ? "all documents" : place.name || "(none)");
  const size = (bytes) => `${decimal(bytes / 1e6, 3)} MB`;

  function flow(values, palette, { place: chosen }) {
    const about = values.preparation;
    if (!about) return { data: [], about: "", numbers: () => ({ head: [], rows: [] }), layout: layout(palette, { x: {}, y: {} }) };
    const place = about.places[chosen] ?? about.places[0];
    const steps = ["(read)", ...about.steps];
    const figures = [["documents", place.documents, count], ["words", place.words, count], ["bytes", place.bytes, size]];
    // Equal names would share a bar: the places are numbers, the names their labels.
    const rows = steps.map((_, at) => at);
    const colours = [palette.orders[0], palette.orders[2], palette.bar];
    const data = figures.map(([name, numbers, show], at) => {
      const whole = Math.max(...numbers, 1);
      return { type: "bar", orientation: "h", name, x: numbers.map((number) => (100 * number) / whole), y: rows,
        customdata: numbers.map((number, row) => [plain(steps[row]), show(number)]), marker: { color: colours[at] },
        hovertemplate: `%{customdata[0]}: %{customdata[1]}${name === "bytes" ? "" : ` ${name}`} (%{x:.3~g} %)<extra></extra>` };
    });
    const base = layout(palette, { x: { title: "share of all that was read", ticksuffix: " %", range: [0, 101], showgrid: true },
      y: { title: "", showgrid: false, ticks: "", tickvals: rows, ticktext: steps.map((step) => label(step, 24)), range: [steps.length - 0.4, -0.6] } });
    return { data, height: 96 + 40 * steps.length,
      about: `Bars: documents, words and bytes of ${placeName(place)} that were read, and that were left after every step: ` +
        `${noun(place.documents[0], "document")} were read, ${count(place.documents.at(-1))} kept.`,
      numbers: () => ({ head: ["Step", "Documents", "Words", "Bytes", "Documents that the step kept"],
        rows: steps.map((step, at) => [step, ...figures.map(([, numbers]) => count(numbers[at])),
          at && place.documents[at - 1] ? percent(place.documents[at] / place.documents[at - 1]) : "–"]) }),
      layout: { ...base, barmode: "group", bargap: 0.28, bargroupgap: 0, hovermode: "closest" } };
  }

  return { flow, placeName };
})();
