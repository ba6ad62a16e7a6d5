// What the tests ask a page that is open in a browser.
const checks = (() => {
  const visible = (selector) => [...document.querySelectorAll(selector)].filter((node) => node.checkVisibility());
  const figures = () => visible("figure");
  const drawn = () => visible(".plot").filter((plot) => plot.querySelector(".main-svg")).length;
  const instead = () => Object.fromEntries(visible("figure .note").map((note) => [note.id.replace("-instead", ""), note.textContent]));
  const isDone = (figure) => !figure.querySelector(".note").hidden || figure.querySelector(".plot").data !== undefined;
  // The labels of an axis that stand on it: text and box.
  const ticks = (name, axis) => [...document.querySelectorAll(`#${name} .${axis}tick text`)].filter((node) => node.textContent)
    .map((node) => { const { left, right, top, bottom } = node.getBoundingClientRect(); return { text: node.textContent, left, right, top, bottom }; });

  function choose(selector, value, event = "change") {
    const node = document.querySelector(selector);
    node.value = value;
    node.dispatchEvent(new Event(event));
  }

  // Everything that Tab should reach; a group of radio buttons is one stop.
  function stops() {
    const groups = new Set();
    const first = (node) => !groups.has(node.name) && groups.add(node.name);
    return visible('a[href], button, input, select, summary, [tabindex="0"]')
      .filter((node) => node.type !== "radio" || first(node)).length;
  }

  // What has the focus, and the style of the outline around it; null where nothing has it.
  function focused() {
    const node = document.activeElement;
    if (node === document.body) return null;
    const shown = node.matches(".options input") ? node.nextElementSibling : node;
    return [getComputedStyle(shown).outlineStyle, node.outerHTML.slice(0, 80)];
  }

  const pixel = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const colours = new Map();
  function parsed(colour) {
    if (!colours.has(colour)) {
      pixel.clearRect(0, 0, 1, 1);
      pixel.fillStyle = colour;
      pixel.fillRect(0, 0, 1, 1);
      colours.set(colour, [...pixel.getImageData(0, 0, 1, 1).data]);
    }
    return colours.get(colour);
  }
  const linear = (value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  const luminance = ([red, green, blue]) => 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
  function ground(node) {
    for (let at = node; at; at = at.parentElement) {
      const colour = parsed(getComputedStyle(at).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  }

  // Of every visible text: its contrast with the ground that it stands on (as WCAG 2.2 defines it), and its beginning.
  function contrasts() {
    const hasText = (node) => [...node.childNodes].some((child) => child.nodeType === Node.TEXT_NODE && child.data.trim());
    return visible("body *").filter((node) => !node.closest("svg") && hasText(node)).map((node) => {
      const pair = [parsed(getComputedStyle(node).color), ground(node)].map(luminance);
      return [(Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05), `${node.tagName} ${node.textContent.slice(0, 40)}`];
    });
  }

  const headings = () => visible("h1, h2, h3, h4, h5").map((node) => Number(node.tagName[1]));
  // Rows, columns and first cell of every figure's table.
  const tables = () => figures().map((figure) => [figure.querySelectorAll(".numbers tbody tr").length,
    figure.querySelectorAll(".numbers th").length, figure.querySelector(".numbers td")?.textContent]);
  const addresses = () => [...document.querySelectorAll("[src], [href]")]
    .map((node) => node.getAttribute("src") ?? node.getAttribute("href")).filter((address) => /^([a-z]+:)?\/\//i.test(address));
  const census = () => Object.fromEntries(["a", "iframe", "img", "script", "style", "section", "h1", "h2", "figure", "button"]
    .map((tag) => [tag, document.querySelectorAll(tag).length]));

  return { figures, drawn, instead, isDone, ticks, choose, stops, focused, contrasts, headings, tables, addresses, census };
})();
