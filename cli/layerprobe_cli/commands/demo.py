"""layerprobe demo."""

from pathlib import Path
from typing import Annotated

import typer

from layerprobe.encoders.model import Model
from layerprobe.results.table import named_values
from layerprobe_cli.options import CacheDir, PlotlyFrom, StudyFolder
from layerprobe_cli.output import Output
from layerprobe_cli.tables import study_parts

FULL_SEEDS = 3
FILES = "rtd", "mlm", "pairs.csv", "texts.txt"


def demo(
    output: Output,
    out: StudyFolder = Path("demo"),
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="Fine-tune both models at every layer, with three seeds; takes six minutes on two cores."
        ),
    ] = False,
    files: Annotated[
        Path | None,
        typer.Option(help="Only write the two encoders, sentence pairs and texts there, to try the other commands on."),
    ] = None,
    cache_dir: CacheDir = None,
    plotly: PlotlyFrom = "embedded",
) -> None:
    """Run the pipeline offline, on two small encoders.

    The encoders come with layerprobe. Both were pretrained on the same synthetic sentences: one by masked language
    modelling, one as an ELECTRA discriminator by replaced token detection. The demo compares them, finds the layer of
    the second one to keep, and writes the report.

    Example:  [bold]layerprobe demo --out demo[/bold]
    """
    from layerprobe.embedded.pair import (
        DEMO_PROTOCOL,
        DEMO_SIZES,
        N_BLOCKS,
        embedded_model,
        embedded_task,
        write_embedded,
    )
    from layerprobe.search.values import SEEDS
    from layerprobe.study.run import run
    from layerprobe_cli.commands.run import errors_of_output, make_output_folder, save_study

    if files is not None:
        with errors_of_output(files, option="--files"):
            write_embedded(files)
        written = {name: str(files / name) for name in FILES}
        output.result(written, named_values(written, "Files"))
        return
    make_output_folder(out)
    model, reference = embedded_model("rtd"), embedded_model("mlm")
    every_layer = tuple(range(N_BLOCKS + 1))
    with output.progress():
        study = run(
            Model(model, cache_dir=cache_dir),
            reference=str(reference),
            task=embedded_task(**DEMO_SIZES),
            layers=every_layer if full else (),
            reference_layers=every_layer if full else (),
            seeds=FULL_SEEDS if full else SEEDS,
            jobs=None,
            protocol=DEMO_PROTOCOL,
            save_models=True,
            command=f"layerprobe demo{' --full' if full else ''}",
        )
    path = save_study(study, out, plotly)
    output.notes((), study.provenance.warnings)
    output.result(study, *study_parts(study, path))
