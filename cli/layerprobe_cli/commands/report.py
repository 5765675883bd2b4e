"""layerprobe report."""

from pathlib import Path
from typing import Annotated

import typer

from layerprobe_cli.options import PlotlyFrom
from layerprobe_cli.output import Json, print_json


def report(
    study: Annotated[Path, typer.Argument(help="The study.json that `layerprobe run` wrote.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path("report.html"),
    plotly: PlotlyFrom = "embedded",
    json: Json = False,
) -> None:
    """Write the report of a finished study again.

    It is one HTML file.

    Example:  [bold]layerprobe report layerprobe-report/study.json -o electra.html[/bold]
    """
    from layerprobe.results.shown import write_report
    from layerprobe.study.files import read_study

    path = write_report(read_study(study), out, plotly=plotly)
    if json:
        print_json({"report": str(path)})
    else:
        typer.echo(path)
