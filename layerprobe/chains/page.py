"""What came of a chain of trainings, as one HTML page. Knows chains and Plotly, not models and not maths."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import plotly.graph_objects as go

from layerprobe.adaptation.values import Adaptation
from layerprobe.chains import figures as figures
from layerprobe.chains.toml import chain_to_toml
from layerprobe.chains.values import AdaptStep, ChainResult, ChainSimilarity, FinetuneStep
from layerprobe.finetuning.values import LayerOutcome
from layerprobe.metrics.names import metric_title
from layerprobe.names import short_name
from layerprobe.pages import numbers
from layerprobe.pages.markup import Markup, element, join
from layerprobe.pages.page import compose, write_page
from layerprobe.pages.parts import definitions, downloads, figure, folded, row, section, table
from layerprobe.serialisation import to_json

CSV_COLUMNS = (
    *("start", "step", "what", "after_the_steps_before", "layer", "parameters", "seed"),
    *("metric", "validation", "test"),
)
GLOSSARY = {
    "Layer": "0 is the output of the embedding module, l the output of block l; truncating at layer l keeps blocks"
    " 1 to l.",
    "Chain": "Trainings one after the other: each starts from what the one before left. Adaptations train the whole"
    " model; the first fine-tuning truncates it at a layer, and each further one goes on at that layer with the same"
    " seed.",
    "Adaptation": "Masked language modelling on texts without labels, before any fine-tuning.",
    "The last step alone": "The last task learnt straight from the start, at the same layers with the same seeds.",
    "Effect": "Mean over seeds of the score after the whole chain less the score of the last step alone, with the"
    " interval of the paired difference by Student’s t.",
    "CKA": "Centred kernel alignment: how alike two layers see the same texts; 1 for the same up to rotation and"
    " scale, about 0 for independent ones.",
}


def write_chain_report(result: ChainResult, path: str | Path) -> Path:
    """Write the report of a chain; a reader sees the old file or the whole new one.

    Args:
        result: What `run_chain` gave.
        path: The HTML file; its folder is made where it is missing.

    Returns:
        The path written.

    Raises:
        LayerProbeError: If the file cannot be written.
    """
    return write_page(render_chain(result), path)


def render_chain(result: ChainResult) -> str:
    """Return the report as HTML that loads nothing."""
    return compose(
        title=f"{result.chain.name}: a chain of trainings from {short_name(result.trail.model)}",
        body=join(
            _header(result),
            _steps(result),
            _scores(result),
            _table(result),
            _cka(result),
            _adaptations(result),
            _sources(result),
        ),
        data=to_json(result),
        table=chain_csv(result),
        drawn=_drawn(result),
    )


def chain_csv(result: ChainResult) -> str:
    """Return every run as CSV, with full precision."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    first = len(result.chain.adaptations) + 1
    for trail in (result.trail, *result.controls):
        for number, (step, outcomes) in enumerate(zip(result.chain.finetunings, trail.outcomes, strict=True), first):
            writer.writerows(_csv_rows(trail.model, number, step, True, outcomes))
    last = result.chain.finetunings[-1]
    writer.writerows(_csv_rows(result.trail.model, len(result.chain.steps), last, False, result.direct))
    return buffer.getvalue()


def _csv_rows(
    start: str, number: int, step: FinetuneStep, after: bool, outcomes: Sequence[LayerOutcome]
) -> Iterator[tuple[object, ...]]:
    for outcome in outcomes:
        for metric, scores in outcome.test.items():
            for seed, validation, test in zip(outcome.seeds, outcome.validation[metric], scores, strict=True):
                where = start, number, step.label, int(after), outcome.layer, outcome.parameters
                yield (*where, seed, metric, validation, test)


def _drawn(result: ChainResult) -> dict[str, go.Figure]:
    drawn = {"chain-scores": figures.chain_scores(result)}
    found = result.similarities
    if found is not None:
        drawn["chain-cka"] = figures.cka_with_start(found, result.n_blocks)
        if found.reference is not None:
            drawn["chain-reference"] = figures.cka_with_reference(
                found, result.n_blocks, numbers.label(short_name(found.reference))
            )
    return drawn


# ---- sections -----------------------------------------------------------------------------------------


def _header(result: ChainResult) -> Markup:
    warnings = (element("li", warning) for warning in result.warnings)
    return element(
        "header",
        element("p", "layerprobe · a chain of trainings", class_="overline"),
        element("h1", numbers.label(short_name(result.trail.model))),
        element("p", _headline(result), class_="prediction"),
        element("p", result.cka_sentence) if result.cka_sentence else None,
        _cards(result),
        element("aside", element("h2", "Warnings"), element("ul", *warnings), class_="warnings")
        if result.warnings
        else None,
    )


