"use strict";
// Tables sort and filter.
(() => {
  const made = (tag, about = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), about);
    element.append(...children);
    return element;
  };
  const value = (row, column) => row.cells[column]?.textContent.replaceAll("−", "-").replaceAll(",", "").replace(/^[<>–]/, "") ?? "";
  const order = (a, b) => (parseFloat(a) - parseFloat(b)) || a.localeCompare(b, undefined, { numeric: true });
  const sort = (table, head, column) => {
    const next = { none: "descending", descending: "ascending", ascending: "none" }[head.ariaSort ?? "none"];
    for (const other of table.tHead.rows[0].cells) if (other.ariaSort) other.ariaSort = "none";
    head.ariaSort = next;
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => {
      const [one, two] = [value(a, column), value(b, column)];
      if (next === "none") return a.dataset.row - b.dataset.row;
      if (!one || !two) return !one - !two; // what has no number comes last
      return (next === "descending" ? -1 : 1) * order(one, two);
    });
    table.tBodies[0].append(...rows);
  };
  for (const scroll of document.querySelectorAll(".scroll:not(.models *)")) {
    const [table] = scroll.children;
    const rows = [...table.tBodies[0].rows];
    rows.forEach((row, place) => { row.dataset.row = place; });
    if (rows.length < 2) continue;
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      if (head.tagName !== "TH") return;
      const button = made("button", { type: "button", className: "sort", textContent: head.textContent });
      button.addEventListener("click", () => sort(table, head, column));
      head.replaceChildren(button);
      head.ariaSort = "none";
    });
    scroll.removeAttribute("tabindex"); // its buttons take the focus, which scrolls it
    if (rows.length < 9) continue;
    const count = made("output");
    const words = made("input", { type: "search", placeholder: "Filter rows", ariaLabel: `Filter rows: ${scroll.ariaLabel}` });
    words.addEventListener("input", () => {
      const wanted = words.value.toLowerCase().split(/\s+/);
      for (const row of rows) row.hidden = !wanted.every((word) => row.textContent.toLowerCase().includes(word));
      count.textContent = words.value && `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
    });
    scroll.before(made("p", { className: "filter" }, words, " ", count));
  }
})();
