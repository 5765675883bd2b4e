"""layerprobe readings."""

from typing import Annotated

import typer

from layerprobe.readings.registry import READINGS, alone, curves_table
from layerprobe.readings.values import Views
from layerprobe_cli.completion import names_of
from layerprobe_cli.options import Extraction, Model, Report, TextSource
from layerprobe_cli.output import Output

VIEWS = {
    "n_views": typer.Option("--views", min=2, help="Altered copies of a text, for InfoNCE, LiDAR and DiME."),
    "n_texts": typer.Option("--view-texts", min=2, help="Texts that are altered, at most."),
    "dropped": typer.Option(help="Share of the words that a copy lacks, between 0 and 1."),
}


def readings(
    model: Model,
    source: TextSource,
    extraction: Extraction,
    report: Report,
    output: Output,
    *,
    reading: Annotated[
        list[str] | None,
        typer.Option(
            "--reading",
            metavar="NAME",
            autocompletion=names_of("layerprobe.readings.registry:READINGS"),
            help="What to read of each layer; can be given again: {readings}. What needs labels needs -t.",
            show_default="all that need no labels",
        ),
    ] = None,
    views: Annotated[Views, VIEWS],
) -> None:
    """Print the numbers by layer that rules can read.

    InfoNCE, LiDAR and DiME compare copies of a text that lack words at random. They and the entropies are of Skean et
    al. 2025 (arXiv 2502.02013); `layerprobe.similarity.label_free` says how the numbers differ from those of their
    code. --json has the errors, too.

    Example:  [bold]layerprobe readings google-bert/bert-base-cased --texts sentences.txt[/bold]
    """
    for name in reading or ():
        READINGS.check(name)
    data = source.load_texts()

    # only now: an error in the data needs no torch
    from layerprobe.extraction.embeddings import left_out_layer
    from layerprobe.readings.read import read_curves

    with output.progress():
        curves = read_curves(
            extraction.resolve(model),
            data.items or data.texts,
            reading or alone(),
            task=data.task,
            documents=data.documents,
            views=views,
        )
    left_out = [f"{name} is left out: it is not defined here" for name in reading or () if name not in curves]
    if any(curve.first_layer for curve in curves.values()):
        checkpoint = extraction.resolve(model)
        left_out.append(left_out_layer(checkpoint.label, checkpoint.settled.pooling))
    warnings = (*data.warnings, *left_out)
    output.notes(data.notes, warnings)
    output.result(curves, curves_table(curves), as_json={"views": views, "readings": curves})
    report.write(output, curves, model=model, page="readings", warnings=warnings)
