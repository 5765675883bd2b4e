"""Columns of values per layer that the tables of predictions, findings and studies share.

Knows numbers, not how terminals and pages are laid out.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import accumulate, groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from layerprobe.finetuning.values import outcome_columns
from layerprobe.metrics.names import metric_title, points
from layerprobe.results import numbers
from layerprobe.results.charts import Chart, Line
from layerprobe.results.shown import of_layers
from layerprobe.results.table import Column, Table, chance, columns_of, interval_title, layer_columns
from layerprobe.scoring.values import floor_columns
from layerprobe.search.values import LayerBelief, SearchSettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layerprobe.comparison.values import Comparison
    from layerprobe.finetuning.values import LayerOutcome
    from layerprobe.prediction.values import DropPrediction
    from layerprobe.study.values import Finding, Study


SCAN = "One run with a loss at every layer; the mean of several."
UNSPOILT = ("scan", "runs", "expected")
"""What a search says of layers without a claim: all that is said where scores are spoilt."""
KINDS_OF_RUN = {"scan": "all layers at once", "TMFT": "truncated"}


def prediction_table(comparison: Comparison, drop: DropPrediction) -> Table:
    """Return the table of a prediction: each layer's flags and the curves read."""
    parameters, n_layers = comparison.model.parameters_column, comparison.model.n_layers
    return drop.table_with(parameters, *_similarity_columns(comparison), n_layers=n_layers)


def finding_table(finding: Finding) -> Table:
    """Return the table of a finding, one row per layer."""
    layers = tuple(range(len(finding.parameters)))
    return Table(
        columns=(
            *layer_columns(layers, finding.parameters),
            *_search_columns(finding, len(layers)),
            *_outcome_columns(finding.outcomes, finding.primary, len(layers), visible=("mean", "std")),
            *_untrained_columns(finding),
            Column("kept", [layer == finding.best_layer for layer in layers], shown=False),
            *floor_columns([finding.floor] * len(layers)),
            Column("flag", [finding.flag(layer) or None for layer in layers]),
        ),
        notes=(_search_note(finding),),
        marks=_found_marks(finding),
        charts=expected_charts(search=True, floor=finding.floor is not None),
    )


def _untrained_columns(finding: Finding) -> tuple[Column, ...]:
    """Return the column of scores before any fine-tuning; none where they are not known."""
    if not finding.untrained:
        return ()
    meaning, quantity = "Before any fine-tuning, on the test split.", points(finding.primary, "test")
    return (Column("untrained", finding.untrained, "untrained test", ".2f", meaning=meaning, quantity=quantity),)


def expected_charts(by: str = "", *, search: bool = False, floor: bool = False) -> tuple[Chart, ...]:
    """Return expected scores by layer, of one search with its runs, and against size."""
    expected, keep = Line("expected", interval="expected_interval"), "the layer to keep"
    first = Chart(lines=(expected,), name="models", by=by, band=True, chosen=keep)
    if search:
        runs = Line("expected", interval="expected_interval", seeds="validation_by_seed")
        first = replace(
            first,
            lines=(runs, Line("scan", name="one run, all layers")),
            name="search",
            hover=("chance_best", "chance_within", "tmft_mean"),
            floor="floor" if floor else "",
        )
    return (
        first,
        Chart(
            lines=(expected,),
            name="cost",
            heading="Expected score versus size",
            kind="cost",
            x="parameters",
            by=by,
            label="layer",
            chosen=keep,
        ),
    )


