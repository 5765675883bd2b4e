"""What came of a chain of trainings, as a page. Knows chains, not models and not maths."""

from collections.abc import Iterator
from pathlib import Path

from layerprobe.files.serialisation import to_json
from layerprobe.finetuning.values import LayerOutcome
from layerprobe.lab.adaptation.values import Adaptation, AdaptationMetrics
from layerprobe.lab.chains.figures import chain_scores, cka_with_reference, cka_with_start
from layerprobe.lab.chains.toml import chain_to_toml
from layerprobe.lab.chains.values import AdaptStep, ChainResult, ChainSimilarity
from layerprobe.metrics.names import metric_title
from layerprobe.names import short_name
from layerprobe.report.charts import mean_and_std, seeds_reading
from layerprobe.results import numbers
from layerprobe.results.markup import Markup, element
from layerprobe.results.parts import Row, definitions, folded, listed, section, table
from layerprobe.results.table import csv_text
from layerprobe.results.values import Card, Figure, Page, Section

CSV_COLUMNS = (
    *("start", "step", "what", "after_the_steps_before", "layer", "parameters", "seed"),
    *("metric", "validation", "test"),
)


def chain_page(result: ChainResult) -> Page:
    """Return the page of a chain."""
    best = _best(result)
    return Page(
        title=f"{result.chain.name}: a chain of trainings from {short_name(result.trail.model)}",
        overline="layerprobe · a chain of trainings",
        heading=numbers.label(short_name(result.trail.model)),
        lead=(result.effect_sentence or f"Layer {best.layer} scores best: {mean_and_std(best.tested)}.",),
        remarks=tuple(filter(None, [result.cka_sentence])),
        cards={"": tuple(_cards(result))},
        warnings=result.warnings,
        sections=(
            _steps(result),
            _scores(result),
            _table(result),
            section("cka", "CKA before and after", *_cka(result)),
            _adaptations(result),
            section("notes", "How the data was understood", listed("ul", result.notes)),
        ),
        provenance=(_sources(result),),
        terms=("Layer", "Chain", "Adaptation", "The last step alone", "Effect", "CKA"),
        data=to_json(result),
        table=csv_text(CSV_COLUMNS, _runs(result)),
        table_label="Runs",
        stem="chain",
    )


def _best(result: ChainResult) -> LayerOutcome:
    return max(result.outcomes, key=lambda outcome: outcome.mean)


def _runs(result: ChainResult) -> Iterator[tuple[object, ...]]:
    """Yield every run, one row a metric and seed."""
    steps, first = result.chain.finetunings, len(result.chain.adaptations) + 1
    tuned = [
        (trail.model, number, step, True, outcomes)
        for trail in (result.trail, *result.controls)
        for number, (step, outcomes) in enumerate(zip(steps, trail.outcomes, strict=True), first)
    ]
    tuned.append((result.trail.model, len(result.chain.steps), steps[-1], False, result.direct))
    for start, number, step, after, outcomes in tuned:
        for outcome in outcomes:
            where = start, number, step.label, after, outcome.layer, outcome.parameters
            for metric, scores in outcome.test.items():
                for seed, validation, test in zip(outcome.seeds, outcome.validation[metric], scores, strict=True):
                    yield (*where, seed, metric, validation, test)


# ---- sections -----------------------------------------------------------------------------------------


def _cards(result: ChainResult) -> Iterator[Card]:
    best = _best(result)
    beside = f"test {metric_title(result.primary)} × 100, {mean_and_std(best.tested)}"
    yield Card(f"Best layer, {best.layer}", numbers.number(best.mean), beside)
    for effect in result.effects:
        if effect.layer == best.layer:
            yield Card("Added there", numbers.signed(effect.value), numbers.interval(effect.interval))
    for control in result.controls[:1]:
        (there,) = (outcome for outcome in control.outcomes[-1] if outcome.layer == best.layer)
        yield Card("From random weights", numbers.number(there.mean), mean_and_std(there.tested))
    for each in _cut_at(result, best.layer):
        ends = each.to_start.interval(-1)
        detail = f"{numbers.interval(ends, 3)}, seed {each.seed}" if ends else f"seed {each.seed}"
        yield Card("CKA with before", numbers.number(each.to_start.values[-1], 3), detail)


def _cut_at(result: ChainResult, layer: int) -> list[ChainSimilarity]:
    trained = () if result.similarities is None else result.similarities.trained
    return [each for each in trained if each.layer == layer]


