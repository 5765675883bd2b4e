"""Inspect models and their layers: layerprobe score, compare and profile."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from layerprobe.checks import LEVEL, check_tolerance
from layerprobe.encoders.model import Model
from layerprobe.finetuning.values import Protocol
from layerprobe.names import distinct_names
from layerprobe.profiling.values import ProfileSettings
from layerprobe.results.table import FILES, stacked
from layerprobe.stats.values import TOLERANCE
from layerprobe.tasks.values import TaskSettings
from layerprobe_cli import options as o
from layerprobe_cli.derive import Group, complete, option, usage
from layerprobe_cli.shell import Done, PageCall, below, file_to_write

if TYPE_CHECKING:
    from layerprobe.comparison.values import Comparisons
    from layerprobe.similarity.values import Measure

RETRIEVAL = "retrieval"
READ_OF_COLLECTIONS = {"source", "columns", "kind", "skip_empty", "query_prompt", "document_prompt"}
"""Options that say how queries, documents and judgements are read."""


def score(
    call: PageCall,
    model: o.Extraction,
    models_and_data: o.SourcesOfModels,
    split: str | None = None,
    ranking: Annotated[Literal["cosine", "dot"] | None, option("Retrieval")] = None,
    relevant_from: Annotated[float | None, option("Retrieval")] = None,
    timed: Annotated[bool, typer.Option("--time/--no-time")] = True,
    tolerance: float = TOLERANCE,
    level: o.Level = LEVEL,
    fail_below: Annotated[float | None, typer.Option(callback=o.finite)] = None,
) -> Done:
    """Score each layer of one model or several without fine-tuning.

    Pairs are scored by cosine, labels and values by a probe on the frozen embeddings, queries with documents by
    nDCG@10, MRR@10 and recall@10, and summaries by the sentences that are central or that a probe chooses. Each layer
    is compared with the best of all models; the result names the best layer and the smallest within the tolerance.
    With several tasks, it finds the one layer that does best on all of them. Embeddings are kept on disk.

    Example:  [bold]layerprobe score google-bert/bert-base-cased -t stsb[/bold]

    Example:  [bold]layerprobe score google-bert/bert-base-cased -t stsb -t sick.tsv[/bold]

    Example:  [bold]layerprobe score all-MiniLM-L6-v2 all-mpnet-base-v2 -t stsb --report models.html[/bold]

    Example:  [bold]layerprobe score intfloat/e5-small -t scifact/ --query-prompt "query: " --document-prompt
    "passage: "[/bold]

    Args:
        split: Split to score: validation, test or all; for retrieval also other judgements. By default test, or all of
            data without a split where nothing is fitted.
        ranking: Similarity that ranks documents: cosine, or dot for the inner product. By default cosine.
        relevant_from: Lowest relevant judgement. By default all above 0 are relevant.
        timed: Measure the time per text at each layer of several models.
        tolerance: Score loss that you accept for a smaller model, in points of the metric x 100.
        fail_below: Exit with code 3 if the last layer scores less than this.
    """
    others, source = models_and_data
    models = [model.name, *others]
    if not source:
        raise typer.BadParameter("expected a task: give --task FILE, or --task stsb")
    usage(check_tolerance, tolerance)
    searched = ranking is not None or relevant_from is not None
    unread = call.given(*o.TASK) - READ_OF_COLLECTIONS
    if searched:
        call.refuse(unread, "with --ranking and --relevant-from")
    several = len(source) > 1
    if searched and several:
        raise typer.BadParameter("expected one task of queries and documents with --ranking and --relevant-from")
    alone = searched or (not several and not unread and split not in ("validation", "all"))
    is_collection = alone and (searched or _is_collection(source[0]))
    if is_collection:
        from layerprobe.kinds.retrieval_loading import load_retrieval, scored_split

        collection = load_retrieval(
            source[0].source,
            columns=source[0].columns,
            relevant_from=relevant_from,
            split=split or "test",
            ranking=ranking or "cosine",
            prompts=(source[0].query_prompt, source[0].document_prompt),
        )
        tasks = [collection]
        split = scored_split(split or "test")
    else:
        if split not in (None, "validation", "test", "all"):
            raise typer.BadParameter(f"expected validation, test or all for --split, got {split!r}")
        from layerprobe.tasks.loading import load_settings

        tasks = [load_settings(path) for path in source]

    # only now: an error in the data needs no torch
    from layerprobe.profiling.run import milliseconds
    from layerprobe.scoring.score import default_split
    from layerprobe.scoring.score import score as score_layers

    checkpoints = o.resolved(model, others)
    chosen: Any = split
    for name, task in zip(distinct_names([task.name for task in tasks]), tasks, strict=True):
        of = name if len(tasks) > 1 and not is_collection else ""
        scored = chosen or ("test" if several else default_split(task, len(checkpoints)))
        texts = task.texts() if is_collection else None
        call.data(checkpoints, task, of=of, texts=texts, split=scored, learns=False)
        if scored == "all" and task.one_piece:
            call.notes([f"all {len(task.split('all')):,} are scored, whatever their split, as nothing is trained"])
    result = score_layers(
        checkpoints,
        tasks if several else tasks[0],
        split=chosen,
        timing=milliseconds if timed and len(checkpoints) > 1 else None,
        tolerance=tolerance,
    )
    words = "find", models[result.best.model], "-t", source[0].source
    last = result.of_model(0)[-1].score
    mean = " in the mean" if len(tasks) > 1 else ""
    return Done(
        result=result,
        warnings=result.warnings,
        steps=()
        if several or is_collection or result.models[0].read
        else call.step("find", *words, without=[*o.READ, *o.EXTRACTION]),
        failed=below(fail_below, last, f"the last layer scores {{}}{mean}", 2),
    )


def _is_collection(source: TaskSettings) -> bool:
    """Return whether a source is a folder or data set of queries, documents and judgements, which may have no split."""
    from layerprobe.tasks.kind import KINDS
    from layerprobe.tasks.sources import is_on_hub

    of_kind = source.kind in (None, RETRIEVAL)
    folder = KINDS[RETRIEVAL].recognises(Path(source.source))
    return of_kind and (folder or (source.kind is not None and is_on_hub(source.source)))


Compared = Annotated[
    Model,
    o.model_group(
        o.EXTRACTION,
        typer.Argument(
            metavar="MODEL", help="A model. Alone it is compared with itself: each layer with the one before."
        ),
    ),
]


def _measure_names() -> Iterable[str]:
    from layerprobe.similarity.values import MEASURES

    return MEASURES


def compare(
    call: PageCall,
    model: Compared,
    models_and_data: o.TextSourceOfModels,
    similarity: o.Similarity,
    measure: Annotated[
        list[str] | None, option("Comparison", metavar="NAME", autocompletion=complete(_measure_names))
    ] = None,
    neighbours: Annotated[int | None, option("Comparison", min=1)] = None,
    reference_random_init: o.ReferenceSeed = None,
    level: o.Level = LEVEL,
    intervals: Annotated[bool, option("Comparison", "--intervals/--no-intervals")] = True,
    show_map: Annotated[bool, typer.Option("--map")] = False,
    parquet: Annotated[Path | None, typer.Option(callback=file_to_write)] = None,
    fail_below: Annotated[float | None, typer.Option(callback=o.finite)] = None,
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
        measure: Measure of similarity: {names}; --kernel, --estimator and --bandwidth are those of cka. Given again:
            further measures. By default cka.
        neighbours: Number of nearest neighbours, for measures that use them. By default 10.
        intervals: Compute intervals and tests; without them it takes less time and memory.
        show_map: Also print every layer against every layer, and diagnostics of the layers.
        parquet: Also write every pair of layers to this Parquet file.
        fail_below: Exit with code 3 if a layer is less similar than this.
    """
    against, source = models_and_data
    words = [model.name, *against, *([source.task.source] if source.task else [])]
    if any(word.lower().endswith(".json") and Path(word).is_file() for word in words):
        return _results(call, words)
    measures = usage(similarity.measures, list(dict.fromkeys(measure or ["cka"])), neighbours=neighbours)
    alignment = similarity.aligned
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
        alignment = alignment or "previous-layer"
    seeds = [reference_random_init, *(None for _ in against)]
    seeded = zip(against, seeds, strict=False)
    asked = [Model(name, random_init=seed, end_token=model.end_token).like(model) for name, seed in seeded]
    checkpoint, *checkpoints = resolve_all([*o.resolved(model), *asked])
    items = source.items(data)
    groups = source.text_groups(data)
    call.data(checkpoint, data, texts=items.texts, learns=False)
    with part(start=0, share=EMBEDDED, whole=1):
        tested, *bases = in_parts(lambda model: extract(model, items), (checkpoint, *checkpoints))

    def by(measure: Measure) -> Comparisons:
        return compare_all(
            tested,
            bases or [tested],
            measure=measure,
            alignment=alignment,
            intervals=intervals,
            groups=groups,
            device=model.device,
        )

    with part(start=EMBEDDED, share=1 - EMBEDDED, whole=1):
        measured = [*in_parts(by, measures)]
    if call.report is not None and call.with_texts is not False:
        texts_of_page = item_source(data, (tested, *bases), source.split)
        measured[0] = dataclasses.replace(measured[0], item_source=texts_of_page)
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


