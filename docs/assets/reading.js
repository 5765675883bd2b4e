// What the theme leaves out for keyboards and screen readers: wide tables take the focus, landmarks have names of their own.
addEventListener("load", () => {
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap")) table.tabIndex = 0;
  document.querySelectorAll("nav.md-code__nav").forEach((bar, place) => { bar.ariaLabel = `Code ${place + 1}`; });
  for (const head of document.querySelectorAll("thead th:empty")) head.replaceWith(document.createElement("td"));
});
