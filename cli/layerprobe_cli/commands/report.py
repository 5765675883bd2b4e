"""layerprobe report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layerprobe_cli.output import Json, print_json


def report(
    study: Annotated[Path, typer.Argument(help="The study.json that `layerprobe run` wrote.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path("report.html"),
    json: Json = False,
) -> None:
    """Write the report of a finished study again.

    It is one HTML file that opens offline.

    Example:  [bold]layerprobe report layerprobe-report/study.json -o electra.html[/bold]
    """
    from layerprobe.errors import DataError
    from layerprobe.report.page import write_report
    from layerprobe.serialisation import from_json
    from layerprobe.study.values import Study

    try:
        text = study.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {study}: {error}; expected the study.json of `layerprobe run`") from error
    try:
        found = from_json(Study, text)
    except DataError as error:
        raise DataError(f"{study} is no study: {error}; expected the study.json of `layerprobe run`") from error
    path = write_report(found, out)
    if json:
        print_json({"report": str(path)})
    else:
        typer.echo(path)
