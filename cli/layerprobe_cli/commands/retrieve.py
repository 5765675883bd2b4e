"""layerprobe retrieve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from layerprobe.checks import LEVEL
from layerprobe_cli.options import (
    CacheDir,
    Embedding,
    Extraction,
    IntervalLevel,
    Json,
    Loading,
    Model,
    Quiet,
    RetrievalSource,
    library_options,
)
from layerprobe_cli.output import log_to_stderr, print_json, progress_bar
from layerprobe_cli.tables import print_retrieval, show_notes

if TYPE_CHECKING:
    from layerprobe.retrieval.values import RetrievalScores


def retrieve(
    model: Model,
    source: RetrievalSource,
    loading: Loading,
    embedding: Embedding,
    extraction: Extraction,
    other: Annotated[
        str | None, typer.Argument(metavar="[MODEL2]", help="Another model, after the first.", show_default=False)
    ] = None,
    query_prompt: Annotated[
        str | None,
        typer.Option(
            help='Text put before every query, such as "query: ".', show_default="--prompt", rich_help_panel="Model"
        ),
    ] = None,
    document_prompt: Annotated[
        str | None,
        typer.Option(
            help='Text put before every document, such as "passage: ".',
            show_default="--prompt",
            rich_help_panel="Model",
        ),
    ] = None,
    ranking: Annotated[
        Literal["cosine", "dot"], typer.Option(help="By what documents are ranked; dot is the inner product.")
    ] = "cosine",
    level: IntervalLevel = LEVEL,
    cache_dir: CacheDir = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Score how well each layer finds relevant documents.

    By nDCG@10, MRR and recall@10, without fine-tuning. Embeddings are kept on disk: another call needs no pass of
    the model. Intervals are over queries.

    Example:  [bold]layerprobe retrieve intfloat/e5-small -t scifact/ --query-prompt "query: " --document-prompt
    "passage: "[/bold]
    """
    log_to_stderr(quiet=quiet)
    task = source.load()

    # after the data: what is wrong with it is reported before torch is loaded
    from layerprobe.retrieval.run import retrieve as score

    names = [model] if other is None else [model, other]
    checkpoints = [loading.find(name, random_init=loading.random_init) for name in names]
    by_model: list[RetrievalScores] = []
    with progress_bar(quiet=quiet) as progress:
        for checkpoint in checkpoints:
            scores = score(
                checkpoint,
                task,
                query_prompt=query_prompt,
                document_prompt=document_prompt,
                ranking=ranking,
                level=level,
                options=library_options(loading, embedding, extraction, cache_dir=cache_dir),
                progress=progress,
            )
            by_model.append(scores)
    warnings = [warning for scores in by_model for warning in scores.warnings]
    show_notes(task.notes, (*task.warnings, *warnings), quiet=quiet)
    if json:
        print_json({"retrieval": by_model})
    else:
        print_retrieval(by_model)
