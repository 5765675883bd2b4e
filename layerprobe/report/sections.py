"""A study as the sections of a page. Knows their order and content; not colours, scripts or files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from layerprobe.report import words
from layerprobe.report.data import LayerRow, layer_rows, outcomes_by_layer
from layerprobe.report.markup import Markup, element, join
from layerprobe.results import Confirmation, ModelDescription, Protocol, Study

CONFIRM_COMMAND = "layerprobe run MODEL -r REFERENCE -t TASK"
"""Fine-tunes the layers that decide."""
ZERO_SHOT_COMMAND = "layerprobe run MODEL -r REFERENCE -t stsb"
"""Compares on a task whose pairs have scores."""

BADGES = {"confirmed": "✓ confirmed", "refuted": "✗ refuted", "undecided": "? undecided"}
NOT_CONFIRMED = "– not confirmed yet"

GLOSSARY = {
    "CKA": "Centred kernel alignment: how alike two models arrange the same texts; 1 is the same up to rotation and"
    " scale, about 0 is unrelated.",
    "Debiased": "An estimator of CKA without the upward bias of few texts and many features; it can be slightly"
    " negative.",
    "Layer": "0 is the output of the embedding module, l the output of block l; truncating at layer l keeps blocks"
    " 1 to l.",
    "Drop layer": "A layer flagged as scoring lower after fine-tuning than the best earlier layer; the onset is the"
    " first of the final run.",
    "TMFT": "Truncated model fine-tuning: the blocks above a layer are removed, and the rest is fine-tuned.",
    "Zero-shot": "Scores of the cosine of embeddings before any fine-tuning.",
}


def sections(study: Study) -> Markup:
    """Return the whole content of the page, verdict first."""
    builders: tuple[Callable[[Study], Markup], ...] = (
        _header,
        _cka_curve,
        _cka_map,
        _zero_shot,
        _fine_tuning,
        _layers,
        _baselines,
        _provenance,
        _glossary,
        _downloads,
    )
    return join(*(build(study) for build in builders))


# ---- the verdict --------------------------------------------------------------------------------------


def _header(study: Study) -> Markup:
    model, reference = words.names(study)
    heading = element("h1", model, " ", element("span", "against", class_="against"), " ", reference)
    return element(
        "header",
        element("p", f"layerprobe · {study.provenance.task}", class_="overline"),
        heading,
        element("p", study.prediction.sentence, class_="prediction"),
        _confirmation_line(study.confirmation),
        _cards(study),
        _warnings(study.provenance.warnings),
    )


def _confirmation_line(confirmation: Confirmation | None) -> Markup:
    if confirmation is None:
        badge = element("span", NOT_CONFIRMED, class_="badge open")
        return element("p", badge, " ", *_fill("No layer has been fine-tuned", CONFIRM_COMMAND), class_="verdict")
    badge = element("span", BADGES[confirmation.verdict], class_=f"badge {confirmation.verdict}")
    return element("p", badge, " ", confirmation.sentence, class_="verdict")


def _fill(what: str, command: str) -> tuple[str, ...]:
    return f"{what}: ", element("code", command), " fills this in."


def _cards(study: Study) -> Markup:
    prediction, model = study.prediction, study.comparison.model
    kept = model.parameters[prediction.recommended_layer]
    drop = words.layer_range(prediction.drop_layers) or "none"
    cards = (
        _card("Recommended layer", f"{prediction.recommended_layer}", f"of {model.n_blocks}"),
        _card(
            "Parameters saved",
            words.percent(words.saved_share(study)),
            f"{words.millions(kept)} instead of {words.millions(model.parameters[-1])}",
        ),
        _effect_card(study.confirmation),
        _card("Drop layers", drop, "no decline found" if drop == "none" else f"onset at layer {prediction.onset}"),
    )
    return element("dl", *cards, class_="cards")


def _card(label: str, value: str, detail: str) -> Markup:
    return element("div", element("dt", label), element("dd", value, class_="value"), element("dd", detail))


def _effect_card(confirmation: Confirmation | None) -> Markup:
    label = "Effect on Spearman\u00a0×\u00a0100"
    if confirmation is None:
        return _card(label, "—", "nothing fine-tuned yet")
    first, second = confirmation.compared_layers
    level = f"{words.percent(confirmation.level)} " if confirmation.interval else ""
    detail = f"layer {first} less layer {second}; {level}{words.interval(confirmation.interval)}"
    return _card(label, words.signed(confirmation.effect), detail)


def _warnings(warnings: Sequence[str]) -> Markup | None:
    if not warnings:
        return None
    items = (element("li", warning) for warning in warnings)
    return element("aside", element("h2", "Warnings"), element("ul", *items), class_="warnings")


# ---- the figures --------------------------------------------------------------------------------------


def _section(name: str, heading: str, *children: str | None) -> Markup:
    return element("section", element("h2", heading), *children, id=name)


def _figure(name: str, finding: str, reading: str, style: str | None = None, kind: str = "plot") -> Markup:
    plot = element("div", id=f"plot-{name}", class_=kind, role="img", aria_label=finding, style=style)
    caption = element("figcaption", finding, " ", element("span", reading, class_="reading"))
    return element("figure", plot, caption, class_="beside" if kind != "plot" else None)


def _cka_curve(study: Study) -> Markup:
    alignment = study.comparison.curve.alignment
    how = {
        "same-index": "Each layer is compared with the reference's layer of the same index.",
        "relative-depth": "Each layer is compared with the reference's layer at the same relative depth.",
        "best-match": "Each layer is compared with the reference's layer that it resembles most.",
    }[alignment]
    plateau = "The plateau is the median of the layers before the decline."
    diamonds = "Diamonds on shaded ground are drop layers." if study.prediction.drops else ""
    reading = f"{how} {plateau} {diamonds}"
    figure = _figure("cka-curve", words.cka_curve_finding(study), reading)
    return _section("cka-curve", "Similarity to the reference, layer by layer", figure)


def _cka_map(study: Study) -> Markup:
    values = study.comparison.cka.values
    reading = "Rows are the model's layers, columns the reference's; dots mark the pairs of the curve above."
    style = f"--columns:{len(values[0])};--rows:{len(values)}"
    figure = _figure("cka-map", words.cka_map_finding(study), reading, style, kind="plot map")
    return _section("cka-map", "Every layer against every layer", figure)


def _zero_shot(study: Study) -> Markup:
    heading = "Before fine-tuning"
    finding = words.zero_shot_finding(study)
    if not finding:
        missing = _fill("There are no scored pairs to rank", ZERO_SHOT_COMMAND)
        return _section("zero-shot", heading, element("p", *missing, class_="missing"))
    scores = study.zero_shot or study.reference_zero_shot
    reading = f"Spearman correlation of cosine and gold score on the {scores.split} split." if scores else ""
    return _section("zero-shot", heading, _figure("zero-shot", finding, reading))


def _fine_tuning(study: Study) -> Markup:
    heading = "After fine-tuning"
    if not outcomes_by_layer(study):
        missing = _fill("No layer has been fine-tuned", CONFIRM_COMMAND)
        return _section("tmft", heading, element("p", *missing, class_="missing"))
    by_layer = _figure("tmft", words.tmft_finding(study), f"Small dots are seeds; {_bars(study)}")
    cost = "Labels are layers, the line is the Pareto front: the best score for at most so many parameters."
    by_size = _figure("parameters", words.parameters_finding(study), cost)
    return join(
        _section("tmft", heading, by_layer),
        _section("parameters", "Score for the size", by_size),
    )


def _bars(study: Study) -> str:
    outcomes = outcomes_by_layer(study).values()
    level = study.confirmation.level if study.confirmation else 0.0
    if not any(outcome.interval for outcome in outcomes):
        return "one seed gives no interval."
    return f"bars are {words.percent(level)} intervals of the mean over seeds; dotted lines only join the layers run."


# ---- tables -------------------------------------------------------------------------------------------


def _table(caption: str, head: Iterable[str], rows: Iterable[Markup]) -> Markup:
    header = element("thead", element("tr", *(element("th", name, scope="col") for name in head)))
    table = element("table", header, element("tbody", *rows))
    return element("div", table, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _layers(study: Study) -> Markup:
    head = ("Layer", "Parameters", "CKA", "Zero-shot Spearman", "TMFT Spearman", "")
    return _section(
        "layers",
        "Table of layers",
        _table("Table of layers", head, (_layer_line(study, row) for row in layer_rows(study))),
    )


def _layer_line(study: Study, row: LayerRow) -> Markup:
    outcome = outcomes_by_layer(study).get(row.layer)
    cells = (
        words.millions(row.parameters),
        words.number(row.cka, 3),
        "–" if row.zero_shot_spearman is None else words.number(row.zero_shot_spearman),
        words.mean_and_std(outcome) if outcome else "–",
    )
    flags = (
        element("span", "recommended", class_="flag chosen") if row.recommended else None,
        element("span", "drop", class_="flag drop") if row.drop else None,
    )
    line = (element("td", cell) for cell in cells)
    kind = "chosen" if row.recommended else "drop" if row.drop else None
    return element("tr", element("th", str(row.layer), scope="row"), *line, element("td", *flags), class_=kind)


def _baselines(study: Study) -> Markup:
    prediction = study.prediction
    ways = {f"{prediction.rule} (this report)": prediction.recommended_layer, **prediction.baselines}
    rows = (_baseline_line(study, way, layer) for way, layer in ways.items())
    head = ("Way to choose", "Layer", "Parameters", "TMFT Spearman")
    intro = element("p", "What simpler ways recommend, and what fine-tuning showed where that layer was run.")
    return _section("baselines", "Beside simpler rules", intro, _table("Baselines", head, rows))


def _baseline_line(study: Study, way: str, layer: int) -> Markup:
    outcome = outcomes_by_layer(study).get(layer)
    score = words.mean_and_std(outcome) if outcome else "not run"
    cells = (str(layer), words.millions(study.comparison.model.parameters[layer]), score)
    return element("tr", element("th", way, scope="row"), *(element("td", cell) for cell in cells))


# ---- provenance ---------------------------------------------------------------------------------------


def _provenance(study: Study) -> Markup:
    return _section("provenance", "Where the numbers come from", _models(study), _facts(study))


def _models(study: Study) -> Markup:
    pair = (study.comparison.model, study.comparison.reference)
    facts = tuple(zip(_model_facts(pair[0]), _model_facts(pair[1]), strict=True))
    rows = (
        element("tr", element("th", name, scope="row"), element("td", of_model), element("td", of_reference))
        for (name, of_model), (_, of_reference) in facts
    )
    table = _table("Models", ("", "Model", "Reference"), rows)
    return element("div", table, class_="models")


def _model_facts(model: ModelDescription) -> tuple[tuple[str, str], ...]:
    norm = {
        "none": "post-norm, nothing added",
        "final": "final norm applied at every layer",
        "raw": "final norm left out",
    }[model.norm]
    return (
        ("Name", model.name),
        ("Revision", model.revision),
        ("Architecture", model.architecture),
        ("Blocks", str(model.n_blocks)),
        ("Hidden size", str(model.hidden_size)),
        ("Parameters", words.millions(model.parameters[-1])),
        ("Norm", norm),
        ("Precision", model.dtype),
    )


def _facts(study: Study) -> Markup:
    source = study.provenance
    facts = {
        "Task": f"{source.task} (sha256 {source.task_digest})",
        "Data": "; ".join(source.notes) or None,
        "Texts": f"{source.n_texts} distinct (sha256 {source.texts_digest})",
        "Embeddings": f"{study.comparison.pooling} pooling",
        "Similarity": _similarity(study),
        "Rule": study.prediction.rule,
        "Fine-tuning": _protocol(study.protocol) if study.protocol else None,
        "Settings": ", ".join(f"{name} {value}" for name, value in source.settings.items()) or None,
        "Seeds": ", ".join(map(str, source.seeds)) or None,
        "Device": source.device,
        "Versions": ", ".join([f"layerprobe {source.layerprobe}", *(f"{k} {v}" for k, v in source.versions.items())]),
        "Created": source.created,
        "Command": element("code", source.command),
    }
    return _definitions({name: fact for name, fact in facts.items() if fact is not None})


def _similarity(study: Study) -> str:
    cka = study.comparison.cka
    estimator = "Song et al. 2012" if cka.estimator == "debiased" else "Gretton et al. 2005"
    kernel = "linear kernel"
    if cka.kernel == "rbf":
        kernel = f"RBF kernel exp(−d²/2σ²), σ = {cka.bandwidth_multiplier:g} × the root of the median of d² over i < j"
    return f"{kernel}; {cka.estimator} HSIC ({estimator}); {cka.n_samples} texts; {study.comparison.curve.alignment}"


def _protocol(protocol: Protocol) -> str:
    return (
        f"AdamW at {protocol.learning_rate:g}, weight decay {protocol.weight_decay:g}, {protocol.epochs} epochs of"
        f" {protocol.batch_size} pairs a step, {words.percent(protocol.warmup)} warm-up then linear, gradients clipped"
        f" to {protocol.max_grad_norm:g}, at most {protocol.max_length} tokens, {protocol.pooling} pooling; the epoch"
        " with the best validation Spearman counts"
    )


def _definitions(facts: dict[str, str]) -> Markup:
    return element("dl", *(join(element("dt", k), element("dd", v)) for k, v in facts.items()), class_="facts")


def _glossary(study: Study) -> Markup:
    paper = element("a", "arXiv:2402.13130", href="https://arxiv.org/abs/2402.13130", rel="noreferrer")
    citation = element(
        "p",
        "The method: Rep, Dukić and Šnajder (2024), ",
        element("cite", "Are ELECTRA’s Sentence Embeddings Beyond Repair? The Case of Semantic Textual Similarity"),
        ", ",
        paper,
        ".",
    )
    return _section("glossary", "Words", _definitions(GLOSSARY), citation)


def _downloads(study: Study) -> Markup:
    stem = words.file_stem(study)
    buttons = (
        _download("study", "Whole study (JSON)", f"{stem}.json", "application/json"),
        _download("table", "Table of layers (CSV)", f"{stem}.csv", "text/csv"),
    )
    return _section("data", "Data", element("p", *buttons, class_="downloads"))


def _download(source: str, label: str, filename: str, kind: str) -> Markup:
    return element("button", label, type="button", data_source=source, data_filename=filename, data_kind=kind)
