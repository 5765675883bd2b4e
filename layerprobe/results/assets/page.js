"use strict";
(() => {
  const at = (id) => document.getElementById(id);
  const text = (id) => document.querySelector(`script#${id}`).textContent; // a section may be called the same
  const figures = JSON.parse(text("figures"));
  const darkColours = JSON.parse(text("dark"));
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const isDark = () => !printing && (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const PAPER = 680; // pixels across a sheet of A4
  let printing = false;

  // ---- figures ----
  // A deep copy in the page's colours: Plotly writes into what it is given.
  const recoloured = (value, colours) => {
    if (typeof value === "string") return Object.hasOwn(colours, value) ? colours[value] : value;
    if (Array.isArray(value)) return value.map((item) => recoloured(item, colours));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, recoloured(item, colours)]));
  };
  const config = { displaylogo: false, displayModeBar: false, responsive: true, scrollZoom: false, showTips: false };
  // The sizes on paper are those of style.css; a browser does not resize figures to the sheet by itself.
  const onPaper = (place) => {
    if (place.classList.contains("map")) return { width: 520, height: 480 };
    return { width: PAPER, height: place.classList.contains("tall") ? 560 : 340 };
  };
  const plot = (name, figure) => {
    const place = at(`plot-${name}`), { data, layout } = recoloured(figure, isDark() ? darkColours : {});
    Object.assign(layout, printing ? onPaper(place) : { autosize: true });
    layout.dragmode = false; // a finger on a figure scrolls the page
    for (const key of Object.keys(layout)) if (/^[xy]axis/.test(key)) layout[key].fixedrange = true;
    return Plotly.react(place, data, layout, config);
  };
  const drawIn = (part) => {
    for (const [name, figure] of Object.entries(figures)) {
      const place = at(`plot-${name}`);
      if (part.contains(place) && place.clientWidth) plot(name, figure); // what is folded is drawn once it opens
    }
  };
  const draw = () => {
    if (typeof Plotly === "undefined") return; // it is on its way
    drawIn(document);
    dispatchEvent(new CustomEvent("coloured", { detail: { plot, unpacked } })); // for scripts that draw figures of their own
  };
  for (const fold of document.querySelectorAll("details")) fold.addEventListener("toggle", () => { if (fold.open) drawIn(fold); });

  // ---- light and dark, and paper, which has everything: what is folded opens, and closes again after ----
  at("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    draw();
  });
  system.addEventListener("change", draw);
  let closed = [];
  addEventListener("beforeprint", () => {
    printing = true;
    root.classList.add("paper");
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const fold of closed) fold.open = true;
    for (const table of document.querySelectorAll(".scroll table")) {
      Object.assign(table.style, { width: "min-content", zoom: 1 });
      Object.assign(table.style, { zoom: Math.min(1, PAPER / table.offsetWidth), width: "" });
    }
    draw();
  });
  addEventListener("afterprint", () => {
    printing = false;
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
  plotly().then(draw, () => {
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
    const { plot: name, kind, filename } = button.dataset;
    button.addEventListener("click", () => {
      const { clientWidth: width, clientHeight: height } = at(`plot-${name}`);
      Plotly.downloadImage(`plot-${name}`, { format: kind, filename, width, height, scale: kind === "png" ? 2 : 1 });
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

  // ---- old pages: the section in view is marked, and a link to a folded one opens it ----
  const links = new Map([...document.querySelectorAll(".contents a")].map((link) => [link.hash.slice(1), link]));
  const seen = new IntersectionObserver((entries) => {
    const entered = entries.filter((entry) => entry.isIntersecting);
    if (!entered.length) return;
    for (const link of links.values()) link.removeAttribute("aria-current");
    links.get(entered[0].target.id)?.setAttribute("aria-current", "true");
  }, { rootMargin: "-10% 0px -75% 0px" });
  for (const id of links.keys()) seen.observe(at(id));
  const unfold = () => {
    const fold = location.hash.length > 1 && at(location.hash.slice(1))?.querySelector(":scope > details");
    if (fold) fold.open = true;
  };
  addEventListener("hashchange", unfold);
  unfold();
})();