def _headline(result: ChainResult) -> str:
    best = _best(result)
    return result.effect_sentence or f"Layer {best.layer} scores best: {numbers.mean_and_std(best.tested)}."


def _best(result: ChainResult) -> LayerOutcome:
    return max(result.outcomes, key=lambda outcome: outcome.mean)


def _cards(result: ChainResult) -> Markup:
    best = _best(result)
    title = metric_title(result.primary)
    cards = [
        (
            f"Best layer, {best.layer}",
            numbers.number(best.mean),
            f"test {title} × 100, {numbers.mean_and_std(best.tested)}",
        )
    ]
    cards += [
        ("Added there", numbers.signed(effect.value), numbers.interval(effect.interval))
        for effect in result.effects
        if effect.layer == best.layer
    ]
    for control in result.controls[:1]:
        (there,) = (outcome for outcome in control.outcomes[-1] if outcome.layer == best.layer)
        cards.append(("From random weights", numbers.number(there.mean), numbers.mean_and_std(there.tested)))
    for each in _cut_at(result, best.layer):
        curve = each.to_start
        ends = None if curve.lower is None or curve.upper is None else (curve.lower[-1], curve.upper[-1])
        detail = f"{numbers.interval(ends, 3)}, seed {each.seed}" if ends else f"seed {each.seed}"
        cards.append(("CKA with before", numbers.number(curve.values[-1], 3), detail))
    return element(
        "dl",
        *(
            element("div", element("dt", name), element("dd", value, class_="value"), element("dd", detail))
            for name, value, detail in cards
        ),
        class_="cards",
    )


def _cut_at(result: ChainResult, layer: int) -> list[ChainSimilarity]:
    found = result.similarities
    return [] if found is None else [each for each in found.trained if each.layer == layer]


def _steps(result: ChainResult) -> Markup:
    chain = result.chain
    layers = numbers.counted_layers([outcome.layer for outcome in result.outcomes])
    items = [_adapted_words(step, done) for step, done in zip(chain.adaptations, result.trail.adaptations, strict=True)]
    for number, step in enumerate(chain.finetunings):
        begin = (
            f"Truncated at {layers}, the model is fine-tuned on"
            if number == 0
            else "At the same layer and with the same seed, the best epoch of the step before goes on with"
        )
        items.append(f"{begin} {step.task_name}: {_protocol_words(step)}.")
    beside = []
    if result.direct:
        beside.append("the last step straight from the start")
    if result.controls:
        seeds = ", ".join(str(control.random_init) for control in result.controls)
        beside.append(f"the whole chain from random weights (seed {seeds})")
    seeds = f"{len(chain.seeds)} seed{'s' if len(chain.seeds) > 1 else ''}"
    return section(
        "steps",
        "The chain",
        element("p", f"From {result.trail.model}, with {seeds} at each layer:"),
        element("ol", *(element("li", item) for item in items)),
        element("p", f"Beside it: {' and '.join(beside)}.") if beside else None,
        folded("As a file, which layerprobe chain reads", element("pre", element("code", chain_to_toml(chain)))),
    )


def _adapted_words(step: AdaptStep, done: Adaptation) -> str:
    loss = [numbers.number(each.held_out_loss, 3) for each in (done.metrics[0], done.metrics[-1])]
    files = ", ".join(Path(text).name for text in step.texts)
    return (
        f"The whole model goes on with masked language modelling on {files}: {done.n_texts:,} texts, {done.steps} steps"
        f" of {done.protocol.batch_size * done.protocol.accumulation} texts; the held-out loss goes from {loss[0]} to"
        f" {loss[1]}."
    )


def _protocol_words(step: FinetuneStep) -> str:
    how = step.protocol
    epochs = f"{how.epochs} epoch{'s' if how.epochs > 1 else ''}"
    return f"{epochs} in batches of {how.batch_size}, peak learning rate {how.learning_rate:g}"


def _scores(result: ChainResult) -> Markup:
    best = _best(result)
    finding = f"After the whole chain, layer {best.layer} scores best: {numbers.mean_and_std(best.tested)}."
    for direct in result.direct:
        if direct.layer == best.layer:
            finding += f" The last step alone gives {numbers.mean_and_std(direct.tested)} there."
    bars = (
        f"bars are {numbers.percent(result.level)} intervals of the mean over seeds; lines only join the layers run."
        if best.interval
        else "one seed gives no interval."
    )
    return section(
        "scores", "Scores of the last step", figure("chain-scores", finding, f"Small marks are seeds; {bars}")
    )


