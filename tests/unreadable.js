// Returns what a reader with a keyboard, a screen reader or weak eyes could not use on a page.
() => {
    const bad = [], all = (query) => [...document.querySelectorAll(query)];
    const told = (element, what) => bad.push(`${what}: ${element.outerHTML.slice(0, 80)}`);
    for (const fold of all("details")) fold.open = true;
    if (all("h1").length !== 1 || all("main").length !== 1) bad.push("not one h1 and one main");
    all("h1, h2, h3, h4").reduce((above, heading) => {
        const level = Number(heading.tagName[1]);
        if (level > above + 1) told(heading, `h${level} below h${above}`);
        return level;
    }, 0);
    const ids = all("[id]").map((element) => element.id);
    for (const id of ids.filter((id, place) => ids.indexOf(id) !== place)) bad.push(`id twice: ${id}`);
    for (const link of all("a[href^='#']")) if (!document.querySelector(link.hash)) told(link, "no target");
    for (const picture of all("svg:not(#js-plotly-tester), img"))
        if (!picture.closest("[aria-label], [aria-hidden], button")) told(picture, "no name");
    const active = "a[href], button, input, select, textarea, summary, [tabindex]";
    for (const element of all(active)) {
        if (!(element.textContent.trim() || element.getAttribute("aria-label") || element.labels?.length)) told(element, "no name");
        if (element.querySelector(active) || element.closest("[role=img]")) told(element, "nested");
    }
    for (const head of all("th")) if (!head.textContent.trim()) told(head, "empty head");
    for (const place of all("nav, [role=region], [role=group]")) if (!place.getAttribute("aria-label")) told(place, "no name");
    const numbers = (colour) => (colour.match(/[\d.]+/g) ?? [0, 0, 0, 0]).map(Number);
    const light = (colour) => {
        const [r, g, b] = numbers(colour).map((c) => (c / 255 <= 0.04045 ? c / 3294.6 : ((c / 255 + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = (element) => {
        for (; element; element = element.parentElement) {
            const colour = getComputedStyle(element).backgroundColor;
            if (numbers(colour)[3] !== 0) return colour;
        }
        return getComputedStyle(document.body).backgroundColor;
    };
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const element = texts.currentNode.parentElement;
        if (!texts.currentNode.textContent.trim() || !element.getClientRects().length) continue;
        if (element.closest(".annotation-text, .heatmap-label")) continue; // on a shape, which is no parent; a dot
        const style = getComputedStyle(element), size = parseFloat(style.fontSize);
        const ink = light(element instanceof SVGElement ? style.fill : style.color), paper = light(ground(element));
        const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
        if (ratio < (size >= 24 || (size >= 18.6 && Number(style.fontWeight) >= 600) ? 3 : 4.5)) told(element, `contrast ${ratio.toFixed(2)}`);
    }
    return bad;
}
