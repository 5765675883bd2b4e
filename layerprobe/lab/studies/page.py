"""What came of a lab study, as a page. Knows studies, not models and not maths."""

import itertools
from collections.abc import Iterator

from layerprobe.lab.dropbench.truth import truth
from layerprobe.lab.dropbench.values import OTHER_SEED, TWIN, ZooEntry
from layerprobe.lab.studies.figures import cka_by_layer, drops, scores_by_layer
from layerprobe.lab.studies.values import LabResult, ObjectiveEffect
from layerprobe.metrics.names import metric_title
from layerprobe.names import counted
from layerprobe.results import numbers
from layerprobe.results.markup import Markup
from layerprobe.results.parts import definitions, folded, section, table_of
from layerprobe.results.table import Table
from layerprobe.results.values import Figure, Page, Part


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
            section("models", result.table.title, table_of(result.table), kind="dense"),
            section("pretraining", "Pretraining", _folded(result.pretrainings_table)),
        ),
        provenance=(_sources(result),),
        terms=("Layer", "MLM twin", "Drop", "Difference from the twin", "Noise floor", "CKA"),
        result=result,
        stem="lab",
    )


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
    yield table_of(result.effects_table(_effects(result, measure="drop"), "Differences in the drop"))


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
            yield _folded(result.effects_table(effects, f"Differences from the MLM twin, {size}, {budget}{said}"))


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
            yield _folded(result.effects_table(effects, f"Differences from the noise floor, {size}{said}"))


def _folded(shown: Table) -> Markup:
    return folded(shown.title, table_of(shown))


def _sources(result: LabResult) -> Markup:
    provenance = result.zoo.provenance
    return definitions(
        {
            "Made by": provenance.command,
            "Corpus": ", ".join(result.study.corpus),
            "Task": ", ".join(task for task, _, _ in _by_task(result)),
            "Budgets": "; ".join(
                f"{name}: {counted(how.epochs, 'epoch')}, peak learning rate {how.learning_rate:g},"
                f" batches of {how.batch_size}"
                for name, how in result.study.budgets.items()
            ),
            "Computed on": result.computed_on,
            "Versions": ", ".join(f"{name} {version}" for name, version in provenance.versions.items()),
            "Created": provenance.created,
        }
    )
