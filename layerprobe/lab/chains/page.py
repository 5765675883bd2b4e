"""What came of a chain of trainings, as a page. Knows chains, not models and not maths."""

from collections.abc import Iterator
from pathlib import Path

from layerprobe.lab.adaptation.values import Adaptation
from layerprobe.lab.chains.figures import chain_scores, cka_with_reference, cka_with_start
from layerprobe.lab.chains.toml import chain_to_toml
from layerprobe.lab.chains.values import AdaptStep, ChainResult
from layerprobe.metrics.names import metric_title
from layerprobe.names import counted, short_name
from layerprobe.report.charts import mean_and_std, seeds_reading
from layerprobe.results import numbers
from layerprobe.results.markup import Markup, element
from layerprobe.results.parts import definitions, folded, listed, section, table_of
from layerprobe.results.values import Card, Figure, Page, Section


def chain_page(result: ChainResult) -> Page:
    """Return the page of a chain."""
    best, adaptations = result.best, [done.table for done in result.trail.adaptations]
    return Page(
        title=f"{result.chain.name}: a chain of trainings from {short_name(result.trail.model)}",
        overline="layerprobe · a chain of trainings",
        heading=numbers.label(short_name(result.trail.model)),
        lead=(
            result.effect_sentence or f"Layer {best.layer} is best by validation: {mean_and_std(best.tested)} on test.",
        ),
        remarks=tuple(filter(None, [result.cka_sentence])),
        cards={"": tuple(_cards(result))},
        warnings=result.warnings,
        sections=(
            _steps(result),
            _scores(result),
            section("chain-layers", result.table.title, table_of(result.table), kind="dense"),
            section("cka", "CKA before and after", *_cka(result)),
            section("adaptations", "Adaptation", *(folded(t.title, table_of(t), opened=True) for t in adaptations)),
            section("notes", "How the data was understood", listed("ul", result.notes)),
        ),
        provenance=(_sources(result),),
        terms=("Layer", "Chain", "Adaptation", "The last step alone", "Effect", "CKA"),
        result=result,
        stem="chain",
    )


# ---- sections -----------------------------------------------------------------------------------------


def _cards(result: ChainResult) -> Iterator[Card]:
    best = result.best
    beside = f"test {metric_title(result.primary)} × 100, {mean_and_std(best.tested)}"
    yield Card(f"Best by validation, layer {best.layer}", numbers.number(best.mean), beside)
    for effect in result.effects:
        if effect.layer == best.layer:
            yield Card("Added there", numbers.signed(effect.value), numbers.interval(effect.interval))
    for control in result.controls[:1]:
        (there,) = (outcome for outcome in control.outcomes[-1] if outcome.layer == best.layer)
        yield Card("From random weights", numbers.number(there.mean), mean_and_std(there.tested))
    if each := result.cut.get(best.layer):
        ends = each.to_start.interval(-1)
        detail = f"{numbers.interval(ends, 3)}, seed {each.seed}" if ends else f"seed {each.seed}"
        yield Card("CKA with before", numbers.number(each.to_start.values[-1], 3), detail)


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
        epochs = f"{counted(how.epochs, 'epoch')} in batches of {how.batch_size}"
        items.append(f"{begin} {step.task_name}: {epochs}, peak learning rate {how.learning_rate:g}.")
    beside = ["the last step straight from the start"] if result.direct else []
    if result.controls:
        random = ", ".join(str(control.random_init) for control in result.controls)
        beside.append(f"the whole chain from random weights (seed {random})")
    return section(
        "steps",
        "The chain",
        f"From {result.trail.model}, with {counted(len(chain.seeds), 'seed')} at each layer:",
        listed("ol", items),
        f"Beside it: {' and '.join(beside)}." if beside else None,
        folded("As a file, which layerprobe lab chain reads", element("pre", element("code", chain_to_toml(chain)))),
    )


def _adapted_words(step: AdaptStep, done: Adaptation) -> str:
    loss = [numbers.number(each.held_out_loss, 3) for each in (done.metrics[0], done.metrics[-1])]
    files = ", ".join(Path(text).name for text in step.texts)
    return (
        f"Masked-language-model pretraining is continued on {files}: {done.n_texts:,} texts, {done.steps} steps"
        f" of {done.protocol.batch_size * done.protocol.accumulation} texts; the held-out loss goes from {loss[0]} to"
        f" {loss[1]}."
    )


def _scores(result: ChainResult) -> Section:
    best = result.best
    finding = f"After the whole chain, layer {best.layer} is best by validation: {mean_and_std(best.tested)} on test."
    for direct in result.direct:
        if direct.layer == best.layer:
            finding += f" The last step alone gives {mean_and_std(direct.tested)} there."
    reading = seeds_reading(result.outcomes, result.level)
    figure = Figure("chain-scores", chain_scores(result), finding, reading)
    return section("scores", "Scores of the last step", figure)


def _cka(result: ChainResult) -> Iterator[Figure]:
    similarities = result.similarities
    if similarities is None:
        return
    yield Figure(
        "chain-cka",
        cka_with_start(similarities, result.n_blocks),
        result.cka_sentence,
        "Shaded curves are of the whole model. Each thin line is a fine-tuned model and ends at the last layer"
        f" kept: the point; areas and bars are {numbers.confidence(result.level)} intervals over texts. Fine-tuned"
        f" models are those of seed {result.chain.seeds[0]}.",
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