def runs_table(finding: Finding) -> Table:
    """Return the runs of a search in the order in which they were made, with what they cost; a scan is one run."""
    primary, whole = finding.primary, finding.answer.full_sweep
    by_run = groupby(finding.runs, key=lambda made: (made.scan, made.seed, made.scan or made.layer))
    rows = [
        max(layers, key=lambda made: made.run.validation[primary] if made.run else -math.inf) for _, layers in by_run
    ]
    column, scored = columns_of(rows), columns_of(row.run for row in rows)
    costs = [len(finding.parameters) if row.scan else row.layer + 1 for row in rows]
    title, part = metric_title(primary), "Of the labelled data, used for validation."
    return Table(
        columns=(
            Column("run", range(1, len(rows) + 1)),
            column("what", lambda row: "scan" if row.scan else "TMFT", form=KINDS_OF_RUN.__getitem__),
            column("layer", lambda row: "all" if row.scan else str(row.layer)),
            column("seed"),
            column("part", lambda row: row.fold + 1, shown=finding.n_folds > 1, meaning=part),
            scored("validation", lambda run: run.validation[primary], title=f"validation {title}", form=".2f"),
            scored("test", lambda run: run.test[primary], title=f"test {title}", form=".2f"),
            column("at_layer", lambda row: row.layer if row.scan and row.run else None, title="at layer"),
            scored("seconds", form=".0f"),
            Column("block_steps", costs, shown=False),
            Column("spent", [cost / whole for cost in accumulate(costs)], "share of a sweep so far", numbers.percent),
        ),
        title="Runs",
    )


def study_table(study: Study) -> Table:
    """Return the table of a study, one row per layer; columns of skipped steps are empty."""
    predicted, finding, scores = prediction_table(study.comparison, study.prediction), study.finding, study.zero_shot
    n_layers, (*columns, flags) = len(predicted), predicted.columns
    zero_shot = [None if scores is None else scores.own(layer) for layer in range(n_layers)]
    tuned: tuple[str, ...] = ("mean", "std", "seeds")
    if finding is not None:
        # what training showed takes the room of how sure was what had been expected, and the runs are the seeds
        tuned, flags = ("mean", "std"), replace(flags, values=_flags(study, finding))
        columns = [
            replace(column, shown=column.shown and not (column.interval or column.name == "drop_probability"))
            for column in columns
        ]
    return Table(
        columns=(
            *columns,
            Column("metric", [study.metric] * n_layers, shown=False, meaning="What the scores are."),
            Column("zero_shot", zero_shot, "test zero-shot", ".2f", meaning="Before fine-tuning, on test, x 100."),
            *_search_columns(finding, n_layers),
            *_outcome_columns(study.outcomes, study.metric, n_layers, visible=tuned),
            Column("kept", [layer == study.kept_layer for layer in range(n_layers)], shown=False),
            flags,
        ),
        notes=() if finding is None else (_search_note(finding),),
        marks=_marks(study.kept_layer, study.drop_layers, n_layers) if finding is None else _found_marks(finding),
    )


def _similarity_columns(comparison: Comparison) -> tuple[Column, ...]:
    """Return the similarity of each layer to the one that it is compared with; empty of layers that are left out."""
    curve, layers, errors = comparison.curve, comparison.layers, comparison.curve.uncertainty
    title = f"{comparison.map.measure.short_name}{' with layer before' if comparison.alone else ''}"
    name, others = "cka_interval", of_layers(layers, curve.reference_layers)
    empty = Column(name, [None] * len(others), interval=True)
    return (
        Column("cka", of_layers(layers, curve.values), title, ".4f", meaning=f"{comparison.map.measure.title}."),
        empty if errors is None else errors.interval_column(name, layers),
        Column("compared_layer", others, shown=False, meaning="The layer that this one is compared with."),
    )


