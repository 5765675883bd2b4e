"""Scores by layer: zero-shot, after fine-tuning, the table of layers, and simpler rules."""

import itertools
from collections.abc import Iterator

from layerprobe.metrics.names import metric_title
from layerprobe.report import words
from layerprobe.report.charts import mean_and_std, seeds_reading
from layerprobe.report.data import SPLITS, LayerRow, layer_rows, outcomes_by_layer, over_seeds
from layerprobe.report.figures import scores as figures
from layerprobe.results import numbers
from layerprobe.results.markup import Markup, element, join
from layerprobe.results.parts import Row, folded, missing, section, table
from layerprobe.results.values import Figure, Section
from layerprobe.study.commands import run_command
from layerprobe.study.values import Finding, Study


def zero_shot(study: Study) -> Section:
    """Return the scores before fine-tuning, or how to get them."""
    heading, scores = "Before fine-tuning", study.zero_shot or study.reference_zero_shot
    if scores is None:
        command = run_command(study)
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
    heading = "After fine-tuning"
    if not study.outcomes:
        command = run_command(study)
        yield section("tmft", heading, missing("No layer has been fine-tuned", command))
        return
    reading = " ".join(filter(None, (seeds_reading(study.outcomes, study.level), _diamonds(study))))
    yield section("tmft", heading, Figure("tmft", figures.tmft(study), words.tmft_finding(study), reading))
    rings = "A ring is the best seed of a layer by validation: it is named, and a layer's score is the mean of all."
    finding = words.seeds_finding(study)
    by_seed = Figure("seeds", figures.seeds(study), finding, f"{reading} {rings}", kind="plot tall")
    every_seed = folded("Every seed", table("Every seed", _seed_rows(study)))
    yield section("seeds", "Scores by seed", by_seed, every_seed)
    reading = "Labels are layers, the line is the Pareto front: the best score for at most so many parameters."
    finding = words.parameters_finding(study)
    by_size = Figure("parameters", figures.parameters_against_score(study), finding, reading)
    yield section("parameters", "Score for the size", by_size)


def _diamonds(study: Study) -> str | None:
    """Return what the diamonds of fine-tuned layers mean, where there are any."""
    if not set(study.drop_layers).intersection(outcomes_by_layer(study)):
        return None
    return f"Diamonds are layers that were {'predicted' if study.finding is None else 'found'} to drop."


def _seed_rows(study: Study) -> Iterator[Row]:
    both = (tuple(outcomes_by_layer(study).values()), study.reference_outcomes)
    named = [(name, outcome) for name, outcomes in zip(words.labels(study), both, strict=True) for outcome in outcomes]
    for (name, outcome), split in itertools.product(named, SPLITS):
        scores = over_seeds(study, outcome, split)
        yield (
            ("Layer", f"{outcome.layer} of {name}" if study.reference_outcomes else str(outcome.layer)),
            ("Split", split),
            *_expected_cell(study, outcome.layer if name == words.labels(study)[0] else None),
            ("Mean ± deviation", mean_and_std(scores)),
            ("Interval of the mean", numbers.interval(scores.interval)),
            ("By seed", numbers.by_seed(scores.values)),
            ("Best seed", str(outcome.best_seed)),
        )


def _expected_cell(study: Study, layer: int | None) -> Row:
    """Yield what the search expects of a layer, by which it chose; nothing without a search."""
    if study.finding is not None:
        found = study.finding.answer
        score = None if layer is None or layer < found.first_layer else found.layers[layer].mean
        yield "Expected score", "–" if score is None else numbers.number(score, 1)


# ---- tables -------------------------------------------------------------------------------------------


def layers(study: Study) -> Section:
    """Return everything about every layer as a table."""
    lines = layer_rows(study)
    kinds = ("chosen" if line.kept else "drop" if line.layer in study.drop_layers else None for line in lines)
    rows = (_layer_cells(study, line) for line in lines)
    return section("layers", "Table of layers", table("Table of layers", rows, kinds), kind="dense")


