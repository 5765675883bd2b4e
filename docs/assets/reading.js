// What the theme leaves out for keyboards and screen readers: what scrolls takes the focus, landmarks have names of their own.
const focusable = () => {
  for (const element of document.querySelectorAll(".md-content *"))
    if (element.scrollWidth > element.clientWidth && /auto|scroll/.test(getComputedStyle(element).overflowX)) element.tabIndex = 0;
};
addEventListener("load", () => {
  document.querySelectorAll("nav.md-code__nav").forEach((bar, place) => { bar.ariaLabel = `Code ${place + 1}`; });
  for (const list of document.querySelectorAll(".md-nav--secondary nav")) { list.removeAttribute("aria-label"); list.role = "none"; }
  for (const head of document.querySelectorAll("thead th:empty")) head.replaceWith(document.createElement("td"));
  focusable();
});
addEventListener("resize", focusable);
