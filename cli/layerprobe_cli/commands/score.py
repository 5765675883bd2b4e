"""layerprobe score."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from layerprobe.checks import LEVEL, check_tolerance
from layerprobe.names import distinct_names
from layerprobe.stats.values import TOLERANCE
from layerprobe.tasks.values import TaskSettings
from layerprobe_cli import options as o
from layerprobe_cli.derive import usage
from layerprobe_cli.shell import Done, PageCall, below

RETRIEVAL = "retrieval"
READ_OF_COLLECTIONS = {"source", "columns", "kind", "skip_empty", "query_prompt", "document_prompt"}
"""Options that say how queries, documents and judgements are read."""


def score(
    call: PageCall,
    model: o.Extraction,
    given: o.SourcesOfModels,
    split: str | None = None,
    ranking: Annotated[Literal["cosine", "dot"] | None, "Retrieval"] = None,
    relevant_from: Annotated[float | None, "Retrieval"] = None,
    timed: Annotated[bool, {"flags": ("--time/--no-time",)}] = True,
    tolerance: float = TOLERANCE,
    level: o.Level = LEVEL,
    fail_below: Annotated[float | None, {"callback": o.finite}] = None,
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
    others, source = given
    names = [model.name, *others]
    if not source:
        raise typer.BadParameter("expected a task: give --task FILE, or --task stsb")
    usage(check_tolerance, tolerance)
    searched = ranking is not None or relevant_from is not None
    unread = call.given(o.TASK) - READ_OF_COLLECTIONS
    if searched:
        call.refuse(unread, "with --ranking and --relevant-from")
    several = len(source) > 1
    if searched and several:
        raise typer.BadParameter("expected one task of queries and documents with --ranking and --relevant-from")
    alone = searched or (not several and not unread and split not in ("validation", "all"))
    collection = alone and (searched or _is_collection(source[0]))
    if collection:
        from layerprobe.kinds.retrieval_loading import load_retrieval, scored_split

        read: dict[str, Any] = {"columns": source[0].columns, "relevant_from": relevant_from}
        prompts = source[0].query_prompt, source[0].document_prompt
        read |= {"split": split or "test", "ranking": ranking or "cosine", "prompts": prompts}
        tasks, split = [load_retrieval(source[0].source, **read)], scored_split(read["split"])
    else:
        if split not in (None, "validation", "test", "all"):
            raise typer.BadParameter(f"expected validation, test or all for --split, got {split!r}")
        from layerprobe.tasks.loading import load_settings

        tasks = [load_settings(path) for path in source]

    # only now: an error in the data needs no torch
    from layerprobe.profiling.run import milliseconds
    from layerprobe.scoring.score import default_split
    from layerprobe.scoring.score import score as score_layers

    checkpoints = o.resolved(model, names[1:])
    chosen: Any = split
    for name, task in zip(distinct_names([task.name for task in tasks]), tasks, strict=True):
        of = name if len(tasks) > 1 and not collection else ""
        scored = chosen or ("test" if several else default_split(task, len(checkpoints)))
        texts = task.texts() if collection else None
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
    words = "find", names[result.best.model], "-t", source[0].source
    last, mean = result.of_model(0)[-1].score, " in the mean" if len(tasks) > 1 else ""
    return Done(
        result=result,
        warnings=result.warnings,
        steps=() if several or collection else call.step("find", *words, without=f"{o.READ} {o.EXTRACTION}"),
        failed=below(fail_below, last, f"the last layer scores {{}}{mean}", 2),
    )


def _is_collection(source: TaskSettings) -> bool:
    """Return whether a source is a folder or data set of queries, documents and judgements, which may have no split."""
    from layerprobe.tasks.kind import KINDS
    from layerprobe.tasks.sources import is_on_hub

    of_kind = source.kind in (None, RETRIEVAL)
    folder = KINDS[RETRIEVAL].recognises(Path(source.source))
    return of_kind and (folder or (source.kind is not None and is_on_hub(source.source)))