def _steps(result: ChainResult) -> Section:
    chain = result.chain
    layers = numbers.counted_layers([outcome.layer for outcome in result.outcomes])
    items = [_adapted_words(step, done) for step, done in zip(chain.adaptations, result.trail.adaptations, strict=True)]
    for number, step in enumerate(chain.finetunings):
        begin = (
            f"Truncated at {layers}, the model is fine-tuned on"
            if number == 0
            else "At the same layer and with the same seed, the best epoch of the step before goes on with"
        )
        how = step.protocol
        epochs = f"{numbers.counted(how.epochs, 'epoch')} in batches of {how.batch_size}"
        items.append(f"{begin} {step.task_name}: {epochs}, peak learning rate {how.learning_rate:g}.")
    beside = ["the last step straight from the start"] if result.direct else []
    if result.controls:
        random = ", ".join(str(control.random_init) for control in result.controls)
        beside.append(f"the whole chain from random weights (seed {random})")
    return section(
        "steps",
        "The chain",
        f"From {result.trail.model}, with {numbers.counted(len(chain.seeds), 'seed')} at each layer:",
        listed("ol", items),
        f"Beside it: {' and '.join(beside)}." if beside else None,
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


def _scores(result: ChainResult) -> Section:
    best = _best(result)
    finding = f"After the whole chain, layer {best.layer} scores best: {mean_and_std(best.tested)}."
    for direct in result.direct:
        if direct.layer == best.layer:
            finding += f" The last step alone gives {mean_and_std(direct.tested)} there."
    reading = seeds_reading(result.outcomes, result.level)
    figure = Figure("chain-scores", chain_scores(result), finding, reading)
    return section("scores", "Scores of the last step", figure)


def _table(result: ChainResult) -> Section:
    best = _best(result).layer
    kinds = ("chosen" if outcome.layer == best else None for outcome in result.outcomes)
    rows = (_cells(result, index) for index in range(len(result.outcomes)))
    return section("chain-layers", "Table of layers", table("Table of layers", rows, kinds), kind="dense")


def _cells(result: ChainResult, index: int) -> Row:
    layer = result.outcomes[index].layer
    yield "Layer", str(layer)
    yield "Parameters", numbers.millions(result.outcomes[index].parameters)
    for step, outcomes in zip(result.chain.finetunings, result.trail.outcomes, strict=True):
        yield f"{step.task_name} {metric_title(outcomes[0].primary)}", _score(outcomes[index])
    if result.effects:
        effect = result.effects[index]
        yield "The last step alone", _score(result.direct[index])
        yield "Effect", numbers.signed(effect.value)
        ends = numbers.interval(effect.interval) if effect.interval else "–"
        yield f"{numbers.percent(result.level)} interval", ends
    for control in result.controls:
        yield f"Random weights {control.random_init}", _score(control.outcomes[-1][index])
    for each in _cut_at(result, layer):
        yield "CKA with before", numbers.number(each.to_start.values[-1], 3)


def _score(outcome: LayerOutcome) -> str:
    return numbers.number(outcome.mean) + ("" if outcome.std is None else f" ± {numbers.number(outcome.std)}")


def _cka(result: ChainResult) -> Iterator[Figure]:
    similarities = result.similarities
    if similarities is None:
        return
    yield Figure(
        "chain-cka",
        cka_with_start(similarities, result.n_blocks),
        result.cka_sentence,
        "Shaded curves are of the whole model. Each thin line is a fine-tuned model and ends at the last layer"
        f" kept: the point; areas and bars are {numbers.percent(result.level)} intervals over texts. Fine-tuned models"
        f" are those of seed {result.chain.seeds[0]}.",
    )
    reference, start = similarities.reference, similarities.start_to_reference
    if reference is None or start is None:
        return
    after = "".join(
        f" and {numbers.number(each.to_reference.values[-1], 3)} after {each.after}"
        for each in similarities.trained
        if each.to_reference is not None and len(each.to_reference.values) == len(start.values)
    )
    before = f"layer {len(start.values) - 1} has {numbers.number(start.values[-1], 3)} before"
    yield Figure(
        "chain-reference",
        cka_with_reference(similarities, result.n_blocks, numbers.label(short_name(reference))),
        f"With {short_name(reference)}, {before}{after}.",
        "The grey curve is the start.",
    )


def _adaptations(result: ChainResult) -> Section:
    named = zip(result.chain.adaptations, result.trail.adaptations, strict=True)
    tables = (
        folded(numbers.capitalised(step.label), table(step.label, map(_metrics_cells, done.metrics)), opened=True)
        for step, done in named
    )
    return section("adaptations", "Adaptation", *tables)


def _metrics_cells(each: AdaptationMetrics) -> Row:
    return (
        ("Step", str(each.step)),
        ("Held-out loss", numbers.number(each.held_out_loss, 3)),
        ("Accuracy", numbers.percent(each.held_out_accuracy)),
        ("Training loss", "–" if each.train_loss is None else numbers.number(each.train_loss, 3)),
    )


def _sources(result: ChainResult) -> Markup:
    similarities = result.similarities
    return definitions(
        {
            "Start": result.trail.model,
            "Revision": result.trail.revision,
            "Reference": result.chain.reference or "none",
            "Texts of CKA": "not measured"
            if similarities is None
            else f"{similarities.n_texts}, of the last task’s test split; {similarities.measure.title}",
            "Computed on": result.computed_on,
            "Versions": ", ".join(f"{name} {version}" for name, version in result.versions.items()),
            "Created": result.created,
        }
    )
