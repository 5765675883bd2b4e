"""What came of a lab study, as one HTML page. Knows studies and Plotly, not models and not maths."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import plotly.graph_objects as go

from layerprobe.dropbench.truth import truth
from layerprobe.dropbench.values import OTHER_SEED, TWIN, ZooEntry
from layerprobe.labs import figures as figures
from layerprobe.labs.values import LabResult, ObjectiveEffect
from layerprobe.metrics.names import metric_title
from layerprobe.pages import numbers
from layerprobe.pages.markup import Markup, element, join
from layerprobe.pages.page import compose, write_page
from layerprobe.pages.parts import definitions, figure, folded, row, section, table
from layerprobe.serialisation import to_json

CSV_COLUMNS = ("model", "objective", "size", "seed", "budget", "layer", "finetuning_seed", "validation", "test")
GLOSSARY = {
    "Layer": "0 is the output of the embedding module, l the output of block l; truncating at layer l keeps blocks"
    " 1 to l.",
    "MLM twin": "The masked language model of the same size and seed: it began with the same weights and saw the same"
    " batches with the same tokens masked. Only the objective differs.",
    "Drop": "What somebody would lose who keeps the last layer: the best layer is chosen for each seed by the"
    " validation scores of the other seeds, and scored by the test score of that seed.",
    "Difference from the twin": "Mean over pairs of the model’s value less its twin’s, with Student’s t interval of"
    " the paired differences. Intervals are not corrected for how many there are.",
    "Noise floor": "CKA of two masked language models that differ in their seed alone: what lies above it is no sign of"
    " the objective.",
    "CKA": "Centred kernel alignment: how alike two layers see the same texts; 1 for the same up to rotation and"
    " scale, about 0 for independent ones.",
}


def write_lab_report(result: LabResult, path: str | Path) -> Path:
    """Write the report of a lab study; a reader sees the old file or the whole new one.

    Args:
        result: What `run_lab` gave.
        path: The HTML file; its folder is made where it is missing.

    Returns:
        The path written.

    Raises:
        LayerProbeError: If the file cannot be written.
    """
    return write_page(render_lab(result), path)


def render_lab(result: LabResult) -> str:
    """Return the report as HTML that loads nothing."""
    return compose(
        title=f"{result.study.name}: what the pretraining objective does to the layers",
        body=join(
            _header(result),
            _drops(result),
            _scores(result),
            _similarities(result),
            _pretrainings(result),
            _sources(result),
        ),
        data=to_json(result),
        table=lab_csv(result),
        drawn=_drawn(result),
    )


def lab_csv(result: LabResult) -> str:
    """Return every fine-tuning run as CSV, with full precision."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for entry in result.zoo.entries:
        for budget, tuned in entry.budgets.items():
            for layer, scores in enumerate(zip(tuned.validation, tuned.test, strict=True)):
                for seed, validation, test in zip(tuned.seeds, *scores, strict=True):
                    about = entry.name, entry.family, entry.size, entry.seed, budget, layer, seed
                    writer.writerow((*about, validation, test))
    return buffer.getvalue()


def _drawn(result: LabResult) -> dict[str, go.Figure]:
    drawn = {}
    for number, budget in enumerate(result.study.budgets):
        drawn[f"lab-drops-{number}"] = figures.drops(result.zoo.entries, budget)
        for index, (_, entries) in enumerate(_by_size(result)):
            drawn[f"lab-scores-{number}-{index}"] = figures.scores_by_layer(entries, budget)
    for index, (_, entries) in enumerate(_by_size(result)):
        if _compared(entries):
            drawn[f"lab-cka-{index}"] = figures.cka_by_layer(entries)
    return drawn


def _by_size(result: LabResult) -> list[tuple[str, list[ZooEntry]]]:
    found = [(size, [e for e in result.zoo.entries if e.size == size]) for size in result.study.sizes]
    return [(size, entries) for size, entries in found if entries]


def _compared(entries: Sequence[ZooEntry]) -> bool:
    return any(OTHER_SEED in entry.cka for entry in entries)


def _effects(result: LabResult, measure: str, **where: object) -> list[ObjectiveEffect]:
    return [
        each
        for each in result.effects
        if each.measure == measure and all(getattr(each, name) == value for name, value in where.items())
    ]


# ---- sections -----------------------------------------------------------------------------------------


def _header(result: LabResult) -> Markup:
    study = result.study
    missing = len(study.models) - len(result.zoo.entries)
    failed = [f"{each.model} is left out: {each.reason}" for each in result.failures]
    if missing > len(failed):
        failed.append(f"Not done yet: {missing - len(failed)} of {len(study.models)}; the same command goes on.")
    n_families = len(dict.fromkeys(entry.family for entry in result.zoo.entries))
    return element(
        "header",
        element("p", "layerprobe · the pretraining lab", class_="overline"),
        element("h1", numbers.label(study.name)),
        element("ul", *(element("li", sentence) for sentence in result.sentences), class_="prediction")
        if result.sentences
        else None,
        element(
            "p",
            f"{len(result.zoo.entries)} models: {n_families} objectives, {len(study.seeds)} seeds of the pretraining,"
            f" sizes {', '.join(study.sizes)}; each fine-tuned at every layer with {len(study.finetuning_seeds)} seeds,"
            f" budgets {', '.join(study.budgets)}.",
        ),
        element(
            "aside",
            element("h2", "Warnings"),
            element("ul", *(element("li", each) for each in failed)),
            class_="warnings",
        )
        if failed
        else None,
    )