def _search_columns(finding: Finding | None, n_layers: int) -> tuple[Column, ...]:
    """Return the columns of a search; empty without one, and for excluded layers."""
    settings, beliefs = SearchSettings(), list[LayerBelief | None]([None] * n_layers)
    if finding is not None:
        answer = finding.answer
        settings, beliefs = answer.settings, of_layers(range(answer.first_layer, n_layers), answer.layers)

    by_layer: dict[int, list[float]] = {}
    for run in () if finding is None else finding.fine_tuned:
        by_layer.setdefault(run.layer, []).append(run.validation[run.primary])
    quantity = None if finding is None else points(finding.primary, "validation")
    column = columns_of(beliefs)
    within, sure = f"within {settings.tolerance:g}", interval_title(settings.level)
    columns = (
        column(
            "scan",
            lambda belief: finding and finding.scanned(belief.layer),
            title="one run",
            form=".2f",
            meaning=SCAN,
            quantity=quantity,
        ),
        column(
            "validation_by_seed",
            lambda belief: tuple(by_layer.get(belief.layer, ())) or None,
            form=".2f",
            shown=False,
            meaning="Scores of the truncated models, x 100.",
            over="" if finding is None else _runs_of(finding),
        ),
        column("runs", form=lambda count: str(count or ""), meaning="Of truncated models."),
        column(
            "expected",
            lambda belief: belief.mean,
            form=".1f",
            meaning="Score over new items and seeds, x 100.",
            quantity=quantity,
        ),
        column(
            "expected_interval",
            attrgetter("interval"),
            title=sure,
            form=".1f",
            interval=True,
            over="for new items and new seeds",
        ),
        column("chance_best", form=chance),
        column("chance_within", title=within, form=chance, meaning="Of the best layer."),
        column(
            "behind",
            title="at most behind",
            form=".2f",
            shown=False,
            meaning="Points that the best layer is ahead at most.",
        ),
        column("candidate", lambda belief: finding and belief.layer in finding.answer.candidates, shown=False),
        column("found_drop", lambda belief: finding and belief.layer in finding.drop_layers, shown=False),
    )
    if finding is None or not finding.answer.spoilt:
        return columns
    return tuple(column if column.name in UNSPOILT else replace(column, values=[None] * n_layers) for column in columns)


def _outcome_columns(
    outcomes: Sequence[LayerOutcome], primary: str, n_layers: int, *, visible: Sequence[str]
) -> Iterator[Column]:
    """Yield what fine-tuning showed of each layer, empty of those that were not run; some are shown, all in files."""
    by_layer = {outcome.layer: outcome for outcome in outcomes}
    for column in outcome_columns([by_layer.get(layer) for layer in range(n_layers)], primary):
        yield replace(column, name=f"tmft_{column.name}", title=column.head, shown=column.name in visible)


def _search_note(finding: Finding) -> str:
    near = finding.answer.settings.tolerance
    return (
        f"{metric_title(finding.primary)} x 100 on the validation split, except the test columns. expected: predicted "
        "score after fine-tuning at that layer, for new data and seeds. chance best: chance of being the best layer. "
        f"within {near:g}: chance of being at most {near:g} points below the best."
    )


def _flags(study: Study, finding: Finding) -> list[str | None]:
    """Return what follows for each layer, and which one was predicted."""
    predicted = {study.prediction.recommended_layer: "predicted"}
    flags = ((finding.flag(layer), predicted.get(layer)) for layer in range(len(finding.parameters)))
    return [", ".join(filter(None, both)) or None for both in flags]


FLAGGED = {"keep": "chosen", "will do": "enough", "may be best": "candidate", "drop": "drop"}


def _found_marks(finding: Finding) -> tuple[str | None, ...]:
    return tuple(FLAGGED.get(finding.flag(layer)) for layer in range(len(finding.parameters)))


def _runs_of(finding: Finding) -> str:
    """Return what each run of a truncated model was scored on."""
    part = f" of its own part of the data ({finding.n_folds} parts)" if finding.n_folds > 1 else ""
    return f"one run per seed, each on {finding.n_items[0]:,} validation examples{part}"


def _marks(chosen: int, dropped: Sequence[int], n_layers: int) -> tuple[str | None, ...]:
    return tuple("chosen" if layer == chosen else "drop" if layer in dropped else None for layer in range(n_layers))
