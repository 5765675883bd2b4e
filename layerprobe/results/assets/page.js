"use strict";
(() => {
  const at = (id) => document.getElementById(id);
  const text = (id) => document.querySelector(`script#${id}`).textContent; // a section may be called the same
  const figures = JSON.parse(text("figures"));
  const darkColours = JSON.parse(text("dark"));
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const PAPER = 680; // pixels across a sheet of A4
  const printing = () => root.classList.contains("paper");

  // ---- figures ----
  // A deep copy in the page's colours: Plotly writes into what it is given.
  const recoloured = (value, colours) => {
    if (typeof value === "string") return Object.hasOwn(colours, value) ? colours[value] : value;
    if (Array.isArray(value)) return value.map((item) => recoloured(item, colours));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, recoloured(item, colours)]));
  };
  // The sizes on paper are those of style.css; a browser does not resize figures to the sheet by itself.
  const onPaper = (place) => (place.classList.contains("map") ? { width: 520, height: 480 } : { width: PAPER, height: 340 });
  const plot = (name, figure) => {
    const place = at(`plot-${name}`), { data, layout } = recoloured(figure, system.matches && !printing() ? darkColours : {});
    Object.assign(layout, printing() ? onPaper(place) : { autosize: true });
    layout.dragmode = false; // a finger on a figure scrolls the page
    for (const key of Object.keys(layout)) if (/^[xy]axis/.test(key)) layout[key].fixedrange = true;
    return Plotly.react(place, data, layout, { displayModeBar: false, responsive: true, showTips: false });
  };
  const draw = (part = document) => {
    if (typeof Plotly === "undefined") return; // it is on its way
    for (const [name, figure] of Object.entries(figures)) {
      const place = at(`plot-${name}`);
      if (part.contains(place) && place.checkVisibility()) plot(name, figure); // what is folded is drawn once it opens
    }
    dispatchEvent(new CustomEvent("coloured", { detail: { plot, unpacked, part } })); // for scripts that draw figures of their own
  };
  system.addEventListener("change", () => draw());
  for (const fold of document.querySelectorAll("details")) fold.addEventListener("toggle", () => { if (fold.open) draw(fold); });

  // ---- paper has everything: what is folded opens, and closes again after ----
  let closed = [];
  addEventListener("beforeprint", () => {
    root.classList.add("paper");
    closed = [...document.querySelectorAll("details:not([open], .explore)")];
    for (const fold of closed) fold.open = true;
    for (const table of document.querySelectorAll(".scroll table")) {
      Object.assign(table.style, { width: "min-content", zoom: 1 });
      Object.assign(table.style, { zoom: Math.min(1, PAPER / table.offsetWidth), width: "" });
    }
    draw();
  });
  addEventListener("afterprint", () => {
    root.classList.remove("paper");
    for (const fold of closed) fold.open = false;
    for (const table of document.querySelectorAll(".scroll table")) table.style.zoom = 1;
    draw();
  });

  // ---- Plotly, which the page carries compressed, or has loaded from the network ----
  const fromNetwork = at("plotly").src;
  const unpacked = (packed) => {
    const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };
  const plotly = async () => {
    if (fromNetwork) return Plotly; // throws where it could not be loaded
    const script = document.createElement("script");
    script.textContent = await unpacked(text("plotly"));
    document.head.append(script);
  };
  plotly().then(() => draw(), () => {
    const needed = fromNetwork ? "the network: they come from cdn.plot.ly" : "a browser of 2023 or later";
    const textContent = `The figures need ${needed}. Every number is in the tables below.`;
    document.querySelector("main").prepend(Object.assign(document.createElement("p"), { className: "missing", textContent }));
  });

  // ---- commands to copy, and downloads ----
  for (const block of document.querySelectorAll("pre.commands")) {
    const button = Object.assign(document.createElement("button"), { type: "button", className: "copy", textContent: "Copy" });
    button.addEventListener("click", () => {
      getSelection().selectAllChildren(block.firstElementChild);
      button.textContent = document.execCommand("copy") ? "Copied" : "Press Ctrl+C"; // also where a file has no clipboard
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    const frame = Object.assign(document.createElement("div"), { className: "copyable" });
    block.replaceWith(frame);
    frame.append(block, button);
  }
  for (const button of document.querySelectorAll("button[data-plot]")) {
    const { plot: name, kind: format, filename } = button.dataset;
    button.addEventListener("click", () => {
      const { clientWidth: width, clientHeight: height } = at(`plot-${name}`); // a file is light, as paper is
      Plotly.downloadImage(recoloured(figures[name], {}), { format, filename, width, height, scale: format === "png" ? 2 : 1 });
    });
  }
  const contents = {
    study: () => text("study").replace(/\\(u003c|.)/g, (whole, c) => (c === "u003c" ? "<" : whole)),
    table: () => JSON.parse(text("table")),
  };
  for (const button of document.querySelectorAll("button[data-source]")) {
    button.addEventListener("click", () => {
      const { source, filename, kind } = button.dataset;
      const url = URL.createObjectURL(new Blob([contents[source]()], { type: kind }));
      Object.assign(document.createElement("a"), { href: url, download: filename }).click();
      setTimeout(() => URL.revokeObjectURL(url), 10_000);
    });
  }

  // ---- tables sort ----
  const cell = (row, column) => row.cells[column]?.textContent.replaceAll("−", "-").replaceAll(",", "").replace(/^[<>–≈ ]+/, "") ?? "";
  const order = (a, b) => (parseFloat(a) - parseFloat(b)) || a.localeCompare(b, undefined, { numeric: true });
  const sort = (table, head, column) => {
    const next = { none: "descending", descending: "ascending", ascending: "none" }[head.ariaSort];
    for (const other of table.tHead.rows[0].cells) if (other.ariaSort) other.ariaSort = "none";
    head.ariaSort = next;
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => {
      const [one, two] = [cell(a, column), cell(b, column)];
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
