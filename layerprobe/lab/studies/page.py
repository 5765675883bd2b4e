"""What came of a lab study, as a page. Knows studies, not models and not maths."""

import itertools
from collections.abc import Iterator, Sequence

from layerprobe.files.serialisation import to_json
from layerprobe.lab.dropbench.truth import truth
from layerprobe.lab.dropbench.values import OTHER_SEED, TWIN, ZooEntry
from layerprobe.lab.pretraining.values import Pretraining
from layerprobe.lab.studies.figures import cka_by_layer, drops, scores_by_layer
from layerprobe.lab.studies.values import LabResult, ObjectiveEffect
from layerprobe.metrics.names import metric_title
from layerprobe.results import numbers
from layerprobe.results.markup import Markup
from layerprobe.results.parts import Row, definitions, folded, section, table
from layerprobe.results.table import csv_text
from layerprobe.results.values import Figure, Page, Part, Section

CSV_COLUMNS = ("model", "objective", "size", "seed", "budget", "layer", "finetuning_seed", "validation", "test")


def lab_page(result: LabResult) -> Page:
    """Return the page of a lab study, finished or not."""
    study, entries = result.study, result.zoo.entries
    n_models = len({(entry.size, entry.family, entry.seed) for entry in entries})
    n_families = len({entry.family for entry in entries})
    return Page(
        title=f"{study.name}: what the pretraining objective does to the layers",
        overline="layerprobe · the pretraining lab",
        heading=numbers.label(study.name),
        lead=result.sentences,
        remarks=(
            f"{n_models} models: {n_families} objectives, {len(study.seeds)} seeds of the pretraining,"
            f" sizes {', '.join(study.sizes)}; each fine-tuned at every layer with {len(study.finetuning_seeds)} seeds,"
            f" budgets {', '.join(study.budgets)}.",
        ),
        warnings=tuple(_missing(result)),
        sections=(
            section("drops", "Does the objective move the drop?", *_drops(result)),
            section("scores", "At which layers?", *_scores(result)),
            section("cka", "How unlike a masked language model does each layer become?", *_similarities(result)),
            _pretrainings(result),
        ),
        provenance=(_sources(result),),
        terms=("Layer", "MLM twin", "Drop", "Difference from the twin", "Noise floor", "CKA"),
        data=to_json(result),
        table=csv_text(CSV_COLUMNS, _runs(result)),
        table_label="Runs",
        stem="lab",
    )


def _runs(result: LabResult) -> Iterator[tuple[object, ...]]:
    for entry in result.zoo.entries:
        for budget, tuned in entry.budgets.items():
            for layer, scores in enumerate(zip(tuned.validation, tuned.test, strict=True)):
                for seed, validation, test in zip(tuned.seeds, *scores, strict=True):
                    about = entry.name, entry.family, entry.size, entry.seed, budget, layer, seed
                    yield (*about, validation, test)


def _missing(result: LabResult) -> Iterator[str]:
    """Yield which models are left out, and how many are not done yet."""
    for failure in result.failures:
        yield f"{failure.model} is left out: {failure.reason}"
    n_entries = len(result.study.models) * len(result.study.tasks)
    left = n_entries - len(result.zoo.entries) - len(result.failures)
    if left > 0:
        yield f"Not done yet: {left} of {n_entries}; the same command goes on."


def _by_task(result: LabResult) -> list[tuple[str, str, list[ZooEntry]]]:
    """Return each task, what captions call it, nothing where there is one, and its entries."""
    tasks = list(dict.fromkeys(each.task for each in result.zoo.entries))
    named = [(task, f", {task}" if len(tasks) > 1 else "") for task in tasks]
    return [(task, said, [each for each in result.zoo.entries if each.task == task]) for task, said in named]


def _by_size(result: LabResult) -> list[tuple[str, str, str, list[ZooEntry]]]:
    """Return the same by task and size: task, what captions call it, size and entries."""
    return [
        (task, said, size, of_size)
        for task, said, entries in _by_task(result)
        for size in result.study.sizes
        if (of_size := [each for each in entries if each.size == size])
    ]


def _effects(result: LabResult, **where: object) -> list[ObjectiveEffect]:
    return [each for each in result.effects if all(getattr(each, name) == value for name, value in where.items())]


# ---- sections -----------------------------------------------------------------------------------------


