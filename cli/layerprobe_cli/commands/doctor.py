"""layerprobe doctor."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import typer

from layerprobe_cli.options import Loading, Model, Norm
from layerprobe_cli.output import Output, print_table
from layerprobe_cli.tables import millions

if TYPE_CHECKING:
    from layerprobe.extraction.doctor import Check, Diagnosis


def doctor(model: Model, loading: Loading, output: Output, norm: Norm = "final") -> None:
    """Check that layerprobe can trust a model.

    Looked at are layers, norm, padding, truncation and finite numbers. Exits with 1 if a check fails.

    Example:  [bold]layerprobe doctor answerdotai/ModernBERT-base[/bold]
    """
    from layerprobe.extraction.doctor import doctor as examine

    diagnosis = examine(loading.resolve(model), options=dataclasses.replace(loading.options(), norm=norm))
    output.result(diagnosis, _print_diagnosis)
    if not diagnosis.healthy:
        raise typer.Exit(1)


def _print_diagnosis(diagnosis: Diagnosis) -> None:
    about = diagnosis.model
    typer.echo(
        f"{about.name}: {about.architecture}, {about.n_blocks} blocks of {about.hidden_size} features, "
        f"{millions(about.parameters[-1])} parameters without pooler\n"
    )
    rows = [(check.name, _result(check), check.finding) for check in diagnosis.checks]
    print_table(("check", "result", "finding"), rows)


def _result(check: Check) -> str:
    return "ok" if check.passed else "warning" if check.warning else "FAILED"
