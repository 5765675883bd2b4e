"""Scores by layer: zero-shot, after fine-tuning, the table of layers, and simpler rules."""

from __future__ import annotations

from collections.abc import Iterator

from layerprobe.metrics.names import metric_title
from layerprobe.pages import numbers
from layerprobe.pages.charts import seeds_reading
from layerprobe.pages.markup import Markup, element, join
from layerprobe.pages.parts import folded, missing, row, section, table
from layerprobe.pages.values import Figure, Section
from layerprobe.report import words
from layerprobe.report.data import SPLITS, LayerRow, layer_rows, outcomes_by_layer, over_seeds
from layerprobe.report.figures import scores as figures
from layerprobe.study.values import Study

SEED_HEAD = ("Layer", "Split", "Mean ± deviation", "Interval of the mean", "By seed", "Best seed")


def zero_shot(study: Study) -> Section:
    """Return the scores before fine-tuning, or how to get them."""
    heading, scores = "Before fine-tuning", study.zero_shot or study.reference_zero_shot
    if scores is None:
        command = words.confirm_command(study, task="stsb")
        return section("zero-shot", heading, missing("There are no scores or labels", command))
    figure = Figure(
        "zero-shot",
        figures.zero_shot(study),
        words.zero_shot_finding(study),
        words.score_method(scores, study.provenance.task_kind),
    )
    return section("zero-shot", heading, figure)


def fine_tuning(study: Study) -> Iterator[Section]:
    """Yield the scores after fine-tuning: by layer, by seed and for the size; or how to get them."""
    heading, confirmation = "After fine-tuning", study.confirmation
    if confirmation is None or not confirmation.outcomes:
        command = words.confirm_command(study)
        yield section("tmft", heading, missing("No layer has been fine-tuned", command))
        return
    reading = seeds_reading(confirmation.outcomes, confirmation.level)
    yield section("tmft", heading, Figure("tmft", figures.tmft(study), words.tmft_finding(study), reading))
    rings = "A ring is the best seed of a layer by validation: it is named, and a layer's score is the mean of all."
    finding = words.seeds_finding(study)
    by_seed = Figure("seeds", figures.seeds(study), finding, f"{reading} {rings}", kind="plot tall")
    every_seed = folded("Every seed", table("Every seed", SEED_HEAD, _seed_lines(study)))
    yield section("seeds", "Scores by seed", by_seed, every_seed)
    reading = "Labels are layers, the line is the Pareto front: the best score for at most so many parameters."
    finding = words.parameters_finding(study)
    by_size = Figure("parameters", figures.parameters_against_score(study), finding, reading)
    yield section("parameters", "Score for the size", by_size)


def _seed_lines(study: Study) -> Iterator[Markup]:
    both = (tuple(outcomes_by_layer(study).values()), study.reference_outcomes)
    for name, outcomes in zip(words.labels(study), both, strict=True):
        label = f" of {name}" if study.reference_outcomes else ""
        for outcome in outcomes:
            for split in SPLITS:
                scores = over_seeds(study, outcome, split)
                cells = (
                    split,
                    numbers.mean_and_std(scores),
                    numbers.interval(scores.interval),
                    numbers.by_seed(scores.values),
                    str(outcome.best_seed),
                )
                yield row(f"{outcome.layer}{label}", cells)


# ---- tables -------------------------------------------------------------------------------------------


def layers(study: Study) -> Section:
    """Return everything about every layer as a table."""
    rows = (_layer_line(study, line) for line in layer_rows(study))
    return section("layers", "Table of layers", table("Table of layers", _layer_head(study), rows), kind="dense")


def _layer_head(study: Study) -> Iterator[str]:
    errors, redrawn = study.comparison.curve.uncertainty, study.prediction.probability
    yield from ("Layer", "Parameters", words.short_measure(study))
    if errors is not None:
        yield f"{numbers.percent(errors.level)} interval"
    if redrawn is not None:
        yield "Flagged in redraws"
    yield from study.prediction.read
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
    for values in study.prediction.read.values():
        yield numbers.significant(values[line.layer], 4)
    yield "–" if line.zero_shot is None else numbers.number(line.zero_shot)
    yield numbers.mean_and_std(outcome.tested) if outcome else "–"
    yield join(
        element("span", "recommended", class_="flag chosen") if line.recommended else None,
        element("span", "drop", class_="flag drop") if line.drop else None,
    )


def baselines(study: Study) -> Section:
    """Return what simpler rules recommend."""
    prediction = study.prediction
    ways = {f"{prediction.rule} (this report)": prediction.recommended_layer, **prediction.baselines}
    rows = (_baseline_line(study, way, layer) for way, layer in ways.items())
    head = ("Way to choose", "Layer", "Parameters", f"TMFT {metric_title(study.metric)}")
    intro = "What simpler ways recommend, and what fine-tuning showed where that layer was run."
    return section("baselines", "Beside simpler rules", intro, table("Baselines", head, rows))


def _baseline_line(study: Study, way: str, layer: int) -> Markup:
    outcome = outcomes_by_layer(study).get(layer)
    score = numbers.mean_and_std(outcome.tested) if outcome else "not run"
    return row(way, (str(layer), numbers.millions(study.comparison.model.parameters[layer]), score))