def profile(
    call: PageCall,
    model: o.Loading,
    settings: Annotated[ProfileSettings, Group("Options", ProfileSettings, without=("training",))],
    other: Annotated[str | None, typer.Argument(metavar="[MODEL2]")] = None,
    layers: Annotated[str, typer.Option(callback=o.checked(o.check_layer_text))] = "all",
    train: bool = False,
    lora: Annotated[int, typer.Option(metavar="RANK", min=0)] = 0,
    gradient_checkpointing: bool = False,
    finding: list[Path] | None = None,
) -> Done:
    """Measure size and speed of each truncated model.

    It reports FLOPs, latency, throughput and memory at each layer.

    Example:  [bold]layerprobe profile google/electra-base-discriminator --layers 6,9,12 --report cost.html[/bold]

    Args:
        other: Another model, side by side.
        layers: Layers to truncate at, such as 3,6,9-12 or -1, or all.
        train: Also measure the memory of a fine-tuning step with each batch.
        lora: With --train: train adapters of this rank.
        gradient_checkpointing: With --train: recompute activations in the backward pass.
        finding: Output of `layerprobe find --json` for this model, whose scores are shown against the cost.
    """
    if (lora or gradient_checkpointing) and not train:
        raise typer.BadParameter("expected --train with --lora and --gradient-checkpointing")
    training = Protocol(lora=lora, gradient_checkpointing=gradient_checkpointing) if train else None
    settings = dataclasses.replace(settings, training=training)
    findings = [o.read_finding(path) for path in finding or ()]

    from layerprobe.context import in_parts
    from layerprobe.finetuning.tuning import check_layers
    from layerprobe.profiling.run import check_findings, side_by_side
    from layerprobe.profiling.run import profile as measure

    checkpoints = o.resolved(model, [other] if other else [])
    chosen = [check_layers(checkpoint, layers) for checkpoint in checkpoints]
    check_findings(findings, checkpoints)
    pairs = zip(checkpoints, chosen, strict=True)
    profiles = [*in_parts(lambda pair: measure(pair[0], layers=pair[1], settings=settings), pairs)]
    compared = side_by_side(profiles, findings)
    last = profiles[0].layers[-1].layer
    words = ("truncate", "export", model.name, f"layer-{last}", "--layer", last)
    steps = call.step(*words, without=o.LOADING) if last < profiles[0].model.n_blocks else ()
    return Done(result=compared, steps=steps)
