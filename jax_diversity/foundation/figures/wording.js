// Numbers and lists as words, for the sentences of the figures and of the page.
"use strict";
const wording = (() => {
  const count = (number) => number.toLocaleString("en-US");
  const percent = (share) => {
    if (share > 0 && share < 0.0005) return "< 0.1\u00a0%";
    return share > 0.9995 && share < 1 ? "> 99.9\u00a0%" : `${(100 * share).toFixed(1)}\u00a0%`;
  };
  const decimal = (number, digits = 4) => (number == null ? "–" : number.toLocaleString("en-US", { maximumSignificantDigits: digits }));
  const fixed = (number) => (number == null ? "–" : number.toFixed(4));
  const noun = (number, name) => `${count(number)} ${name}${number === 1 ? "" : "s"}`;
  // For the ticks of an axis, which have little room.
  const short = (number) => (number >= 1e6 ? `${+(number / 1e6).toPrecision(3)}M`
    : number >= 1e5 ? `${+(number / 1e3).toPrecision(3)}k` : count(number));
  const cut = (text, length) => (text.length > length ? `${text.slice(0, length - 1).trimEnd()}…` : text);
  // Both ends of a long id: the first shows its origin, the last distinguishes it from its neighbours.
  const middle = (text, length) => {
    const letters = [...text];
    const end = Math.floor((length - 1) * 0.6);
    return letters.length > length ? `${letters.slice(0, length - 1 - end).join("")}…${letters.slice(-end).join("")}` : text;
  };
  const listing = (parts) => (parts.length < 2 ? parts.join("") : `${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}`);
  // A file's name: letters, digits and single dashes, for any name of the corpus.
  const slug = (...parts) => parts.map((part) => String(part).toLowerCase().normalize("NFKD").replace(/[^a-z0-9]+/g, "-")
    .replace(/^-+|-+$/g, "").slice(0, 40)).filter(Boolean).join("-");
  return { count, percent, decimal, fixed, noun, short, cut, middle, listing, slug };
})();
