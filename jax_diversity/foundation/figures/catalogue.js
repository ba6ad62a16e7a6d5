// All figures: the function that makes each, the name of a saved file, and the choices that change what it shows.
"use strict";
const catalogue = {
  course: { make: orderFigures.course, file: "distance-while-training", by: [] },
  reading: { make: runFigures.reading, file: "reading", by: [] },
  windows: { make: orderFigures.windows, file: "window-deviation", by: ["family", "size"] },
  profile: { make: orderFigures.profile, file: "window-sizes", by: ["family", "half", "wide"] },
  prefix: { make: orderFigures.prefix, file: "deviation-so-far", by: ["family", "log"] },
  drift: { make: orderFigures.drift, file: "norm-drift", by: [] },
  heat: { make: heatMap.heat, file: "heat-map", by: ["focus", "family"] },
  loss: { make: trainingFigures.loss, file: "loss", by: [] },
  groups: { make: trainingFigures.groups, file: "validation-loss-by-group", by: [] },
  diversity: { make: trainingFigures.diversity, file: "gradient-diversity", by: [] },
  rank: { make: trainingFigures.rank, file: "stable-rank", by: [] },
  wait: { make: trainingFigures.wait, file: "input-wait", by: [] },
  worth: { make: trainingFigures.worth, file: "worth-of-the-order", by: [] },
  flow: { make: preparationFigures.flow, file: "preparation", by: ["place"] },
  lengths: { make: corpusFigures.lengths, file: "document-lengths", by: [] },
  topics: { make: corpusFigures.topics, file: "map-of-topics", by: [] },
  ranks: { make: corpusFigures.ranks, file: "cluster-sizes", by: [] },
  segments: { make: corpusFigures.segments, file: "segments", by: [] },
};
