"""Scores by layer: zero-shot, after fine-tuning, the table of layers, and simpler rules."""

from __future__ import annotations

from collections.abc import Iterator

from layerprobe.metrics.names import metric_title
from layerprobe.pages import numbers
from layerprobe.pages.markup import Markup, element, join
from layerprobe.pages.parts import CONFIRM_COMMAND, ZERO_SHOT_COMMAND, figure, folded, missing, row, section, table
from layerprobe.report import words
from layerprobe.report.data import LayerRow, SeedSplit, layer_rows, outcomes_by_layer, over_seeds
from layerprobe.study.values import Study


def zero_shot(study: Study) -> Markup:
    """Return the scores before fine-tuning, or how to get them."""
    heading = "Before fine-tuning"
    finding = words.zero_shot_finding(study)
    if not finding:
        return section("zero-shot", heading, missing("There are no scores or labels", ZERO_SHOT_COMMAND))
    scores = study.zero_shot or study.reference_zero_shot
    reading = words.score_method(scores, study.provenance.task_kind) if scores else ""
    return section("zero-shot", heading, figure("zero-shot", finding, reading))


def fine_tuning(study: Study) -> Markup:
    """Return the scores after fine-tuning, or how to get them."""
    heading = "After fine-tuning"
    if not outcomes_by_layer(study):
        return section("tmft", heading, missing("No layer has been fine-tuned", CONFIRM_COMMAND))
    by_layer = figure("tmft", words.tmft_finding(study), f"Small dots are seeds; {_bars(study)}")
    cost = "Labels are layers, the line is the Pareto front: the best score for at most so many parameters."
    by_size = figure("parameters", words.parameters_finding(study), cost)
    by_seed = figure(
        "seeds", words.seeds_finding(study), f"Small dots are seeds; {_bars(study)} {RINGS}", kind="plot tall"
    )
    every_seed = folded("Every seed", table("Every seed", SEED_HEAD, _seed_lines(study)))
    return join(
        section("tmft", heading, by_layer),
        section("seeds", "Scores by seed", by_seed, every_seed),
        section("parameters", "Score for the size", by_size),
    )


RINGS = "A ring is the best seed of a layer by validation: it is named, and the score of a layer is the mean of all."
SPLITS: tuple[SeedSplit, ...] = ("validation", "test")
SEED_HEAD = ("Layer", "Split", "Mean ± deviation", "Interval of the mean", "By seed", "Best seed")


def _seed_lines(study: Study) -> Iterator[Markup]:
    model, reference = words.labels(study)
    both = ((model, tuple(outcomes_by_layer(study).values())), (reference, study.reference_outcomes))
    for name, outcomes in both:
        label = f" of {name}" if study.reference_outcomes else ""
        for outcome in outcomes:
            for split in SPLITS:
                found = over_seeds(study, outcome, split)
                cells = (
                    split,
                    numbers.mean_and_std(found),
                    numbers.interval(found.interval),
                    numbers.by_seed(found.values),
                    str(outcome.best_seed),
                )
                yield row(f"{outcome.layer}{label}", cells)


def _bars(study: Study) -> str:
    outcomes = outcomes_by_layer(study).values()
    level = study.confirmation.level if study.confirmation else 0.0
    if not any(outcome.interval for outcome in outcomes):
        return "one seed gives no interval."
    return f"bars are {numbers.percent(level)} intervals of the mean over seeds; dotted lines only join the layers run."


# ---- tables -------------------------------------------------------------------------------------------


def layers(study: Study) -> Markup:
    """Return everything about every layer as a table."""
    rows = (_layer_line(study, line) for line in layer_rows(study))
    return section("layers", "Table of layers", table("Table of layers", _layer_head(study), rows))


def _layer_head(study: Study) -> Iterator[str]:
    errors, redrawn = study.comparison.curve.uncertainty, study.prediction.probability
    yield from ("Layer", "Parameters", words.short_measure(study))
    if errors is not None:
        yield f"{numbers.percent(errors.level)} interval"
    if redrawn is not None:
        yield "Flagged in redraws"
    title = metric_title(study.metric)
    yield from (f"Zero-shot {title}", f"TMFT {title}", "")


def _layer_line(study: Study, line: LayerRow) -> Markup:
    kind = "chosen" if line.recommended else "drop" if line.drop else None
    return row(str(line.layer), _layer_cells(study, line), kind)


def _layer_cells(study: Study, line: LayerRow) -> Iterator[str]:
    outcome = outcomes_by_layer(study).get(line.layer)
    yield numbers.millions(line.parameters)
    yield numbers.number(line.cka, 3)
    if line.cka_interval_low is not None and line.cka_interval_high is not None:
        yield numbers.interval((line.cka_interval_low, line.cka_interval_high), 3)
    if line.drop_probability is not None:
        yield numbers.redrawn_share(line.drop_probability)
    yield "–" if line.zero_shot is None else numbers.number(line.zero_shot)
    yield numbers.mean_and_std(outcome.tested) if outcome else "–"
    yield join(
        element("span", "recommended", class_="flag chosen") if line.recommended else None,
        element("span", "drop", class_="flag drop") if line.drop else None,
    )


def baselines(study: Study) -> Markup:
    """Return what simpler rules recommend."""
    prediction = study.prediction
    ways = {f"{prediction.rule} (this report)": prediction.recommended_layer, **prediction.baselines}
    rows = (_baseline_line(study, way, layer) for way, layer in ways.items())
    head = ("Way to choose", "Layer", "Parameters", f"TMFT {metric_title(study.metric)}")
    intro = element("p", "What simpler ways recommend, and what fine-tuning showed where that layer was run.")
    return section("baselines", "Beside simpler rules", intro, table("Baselines", head, rows))


def _baseline_line(study: Study, way: str, layer: int) -> Markup:
    outcome = outcomes_by_layer(study).get(layer)
    score = numbers.mean_and_std(outcome.tested) if outcome else "not run"
    return row(way, (str(layer), numbers.millions(study.comparison.model.parameters[layer]), score))
