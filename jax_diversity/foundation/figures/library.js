// plotly.js is in the page as compressed text, less than half of its size; the content security policy contains its hash.
"use strict";
const library = (() => {
  // Resolves when figures can be drawn.
  async function unpack() {
    const bytes = Uint8Array.from(atob(document.getElementById("packed").textContent), (letter) => letter.charCodeAt(0));
    const source = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(source).text();
    document.head.append(script); // runs at once
  }

  return { unpack };
})();
