"""layerprobe compare."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from layerprobe.checks import LEVEL
from layerprobe.names import distinct_names, plural
from layerprobe.results.table import FILES, Table, stacked
from layerprobe_cli.options import (
    AnySimilarity,
    Extraction,
    IntervalLevel,
    ReferenceRandomInit,
    Report,
    Similarity,
    TextSource,
    file_to_write,
    finite,
    further_command,
    given_options,
    option,
)
from layerprobe_cli.output import Output
from layerprobe_cli.tables import check_threshold

if TYPE_CHECKING:
    from layerprobe.comparison.values import Comparisons


def compare(
    context: typer.Context,
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL [OTHER]...",
            help="A model, and those to compare it with. A model alone is compared with itself: each layer with the "
            "one before.",
        ),
    ],
    source: TextSource,
    similarity: AnySimilarity,
    extraction: Extraction,
    report: Report,
    output: Output,
    reference_random_init: ReferenceRandomInit = None,
    level: IntervalLevel = LEVEL,
    intervals: Annotated[
        bool,
        option(
            "Comparison",
            "--intervals/--no-intervals",
            help="Intervals and tests, or values alone in less time and memory.",
        ),
    ] = True,
    permutations: Annotated[
        int, option("Comparison", min=0, help="Shuffles of the texts for p-values and calibrated scores.")
    ] = 0,
    show_map: Annotated[bool, typer.Option("--map", help="Print every layer against every layer.")] = False,
    parquet: Annotated[
        Path | None, typer.Option(callback=file_to_write, help="Also write every pair of layers to this Parquet file.")
    ] = None,
    fail_below: Annotated[
        float | None, typer.Option(help="Exit with code 3 if a layer is less similar than this.", callback=finite)
    ] = None,
) -> None:
    """Compare models layer by layer, by CKA or another measure.

    All are compared on the same texts. Prints one value a layer with its interval; where there are several others,
    also how their values differ. The page of --report shows all models and measures side by side, with their maps.

    Example:  [bold]layerprobe compare google/electra-base-discriminator google-bert/bert-base-cased -t stsb[/bold]
    """
    settings = similarity.all_settings()
    if show_map and output.json:
        raise typer.BadParameter("expected --map or --json, got both: the JSON has the map")
    if permutations:
        from layerprobe.similarity.permutation import check_permutations

        for each in settings:
            check_permutations(permutations, each["measure"], level=level, documents=source.documents is not None)
    if parquet is not None and not (parquet.suffix.lower() in FILES and parquet.absolute().parent.is_dir()):
        raise typer.BadParameter(f"expected {', '.join(FILES)} in a folder that exists for --parquet, got {parquet}")
    data = source.load_texts()

    # only now: an error in the data needs no torch
    from layerprobe.comparison.compare import compare_all
    from layerprobe.extraction.embeddings import extract

    model, *others = models
    if not others and reference_random_init is not None:
        others = [model]
    elif not others:
        settings = [{**each, "alignment": each["alignment"] or "previous-layer"} for each in settings]
    checkpoints = extraction.resolve_all(others, random_init=reference_random_init)
    with output.progress(level):
        checkpoint = extraction.resolve(model)
        told = output.data(checkpoint, dataclasses.replace(data, task=None))  # nothing is scored
        tested = extract(checkpoint, data.items or data.texts)
        bases = [extract(each, data.items or data.texts) for each in checkpoints]
        measured = [
            compare_all(
                tested,
                bases or [tested],
                intervals=intervals,
                documents=data.documents,
                permutations=permutations,
                device=extraction.device,
                **each,
            )
            for each in settings
        ]
    warnings = [warning for embeddings in (tested, *bases) for warning in embeddings.warnings]
    warnings += [warning for each in measured for comparison in each.comparisons for warning in comparison.warnings]
    output.notes((), [said for said in warnings if said not in told])
    given = given_options(context, TextSource, Extraction, Similarity, others=("reference_random_init",))
    references = [word for other in others for word in ("-r", other)]
    after = further_command(context, ["predict", model, *references], given)
    if parquet is not None:
        stacked([each.pairs for each in measured]).save(parquet)
    output.result(
        measured,
        *(_maps(measured) if show_map else [stacked([each.table for each in measured], by=("measure", "reference"))]),
        as_json=measured[0] if len(measured) == 1 else measured,
    )
    report.write(output, *measured, warnings=(*told, *warnings), commands=[after])
    curves = [comparison.curve.values for each in measured for comparison in each.comparisons]
    first = tested.first_layer
    least, layer = min((value, layer) for values in curves for layer, value in enumerate(values) if layer >= first)
    check_threshold(fail_below, least, f"the least similarity, at layer {layer}, is {{}}", 4)


def _maps(measured: Sequence[Comparisons]) -> Iterator[Table | str]:
    """Yield every map with what it is of, and half of its intervals, with an empty line between them."""
    comparisons = [comparison for each in measured for comparison in each.comparisons]
    names = distinct_names([comparison.reference.name for comparison in comparisons])
    for number, (name, comparison) in enumerate(zip(names, comparisons, strict=True)):
        shown, before = comparison.map, "\n" if number else ""
        yield f"{before}{shown.measure.title} with {name} (columns), {shown.n_samples} {plural(comparison.unit)}"
        yield shown.table
        if (halves := shown.half_widths) is not None:
            yield from (f"\n{halves.title}", halves)
