"""Scores by layer: zero-shot, after fine-tuning, the table of layers, and simpler rules."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from layerprobe.finetuning.values import outcomes_table
from layerprobe.report import words
from layerprobe.report.charts import seeds_reading
from layerprobe.report.figures import scores as figures
from layerprobe.results.markup import Markup, element
from layerprobe.results.parts import folded, missing, section, table_of
from layerprobe.results.table import Column, Table
from layerprobe.results.values import Figure, Section
from layerprobe.study.commands import run_command
from layerprobe.study.values import Study

CHOSEN = ("layer", "parameters", "expected", "tmft_mean", "tmft_std", "tmft_seeds")
"""What is shown next to the layer that a rule recommends."""


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
    """Yield the scores after fine-tuning: by layer, by seed and by size; or how to get them."""
    heading = "After fine-tuning"
    if not study.outcomes:
        command = run_command(study)
        yield section("tmft", heading, missing("No layer has been fine-tuned", command))
        return
    reading = " ".join(filter(None, (seeds_reading(study.outcomes, study.level), _diamonds(study))))
    yield section("tmft", heading, Figure("tmft", figures.tmft(study), words.tmft_finding(study), reading))
    rings = "A ring marks the best seed of a layer by validation; the score of a layer is the mean over seeds."
    finding = words.seeds_finding(study)
    by_seed = Figure("seeds", figures.seeds(study), finding, f"{reading} {rings}", kind="plot tall")
    every_seed = folded("Every seed", *_every_seed(study))
    yield section("seeds", "Scores by seed", by_seed, every_seed)
    reading = "Labels are layers, the line is the Pareto front: the best score for at most that many parameters."
    finding = words.parameters_finding(study)
    by_size = Figure("parameters", figures.parameters_against_score(study), finding, reading)
    yield section("parameters", "Score versus size", by_size)


def _diamonds(study: Study) -> str | None:
    """Return what the diamonds of fine-tuned layers mean, where there are any."""
    if not set(study.drop_layers).intersection(outcome.layer for outcome in study.outcomes):
        return None
    return f"Diamonds are layers that were {'predicted' if study.finding is None else 'found'} to drop."


def _every_seed(study: Study) -> Iterator[Markup | None]:
    """Yield all that is known of the seeds of each layer, of the model and of the reference."""
    for name, outcomes in zip(words.labels(study), (study.outcomes, study.reference_outcomes), strict=True):
        if outcomes:
            whole = outcomes_table(outcomes)
            yield element("h3", name) if study.reference_outcomes else None
            yield table_of(replace(whole, columns=tuple(replace(each, shown=True) for each in whole.columns)))


# ---- tables -------------------------------------------------------------------------------------------


def layers(study: Study) -> Section:
    """Return everything about every layer as a table."""
    return section("layers", "Table of layers", table_of(study.table), kind="dense")


def baselines(study: Study) -> Section:
    """Return what simpler rules recommend, with what the table of layers says of their layers."""
    prediction = study.prediction
    ways = {f"{prediction.rule} (this report)": prediction.recommended_layer, **prediction.baselines}
    if study.finding is not None:
        ways = {"search (this report)": study.kept_layer, prediction.rule: prediction.recommended_layer}
        ways |= prediction.baselines
    compared = ways_to_choose(ways, study.table)
    intro = "What simpler rules recommend, and what fine-tuning showed if that layer was run."
    intro += " The best zero-shot layer is by validation scores."
    return section("baselines", "Compared with simpler rules", intro, table_of(compared))


def ways_to_choose(ways: Mapping[str, int], layers: Table) -> Table:
    """Return ways to choose a layer, a row each, with what a table of layers says of the layer that each chooses."""
    columns = (
        replace(column, values=[column.values[layer] for layer in ways.values()])
        for column in layers.columns
        if column.name in CHOSEN
    )
    return Table(columns=(Column("way", tuple(ways), title="rule"), *columns), title="Baselines")
