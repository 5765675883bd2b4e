"""layerprobe score."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from layerprobe.checks import LEVEL
from layerprobe.names import distinct_names
from layerprobe.stats.values import TOLERANCE
from layerprobe_cli.options import (
    OLD_NAME,
    Extraction,
    FailBelow,
    Level,
    LoadedTexts,
    Model,
    Others,
    Report,
    TaskSource,
    TaskSources,
    find_command,
    flag,
    folder_to_write,
    given_options,
    option,
)
from layerprobe_cli.output import Output
from layerprobe_cli.tables import check_threshold

if TYPE_CHECKING:
    from layerprobe.kinds.retrieval.items import RetrievalTask
    from layerprobe.metrics.names import Split
    from layerprobe.results.table import Table
    from layerprobe.tasks.values import Task, TextSplit

RETRIEVAL, SUMMARIZATION = "retrieval", "summarization"
READ_OF_COLLECTIONS = {"task", "columns", "kind", "skip_empty", "query_prompt", "document_prompt"}
"""Options that say how queries, documents and judgements are read."""


def score(
    context: typer.Context,
    model: Model,
    source: TaskSources,
    extraction: Extraction,
    report: Report,
    output: Output,
    others: Others = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="What is scored: validation, test or all; of a retrieval task also other judgements.",
            show_default="test; of one task without --mteb, all of data that has no split where nothing is fitted",
        ),
    ] = None,
    layer_means: Annotated[
        bool,
        typer.Option(
            "--layer-means",
            help="Also score the mean of every two layers as an embedding, at unit norm and as they are; validation "
            "chooses, test says what that gains.",
        ),
    ] = False,
    ranking: Annotated[
        Literal["cosine", "dot"] | None,
        option("Retrieval", help="By what documents are ranked; dot is the inner product.", show_default="cosine"),
    ] = None,
    relevant_from: Annotated[
        float | None,
        option("Retrieval", help="Judgements below this are not relevant.", show_default="all above 0 are"),
    ] = None,
    mteb: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            callback=folder_to_write,
            help="Write results in mteb's layout, every layer as an experiment of the model.",
        ),
    ] = None,
    timed: Annotated[
        bool, typer.Option("--time/--no-time", help="Measure how long one text takes at each layer of several models.")
    ] = True,
    tolerance: Annotated[float, typer.Option(help="Points that you accept to lose for a smaller model.")] = TOLERANCE,
    all_pairs: Annotated[
        bool,
        typer.Option("--all-pairs", help="Of several models, compare all pairs of layers by letters."),
    ] = False,
    level: Level = LEVEL,
    fail_below: FailBelow = None,
) -> None:
    """Score each layer of one model or several without fine-tuning.

    By cosines, or by a probe on the frozen embeddings. Queries with documents are scored by nDCG@10, MRR and recall@10;
    documents with summaries by the sentences that are central and those that a probe chooses. Of several tasks, it
    finds the one layer that does best on all. Each layer is compared with the best of all models: how far behind it is
    at most, and the smallest within the tolerance. Embeddings are kept on disk.

    Example:  [bold]layerprobe score google-bert/bert-base-cased -t stsb[/bold]

    Example:  [bold]layerprobe score google-bert/bert-base-cased -t stsb -t sick.tsv --mteb .[/bold]

    Example:  [bold]layerprobe score all-MiniLM-L6-v2 all-mpnet-base-v2 -t stsb --report models.html[/bold]

    Example:  [bold]layerprobe score intfloat/e5-small -t scifact/ --query-prompt "query: " --document-prompt
    "passage: "[/bold]
    """
    old, models = context.meta.get(OLD_NAME), [model, *(others or ())]
    if old == "across":
        source, models = dataclasses.replace(source, task=models[1:]), models[:1]
    if layer_means and split not in (None, "test"):
        raise typer.BadParameter("expected --split test with --layer-means: the validation split chooses the layers")
    settings = source.all_settings()
    if not 0 <= tolerance < math.inf:
        raise typer.BadParameter(f"expected a tolerance of 0 points or more, got {tolerance}")
    if layer_means and (len(settings) > 1 or mteb is not None or old == "across"):
        raise typer.BadParameter("expected one task with --layer-means, and no --mteb")
    run = _Scoring(context, models, extraction, report, output, level, timed, tolerance, all_pairs)
    searched = ranking or relevant_from is not None or old == "retrieve"
    unread = sorted(given_options(context, TaskSource) - READ_OF_COLLECTIONS)
    if searched and unread:
        raise typer.BadParameter(f"expected no {flag(context, unread[0])} with --ranking and --relevant-from")
    if searched and (len(settings) > 1 or layer_means or mteb is not None):
        raise typer.BadParameter(
            "expected one task of queries and documents with --ranking and --relevant-from, without --layer-means and "
            "--mteb"
        )
    whole = split not in ("validation", "all") and not unread and not layer_means and mteb is None
    if len(settings) == 1 and (searched or (whole and _is_collection(source, settings[0].source))):
        from layerprobe.kinds.retrieval.loading import load_retrieval

        task = load_retrieval(
            settings[0].source, columns=source.columns, split=split or "test", relevant_from=relevant_from
        )
        last = run.retrieval(task, source, ranking or "cosine")
    else:
        last = _score(run, source, split, layer_means=layer_means, mteb=mteb, several=old == "across")
    check_threshold(fail_below, last, f"the last layer scores {{}}{' in the mean' if len(settings) > 1 else ''}", 2)


def _is_collection(source: TaskSources, place: str) -> bool:
    """Return whether a source is a folder or data set of queries, documents and judgements, which may have no split."""
    from layerprobe.tasks.hub import is_on_hub
    from layerprobe.tasks.kind import KINDS

    of_kind = source.kind in (None, RETRIEVAL)
    folder = KINDS[RETRIEVAL].recognises(Path(place))
    return of_kind and (folder or (source.kind is not None and is_on_hub(place)))


def _score(
    run: _Scoring, source: TaskSources, split: str | None, *, layer_means: bool, mteb: Path | None, several: bool
) -> float:
    from layerprobe.tasks.loading import load_settings

    if split not in (None, "validation", "test", "all"):
        raise typer.BadParameter(f"expected validation, test or all for --split, got {split!r}")
    tasks = [load_settings(each) for each in source.all_settings()]
    whole: Any = split
    if len(run.models) > 1 and (len(tasks) > 1 or layer_means or mteb is not None):
        raise typer.BadParameter("expected one model with several tasks, --layer-means or --mteb, got several models")
    if len(run.models) > 1 and tasks[0].kind != RETRIEVAL:
        return run.by_models(tasks[0], whole)
    if several or len(tasks) > 1 or mteb is not None:
        if split == "all":
            raise typer.BadParameter("expected validation or test for --split of several tasks, got all")
        return run.several(tasks, whole or "test", mteb)
    (task,) = tasks
    if task.kind == RETRIEVAL and not layer_means:
        return run.retrieval(_as_searched(task, whole), source, "cosine")
    if task.kind == SUMMARIZATION and not layer_means and split in (None, "test"):
        return run.summaries(task)
    return run.layers(task, whole, layer_means=layer_means)


def _as_searched(task: Task, split: TextSplit | None) -> RetrievalTask:
    """Return a split of a task that can be trained on as one that is scored alone."""
    from layerprobe.kinds.retrieval.items import RetrievalItems, RetrievalTask

    items = task.split(split or task.scored)
    assert isinstance(items, RetrievalItems)
    ids = tuple(map(str, range(len(items))))
    return RetrievalTask(
        name=task.name, query_ids=ids, items=items, digest=task.digest, notes=task.notes, warnings=task.warnings
    )


@dataclasses.dataclass(frozen=True)
class _Scoring:
    """What scores tasks of each kind and prints that; returns what the last layer scores."""

    context: typer.Context
    models: Sequence[str]
    extraction: Extraction
    report: Report
    output: Output
    level: float
    timed: bool
    tolerance: float
    all_pairs: bool

    def layers(self, task: Task, split: TextSplit | None, *, layer_means: bool) -> float:
        # only now: an error in the data needs no torch
        from layerprobe.scoring.layer_means import layer_means as average_layers
        from layerprobe.scoring.zero_shot import score_compared as score_layers

        with self.output.progress(self.level):
            checkpoint = self.extraction.resolve(self.models[0])
            split = "test" if layer_means else split
            told = self.output.data(checkpoint, task, scored=split or task.scored)
            scores, embeddings = score_layers(checkpoint, task, split=split, tolerance=self.tolerance)
            means = average_layers(checkpoint, task) if layer_means else None
        warnings = tuple(dict.fromkeys((*told, *embeddings.warnings, *scores.warnings)))
        self.output.notes((), warnings[len(told) :])
        follow: dict[str, Any] = {"warnings": warnings, "commands": [find_command(self.context, self.models[0])]}
        about = {"model": embeddings.model, "task": task.name, "kind": task.kind, "scores": scores}
        table = scores.table.with_columns(embeddings.model.parameters_column, after="layer")
        if means is None:
            self.output.result(scores, table, scores.sentence, as_json=about)
            self.report.write(self.output, scores, model=embeddings.model, task=task.name, **follow)
        else:
            self.output.result(scores, table, "", means.table, means.sentence, as_json=about | {"means": means})
            self.report.write(self.output, means, **follow)
        return scores.scores[-1]

    def several(self, tasks: Sequence[Task], split: Split, mteb: Path | None) -> float:
        from layerprobe.scoring.across import score_across

        checkpoint = self.extraction.resolve(self.models[0])
        names = distinct_names([task.name for task in tasks])
        told = [
            said
            for name, task in zip(names, tasks, strict=True)
            for said in self.output.data(checkpoint, task, of=name, scored=split)
        ]
        with self.output.progress(self.level):
            result = score_across(checkpoint, tasks, split=split)
        self.output.notes((), [said for said in result.warnings if said not in told])
        self.output.result(result, result.table, result.sentence)
        self.report.write(self.output, result, warnings=(*told, *result.warnings))
        if mteb is not None:
            from layerprobe.scoring.mteb import write_mteb

            n_files = len(write_mteb(result, mteb))
            if not self.output.json:
                typer.echo(f"Results: {n_files} files below {mteb / 'results'}")
        return result.layers[-1].mean

    def by_models(self, task: Task, split: TextSplit | None) -> float:
        # only now: an error in the data needs no torch
        from layerprobe.extraction.readability import data_quality
        from layerprobe.profiling.run import milliseconds
        from layerprobe.scoring.models import score_models

        with self.output.progress(self.level):
            checkpoints, scored = self.extraction.resolve_each(self.models), split or task.scored
            read = [said for each in checkpoints for said in data_quality(each, task, scored=scored).warnings]
            told = tuple(dict.fromkeys((*task.warnings, *read)))
            self.output.notes(task.notes, told)
            result = score_models(
                checkpoints,
                task,
                split=split,
                timing=milliseconds if self.timed else None,
                tolerance=self.tolerance,
                all_pairs=self.all_pairs,
            )
        self.output.notes((), [said for said in result.warnings if said not in told])
        self.output.result(result, result.table, result.sentence)
        best = self.models[result.best_of_each[0].model]
        self.report.write(self.output, result, warnings=told, commands=[find_command(self.context, best)])
        return result.of_model(0)[-1].score

    def retrieval(self, task: RetrievalTask, source: TaskSources, ranking: Literal["cosine", "dot"]) -> float:
        from layerprobe.kinds.retrieval.untrained import retrieve

        checkpoints = self.extraction.resolve_each(self.models)
        read = LoadedTexts(texts=task.items.texts, notes=task.notes, warnings=task.warnings)
        told = self.output.data(checkpoints, read)
        prompts = {"query_prompt": source.query_prompt, "document_prompt": source.document_prompt}
        with self.output.progress(self.level):
            asked: dict[str, Any] = {"ranking": ranking, "tolerance": self.tolerance, **prompts}
            scores = [retrieve(checkpoint, task, **asked) for checkpoint in checkpoints]
        self.output.notes((), [warning for each in scores for warning in each.warnings if warning not in told])
        parts: list[Table | str] = []
        for each in scores:
            searched = f"{len(each.query_ids):,} queries, {each.n_documents:,} documents, by {each.ranking}"
            named = [f"{each.model.name}:"] if len(scores) > 1 else []
            parts += [*named, each.table, f"{searched}. {each.sentence}"]
        self.output.result(scores, *parts, as_json={"retrieval": scores})
        self.report.write(self.output, *scores, warnings=told)
        return scores[0].scores[-1]

    def summaries(self, task: Task) -> float:
        from layerprobe.kinds.summaries.untrained import summarize

        checkpoint = self.extraction.resolve(self.models[0])
        told = self.output.data(checkpoint, task)
        with self.output.progress(self.level):
            result = summarize(checkpoint, task)
        self.output.result(result, result.table, "", result.baselines, result.sentence)
        self.report.write(self.output, result, warnings=told)
        return result.methods[0].test[result.primary][-1]