def _drops(result: LabResult) -> Markup:
    parts: list[Markup] = []
    for number, budget in enumerate(result.study.budgets):
        truths = [truth(entry.budgets[budget]) for entry in result.zoo.entries]
        n_drops = sum(found.drop for found in truths)
        finding = f"Budget {budget}: {n_drops} of {len(truths)} models drop."
        reading = "Filled marks drop: the last layer lies below the best one by more than the noise of the seeds."
        parts.append(figure(f"lab-drops-{number}", finding, reading))
    head = ("Objective", "Budget", "Size", "Drop", "Of the twin", "Difference", numbers.percent(result.level), "Pairs")
    rows = [_effect_row(each) for each in _effects(result, "drop")]
    return section("drops", "Does the objective move the drop?", *parts, table("Differences in the drop", head, rows))


def _effect_row(each: ObjectiveEffect) -> Markup:
    own, twin = (sum(values) / len(values) for values in (each.values, each.twins))
    cells = (
        each.budget or "–",
        each.size or "all",
        numbers.signed(own),
        numbers.signed(twin),
        numbers.signed(each.mean),
        _ends(each),
        str(len(each.values)),
    )
    return row(each.family, cells, "chosen" if each.certain else None)


def _ends(each: ObjectiveEffect, digits: int = 2) -> str:
    return numbers.interval(each.interval, digits) if each.interval else "–"


def _scores(result: LabResult) -> Markup:
    parts: list[Markup] = []
    title = metric_title(result.zoo.entries[0].metric)
    for number, budget in enumerate(result.study.budgets):
        for index, (size, _) in enumerate(_by_size(result)):
            finding = f"Test {title} after fine-tuning, size {size}, budget {budget}."
            parts.append(
                figure(f"lab-scores-{number}-{index}", finding, "Thick: mean over seeds; thin: each seed; grey: MLM.")
            )
            effects = _effects(result, "score", size=size, budget=budget)
            parts.append(_by_layer(f"Differences from the MLM twin, {size}, {budget}", effects, digits=2))
    return section("scores", "At which layers?", *parts)


def _by_layer(caption: str, effects: Sequence[ObjectiveEffect], digits: int) -> Markup:
    """Return the differences as a table: a row an objective, a column a layer."""
    layers = sorted({each.layer for each in effects if each.layer is not None})
    families = dict.fromkeys(each.family for each in effects)
    rows = [
        row(family, [_difference(each, digits) for each in effects if each.family == family]) for family in families
    ]
    return folded(caption, table(caption, ("Objective", *(f"Layer {layer}" for layer in layers)), rows))


def _difference(each: ObjectiveEffect, digits: int) -> str:
    return f"{numbers.signed(each.mean, digits)} {_ends(each, digits)}"


def _similarities(result: LabResult) -> Markup | None:
    parts: list[Markup] = []
    for index, (size, entries) in enumerate(_by_size(result)):
        if _compared(entries):
            finding = f"CKA with the MLM model of another seed, size {size}."
            reading = f"The grey line, {TWIN}, is the noise floor: two MLM models of different seeds."
            parts.append(figure(f"lab-cka-{index}", finding, reading))
            effects = _effects(result, "CKA", size=size)
            parts.append(_by_layer(f"Differences from the noise floor, {size}", effects, digits=3))
    return section("cka", "How unlike a masked language model does each layer become?", *parts) if parts else None


def _pretrainings(result: LabResult) -> Markup:
    def rows() -> Iterator[Markup]:
        for name, done in result.pretrainings.items():
            last = done.metrics[-1].held_out if done.metrics else {}
            told = ", ".join(
                f"{what.replace('_', ' ')} {numbers.number(value, 3)}"
                for what, value in last.items()
                if value is not None
            )
            cells = (
                f"{done.protocol.steps if done.metrics else 0:,}",
                f"{done.n_tokens:,}",
                f"{done.seconds:.0f}",
                told,
            )
            yield row(name, cells)

    head = ("Model", "Steps", "Tokens", "Seconds", "Held-out texts in the end")
    return section("pretraining", "Pretraining", folded("What was measured", table("Pretraining", head, rows())))


def _sources(result: LabResult) -> Markup:
    provenance = result.zoo.provenance
    facts = {
        "Made by": provenance.command,
        "Corpus": ", ".join(result.study.corpus),
        "Task": result.zoo.entries[0].task,
        "Budgets": "; ".join(
            f"{name}: {how.epochs} epochs, peak learning rate {how.learning_rate:g}, batches of {how.batch_size}"
            for name, how in result.study.budgets.items()
        ),
        "Computed on": result.computed_on,
        "Versions": ", ".join(f"{name} {version}" for name, version in provenance.versions.items()),
        "Created": provenance.created,
    }
    buttons = (
        element("button", label, type="button", data_source=source, data_filename=f"lab.{end}", data_kind=kind)
        for source, label, end, kind in (
            ("study", "Everything (JSON)", "json", "application/json"),
            ("table", "Runs (CSV)", "csv", "text/csv"),
        )
    )
    return join(
        section("provenance", "Where the numbers come from", definitions(facts)),
        section("glossary", "Words", definitions(GLOSSARY)),
        section("data", "Data", element("p", *buttons, class_="downloads")),
    )
