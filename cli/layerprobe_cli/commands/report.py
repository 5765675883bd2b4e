"""layerprobe report."""

from pathlib import Path
from typing import Annotated

import layerprobe as lp
from layerprobe_cli.shell import Call, Done, PlotlyFrom


def report(
    call: Call,
    study: Annotated[Path, {"argument": True}],
    out: Annotated[Path, {"flags": ("--out", "-o")}] = Path("report.html"),
    plotly: PlotlyFrom = "embedded",
) -> Done:
    """Write the report of a finished study again.

    It is one HTML file.

    Example:  [bold]layerprobe report layerprobe-report/study.json -o electra.html[/bold]

    Args:
        study: The study.json that `layerprobe run` wrote.
        out: The HTML file to write.
    """
    from layerprobe.study.values import read_study

    path = lp.write_report(read_study(study), out, plotly=plotly)
    return Done(result={"report": str(path)}, parts=[str(path)])
