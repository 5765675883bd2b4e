"use strict";
// Single items: two layers side by side. Texts are data: they are only ever written as text.
(() => {
  const at = (id) => document.getElementById(id);
  let plot, redraw, started; // page.js draws in the colours of the page, and says so when they change
  const [INK, BLUE, ORANGE, GREEN, GREY] = ["#1c2126", "#0069a8", "#c44e00", "#00795a", "#77808c"];
  const CLASSES = [BLUE, ORANGE, GREEN, "#7d3c98", "#7a5c00", "#3f6b6b", GREY, INK];
  const SCALE = ["#cadcec", "#8db8d9", "#4189bf", "#0d5a96", "#062f57"].map((colour, i) => [i / 4, colour]);
  const PAGE = 20;

  const start = (data) => {
    const { texts, gold, labels, groups, limit, form, units, unit, metric } = data;
    const n = gold.length, every = [...gold.keys()];
    const numeric = typeof gold[0] === "number";
    const sides = { a: [...data.start[0]], b: [...data.start[1]] };
    let listed = "a", wanted = [], marked = null, rows = PAGE;
    const lower = gold.map((right, i) => [...texts.map((text) => text[i]), right].join("\n").toLowerCase());
    const escaped = (text) => String(text).replace(/[&<>]/g, (c) => `&#${c.charCodeAt(0)};`).replace(/\$/g, "&#36;");
    const count = (number) => number.toLocaleString("en");
    const brief = (text) => (text.length > 90 ? `${text.slice(0, 89)}…` : text);
    const hover = gold.map((right, i) => [...texts.map((text) => brief(text[i])), `gold: ${brief(String(right))}`].map(escaped).join("<br>"));
    const element = (tag, content, about = {}) => Object.assign(document.createElement(tag), { textContent: content, ...about });
    // Numbers of a column have the same decimals, two at most.
    const written = (values) => {
      if (typeof values[0] !== "number") return values;
      const digits = values.reduce((most, value) => Math.max(most, (String(value).split(".")[1] ?? "").length), 0);
      return values.map((value) => value.toFixed(Math.min(digits, 2)).replace(/^-(?=0\.?0*$)/, "").replace("-", "−"));
    };

    const of = (side) => {
      const [g, i] = sides[side], group = groups[g], words = group.words[i]; // no words where the values say it
      return {
        values: group.values[i], errors: group.errors[i], counts: group.counts[i], places: group.places[i], share: group.shares[i],
        inWords: Boolean(words), outputs: words ? words.map((word) => data.words[word]) : written(group.values[i]),
        name: `${groups.length > 1 && group.name !== group.layers[i] ? `${group.name}, ` : ""}${group.layers[i]}`, score: `${metric} ${group.scores[i]}`,
      };
    };
    const wrong = (layer, k) => layer.errors[k] > limit;

    // ---- figures: many points are small and let one see how many lie in a place ----
    const look = { size: n > 1000 ? 4 : 6, opacity: Math.min(0.6, Math.max(0.12, 250 / n)) };
    const axis = (title, more = {}) => ({ ...data.look.layout.xaxis, title: { ...data.look.layout.xaxis.title, text: title }, ...more });
    const layout = (x, y, more = {}) => ({ ...data.look.layout, xaxis: x, yaxis: y, showlegend: false, hovermode: "closest", margin: { l: 52, r: 12, t: 12, b: 48 }, ...more });
    const points = (keys, x, y, marker, name) => ({ type: "scatter", mode: "markers", x: keys.map((k) => x[k]), y: keys.map((k) => y[k]), text: keys.map((k) => hover[k % n]), name, customdata: keys, marker: { ...look, ...marker }, hovertemplate: "%{text}<extra></extra>" });
    const ring = (keys, x, y) => ({ type: "scatter", mode: "lines+markers", x: keys.map((k) => x[k]), y: keys.map((k) => y[k]), hoverinfo: "skip", showlegend: false, line: { color: INK, width: 1.5 }, marker: { size: 13, color: "rgba(0,0,0,0)", line: { color: INK, width: 2 } } });
    const ringed = (x, y) => (marked === null ? [] : [ring([marked], x, y)]);
    const sorted = (colours, x, y, more = {}) => Object.entries(colours).map(([colour, keys]) => points(keys, x, y, { color: colour, ...(more[colour] ?? {}) }));
    const jitter = (value, k) => value * (1 + 0.1 * (((k * 7919) % 101) / 101 - 0.5));
    const draws = {
      score: (layer) => {
        const parts = { [BLUE]: every.filter((k) => !wrong(layer, k)), [ORANGE]: every.filter((k) => wrong(layer, k)) };
        const front = { [ORANGE]: { symbol: "diamond", opacity: Math.max(look.opacity, 0.35) } };
        return [[...sorted(parts, gold, layer.values, front), ...ringed(gold, layer.values)], layout(axis("gold"), axis(data.output))];
      },
      classes: (layer) => [[{ type: "heatmap", z: layer.counts.map((row) => row.map(Math.log1p)), text: layer.counts, x: labels, y: labels, colorscale: [[0, "#f5f8fb"], [0.5, "#cadcec"], [1, "#8db8d9"]], showscale: false, textfont: { color: INK }, xgap: 1, ygap: 1, texttemplate: labels.length > 10 ? "" : "%{text}", hovertemplate: "gold %{y}, predicted %{x}: %{text}<extra></extra>" }], layout(axis("predicted", { type: "category", showgrid: false }), axis("gold", { type: "category", autorange: "reversed", showgrid: false }), { margin: { l: 80, r: 12, t: 12, b: 60 } })],
    };
    const between = (a, b) => {
      const log = form === "ranks" ? { type: "log", dtick: 1 } : {};
      const [x, y] = [a, b].map((layer) => layer.values.map(jitter));
      const parts = { [GREY]: every.filter((k) => wrong(a, k) === wrong(b, k)), [GREEN]: every.filter((k) => wrong(a, k) && !wrong(b, k)), [ORANGE]: every.filter((k) => !wrong(a, k) && wrong(b, k)) };
      return [[...sorted(parts, x, y), ...ringed(x, y)], layout(axis(`${data.output}, A: ${a.name}`, log), axis(`B: ${b.name}`, log))];
    };
    const map = (layer) => {
      const [x, y] = [0, 1].map((c) => layer.places.flatMap((place) => place[c])), keys = [...x.keys()];
      const bare = { showgrid: false, showticklabels: false, showline: false, ticks: "", range: [-1050, 1050] };
      let traces;
      if (numeric) traces = [points(keys, x, y, { color: keys.map((k) => gold[k % n]), colorscale: SCALE, showscale: true, opacity: Math.max(look.opacity, 0.35), colorbar: { thickness: 10, outlinewidth: 0, title: { text: "gold" } } })];
      else {
        const classed = gold.every((right) => labels.includes(right));
        const kinds = classed ? labels.slice(0, 7) : ["right", "wrong"];
        const names = classed ? gold : layer.errors.map((e) => (e > limit ? "wrong" : "right"));
        const kind = (k) => (kinds.includes(names[k % n]) ? names[k % n] : "others");
        traces = [...kinds, ...(classed && labels.length > 7 ? ["others"] : [])].map((name, c) => points(keys.filter((k) => kind(k) === name), x, y, { color: CLASSES[c] }, escaped(name)));
      }
      if (marked !== null) traces.push(ring(keys.filter((k) => k % n === marked), x, y));
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
      const [a, b] = [of("a"), of("b")], pair = [["a", a], ["b", b]];
      if (draws[form]) {
        for (const [side, layer] of pair) put(`items-${side}`, draws[form](layer), `${side.toUpperCase()}: ${layer.name}, ${layer.score}. ${count(layer.errors.filter((e) => e > limit).length)} of ${count(n)} ${units} wrong${form === "score" ? ", drawn as diamonds" : ""}.`);
      } else {
        put("items-a", between(a, b), `${a.name} across, ${b.name} up: each point is a ${unit}; green ones only B gets right, orange ones only A.`);
        at("plot-items-b").closest("figure").hidden = true;
      }
      if (!at("maps")) return;
      at("maps").hidden = !a.places && !b.places;
      for (const [side, layer] of pair) {
        at(`plot-map-${side}`).closest("figure").hidden = !layer.places;
        if (layer.places) put(`map-${side}`, map(layer), `${side.toUpperCase()}: ${layer.name}; the map shows ${(100 * layer.share).toFixed(0)} % of the variance.`);
      }
    };

    // ---- the table ----
    const list = () => {
      const [a, b] = [of("a"), of("b")], golds = written(gold);
      const rules = {
        a: [(k) => wrong(a, k) && !wrong(b, k), (k) => a.errors[k] - b.errors[k]], b: [(k) => wrong(b, k) && !wrong(a, k), (k) => b.errors[k] - a.errors[k]],
        both: [(k) => wrong(a, k) && wrong(b, k), (k) => a.errors[k] + b.errors[k]], neither: [(k) => !wrong(a, k) && !wrong(b, k), (k) => -a.errors[k] - b.errors[k]],
        all: [() => true, (k) => Math.abs(a.errors[k] - b.errors[k])],
      };
      const [fits, by] = rules[listed];
      const has = (k) => { const text = `${lower[k]}\n${a.outputs[k]}\n${b.outputs[k]}`.toLowerCase(); return wanted.every((word) => text.includes(word)); };
      const order = every.filter((k) => k === marked || (fits(k) && has(k))).sort((i, j) => (j === marked) - (i === marked) || by(j) - by(i) || i - j);
      const many = (test) => count(every.filter(test).length);
      at("items-found").textContent = `Only A wrong: ${many(rules.a[0])}, only B wrong: ${many(rules.b[0])}, both wrong: ${many(rules.both[0])} of ${count(n)} ${units}. Listed below: ${count(Math.min(rows, order.length))} of ${count(order.length)}. A is ${a.name}, B is ${b.name}.`;
      const columns = [["No.", false], ...data.titles.map((title) => [title, true]), ["gold", !numeric]];
      for (const [side, layer] of [["A", a], ["B", b]]) columns.push([`${side}: ${data.output}`, layer.inWords], ["error", false]);
      const table = element("table", ""), head = table.createTHead().insertRow(), body = table.createTBody();
      for (const [title, inWords] of columns) head.append(element("th", title, { scope: "col", className: inWords ? "text" : "" }));
      for (const k of order.slice(0, rows)) {
        const row = Object.assign(body.insertRow(), { className: k === marked ? "chosen" : "" }), first = element("th", "", { scope: "row" });
        const button = element("button", String(k + 1), { type: "button", ariaLabel: `Mark ${unit} ${k + 1} in the figures`, ariaPressed: String(k === marked) });
        button.addEventListener("click", () => mark(k));
        first.append(button);
        const outputs = [a, b].flatMap((layer) => [[layer.outputs[k], `${layer.inWords ? "text" : ""} ${wrong(layer, k) ? "wrong" : ""}`], [layer.errors[k], ""]]);
        const cells = [...texts.map((text) => [text[k], "text"]), [golds[k], numeric ? "" : "text"], ...outputs];
        row.append(first, ...cells.map(([content, className]) => element("td", content, { className, dir: "auto" })));
      }
      at("items-table").className = "scroll"; // only now: other tables are sorted by a script of their own
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
    const update = () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(figures); list(); };
    for (const side of ["a", "b"]) {
      const slider = at(`layer-${side}`), model = at(`group-${side}`);
      const say = () => {
        const [g, i] = sides[side];
        Object.assign(slider, { max: groups[g].layers.length - 1, value: i, hidden: groups[g].layers.length < 2, ariaValueText: of(side).name });
        at(`chosen-${side}`).textContent = `${groups[g].layers[i]}: ${of(side).score}`;
        if (model) model.value = g;
      };
      slider.addEventListener("input", () => { sides[side][1] = Number(slider.value); rows = PAGE; say(); update(); });
      model?.addEventListener("change", () => { const g = Number(model.value); sides[side] = [g, Math.min(sides[side][1], groups[g].layers.length - 1)]; say(); update(); });
      say();
    }
    at("items-shown").addEventListener("change", (event) => { listed = event.target.value; rows = PAGE; update(); });
    at("items-words").addEventListener("input", (event) => { wanted = event.target.value.toLowerCase().split(/\s+/).filter(Boolean); rows = PAGE; update(); });
    at("items-more").addEventListener("click", () => { rows += PAGE; list(); });
    redraw = figures;
    update();
  };
  addEventListener("coloured", async ({ detail }) => {
    plot = detail.plot;
    if (!detail.part.contains(at("items-table")) || !at("items-table").checkVisibility()) return; // folded
    redraw?.();
    if (started) return;
    started = true;
    start(JSON.parse(await detail.unpacked(at("items").textContent)));
  });
})();
