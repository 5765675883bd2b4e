"""The results of a lab study, as a page. Knows studies, not models and not maths."""

import itertools
from collections.abc import Iterator, Sequence
from statistics import fmean

from layerprobe.lab.dropbench.truth import truth
from layerprobe.lab.dropbench.zoo import OTHER_SEED, ZooEntry
from layerprobe.lab.studies.values import LabResult, ObjectiveEffect
from layerprobe.metrics.names import points
from layerprobe.names import counted
from layerprobe.results.charts import Chart, Line, Quantity
from layerprobe.results.draw import drawn
from layerprobe.results.markup import Markup
from layerprobe.results.page import page_of
from layerprobe.results.parts import definitions, folded, section, table_of
from layerprobe.results.shown import clauses
from layerprobe.results.table import Column, Table
from layerprobe.results.values import Figure, Page, Part


def lab_page(result: LabResult) -> Page:
    """Return the page of a lab study, finished or not."""
    study, entries = result.study, result.zoo.entries
    n_models = len({(entry.size, entry.family, entry.seed) for entry in entries})
    n_families = len({entry.family for entry in entries})
    drops = list(_drops(result))
    return page_of(
        result,
        heading=clauses(result.sentences[0])[0] if result.sentences else f"{study.name}: no effect is known yet",
        kind="the pretraining lab",
        about=study.name,
        lead=result.sentences,
        facts=(counted(n_models, "model"), counted(n_families, "objective"), f"sizes {', '.join(study.sizes)}"),
        first=next((part for part in drops if isinstance(part, Figure)), None),
        fatal=tuple(_missing(result)),
        account=(
            f"{len(study.seeds)} seeds of the pretraining; each model fine-tuned at every layer with"
            f" {len(study.finetuning_seeds)} seeds, budgets {', '.join(study.budgets)}.",
            "A drop: the last layer lies below the best one by more than the noise of seeds and items.",
        ),
        sections=(
            section("drops", "Does the objective move the drop?", *drops[1:]),
            section("scores", "At which layers?", *_scores(result)),
            section("cka", "How unlike a masked language model does each layer become?", *_similarities(result)),
            section("pretraining", "Pretraining", _folded(result.pretrainings_table)),
        ),
        provenance=(_sources(result),),
        terms=("Drop",),
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
    tasks = list(dict.fromkeys(entry.task for entry in result.zoo.entries))
    named = [(task, f", {task}" if len(tasks) > 1 else "") for task in tasks]
    return [(task, ending, [entry for entry in result.zoo.entries if entry.task == task]) for task, ending in named]


def _by_size(result: LabResult) -> list[tuple[str, str, str, list[ZooEntry]]]:
    """Return the same by task and size: task, what captions call it, size and entries."""
    return [
        (task, ending, size, of_size)
        for task, ending, entries in _by_task(result)
        for size in result.study.sizes
        if (of_size := [entry for entry in entries if entry.size == size])
    ]


def _effects(result: LabResult, **where: object) -> list[ObjectiveEffect]:
    return [effect for effect in result.effects if all(getattr(effect, name) == value for name, value in where.items())]


# ---- sections -----------------------------------------------------------------------------------------


def _drops(result: LabResult) -> Iterator[Part]:
    places = itertools.product(_by_task(result), result.study.budgets)
    for number, ((task, ending, entries), budget) in enumerate(places):
        truths = [truth(entry.budgets[budget]) for entry in entries]
        finding = (
            f"Budget {budget}{ending}: {sum(model_truth.drop for model_truth in truths)} of {len(truths)} models drop."
        )
        chart = Chart(
            lines=(Line("difference"),),
            name=f"lab-drops-{number}",
            x="objective",
            by="size",
            drops="models that drop",
            finding=finding,
        )
        yield drawn(result.table.where("task", task).where("budget", budget), chart)
    yield table_of(result.effects_table(_effects(result, measure="drop"), "Differences in the drop"))


def _scores(result: LabResult) -> Iterator[Part]:
    for number, budget in enumerate(result.study.budgets):
        for index, (task, ending, size, entries) in enumerate(_by_size(result)):
            curves = [(e.family, tuple(map(fmean, e.budgets[budget].test))) for e in entries if budget in e.budgets]
            quantity = points(entries[0].metric, "test")
            finding = f"{quantity.title} after fine-tuning, size {size}, budget {budget}{ending}."
            yield _by_objective(curves, quantity, f"lab-scores-{number}-{index}", finding)
            effects = _effects(result, measure="score", task=task, size=size, budget=budget)
            yield _folded(result.effects_table(effects, f"Differences from the MLM twin, {size}, {budget}{ending}"))


def _similarities(result: LabResult) -> Iterator[Part]:
    for index, (task, ending, size, entries) in enumerate(_by_size(result)):
        curves = [(e.family, e.cka[OTHER_SEED].values) for e in entries if OTHER_SEED in e.cka]
        if curves:
            quantity = Quantity("CKA with an MLM model of another seed", best="higher")
            finding = f"{quantity.title}, size {size}{ending}; that of MLM models is the noise floor."
            yield _by_objective(curves, quantity, f"lab-cka-{index}", finding)
            effects = _effects(result, measure="CKA", task=task, size=size)
            yield _folded(result.effects_table(effects, f"Differences from the noise floor, {size}{ending}"))


def _by_objective(curves: Sequence[tuple[str, Sequence[float]]], quantity: Quantity, name: str, finding: str) -> Figure:
    """Return the mean over seeds of the pretraining by layer, a line an objective, with every seed."""
    families = dict.fromkeys(family for family, _ in curves)
    by_family = {family: [values for name, values in curves if name == family] for family in families}
    rows = [
        (family, layer, scores)
        for family, seeds in by_family.items()
        for layer, scores in enumerate(zip(*seeds, strict=True))
    ]
    objectives, layers, seeds = zip(*rows, strict=True)
    table = Table(
        columns=(
            Column("objective", objectives),
            Column("layer", layers),
            Column("mean", tuple(map(fmean, seeds)), form=".3f", quantity=quantity),
            Column("seeds", seeds, form=".3f"),
        )
    )
    return drawn(table, Chart(lines=(Line("mean", seeds="seeds"),), name=name, by="objective", finding=finding))


def _folded(table: Table) -> Markup:
    return folded(table.title, table_of(table))


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
