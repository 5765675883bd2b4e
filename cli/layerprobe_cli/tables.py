"""Results as tables on stdout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from layerprobe_cli.output import print_table

if TYPE_CHECKING:
    from layerprobe.comparison.values import Comparison
    from layerprobe.finetuning.values import LayerOutcome
    from layerprobe.prediction.values import DropPrediction
    from layerprobe.report.data import LayerRow
    from layerprobe.study.values import Finding, Study


def print_outcomes(outcomes: Sequence[LayerOutcome]) -> None:
    """Print what fine-tuning gave, layer by layer: the mean over seeds, every seed, and which is the best."""
    from layerprobe.metrics.names import metric_title

    title = metric_title(outcomes[0].primary) if outcomes else "score"
    header = ("layer", "parameters", f"test {title}", "std", "interval", "by seed", "validation", "best seed")
    print_table(header, [_outcome_cells(outcome) for outcome in outcomes])
    if any(len(outcome.seeds) > 1 for outcome in outcomes):
        typer.echo(
            f"The {title} is the mean over seeds {_seeds(outcomes)}; the best seed, by validation, is only named."
        )
    if over := next((outcome.error.over for outcome in outcomes if outcome.error), ""):
        typer.echo(f"Intervals are {over}.")


def outcomes_with_best(outcomes: Sequence[LayerOutcome]) -> list[dict[str, Any]]:
    """Return outcomes for JSON, each with its best seed, by validation, and the test score of that."""
    from layerprobe.files.serialisation import to_dict

    return [
        {**to_dict(outcome), "best_seed": outcome.best_seed, "best_seed_score": outcome.best_seed_score}
        for outcome in outcomes
    ]


def _seeds(outcomes: Sequence[LayerOutcome]) -> str:
    return ", ".join(map(str, dict.fromkeys(seed for outcome in outcomes for seed in outcome.seeds)))


def _outcome_cells(outcome: LayerOutcome) -> tuple[str, ...]:
    from layerprobe.metrics.seeds import seed_scores

    validation = seed_scores(outcome.validation[outcome.primary])
    return (
        str(outcome.layer),
        millions(outcome.parameters),
        f"{outcome.mean:.2f}",
        number(outcome.std, ".2f"),
        interval_text(outcome.interval),
        " ".join(f"{score:.2f}" for score in outcome.scores),
        mean_and_std(validation.mean, validation.std),
        f"{outcome.best_seed} ({outcome.best_seed_score:.2f})",
    )


def number(value: float | None, form: str, unit: str = "") -> str:
    """Return a number as a cell; empty where there is none."""
    return "" if value is None else f"{value:{form}}{unit}"


def mean_and_std(mean: float, std: float | None) -> str:
    """Return the mean over seeds as a cell, with their deviation where there are several."""
    return f"{mean:.2f}" if std is None else f"{mean:.2f} ± {std:.2f}"


def interval_text(interval: tuple[float, float] | None) -> str:
    """Return an interval as a cell; empty where one seed has none."""
    return "" if interval is None else f"{interval[0]:.2f} to {interval[1]:.2f}"


def _interval_header(level: float) -> tuple[str, str]:
    return f"{100 * level:g} % low", "high"


def print_prediction(comparison: Comparison, prediction: DropPrediction) -> None:
    """Print the curve with what is flagged, the prediction in words, and what one would do without it."""
    flags = {**dict.fromkeys(prediction.drop_layers, "drop"), prediction.recommended_layer: "recommended"}
    errors, probability = comparison.curve.uncertainty, prediction.probability
    similarity = "CKA with layer before" if comparison.alone else "CKA"
    header = ["layer", similarity, *(_interval_header(errors.level) if errors else ())]
    for name in prediction.read:
        known = prediction.read_uncertainty.get(name)
        header += [name, *(_interval_header(known.level) if known else ())]
    header += [*(["flagged in"] if probability else []), "flag"]
    rows = []
    for layer, value in enumerate(comparison.curve.values):
        cells = [str(layer), f"{value:.4f}"]
        cells += [f"{errors.lower[layer]:.4f}", f"{errors.upper[layer]:.4f}"] if errors else []
        for name, values in prediction.read.items():
            known = prediction.read_uncertainty.get(name)
            numbers = (values[layer], known.lower[layer], known.upper[layer]) if known else (values[layer],)
            cells += [f"{value:.4g}" for value in numbers]
        cells += [f"{100 * probability.by_layer[layer]:.0f} %"] if probability else []
        left_out = layer < comparison.first_layer
        rows.append([cells[0], *[""] * len(cells)] if left_out else [*cells, flags.get(layer, "")])
    print_table(header, rows)
    print_sentence(prediction)
    others = ", ".join(f"{name} {layer}" for name, layer in prediction.baselines.items())
    typer.echo(f"Other ways to choose a layer: {others}.")


CHECK_FAILED = 3
"""Exit code where a result is not what an option such as --fail-below asks for; 1 is an error, 2 a wrong call."""


def print_sentence(prediction: DropPrediction) -> None:
    """Print what is predicted, and how far to trust the rule."""
    from layerprobe.prediction.sentence import record_sentence

    typer.echo(f"\n{prediction.sentence}")
    if prediction.record is not None:
        typer.echo(record_sentence(prediction.record))


def check_threshold(least: float | None, value: float, said: str) -> None:
    """Leave with exit code 3 and a line on stderr if a value is below what was asked for, for builds that check."""
    if least is not None and value < least:
        fail_check(f"{said}, below {least:g}")


def fail_check(said: str) -> None:
    """Leave with exit code 3 and a line on stderr: what a build checks does not hold."""
    typer.echo(f"failed: {said}", err=True)
    raise typer.Exit(CHECK_FAILED)


def print_finding(finding: Finding, commands: Sequence[str]) -> None:
    """Print the answer, what is known of every layer, what the answer rests on, and the commands that come next."""
    _print_answer(finding)
    _print_layers(finding, finding.outcomes)
    _print_grounds(finding)
    _print_next(commands)


def _print_layers(
    finding: Finding, outcomes: Sequence[LayerOutcome], columns: Mapping[str, Sequence[str]] | None = None
) -> None:
    """Print a row a layer: columns of the caller, what the search knows, test scores of outcomes, and what follows."""
    from layerprobe.metrics.names import metric_title

    found, title, scanned = finding.answer, metric_title(finding.primary), bool(finding.scans)
    by_layer, level = {outcome.layer: outcome for outcome in outcomes}, f"{100 * found.settings.level:g} %"
    header = ["layer", "parameters", *(columns or {}), *(["scan"] if scanned else []), "runs", "expected"]
    within = f"within {found.settings.tolerance:g}"
    header += [f"{level} interval", "best", within, f"test {title}", "flag"]
    rows = []
    for known, parameters in zip(found.layers, finding.parameters, strict=True):
        cells = [str(known.layer), millions(parameters), *(cells[known.layer] for cells in (columns or {}).values())]
        cells += [number(finding.scanned(known.layer), ".1f")] if scanned else []
        cells += [str(known.runs or ""), f"{known.mean:.1f}", f"{known.interval[0]:.1f} to {known.interval[1]:.1f}"]
        cells += [f"{100 * share:.0f} %" for share in (known.chance_best, known.chance_within)]
        if known.layer < found.first_layer:
            cells = [*cells[:2], *[""] * (len(cells) - 2)]
        tested = by_layer.get(known.layer)
        cells += ["" if tested is None else mean_and_std(tested.mean, tested.std)]
        rows.append([*cells, finding.flag(known.layer)])
    print_table(header, rows)
    typer.echo(
        f"{title} x 100, on validation but for the test column. Expected: fine-tuned there, over new items and seeds; "
        f"best, {within}: the chance to be the best, and to lose no more than that to it."
    )


def _print_answer(finding: Finding) -> None:
    """Print which layer to keep, what it scores beside the whole model, what it saves, and how surely it is known."""
    typer.echo(f"{finding.kept} {finding.certainty}\n")


def _print_grounds(finding: Finding, study: Study | None = None) -> None:
    """Print the proof, whether the model drops, of a study what had been expected, and the cost: a line each."""
    from layerprobe.study.sentence import expectation_sentence, found_drop_sentence, proof_sentence

    proof = finding.against_last
    typer.echo(f"\n{'' if proof is None else f'{proof.verdict.capitalize()}: '}{proof_sentence(finding)}")
    typer.echo(found_drop_sentence(finding))
    if study is not None:
        typer.echo(expectation_sentence(study))
    typer.echo(" ".join(filter(None, (finding.spent, finding.doubt))))


def _print_next(commands: Sequence[str]) -> None:
    """Print the commands that come next."""
    typer.echo("\nNext:")
    for command in commands:
        typer.echo(f"  {command}")


def print_study(study: Study, report: Path) -> None:
    """Print the answer, what a study says of every layer, its sentences, where the report is, and what comes next."""
    from layerprobe.report.data import layer_rows
    from layerprobe.results.shown import from_layer
    from layerprobe.study.commands import next_commands

    rows, finding = layer_rows(study), study.finding
    if finding is not None:
        _print_answer(finding)
    similarity = "CKA with layer before" if study.comparison.alone else "CKA"
    columns = {similarity: [number(row.cka, ".4f") for row in rows]}
    for name, values in study.prediction.read.items():
        columns[name] = [number(value, ".4g") for value in from_layer(study.prediction.first_layer, values)]
    if study.zero_shot is not None:
        columns["zero-shot"] = [number(row.zero_shot, ".2f") for row in rows]
    if finding is None:
        _print_prediction(study, rows, columns)
    else:
        _print_layers(finding, study.outcomes, columns)
    if study.reference_outcomes:
        typer.echo(f"\nThe reference, {study.comparison.reference.name}:")
        print_outcomes(study.reference_outcomes)
    if finding is None:
        print_sentence(study.prediction)
        if study.confirmation is not None:
            typer.echo(study.confirmation.sentence)
            typer.echo(f"Verdict: {study.confirmation.verdict}")
    else:
        _print_grounds(finding, study)
    typer.echo(f"Report: {report}")
    _print_next(next_commands(study))


def _print_prediction(study: Study, rows: Sequence[LayerRow], columns: Mapping[str, Sequence[str]]) -> None:
    """Print a row a layer with what is predicted, and what was fine-tuned."""
    flags = {**dict.fromkeys(study.prediction.drop_layers, "drop"), study.prediction.recommended_layer: "recommended"}
    tuned = {"TMFT": ["" if row.tmft_mean is None else mean_and_std(row.tmft_mean, row.tmft_std) for row in rows]}
    shown = {**columns, **(tuned if study.outcomes else {})}
    cells = zip(*shown.values(), strict=True)
    print_table(
        ("layer", "parameters", *shown, "flag"),
        [
            (str(row.layer), millions(row.parameters), *each, flags.get(row.layer, ""))
            for row, each in zip(rows, cells, strict=True)
        ],
    )
    if study.outcomes:
        typer.echo("\nFine-tuned:")
        print_outcomes(study.outcomes)


def millions(n: int) -> str:
    """Return a number of parameters as a cell."""
    return f"{n / 1e6:.2f} M"