def _layer_cells(study: Study, line: LayerRow) -> Row:
    flags = "", join(*_flags(study, line))
    yield "Layer", str(line.layer)
    if study.finding is None:
        yield "Parameters", numbers.millions(line.parameters)
        yield from (*_similarity_cells(study, line), *_score_cells(study, line), flags)
    else:
        yield from (flags, ("Parameters", numbers.millions(line.parameters)), *_search_cells(study.finding, line))
        yield from (*_score_cells(study, line), *_similarity_cells(study, line))


def _search_cells(finding: Finding, line: LayerRow) -> Row:
    settings, known = finding.answer.settings, finding.answer.layers[line.layer]
    chances = known.chance_best, known.chance_within
    own = known.layer >= finding.answer.first_layer
    best, within = (numbers.redrawn_share(chance) if own else "–" for chance in chances)
    yield "Expected score", numbers.number(known.mean if own else None, 1)
    yield f"{numbers.percent(settings.level)} interval", numbers.interval(known.interval, 1) if own else "–"
    yield "Chance to be best", best
    yield f"Chance within {settings.tolerance:g}", within
    if finding.scans:
        yield "Scan", "–" if line.scan is None else numbers.number(line.scan)


def _similarity_cells(study: Study, line: LayerRow) -> Row:
    measured = line.cka is not None
    errors = study.comparison.curve.uncertainty
    yield words.short_measure(study), numbers.number(line.cka, 3)
    if errors is not None:
        ends = errors.lower[line.layer], errors.upper[line.layer]
        yield f"{numbers.percent(errors.level)} interval", numbers.interval(ends, 3) if measured else "–"
    if study.prediction.probability is not None:
        share = line.drop_probability
        yield "Flagged in redraws", "–" if share is None else numbers.redrawn_share(share)
    for name, values in study.prediction.read.items():
        yield name, numbers.significant(values[line.layer] if measured else None, 4)


def _score_cells(study: Study, line: LayerRow) -> Row:
    title, outcome = metric_title(study.metric), outcomes_by_layer(study).get(line.layer)
    yield f"Zero-shot {title}", "–" if line.zero_shot is None else numbers.number(line.zero_shot)
    yield f"TMFT {title}", mean_and_std(outcome.tested) if outcome else "–"


def _flags(study: Study, line: LayerRow) -> Iterator[Markup]:
    finding, recommended = study.finding, "recommended" if study.finding is None else "predicted"
    if finding is not None and line.kept:
        yield element("span", "keep", class_="flag chosen")
    elif finding is not None and line.layer == finding.answer.smallest_sufficient:
        yield element("span", "will do", class_="flag chosen")
    elif line.candidate:
        yield element("span", "may be best", class_="flag chosen")
    if line.recommended:
        yield element("span", recommended, class_="flag" if finding else "flag chosen")
    if line.layer in study.drop_layers:
        yield element("span", "drop", class_="flag drop")


def baselines(study: Study) -> Section:
    """Return what simpler rules recommend."""
    prediction, parameters = study.prediction, study.comparison.model.parameters
    ways = {f"{prediction.rule} (this report)": prediction.recommended_layer, **prediction.baselines}
    if study.finding is not None:
        ways = {"search (this report)": study.kept_layer, prediction.rule: prediction.recommended_layer}
        ways |= prediction.baselines
    outcomes, title = outcomes_by_layer(study), metric_title(study.metric)
    rows = (
        (
            ("Way to choose", way),
            ("Layer", str(layer)),
            ("Parameters", numbers.millions(parameters[layer])),
            *_expected_cell(study, layer),
            (f"TMFT {title}", mean_and_std(outcomes[layer].tested) if layer in outcomes else "not run"),
        )
        for way, layer in ways.items()
    )
    intro = "What simpler ways recommend, and what fine-tuning showed where that layer was run."
    return section("baselines", "Beside simpler rules", intro, table("Baselines", rows))