def _table(result: ChainResult) -> Markup:
    steps = result.chain.finetunings
    names = [f"{s.task_name} {metric_title(o[0].primary)}" for s, o in zip(steps, result.trail.outcomes, strict=True)]
    head = ["Layer", "Parameters", *names]
    head += ["The last step alone", "Effect", f"{numbers.percent(result.level)} interval"] if result.effects else []
    head += [f"Random weights {control.random_init}" for control in result.controls]
    head += ["CKA with before"] if result.similarities is not None else []
    best = _best(result).layer
    rows = (
        row(str(outcome.layer), _cells(result, index), "chosen" if outcome.layer == best else None)
        for index, outcome in enumerate(result.outcomes)
    )
    return section("chain-layers", "Table of layers", table("Table of layers", head, rows))


def _cells(result: ChainResult, index: int) -> Iterator[str]:
    outcome = result.outcomes[index]
    yield numbers.millions(outcome.parameters)
    for outcomes in result.trail.outcomes:
        yield _score(outcomes[index])
    if result.effects:
        effect = result.effects[index]
        yield _score(result.direct[index])
        yield numbers.signed(effect.value)
        yield numbers.interval(effect.interval) if effect.interval else "–"
    for control in result.controls:
        yield _score(control.outcomes[-1][index])
    for each in _cut_at(result, outcome.layer):
        yield numbers.number(each.to_start.values[-1], 3)


def _score(outcome: LayerOutcome) -> str:
    return numbers.number(outcome.mean) + ("" if outcome.std is None else f" ± {numbers.number(outcome.std)}")


def _cka(result: ChainResult) -> Markup | None:
    found = result.similarities
    if found is None:
        return None
    reading = (
        "Shaded curves are of the whole model. Each thin line is a fine-tuned model and ends at the last layer kept:"
        f" the point; areas and bars are {numbers.percent(result.level)} intervals over texts. Fine-tuned models are"
        f" those of seed {result.chain.seeds[0]}."
    )
    parts = [figure("chain-cka", result.cka_sentence, reading)]
    if found.reference is not None and found.start_to_reference is not None:
        last = len(found.start_to_reference.values) - 1
        after = "".join(
            f" and {numbers.number(each.to_reference.values[-1], 3)} after {each.after}"
            for each in found.trained
            if each.to_reference is not None and len(each.to_reference.values) == last + 1
        )
        before = numbers.number(found.start_to_reference.values[-1], 3)
        finding = f"With {short_name(found.reference)}, layer {last} has {before} before{after}."
        parts.append(figure("chain-reference", finding, "The grey curve is the start."))
    return section("cka", "CKA before and after", *parts)


def _adaptations(result: ChainResult) -> Markup | None:
    if not result.trail.adaptations:
        return None
    named = zip(result.chain.adaptations, result.trail.adaptations, strict=True)
    head = ("Step", "Held-out loss", "Accuracy", "Training loss")
    return section(
        "adaptations",
        "Adaptation",
        *(
            folded(
                step.label[0].upper() + step.label[1:],
                table(step.label, head, [_metrics_row(done, index) for index in range(len(done.metrics))]),
                opened=True,
            )
            for step, done in named
        ),
    )


def _metrics_row(done: Adaptation, index: int) -> Markup:
    each = done.metrics[index]
    trained = "–" if each.train_loss is None else numbers.number(each.train_loss, 3)
    return row(
        str(each.step), (numbers.number(each.held_out_loss, 3), numbers.percent(each.held_out_accuracy), trained), None
    )


def _sources(result: ChainResult) -> Markup:
    facts = {
        "Start": result.trail.model,
        "Revision": result.trail.revision,
        "Reference": result.chain.reference or "none",
        "Texts of CKA": "not measured"
        if result.similarities is None
        else f"{result.similarities.n_texts}, of the last task’s test split; {result.similarities.measure.title}",
        "Computed on": result.computed_on,
        "Versions": ", ".join(f"{name} {version}" for name, version in result.versions.items()),
        "Created": result.created,
    }
    return join(
        section("provenance", "Where the numbers come from", definitions(facts)),
        section("notes", "How the data was understood", element("ul", *(element("li", n) for n in result.notes)))
        if result.notes
        else None,
        section("glossary", "Words", definitions(GLOSSARY)),
        downloads("chain", table="Runs"),
    )
