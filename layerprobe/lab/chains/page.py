"""A chain of trainings as a page: what each adds, and how far the layers moved."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from layerprobe.finetuning.values import outcome_charts, outcomes_table
from layerprobe.lab.chains.values import AdaptStep, ChainCurve, ChainResult, chain_to_toml
from layerprobe.lab.pretraining.values import Adaptation
from layerprobe.metrics.names import metric_title
from layerprobe.names import counted, short_name
from layerprobe.results import numbers
from layerprobe.results.charts import Chart, Line, Quantity
from layerprobe.results.draw import drawn
from layerprobe.results.markup import Markup, element
from layerprobe.results.page import page_of
from layerprobe.results.parts import definitions, folded, listed, section, table_of
from layerprobe.results.table import Column, Table, interval_title, stacked
from layerprobe.results.values import Figure, Page, Section


def chain_page(result: ChainResult) -> Page:
    """Return the page of a chain."""
    best, adaptations = result.best, [done.table for done in result.trail.adaptations]
    title = f"test {metric_title(result.primary)} {numbers.number(best.mean)}"
    sentence = result.effect_sentence or f"Layer {best.layer} is best by validation: {title}."
    return page_of(
        result,
        heading=_heading(result),
        kind="a chain of trainings",
        about=f"{result.chain.name}, from {numbers.label(short_name(result.trail.model))}",
        lead=tuple(filter(None, [sentence, result.cka_sentence])),
        facts=(f"{title} at layer {best.layer}, best by validation", *_facts(result)),
        first=_scores(result),
        warnings=result.warnings,
        account=result.notes,
        sections=(
            _steps(result),
            section("cka", "CKA before and after", *_cka(result)),
            section("adaptations", "Adaptation", *(folded(t.title, table_of(t)) for t in adaptations)),
        ),
        provenance=(_sources(result),),
        terms=("Chain", "Adaptation", "Effect"),
    )


def _heading(result: ChainResult) -> str:
    """Return what the chain adds at the layer that is best by validation, where that is known."""
    layer = result.best.layer
    for effect in result.effects:
        if effect.layer == layer:
            low, high = effect.interval or (-1.0, 1.0)
            sure = "" if low > 0 or high < 0 else ", not significant"
            return f"The chain adds {numbers.signed(effect.value)} at layer {layer}{sure}"
    return f"Layer {layer} is best by validation"


def _facts(result: ChainResult) -> Iterator[str]:
    best = result.best
    for effect in result.effects:
        if effect.layer == best.layer:
            ends = f" {numbers.interval(effect.interval)}" if effect.interval else ""
            yield f"the chain adds {numbers.signed(effect.value)}{ends}"
    for control in result.controls[:1]:
        (outcome_at_best,) = (outcome for outcome in control.outcomes[-1] if outcome.layer == best.layer)
        yield f"from random weights {numbers.number(outcome_at_best.mean)}"
    if cut := result.cut.get(best.layer):
        yield f"CKA with before {numbers.number(cut.to_start.values[-1], 3)} (seed {cut.seed})"


def _scores(result: ChainResult) -> Figure:
    """Return test scores of the last step by layer: after the chain, without it, and from random weights."""
    lines = {"the whole chain": result.outcomes, "the last step alone": result.direct}
    lines |= {f"random weights {control.random_init}": control.outcomes[-1] for control in result.controls}
    tables = [outcomes_table(outcomes).named(start=name) for name, outcomes in lines.items() if outcomes]
    chart, _ = outcome_charts(by="start")
    return drawn(stacked(tables), chart.named("chain-scores"))


# ---- sections -----------------------------------------------------------------------------------------


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
        f"Beside it: {' and '.join(beside)}." if beside else "",
        folded("As a file, which layerprobe lab chain reads", element("pre", element("code", chain_to_toml(chain)))),
    )


def _adapted_words(step: AdaptStep, done: Adaptation) -> str:
    loss = [numbers.number(metrics.held_out_loss, 3) for metrics in (done.metrics[0], done.metrics[-1])]
    files = ", ".join(Path(text).name for text in step.texts)
    return (
        f"Masked-language-model pretraining is continued on {files}: {done.n_texts:,} texts, {done.steps} steps"
        f" of {done.protocol.batch_size * done.protocol.accumulation} texts; the held-out loss goes from {loss[0]} to"
        f" {loss[1]}."
    )


def _cka(result: ChainResult) -> Iterator[Figure]:
    """Yield the similarity of each layer after a training with the layer before, and with the reference."""
    similarities = result.similarities
    if similarities is None:
        return
    names = [
        f"after {run.after}" if run.layer is None else f"kept to layer {run.layer}" for run in similarities.trained
    ]
    curves = list(zip(names, (run.to_start for run in similarities.trained), strict=True))
    yield _curves(curves, "the layer before", Chart(lines=(), name="chain-cka", finding=result.cka_sentence), result)
    others = [
        (name, run.to_reference) for name, run in zip(names, similarities.trained, strict=True) if run.to_reference
    ]
    if similarities.reference is not None and similarities.start_to_reference is not None:
        before = [("before", similarities.start_to_reference)]
        chart = Chart(lines=(), name="chain-reference")
        yield _curves([*before, *others], short_name(similarities.reference), chart, result)


def _curves(curves: list[tuple[str, ChainCurve]], other: str, chart: Chart, result: ChainResult) -> Figure:
    tables = [
        Table(
            columns=(
                Column("layer", range(len(curve.values))),
                Column("value", curve.values, "CKA", ".3f", quantity=Quantity(f"CKA with {other}", best="higher")),
                Column(
                    "interval",
                    [curve.interval(layer) for layer in range(len(curve.values))],
                    interval_title(result.level),
                    ".3f",
                    interval=True,
                    over="over new texts",
                ),
            )
        ).named(after=name)
        for name, curve in curves
    ]
    lines = (Line("value", interval="interval"),)
    return drawn(stacked(tables), replace(chart, lines=lines, by="after", band=True))


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
