"use strict";
(() => {
  const text = (id) => document.getElementById(id).textContent;
  const figures = JSON.parse(text("figures"));
  const darkColours = JSON.parse(text("dark"));
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;

  // ---- figures ----
  // A deep copy in the page's colours: Plotly writes into what it is given.
  const recoloured = (value, colours) => {
    if (typeof value === "string") return Object.hasOwn(colours, value) ? colours[value] : value;
    if (Array.isArray(value)) return value.map((item) => recoloured(item, colours));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, recoloured(item, colours)]));
  };
  const config = {
    displaylogo: false,
    displayModeBar: false,
    responsive: true,
    scrollZoom: false,
    showTips: false,
  };
  // The sizes on paper are those of style.css; a browser does not resize figures to the sheet by itself.
  const onPaper = (name) => {
    const kinds = document.getElementById(`plot-${name}`).classList;
    if (kinds.contains("map")) return { width: 520, height: 480 };
    return { width: 680, height: kinds.contains("tall") ? 560 : 340 };
  };
  const draw = (dark, printing = false) => {
    if (typeof Plotly === "undefined") return; // it is on its way
    const plot = (name, figure) => {
      const { data, layout } = recoloured(figure, dark ? darkColours : {});
      Object.assign(layout, printing ? onPaper(name) : { autosize: true });
      layout.dragmode = false; // a finger on a figure scrolls the page
      for (const key of Object.keys(layout)) if (/^[xy]axis/.test(key)) layout[key].fixedrange = true;
      return Plotly.react(`plot-${name}`, data, layout, config);
    };
    for (const [name, figure] of Object.entries(figures)) plot(name, figure);
    dispatchEvent(new CustomEvent("coloured", { detail: { plot, unpacked } })); // for scripts that draw figures of their own
  };

  // ---- light and dark ----
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    draw(isDark());
  });
  system.addEventListener("change", () => draw(isDark()));
  // Paper has everything: what is folded opens, and closes again after.
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const fold of closed) fold.open = true;
    draw(false, true);
  });
  addEventListener("afterprint", () => {
    for (const fold of closed) fold.open = false;
    draw(isDark());
  });

  // ---- contents: the section in view is marked, and a link to a folded one opens it ----
  const links = new Map([...document.querySelectorAll(".contents a")].map((link) => [link.hash.slice(1), link]));
  const seen = new IntersectionObserver((entries) => {
    const entered = entries.filter((entry) => entry.isIntersecting);
    if (!entered.length) return;
    for (const link of links.values()) link.removeAttribute("aria-current");
    links.get(entered[0].target.id)?.setAttribute("aria-current", "true");
  }, { rootMargin: "-10% 0px -75% 0px" });
  for (const id of links.keys()) seen.observe(document.getElementById(id));
  const unfold = () => {
    const fold = location.hash.length > 1 && document.getElementById(location.hash.slice(1))?.querySelector(":scope > details");
    if (fold) fold.open = true;
  };
  addEventListener("hashchange", unfold);
  unfold();

  // ---- Plotly, which the page carries compressed, or has loaded from the network ----
  const fromNetwork = document.getElementById("plotly").src;
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
  const missing = () => {
    const needed = fromNetwork ? "the network: they come from cdn.plot.ly" : "a browser of 2023 or later";
    const textContent = `The figures need ${needed}. Every number is in the tables below.`;
    document.querySelector("main").prepend(Object.assign(document.createElement("p"), { className: "missing", textContent }));
  };
  plotly().then(() => {
    draw(isDark());
    dispatchEvent(new Event("drawn"));
  }, missing);

  // ---- commands to copy ----
  // A page of a file may lack the clipboard; then the browser copies what is selected.
  const copied = (block) => {
    const range = document.createRange();
    range.selectNodeContents(block);
    const selection = getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
    const done = document.execCommand("copy");
    if (done) selection.removeAllRanges();
    return done;
  };
  const copy = async (block) => {
    try {
      await navigator.clipboard.writeText(block.textContent);
      return true;
    } catch {
      return copied(block);
    }
  };
  for (const block of document.querySelectorAll("pre.commands")) {
    const button = Object.assign(document.createElement("button"), { type: "button", className: "copy", textContent: "Copy" });
    button.addEventListener("click", async () => {
      button.textContent = (await copy(block.firstElementChild)) ? "Copied" : "Press Ctrl+C";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    const frame = Object.assign(document.createElement("div"), { className: "copyable" });
    block.replaceWith(frame);
    frame.append(block, button);
  }

  // ---- downloads ----
  for (const button of document.querySelectorAll("button[data-plot]")) {
    const { plot, kind, filename } = button.dataset;
    button.addEventListener("click", () => {
      const { clientWidth: width, clientHeight: height } = document.getElementById(`plot-${plot}`);
      Plotly.downloadImage(`plot-${plot}`, { format: kind, filename, width, height, scale: kind === "png" ? 2 : 1 });
    });
  }
  const unescaped = { study: () => text("study").replace(/\\(u003c|.)/g, (whole, c) => (c === "u003c" ? "<" : whole)) };
  const contents = { ...unescaped, table: () => JSON.parse(text("table")) };
  for (const button of document.querySelectorAll("button[data-source]")) {
    button.addEventListener("click", () => {
      const { source, filename, kind } = button.dataset;
      const url = URL.createObjectURL(new Blob([contents[source]()], { type: kind }));
      const link = Object.assign(document.createElement("a"), { href: url, download: filename });
      link.click();
      setTimeout(() => URL.revokeObjectURL(url), 10_000);
    });
  }
})();
