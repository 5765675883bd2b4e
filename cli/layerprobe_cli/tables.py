"""Results as tables on stdout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from layerprobe_cli.output import print_table

if TYPE_CHECKING:
    from layerprobe.report.data import LayerRow
    from layerprobe.results import LayerOutcome, Study


def print_outcomes(outcomes: Sequence[LayerOutcome]) -> None:
    """Print what fine-tuning gave, layer by layer."""
    header = ("layer", "parameters", "test Spearman", "std", "interval", "seeds")
    print_table(header, [_outcome_cells(outcome) for outcome in outcomes])


def _outcome_cells(outcome: LayerOutcome) -> tuple[str, ...]:
    interval = "" if outcome.interval is None else f"{outcome.interval[0]:.2f} to {outcome.interval[1]:.2f}"
    return (
        str(outcome.layer),
        _millions(outcome.parameters),
        f"{outcome.mean:.2f}",
        "" if outcome.std is None else f"{outcome.std:.2f}",
        interval,
        str(len(outcome.seeds)),
    )


def print_study(study: Study, report: Path) -> None:
    """Print the verdict of a study as a table, its sentences, and where the report is."""
    from layerprobe.report.data import layer_rows

    rows = layer_rows(study)
    scored = study.zero_shot is not None
    header = ("layer", "parameters", "CKA", *(["zero-shot"] if scored else []), "TMFT", "flag")
    print_table(header, [_layer_cells(row) for row in rows])
    if study.reference_outcomes:
        typer.echo(f"\nThe reference, {study.comparison.reference.name}:")
        print_outcomes(study.reference_outcomes)
    typer.echo(f"\n{study.prediction.sentence}")
    if study.confirmation is not None:
        typer.echo(study.confirmation.sentence)
        typer.echo(f"Verdict: {study.confirmation.verdict}")
    typer.echo(f"Report: {report}")


def _layer_cells(row: LayerRow) -> tuple[str, ...]:
    tmft = "" if row.tmft_spearman_mean is None else f"{row.tmft_spearman_mean:.2f}"
    if row.tmft_spearman_std is not None:
        tmft += f" ± {row.tmft_spearman_std:.2f}"
    zero_shot = [] if row.zero_shot_spearman is None else [f"{row.zero_shot_spearman:.2f}"]
    flag = "drop" if row.drop else "recommended" if row.recommended else ""
    return str(row.layer), _millions(row.parameters), f"{row.cka:.4f}", *zero_shot, tmft, flag


def _millions(n: int) -> str:
    return f"{n / 1e6:.2f} M"


def show_notes(notes: Sequence[str], warnings: Sequence[str], *, quiet: bool) -> None:
    """Print notes and warnings on stderr, each once."""
    if not quiet:
        for note in dict.fromkeys(notes):
            typer.echo(f"note: {note}", err=True)
        for warning in dict.fromkeys(warnings):
            typer.echo(f"warning: {warning}", err=True)
