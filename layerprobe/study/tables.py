"""The tables of predictions and findings, one row per layer.

Knows numbers, not the layout of terminals and pages.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from layerprobe.finetuning.values import outcome_columns
from layerprobe.metrics.names import metric_title, points
from layerprobe.prediction.values import PLATEAU
from layerprobe.results import words
from layerprobe.results.shown import mask_left_out
from layerprobe.results.table import (
    Chart,
    Column,
    Line,
    Quantity,
    Table,
    columns_of,
    interval_title,
    layer_columns,
    probability,
    stacked,
)
from layerprobe.scoring.values import floor_columns
from layerprobe.search.values import EXPECTED_CHART, FLAGGED, GAIN_CHART, KEEP
from layerprobe.stats.values import pareto_front

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layerprobe.comparison.values import Comparison
    from layerprobe.finetuning.values import LayerOutcome
    from layerprobe.prediction.values import DropPrediction
    from layerprobe.study.values import Finding


COST_CHART = replace(
    EXPECTED_CHART,
    name="cost",
    heading="Expected score versus size",
    kind="cost",
    x="parameters",
    label="layer",
)


def prediction_table(comparison: Comparison, drop: DropPrediction) -> Table:
    """Return the table of a prediction: the flags and readings of each layer."""
    _, parameters = layer_columns((), comparison.model.parameters)
    table = drop.table_with(parameters, *_similarity_columns(comparison), n_layers=comparison.model.n_layers)
    if comparison.alone:
        return table
    line = Line("cka", "" if comparison.curve.uncertainty is None else "cka_interval", joined=True)
    similarity = Chart(lines=(line,), name="cka", heading="Similarity to the reference", band=True)
    similarity = replace(similarity, chosen="where to look first", drops="flagged layers")
    charts = (similarity, *table.charts) if drop.rule == PLATEAU else (*table.charts, similarity)
    return replace(table, charts=charts)


def references_table(names: Sequence[str], predictions: Sequence[DropPrediction]) -> Table:
    """Return the prediction from each reference alone."""
    column = columns_of(predictions)
    return Table(
        columns=(
            Column("reference", names),
            column("rule"),
            column("drop_layers", title="flagged"),
            column("recommended", lambda drop: drop.recommended_layer),
            column("decline", lambda drop: drop.evidence and drop.evidence.decline, title="fall of CKA", form=".3f"),
            column(
                "decline_interval",
                lambda drop: drop.evidence and drop.evidence.decline_interval,
                title="95 %",
                form=".3f",
                interval=True,
            ),
            column(
                "any_drop", lambda drop: drop.flagged_in[-1] if drop.flagged_in else None, form=probability, more=True
            ),
        ),
        title="What each reference alone would predict",
    )


def finding_table(finding: Finding) -> Table:
    """Return the table of a finding, one row per layer."""
    layers = range(finding.model.n_layers)
    layer, parameters = layer_columns(layers, finding.model.parameters)
    predicted = None if finding.prediction is None else finding.prediction.recommended_layer
    flags = [finding.flag(layer) for layer in layers]
    return Table(
        columns=(
            replace(layer, title="keep"),
            parameters,
            *(replace(column, more=True) for column in _before_training(finding)),
            *_search_columns(finding, len(layers)),
            *_test_columns(finding),
            *_outcome_columns(finding.outcomes, finding.primary, len(layers)),
            Column("kept", [layer == finding.best_layer for layer in layers], shown=False),
            *floor_columns([finding.floor] * len(layers)),
            Column("predicted", [layer == predicted for layer in layers], shown=False),
            Column("flag", [flag or None for flag in flags], " "),
        ),
        marks=tuple(map(FLAGGED.get, flags)),
        charts=tuple(_charts(finding)),
    )


def _test_columns(finding: Finding) -> tuple[Column, ...]:
    """Return the columns of the test gain of the layer to keep over the whole model; empty if it was not tested."""
    proof = finding.against_last
    if proof is None:
        return ()
    layers = range(finding.model.n_layers)
    quantity = Quantity("points over the whole model", "test", "higher")
    values = [proof.value if layer == finding.best_layer else None for layer in layers]
    ends = [proof.interval if layer == finding.best_layer else None for layer in layers]
    title = interval_title(proof.level)
    return (
        Column("test_gain", values, form="+.1f", quantity=quantity, more=True),
        Column("test_gain_interval", ends, f"test gain, {title}", "+.1f", interval=True, more=True),
    )


def models_table(finding: Finding) -> Table:
    """Return the table of several models, one row per model and layer, with chances among the layers of all."""
    models = finding.models
    tables = [finding_table(one).named(model=name) for one, name in zip(models, finding.labels, strict=True)]
    # a model with few blocks has no prediction
    names = set.intersection(*({column.name for column in table.columns} for table in tables))
    together = stacked(
        [replace(table, columns=tuple(column for column in table.columns if column.name in names)) for table in tables]
    )
    places = [(one, layer) for one in models for layer in range(one.model.n_layers)]
    scored = [(one, belief) for one in models for belief in one.answer.layers[one.answer.first_layer :]]
    front = pareto_front(scored, lambda it: it[0].model.parameters[it[1].layer], lambda it: it[1].mean)
    on_front = {(id(one), belief.layer) for one, belief in front}
    chosen = [one is finding and layer == finding.best_layer for one, layer in places]
    values: dict[str, list[Any]] = {"kept": [*chosen], "flag": [_flag_among(finding, *place) for place in places]}
    *columns, flag = (replace(column, values=values.get(column.name, column.values)) for column in together.columns)
    sizes = ["size" if (id(one), layer) in on_front else None for one, layer in places]
    # gains are over each whole model, and cannot be compared between models
    columns = [replace(column, more=column.more or column.name.startswith("gain")) for column in columns]
    return Table(
        columns=(*columns, Column("front", sizes, meaning="No other is both smaller and better.", more=True), flag),
        title="Models and layers",
        marks=tuple("chosen" if here else None for here in chosen),
        charts=(replace(COST_CHART, by="model"), replace(EXPECTED_CHART, by="model")),
    )


def _flag_among(finding: Finding, one: Finding, layer: int) -> str | None:
    """Return the flag of a layer of one of several models: keep, will do, may be best or best of its model."""
    answer = one.among or one.answer
    best_of_its_model = layer == one.best_layer
    if finding.on_floor or answer.spoilt:
        return "best of its model" if best_of_its_model and one is not finding else None
    if best_of_its_model and one is finding:
        return one.flag(layer)
    if layer == answer.smallest_sufficient:
        return "will do"
    if layer in answer.candidates:
        return "may be best"
    return "best of its model" if best_of_its_model else None


def _before_training(finding: Finding) -> Iterator[Column]:
    """Yield the columns known before any fine-tuning: similarity, readings and scores."""
    if finding.comparison is not None:
        similarity, *others = _similarity_columns(finding.comparison.comparisons[0])
        yield from (similarity, *(replace(column, shown=False) for column in others))
    if finding.prediction is not None:
        yield from (replace(column, shown=not column.interval) for column in finding.prediction.read_columns)
    if finding.untrained:
        meaning = "Before any fine-tuning, on the test split."
        quantity = points(finding.primary, "test")
        yield Column("untrained", finding.untrained, "untrained test", ".2f", meaning=meaning, quantity=quantity)


def _charts(finding: Finding) -> Iterator[Chart]:
    """Yield charts of expected scores by layer (with runs) and by size, and of test scores of truncated models."""
    if finding.answer.gains:
        tested = Line("test_gain", "test_gain_interval", mark="diamond", joined=False, name="on test")
        further = () if finding.against_last is None else (tested,)
        yield replace(GAIN_CHART, lines=(*GAIN_CHART.lines, *further), hover=("chance_best", "expected", "runs"))
    line = replace(EXPECTED_CHART.lines[0], seeds="validation_by_seed")
    floor = "" if finding.floor is None else "floor"
    yield replace(EXPECTED_CHART, lines=(line,), hover=("chance_best", "chance_within"), floor=floor)
    yield COST_CHART
    if finding.outcomes:
        tuned = Line("tmft_mean", "tmft_interval", seeds="tmft_by_seed", name="fine-tuned")
        untrained = (Line("untrained", name="before fine-tuning"),) if finding.untrained else ()
        yield Chart(lines=(tuned, *untrained), name="outcomes", heading="On the test split", chosen=KEEP)


def runs_table(finding: Finding) -> Table:
    """Return the table of runs by model, in the order they were made, with their costs."""
    if finding.others:
        models = zip(finding.labels, finding.models, strict=True)
        return stacked([_runs_table(one).named(model=name) for name, one in models], by=("part",))
    return _runs_table(finding)


def _runs_table(finding: Finding) -> Table:
    primary = finding.primary
    whole = finding.answer.full_sweep
    column = columns_of(finding.runs)
    scored = columns_of(made.run for made in finding.runs)
    costs = [0 if made.is_earlier else made.layer + 1 for made in finding.runs]
    title = metric_title(primary)
    part = "Part of the labelled data used for validation."
    return Table(
        columns=(
            Column("run", range(1, len(costs) + 1)),
            column("layer"),
            column("seed"),
            column("part", lambda row: row.fold + 1, shown=finding.n_folds > 1, meaning=part),
            scored("validation", lambda run: run.validation[primary], title=f"validation {title}", form=".2f"),
            scored("test", lambda run: run.test[primary], title=f"test {title}", form=".2f"),
            scored("seconds", form=".0f"),
            Column("block_steps", costs, shown=False),
            Column("spent", [cost / whole for cost in accumulate(costs)], "share of a sweep so far", words.percent),
        ),
        title="Runs",
    )


def _similarity_columns(comparison: Comparison) -> tuple[Column, ...]:
    """Return the columns of the similarity of each layer to its counterpart; empty for layers left out."""
    curve = comparison.curve
    layers = comparison.layers
    errors = comparison.curve.uncertainty
    title = f"{comparison.map.measure.short_name}{' with layer before' if comparison.alone else ''}"
    name = "cka_interval"
    others = mask_left_out(layers, curve.reference_layers)
    empty = Column(name, [None] * len(others), interval=True)
    return (
        Column(
            "cka",
            mask_left_out(layers, curve.values),
            title,
            ".3f",
            meaning=f"{comparison.map.measure.title}.",
            more=comparison.alone,
        ),
        empty if errors is None else errors.interval_column(name, layers),
        Column("compared_layer", others, shown=False, meaning="The layer that this one is compared with."),
    )


def _search_columns(finding: Finding, n_layers: int) -> tuple[Column, ...]:
    """Return the columns of a search; empty for layers left out."""
    answer = finding.among or finding.answer
    layers = range(answer.first_layer, n_layers)
    scores: dict[int, tuple[float, ...]] = {}
    for run in finding.fine_tuned:
        scores[run.layer] = (*scores.get(run.layer, ()), run.validation[run.primary])
    meaning = "Scores of the truncated models, x 100."
    part = f" of its own part of the data ({finding.n_folds} parts)" if finding.n_folds > 1 else ""
    over = f"one run per seed, each on {finding.n_items[0]:,} validation examples{part}"
    column = columns_of(layer if layer in layers else None for layer in range(n_layers))
    return (
        column("validation_by_seed", scores.get, form=".2f", shown=False, meaning=meaning, over=over),
        *answer.columns(points(finding.primary, "validation")),
    )


def _outcome_columns(outcomes: Sequence[LayerOutcome], primary: str, n_layers: int) -> Iterator[Column]:
    """Yield the columns of fine-tuned layers, empty for those not run; some are on screens, all in files."""
    by_layer = {outcome.layer: outcome for outcome in outcomes}
    for column in outcome_columns([by_layer.get(layer) for layer in range(n_layers)], primary):
        is_shown = column.name in ("mean", "std")
        yield replace(column, name=f"tmft_{column.name}", title=column.head, shown=is_shown, more=True)
