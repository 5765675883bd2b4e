"""layerprobe compare."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from layerprobe.checks import LEVEL
from layerprobe.encoders.model import Model
from layerprobe.results.table import FILES, stacked
from layerprobe_cli import options as o
from layerprobe_cli.derive import complete_names, usage
from layerprobe_cli.shell import Done, PageCall, below, file_to_write

Compared = Annotated[
    Model,
    o.model_group(
        o.EXTRACTION, callback=None, help="A model. Alone it is compared with itself: each layer with the one before."
    ),
]


def compare(
    call: PageCall,
    model: Compared,
    given: o.TextSourceOfModels,
    similarity: o.Similarity,
    measure: Annotated[
        list[str] | None,
        "Comparison",
        {"metavar": "NAME", "autocompletion": complete_names("layerprobe.similarity.values:MEASURES")},
    ] = None,
    neighbours: Annotated[int | None, "Comparison", {"min": 1}] = None,
    reference_random_init: Annotated[int | None, "Comparison", {"metavar": "SEED", "min": 0}] = None,
    level: o.Level = LEVEL,
    intervals: Annotated[bool, "Comparison", {"flags": ("--intervals/--no-intervals",)}] = True,
    show_map: Annotated[bool, {"flags": ("--map",)}] = False,
    parquet: Annotated[Path | None, {"callback": file_to_write}] = None,
    fail_below: Annotated[float | None, {"callback": o.finite}] = None,
) -> Done:
    """Compare models, or two saved results, layer by layer.

    Models are compared by CKA or another measure on the same texts. Prints whether similarity falls in the last layers,
    and one value a layer with its interval; where there are several others, also which one is closest. The page of
    --report shows all models and measures, with their maps.

    Two files that `score`, `probe`, `finetune` or `find` printed with --json, of one kind, task and metric, are
    compared by their scores: the difference at each layer, with its interval over the items that both share.

    Example:  [bold]layerprobe compare google/electra-base-discriminator google-bert/bert-base-cased -t stsb[/bold]

    Example:  [bold]layerprobe compare before.json after.json[/bold]

    Args:
        measure: Measure of similarity: {measures}; --kernel, --estimator and --bandwidth are those of cka. Given again:
            further measures. By default cka.
        neighbours: Number of nearest neighbours, for measures that use them. By default 10.
        reference_random_init: Fresh random weights for the reference.
        intervals: Compute intervals and tests; without them it takes less time and memory.
        show_map: Also print every layer against every layer, and diagnostics of the layers.
        parquet: Also write every pair of layers to this Parquet file.
        fail_below: Exit with code 3 if a layer is less similar than this.
    """
    against, source = given
    words = [model.name, *against, *([source.task.source] if source.task else [])]
    if any(word.lower().endswith(".json") and Path(word).is_file() for word in words):
        return _results(call, words)
    settings = usage(similarity.all_settings, list(dict.fromkeys(measure or ["cka"])), neighbours=neighbours)
    if show_map and call.json:
        raise typer.BadParameter("expected --map or --json, got both: the JSON has the map")
    if parquet is not None and not (parquet.suffix.lower() in FILES and parquet.absolute().parent.is_dir()):
        raise typer.BadParameter(f"expected {', '.join(FILES)} in a folder that exists for --parquet, got {parquet}")
    data = source.load()

    from layerprobe.comparison.compare import compare_all, item_source
    from layerprobe.context import EMBEDDED, in_parts, part
    from layerprobe.encoders.identity import resolve_all
    from layerprobe.extraction.embeddings import extract

    if not against and reference_random_init is not None:
        against = [model.name]
    elif not against:
        settings = [{**setting, "alignment": setting["alignment"] or "previous-layer"} for setting in settings]
    seeds = [reference_random_init, *(None for _ in against)]
    seeded = zip(against, seeds, strict=False)
    asked = [Model(name, random_init=seed, end_token=model.end_token).like(model) for name, seed in seeded]
    checkpoint, *checkpoints = resolve_all([*o.resolved(model), *asked])
    items, groups = source.items(data), source.text_groups(data)
    call.data(checkpoint, data, texts=items.texts, learns=False)
    with part(start=0, share=EMBEDDED, whole=1):
        tested, *bases = in_parts(lambda model: extract(model, items), (checkpoint, *checkpoints))
    how: dict[str, Any] = {"intervals": intervals, "groups": groups}
    with part(start=EMBEDDED, share=1 - EMBEDDED, whole=1):
        how |= {"references": bases or [tested], "device": model.device}
        measured = [*in_parts(lambda setting: compare_all(tested, **how, **setting), settings)]
    if call.report is not None and call.with_texts is not False:
        shown = item_source(data, (tested, *bases), source.split)
        measured[0] = dataclasses.replace(measured[0], item_source=shown)
    warnings = [warning for embeddings in (tested, *bases) for warning in embeddings.warnings]
    warnings += [warning for result in measured for warning in result.warnings]
    if parquet is not None:
        stacked([result.pairs for result in measured]).save(parquet)
    curves = [comparison.curve.values for result in measured for comparison in result.comparisons]
    least, layer = min((values[layer], layer) for values in curves for layer in tested.layers)
    first, *others = measured
    return Done(
        result=first,
        beside=others,
        details=show_map,
        as_json=measured if others else None,
        warnings=warnings,
        failed=below(fail_below, least, f"the least similarity, at layer {layer}, is {{}}", 4),
    )


def _results(call: PageCall, words: Sequence[str]) -> Done:
    """Compare two saved results."""
    from layerprobe.comparison.differences import compare_results
    from layerprobe.results.shown import load

    if len(words) != 2 or not all(word.lower().endswith(".json") for word in words):
        raise typer.BadParameter(
            f"expected two files of saved results, or models with data, got {', '.join(words)}: results are compared "
            "with results alone"
        )
    others = {parameter.name for parameter in call.context.command.params if parameter.name} - _OF_RESULTS
    call.refuse(call.given(*others), "with two saved results")
    first, second = map(load, words)
    stems = [Path(word).stem for word in words]
    return Done(result=compare_results(first, second, names=(stems[0], stems[1]) if len(set(stems)) == 2 else None))


_OF_RESULTS = {"name", "others", "level", "json", "quiet", "report", "plotly", "with_texts", "traceback"}
"""Parameters that say something of two saved results."""
