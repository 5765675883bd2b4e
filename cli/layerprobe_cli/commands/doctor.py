"""layerprobe doctor."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import typer

from layerprobe_cli.options import Json, Loading, Model, Norm, Quiet, library_options
from layerprobe_cli.output import log_to_stderr, print_json, print_table

if TYPE_CHECKING:
    from layerprobe.extraction.doctor import Check


def doctor(model: Model, loading: Loading, norm: Norm = "final", json: Json = False, quiet: Quiet = False) -> None:
    """Check that layerprobe can trust a model.

    Looked at are layers, norm, padding, truncation and finite numbers. Exits with 1 if a check fails.

    Example:  [bold]layerprobe doctor answerdotai/ModernBERT-base[/bold]
    """
    from layerprobe.extraction.doctor import doctor as examine

    log_to_stderr(quiet=quiet)
    options = dataclasses.replace(library_options(loading), norm=norm)
    found = examine(loading.find(model, random_init=loading.random_init), options=options)
    if json:
        print_json(found)
    else:
        about = found.model
        typer.echo(
            f"{about.name}: {about.architecture}, {about.n_blocks} blocks of {about.hidden_size} features, "
            f"{about.parameters[-1] / 1e6:.2f} M parameters without pooler\n"
        )
        print_table(
            ("check", "result", "finding"),
            [(check.name, _result(check), check.finding) for check in found.checks],
        )
    if not found.healthy:
        raise typer.Exit(1)


def _result(check: Check) -> str:
    return "ok" if check.passed else "warning" if check.warning else "FAILED"
