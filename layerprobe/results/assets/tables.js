"use strict";
// Tables sort.
(() => {
  const value = (row, column) => row.cells[column]?.textContent.replaceAll("−", "-").replaceAll(",", "").replace(/^[<>–≈ ]+/, "") ?? "";
  const order = (a, b) => (parseFloat(a) - parseFloat(b)) || a.localeCompare(b, undefined, { numeric: true });
  const sort = (table, head, column) => {
    const next = { none: "descending", descending: "ascending", ascending: "none" }[head.ariaSort];
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
    if (table.tBodies[0].rows.length < 2) continue;
    [...table.tBodies[0].rows].forEach((row, place) => { row.dataset.row = place; });
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      if (head.tagName !== "TH") return;
      const button = Object.assign(document.createElement("button"), { type: "button", className: "sort", textContent: head.textContent });
      button.addEventListener("click", () => sort(table, head, column));
      head.replaceChildren(button);
      head.ariaSort = "none";
    });
    scroll.removeAttribute("tabindex"); // its buttons take the focus, which scrolls it
  }
})();
