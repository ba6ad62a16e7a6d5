// Loaded first: counts errors, so that a test (or a curious reader) can read them from the page.
"use strict";
(() => {
  const root = document.documentElement;
  const errors = [];
  const note = (text) => {
    errors.push(String(text));
    root.dataset.errors = String(errors.length);
    root.dataset.errorText = errors.join("\n");
  };
  root.dataset.errors = "0";
  window.addEventListener("error", (event) => note(event.message));
  window.addEventListener("unhandledrejection", (event) => note(event.reason));
  document.addEventListener("securitypolicyviolation", (event) =>
    note(`forbidden by the content security policy: ${event.violatedDirective} ${event.blockedURI}`));
})();
