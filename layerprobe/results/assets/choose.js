"use strict";
// A block, a point or a row that is chosen shows its numbers and the command that makes it; tables sort and filter.
(() => {
  const made = (tag, about = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), about);
    element.append(...children);
    return element;
  };
  const [{ tables, figures }, commands] = JSON.parse(document.getElementById("choices").textContent);
  const [main] = tables;
  const strip = document.querySelector(".strip svg");
  const body = document.querySelector("#layers tbody");

  // ---- the panel: a list of the rows, the numbers of one, and how to make it ----
  const label = commands.flat().some(Boolean) ? "Numbers and command of" : "Numbers of";
  const list = made("select", {}, ...main.names.map((name, row) => made("option", { value: row }, name)));
  const name = made("p", { className: "name" });
  const numbers = made("dl");
  const code = made("code");
  const command = made("div", { className: "makes" }, made("p", {}, "To make it:"), made("pre", { className: "commands" }, code));
  const shown = made("div", { hidden: true }, name, numbers, command);
  shown.setAttribute("aria-live", "polite");
  const panel = made("section", { id: "choice" }, made("label", {}, `${label} `, list), shown);
  panel.setAttribute("aria-label", "The numbers of a choice");
  list.prepend(made("option", { value: "", selected: true }, "… choose here, or a point or row"));

  const choose = (number, row) => {
    const table = tables[number];
    shown.hidden = false;
    name.textContent = table.names[row];
    const told = table.heads.map((head, column) => [head, table.cells[row][column]]).filter(([, cell]) => cell !== "–");
    numbers.replaceChildren(...told.map(([head, cell]) => made("div", {}, made("dt", {}, head), made("dd", {}, cell))));
    code.textContent = commands[number][row];
    command.hidden = !code.textContent;
    const same = number ? main.names.indexOf(table.names[row]) : row;
    list.value = same < 0 ? "" : same;
    for (const line of body?.children ?? []) line.classList.toggle("picked", Number(line.dataset.row) === same);
    if (strip && main.blocks[same]) mark(same);
  };
  list.addEventListener("change", () => { if (list.value !== "") choose(0, Number(list.value)); });

  // ---- the strip of blocks: a slider over the rows, a click on a block takes the smallest that keeps it ----
  const mark = (row) => {
    const kept = main.blocks[row];
    [...strip.children].forEach((block, place) => block.classList.toggle("picked", kept.includes(place + 1)));
    strip.setAttribute("aria-valuenow", row);
    strip.setAttribute("aria-valuetext", main.names[row]);
  };
  if (strip && main.blocks.length) {
    const last = main.blocks.length - 1;
    for (const [key, value] of Object.entries({ role: "slider", tabindex: 0, "aria-valuemin": 0, "aria-valuemax": last })) strip.setAttribute(key, value);
    strip.setAttribute("aria-valuenow", main.chosen ?? 0);
    strip.setAttribute("aria-valuetext", strip.getAttribute("aria-label"));
    strip.setAttribute("aria-label", "Blocks kept");
    [...strip.children].forEach((block, place) => block.addEventListener("click", () => {
      const keeping = main.blocks.map((kept, row) => [kept.length, row]).filter(([, row]) => main.blocks[row].includes(place + 1));
      if (keeping.length) choose(0, keeping.sort(([a], [b]) => a - b)[0][1]);
    }));
    strip.addEventListener("keydown", (event) => {
      const now = Number(strip.getAttribute("aria-valuenow"));
      const to = { ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1, Home: 0, End: last }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      choose(0, Math.min(Math.max(to, 0), last));
    });
  }
  const above = document.querySelector("main > header");
  if (main.names.length > 1) above.insertBefore(panel, above.querySelector(":scope > figure"));

  // ---- points of figures ----
  addEventListener("drawn", () => {
    for (const [figure, number] of Object.entries(figures)) {
      const plot = document.getElementById(`plot-${figure}`);
      plot.classList.add("choosable");
      plot.on("plotly_click", ({ points: [point] }) => {
        if (typeof point?.customdata !== "number") return;
        choose(number, point.customdata);
        panel.scrollIntoView({ block: "nearest" });
      });
    }
  });

  // ---- tables: a click on a head sorts, a word filters ----
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
  body?.addEventListener("click", ({ target }) => {
    const row = target.closest("tr");
    if (row) choose(0, Number(row.dataset.row));
  });
})();