def _drops(result: LabResult) -> Iterator[Part]:
    places = itertools.product(_by_task(result), result.study.budgets)
    for number, ((_, said, entries), budget) in enumerate(places):
        truths = [truth(entry.budgets[budget]) for entry in entries]
        yield Figure(
            f"lab-drops-{number}",
            drops(entries, budget),
            f"Budget {budget}{said}: {sum(each.drop for each in truths)} of {len(truths)} models drop.",
            "Filled marks drop: the last layer lies below the best one by more than the noise of seeds and items.",
        )
    effects = _effects(result, measure="drop")
    kinds = ("chosen" if each.certain else None for each in effects)
    several = len(_by_task(result)) > 1
    rows = (_effect_cells(each, result.level, name_task=several) for each in effects)
    yield table("Differences in the drop", rows, kinds)


def _effect_cells(each: ObjectiveEffect, level: float, *, name_task: bool) -> Row:
    return (
        ("Objective", each.family),
        *([("Task", each.task)] if name_task else []),
        ("Budget", each.budget or "–"),
        ("Size", each.size or "all"),
        ("Drop", numbers.signed(sum(each.values) / len(each.values))),
        ("Of the twin", numbers.signed(sum(each.twins) / len(each.twins))),
        ("Difference", numbers.signed(each.mean)),
        (numbers.percent(level), _ends(each)),
        ("Pairs", str(len(each.values))),
    )


def _ends(each: ObjectiveEffect, digits: int = 2) -> str:
    return numbers.interval(each.interval, digits) if each.interval else "–"


def _scores(result: LabResult) -> Iterator[Part]:
    for number, budget in enumerate(result.study.budgets):
        for index, (task, said, size, entries) in enumerate(_by_size(result)):
            yield Figure(
                f"lab-scores-{number}-{index}",
                scores_by_layer(entries, budget),
                f"Test {metric_title(entries[0].metric)} after fine-tuning, size {size}, budget {budget}{said}.",
                "Thick: mean over seeds; thin: each seed; grey: MLM.",
            )
            effects = _effects(result, measure="score", task=task, size=size, budget=budget)
            yield _by_layer(f"Differences from the MLM twin, {size}, {budget}{said}", effects, digits=2)


def _similarities(result: LabResult) -> Iterator[Part]:
    for index, (task, said, size, entries) in enumerate(_by_size(result)):
        if any(OTHER_SEED in entry.cka for entry in entries):
            yield Figure(
                f"lab-cka-{index}",
                cka_by_layer(entries),
                f"CKA with the MLM model of another seed, size {size}{said}.",
                f"The grey line, {TWIN}, is the noise floor: two MLM models of different seeds.",
            )
            effects = _effects(result, measure="CKA", task=task, size=size)
            yield _by_layer(f"Differences from the noise floor, {size}{said}", effects, digits=3)


def _by_layer(caption: str, effects: Sequence[ObjectiveEffect], digits: int) -> Markup:
    """Return the differences as a table: a row an objective, a column a layer."""
    rows: dict[str, list[tuple[str, str]]] = {}
    for each in effects:
        difference = f"{numbers.signed(each.mean, digits)} {_ends(each, digits)}"
        rows.setdefault(each.family, [("Objective", each.family)]).append((f"Layer {each.layer}", difference))
    return folded(caption, table(caption, rows.values()))


def _pretrainings(result: LabResult) -> Section:
    rows = (_pretraining_cells(name, done) for name, done in result.pretrainings.items())
    return section("pretraining", "Pretraining", folded("What was measured", table("Pretraining", rows)))


def _pretraining_cells(name: str, done: Pretraining) -> Row:
    last = done.metrics[-1].held_out if done.metrics else {}
    losses = [f"{what.replace('_', ' ')} {numbers.number(loss, 3)}" for what, loss in last.items() if loss is not None]
    return (
        ("Model", name),
        ("Steps", f"{done.protocol.steps if done.metrics else 0:,}"),
        ("Tokens", f"{done.n_tokens:,}"),
        ("Seconds", f"{done.seconds:.0f}"),
        ("Held-out texts in the end", ", ".join(losses)),
    )


def _sources(result: LabResult) -> Markup:
    provenance = result.zoo.provenance
    return definitions(
        {
            "Made by": provenance.command,
            "Corpus": ", ".join(result.study.corpus),
            "Task": ", ".join(task for task, _, _ in _by_task(result)),
            "Budgets": "; ".join(
                f"{name}: {numbers.counted(how.epochs, 'epoch')}, peak learning rate {how.learning_rate:g},"
                f" batches of {how.batch_size}"
                for name, how in result.study.budgets.items()
            ),
            "Computed on": result.computed_on,
            "Versions": ", ".join(f"{name} {version}" for name, version in provenance.versions.items()),
            "Created": provenance.created,
        }
    )
