"use strict";
// Single items: two layers side by side. Texts are data: they are only ever written as text.
(() => {
  const at = (id) => document.getElementById(id);
  let plot, redraw; // page.js draws in the colours of the page, and says so when they change
  const [INK, BLUE, ORANGE, GREEN] = ["#1c2126", "#0069a8", "#c44e00", "#00795a"];
  const CLASSES = [BLUE, ORANGE, GREEN, "#7d3c98", "#7a5c00", "#3f6b6b", "#77808c", INK];
  const SCALE = ["#cadcec", "#8db8d9", "#4189bf", "#0d5a96", "#062f57"].map((colour, i) => [i / 4, colour]);
  const PAGE = 20;

  const start = (data) => {
    const { texts, gold, labels, groups, limit, form, units, unit, metric } = data;
    const n = gold.length;
    const numeric = typeof gold[0] === "number";
    const sides = { a: [...data.start[0]], b: [...data.start[1]] };
    let shown = "a", wanted = [], marked = null, rows = PAGE, order = [];
    const lower = gold.map((right, i) => [...texts.map((text) => text[i]), right].join("\n").toLowerCase());
    const escaped = (text) => String(text).replace(/[&<>]/g, (c) => `&#${c.charCodeAt(0)};`).replace(/\$/g, "&#36;");
    const number = (count) => count.toLocaleString("en");
    const brief = (text) => (text.length > 90 ? `${text.slice(0, 89)}…` : text);
    const hover = gold.map((right, i) => [...texts.map((text) => brief(text[i])), `gold: ${brief(String(right))}`].map(escaped).join("<br>"));
    const element = (tag, content, about = {}) => Object.assign(document.createElement(tag), { textContent: content, ...about });

    const of = (side) => {
      const [g, i] = sides[side], group = groups[g];
      const words = group.words[i]; // none where the values say it
      return {
        values: group.values[i], errors: group.errors[i], counts: group.counts[i], places: group.places[i], share: group.shares[i],
        inWords: Boolean(words), said: (k) => (words ? data.words[words[k]] : String(group.values[i][k])),
        name: `${groups.length > 1 && group.name !== group.layers[i] ? `${group.name}, ` : ""}${group.layers[i]}`, score: `${metric} ${group.scores[i]}`,
      };
    };
    const wrong = (layer, k) => layer.errors[k] > limit;

    // ---- figures ----
    const axis = (title, more = {}) => ({ ...data.look.layout.xaxis, title: { ...data.look.layout.xaxis.title, text: title }, ...more });
    const layout = (x, y, more = {}) => ({ ...data.look.layout, xaxis: x, yaxis: y, showlegend: false, hovermode: "closest", margin: { l: 52, r: 12, t: 12, b: 48 }, ...more });
    const points = (x, y, marker, text, name) => ({ type: "scatter", mode: "markers", x, y, text, name, customdata: text && [...text.keys()], marker: { size: 6, opacity: 0.6, ...marker }, hovertemplate: "%{text}<extra></extra>" });
    const ring = (x, y, mode = "markers") => ({ type: "scatter", mode, x, y, hoverinfo: "skip", showlegend: false, line: { color: INK, width: 1.5 }, marker: { size: 13, color: "rgba(0,0,0,0)", line: { color: INK, width: 2 } } });
    const jitter = (value, k) => value * (1 + 0.1 * (((k * 7919) % 101) / 101 - 0.5));
    const draws = {
      score: (layer) => [[points(gold, layer.values, { color: layer.errors.map((e) => (e > limit ? ORANGE : BLUE)), symbol: layer.errors.map((e) => (e > limit ? "diamond" : "circle")) }, hover), ...(marked === null ? [] : [ring([gold[marked]], [layer.values[marked]])])], layout(axis("gold"), axis(data.output))],
      classes: (layer) => [[{ type: "heatmap", z: layer.counts.map((row) => row.map(Math.log1p)), text: layer.counts, x: labels, y: labels, colorscale: [[0, "#f5f8fb"], [0.5, "#cadcec"], [1, "#8db8d9"]], showscale: false, textfont: { color: INK }, xgap: 1, ygap: 1, texttemplate: labels.length > 10 ? "" : "%{text}", hovertemplate: "gold %{y}, predicted %{x}: %{text}<extra></extra>" }], layout(axis("predicted", { type: "category", showgrid: false }), axis("gold", { type: "category", autorange: "reversed", showgrid: false }), { margin: { l: 80, r: 12, t: 12, b: 60 } })],
    };
    const between = (a, b) => {
      const log = form === "ranks" ? { type: "log", dtick: 1 } : {};
      const [x, y] = [a, b].map((layer) => layer.values.map(jitter));
      const colour = a.errors.map((_, k) => (wrong(a, k) === wrong(b, k) ? "#77808c" : wrong(a, k) ? GREEN : ORANGE));
      return [[points(x, y, { color: colour }, hover), ...(marked === null ? [] : [ring([x[marked]], [y[marked]])])], layout(axis(`${data.output}, A: ${a.name}`, log), axis(`B: ${b.name}`, log))];
    };
    const map = (layer) => {
      const many = layer.places.length, spread = (one) => Array(many).fill(one).flat();
      const [x, y] = [0, 1].map((c) => layer.places.flatMap((place) => place[c]));
      const text = spread(hover), bare = { showgrid: false, showticklabels: false, showline: false, ticks: "", range: [-1050, 1050] };
      let traces;
      if (numeric) traces = [points(x, y, { color: spread(gold), colorscale: SCALE, showscale: true, colorbar: { thickness: 10, outlinewidth: 0, title: { text: "gold" } } }, text)];
      else {
        const classed = gold.every((right) => labels.includes(right));
        const kinds = classed ? labels.slice(0, 7) : ["right", "wrong"];
        const names = classed ? gold : layer.errors.map((e) => (e > limit ? "wrong" : "right"));
        const kept = [...kinds, ...(classed && labels.length > 7 ? ["others"] : [])];
        traces = kept.map((name, c) => {
          const here = spread(names).flatMap((one, k) => ((kinds.includes(one) ? one : "others") === name ? [k] : []));
          return { ...points(here.map((k) => x[k]), here.map((k) => y[k]), { color: CLASSES[c] }, here.map((k) => text[k]), escaped(name)), customdata: here };
        });
      }
      if (marked !== null) { const here = [...Array(many).keys()].map((s) => s * n + marked); traces.push(ring(here.map((k) => x[k]), here.map((k) => y[k]), "lines+markers")); }
      return [traces, layout(axis("", bare), axis("", { ...bare, scaleanchor: "x" }), { showlegend: !numeric, margin: { l: 12, r: 12, t: 12, b: numeric ? 12 : 44 } })];
    };
    const put = (name, [traces, look], said) => {
      at(`said-${name}`).textContent = said;
      at(`plot-${name}`).setAttribute("aria-label", said);
      plot(name, { data: traces, layout: look }).then((graph) => {
        if (graph.dataset.heard) return;
        graph.dataset.heard = "yes";
        graph.on("plotly_click", ({ points: [point] }) => { if (typeof point.customdata === "number") mark(point.customdata % n); });
      });
    };
    const figures = () => {
      const [a, b] = [of("a"), of("b")], share = (layer) => `${(100 * layer.share).toFixed(1)} %`;
      if (draws[form]) {
        for (const [side, layer] of [["a", a], ["b", b]]) put(`items-${side}`, draws[form](layer), `${side.toUpperCase()}: ${layer.name}, ${layer.score}. ${number(layer.errors.filter((e) => e > limit).length)} of ${number(n)} ${units} wrong${form === "score" ? ", drawn as diamonds" : ""}.`);
      } else {
        put("items-a", between(a, b), `${a.name} across, ${b.name} up: each point is a ${unit}; green ones only B gets right, orange ones only A.`);
        at("plot-items-b").closest("figure").hidden = true;
      }
      if (at("maps")) at("maps").nextElementSibling.hidden = !a.places && !b.places; // what maps are
      if (at("maps")) for (const [side, layer] of [["a", a], ["b", b]]) {
        at(`plot-map-${side}`).closest("figure").hidden = !layer.places;
        if (layer.places) put(`map-${side}`, map(layer), `${side.toUpperCase()}: ${layer.name}; the map shows ${share(layer)} of the variance.`);
      }
    };

    // ---- the table ----
    const list = () => {
      const [a, b] = [of("a"), of("b")];
      const rules = {
        a: [(k) => wrong(a, k) && !wrong(b, k), (k) => a.errors[k] - b.errors[k]], b: [(k) => wrong(b, k) && !wrong(a, k), (k) => b.errors[k] - a.errors[k]],
        both: [(k) => wrong(a, k) && wrong(b, k), (k) => a.errors[k] + b.errors[k]], neither: [(k) => !wrong(a, k) && !wrong(b, k), (k) => -a.errors[k] - b.errors[k]],
        all: [() => true, (k) => Math.abs(a.errors[k] - b.errors[k])],
      };
      const [fits, by] = rules[shown];
      const has = (k) => { const text = `${lower[k]}\n${a.said(k)}\n${b.said(k)}`.toLowerCase(); return wanted.every((word) => text.includes(word)); };
      order = [...gold.keys()].filter((k) => k === marked || (fits(k) && has(k))).sort((i, j) => (j === marked) - (i === marked) || by(j) - by(i) || i - j);
      const count = (test) => number([...gold.keys()].filter(test).length);
      at("items-found").textContent = `A is ${a.name} (${a.score}), B is ${b.name} (${b.score}). Only A wrong: ${count(rules.a[0])}, only B wrong: ${count(rules.b[0])}, both wrong: ${count(rules.both[0])} of ${number(n)} ${units}. Listed below: ${number(Math.min(rows, order.length))} of ${number(order.length)}.`;
      const head = element("tr", "");
      const columns = [["No.", false], ...data.titles.map((title) => [title, true]), ["gold", !numeric]];
      for (const [side, layer] of [["A", a], ["B", b]]) columns.push([`${side}: ${data.output}`, layer.inWords], ["error", false]);
      for (const [title, inWords] of columns) head.append(element("th", title, { scope: "col", className: inWords ? "text" : "" }));
      const body = document.createElement("tbody");
      for (const k of order.slice(0, rows)) {
        const row = element("tr", "", { className: k === marked ? "chosen" : "" }), first = element("th", "", { scope: "row" });
        const button = element("button", String(k + 1), { type: "button" });
        button.setAttribute("aria-label", `Mark ${unit} ${k + 1} in the figures`);
        button.setAttribute("aria-pressed", String(k === marked));
        button.addEventListener("click", () => mark(k));
        first.append(button);
        row.append(first, ...texts.map((text) => element("td", text[k], { className: "text", dir: "auto" })), element("td", gold[k], { className: numeric ? "" : "text" }));
        for (const layer of [a, b]) row.append(element("td", layer.said(k), { className: `${layer.inWords ? "text" : ""} ${wrong(layer, k) ? "wrong" : ""}` }), element("td", layer.errors[k]));
        body.append(row);
      }
      const table = document.createElement("table"), top = document.createElement("thead");
      top.append(head);
      table.append(top, body);
      at("items-table").className = "scroll"; // only now: other tables sort and filter by a script of their own
      at("items-table").replaceChildren(order.length ? table : element("p", `No ${units} here: choose another list or other words.`));
      at("items-more").hidden = rows >= order.length;
    };
    const mark = (k) => {
      marked = k === marked ? null : k;
      update();
      at("items-table").querySelector(`[aria-label="Mark ${unit} ${k + 1} in the figures"]`)?.focus({ preventScroll: true });
    };

    // ---- controls ----
    let waiting = 0;
    const update = () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(() => { figures(); }); list(); };
    for (const side of ["a", "b"]) {
      const slider = at(`layer-${side}`), model = at(`group-${side}`);
      const say = () => {
        const [g, i] = sides[side];
        Object.assign(slider, { max: groups[g].layers.length - 1, value: i, disabled: groups[g].layers.length < 2 });
        slider.setAttribute("aria-valuetext", of(side).name);
        at(`chosen-${side}`).textContent = `${groups[g].layers[i]}: ${of(side).score}`;
        if (model) model.value = g;
      };
      slider.addEventListener("input", () => { sides[side][1] = Number(slider.value); rows = PAGE; say(); update(); });
      model?.addEventListener("change", () => { const g = Number(model.value); sides[side] = [g, Math.min(sides[side][1], groups[g].layers.length - 1)]; say(); update(); });
      say();
    }
    at("items-shown").addEventListener("change", (event) => { shown = event.target.value; rows = PAGE; update(); });
    at("items-words").addEventListener("input", (event) => { wanted = event.target.value.toLowerCase().split(/\s+/).filter(Boolean); rows = PAGE; update(); });
    at("items-more").addEventListener("click", () => { rows += PAGE; list(); });
    redraw = figures;
    update();
  };
  addEventListener("coloured", async ({ detail }) => {
    const first = plot === undefined;
    plot = detail.plot;
    if (first) start(JSON.parse(await detail.unpacked(at("items").textContent)));
    else redraw?.();
  });
})();
