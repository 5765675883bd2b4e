"""layerprobe retrieve."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from layerprobe.checks import LEVEL
from layerprobe_cli.options import Extraction, IntervalLevel, Model, Report, RetrievalSource, option
from layerprobe_cli.output import Output

if TYPE_CHECKING:
    from layerprobe.kinds.retrieval.values import RetrievalScores
    from layerprobe.results.table import Table


def retrieve(
    model: Model,
    source: RetrievalSource,
    extraction: Extraction,
    report: Report,
    output: Output,
    other: Annotated[
        str | None, typer.Argument(metavar="[MODEL2]", help="Another model, after the first.", show_default=False)
    ] = None,
    query_prompt: Annotated[
        str | None,
        option("Model", help='Text put before every query, such as "query: ".', show_default="--prompt"),
    ] = None,
    document_prompt: Annotated[
        str | None,
        option("Model", help='Text put before every document, such as "passage: ".', show_default="--prompt"),
    ] = None,
    ranking: Annotated[
        Literal["cosine", "dot"], typer.Option(help="By what documents are ranked; dot is the inner product.")
    ] = "cosine",
    level: IntervalLevel = LEVEL,
) -> None:
    """Score how well each layer finds relevant documents.

    By nDCG@10, MRR and recall@10, without fine-tuning. Embeddings are kept on disk: another call needs no pass of
    the model. Intervals are over queries.

    Example:  [bold]layerprobe retrieve intfloat/e5-small -t scifact/ --query-prompt "query: " --document-prompt
    "passage: "[/bold]
    """
    task = source.load()

    # only now: an error in the data needs no torch
    from layerprobe.kinds.retrieval.untrained import retrieve as score

    names = [model] if other is None else [model, other]
    checkpoints = [extraction.resolve(names[0]), *(extraction.without_name().resolve(name) for name in names[1:])]
    with output.progress(level):
        scores = [
            score(
                checkpoint,
                task,
                query_prompt=query_prompt,
                document_prompt=document_prompt,
                ranking=ranking,
            )
            for checkpoint in checkpoints
        ]
    warnings = [warning for each in scores for warning in each.warnings]
    output.notes(task.notes, (*task.warnings, *warnings))
    parts = [part for each in scores for part in _parts(each, several=len(scores) > 1)]
    output.result(scores, *parts, as_json={"retrieval": scores})
    report.write(output, *scores)


def _parts(scores: RetrievalScores, *, several: bool) -> Iterator[Table | str]:
    if several:
        yield f"{scores.model.name}:"
    yield scores.table
    searched = f"{len(scores.query_ids):,} queries, {scores.n_documents:,} documents, by {scores.ranking}"
    yield f"{searched}. {scores.sentence}"
