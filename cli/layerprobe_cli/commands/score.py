"""layerprobe score."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from layerprobe.checks import LEVEL
from layerprobe.encoders.model import Model
from layerprobe.names import distinct_names
from layerprobe.stats.values import TOLERANCE
from layerprobe.tasks.values import TaskSettings
from layerprobe_cli import options as o
from layerprobe_cli.derive import usage
from layerprobe_cli.following import find_command
from layerprobe_cli.names import OLD_NAME
from layerprobe_cli.places import folder_to_write
from layerprobe_cli.shell import Done, PageCall, below

if TYPE_CHECKING:
    from layerprobe.kinds.retrieval.items import RetrievalTask
    from layerprobe.metrics.names import Split
    from layerprobe.results.table import Table
    from layerprobe.tasks.values import Task, TextSplit

RETRIEVAL, SUMMARIZATION = "retrieval", "summarization"
READ_OF_COLLECTIONS = {"source", "columns", "kind", "skip_empty", "query_prompt", "document_prompt"}
"""Options that say how queries, documents and judgements are read."""


def score(
    call: PageCall,
    model: o.Extraction,
    source: o.Sources,
    others: o.Others = None,
    split: str | None = None,
    layer_means: bool = False,
    ranking: Annotated[Literal["cosine", "dot"] | None, "Retrieval"] = None,
    relevant_from: Annotated[float | None, "Retrieval"] = None,
    mteb: Annotated[Path | None, {"metavar": "FOLDER", "callback": folder_to_write}] = None,
    timed: Annotated[bool, {"flags": ("--time/--no-time",)}] = True,
    tolerance: float = TOLERANCE,
    all_pairs: bool = False,
    level: o.Level = LEVEL,
    fail_below: Annotated[float | None, {"callback": o.finite}] = None,
) -> Done:
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

    Args:
        split: What is scored: validation, test or all; of a retrieval task also other judgements. By default test; of
            one task without --mteb, all of data that has no split where nothing is fitted.
        layer_means: Also score the mean of every two layers as an embedding, at unit norm and as they are; validation
            chooses, test says what that gains.
        ranking: By what documents are ranked; dot is the inner product. By default cosine.
        relevant_from: Judgements below this are not relevant. By default all above 0 are.
        mteb: Write results in mteb's layout, every layer as an experiment of the model.
        timed: Measure how long one text takes at each layer of several models.
        tolerance: Points that you accept to lose for a smaller model.
        all_pairs: Of several models, compare all pairs of layers by letters.
        fail_below: Exit with code 3 if the last layer scores less than this.
    """
    old, names = call.context.meta.get(OLD_NAME), [model.name, *(others or ())]
    if old == "across":  # its arguments were one model and tasks
        source, names = tuple(usage(dataclasses.replace, source[0], source=name) for name in names[1:]), names[:1]
    if layer_means and split not in (None, "test"):
        raise typer.BadParameter("expected --split test with --layer-means: the validation split chooses the layers")
    if not source:
        raise typer.BadParameter("expected a task: give --task FILE, or --task stsb")
    if not 0 <= tolerance < math.inf:
        raise typer.BadParameter(f"expected a tolerance of 0 points or more, got {tolerance}")
    if layer_means and (len(source) > 1 or mteb is not None or old == "across"):
        raise typer.BadParameter("expected one task with --layer-means, and no --mteb")
    scoring = _Scoring(call, model, names, timed, tolerance, all_pairs)
    searched = ranking or relevant_from is not None or old == "retrieve"
    unread = call.given(o.TASK) - READ_OF_COLLECTIONS
    if searched:
        call.refuse(unread, "with --ranking and --relevant-from")
    if searched and (len(source) > 1 or layer_means or mteb is not None):
        raise typer.BadParameter(
            "expected one task of queries and documents with --ranking and --relevant-from, without --layer-means and "
            "--mteb"
        )
    whole = split not in ("validation", "all") and not unread and not layer_means and mteb is None
    if len(source) == 1 and (searched or (whole and _is_collection(source[0]))):
        from layerprobe.kinds.retrieval.loading import load_retrieval

        task = load_retrieval(
            source[0].source, columns=source[0].columns, split=split or "test", relevant_from=relevant_from
        )
        done, last = scoring.retrieval(task, source[0], ranking or "cosine")
    else:
        done, last = _score(scoring, source, split, layer_means=layer_means, mteb=mteb, several=old == "across")
    mean = " in the mean" if len(source) > 1 else ""
    return dataclasses.replace(done, failed=below(fail_below, last, f"the last layer scores {{}}{mean}", 2))


def _is_collection(source: TaskSettings) -> bool:
    """Return whether a source is a folder or data set of queries, documents and judgements, which may have no split."""
    from layerprobe.tasks.hub import is_on_hub
    from layerprobe.tasks.kind import KINDS

    of_kind = source.kind in (None, RETRIEVAL)
    folder = KINDS[RETRIEVAL].recognises(Path(source.source))
    return of_kind and (folder or (source.kind is not None and is_on_hub(source.source)))


def _score(
    run: _Scoring,
    source: Sequence[TaskSettings],
    split: str | None,
    *,
    layer_means: bool,
    mteb: Path | None,
    several: bool,
) -> tuple[Done, float]:
    from layerprobe.tasks.loading import load_settings

    if split not in (None, "validation", "test", "all"):
        raise typer.BadParameter(f"expected validation, test or all for --split, got {split!r}")
    tasks = [load_settings(path) for path in source]
    whole: Any = split
    if len(run.names) > 1 and (len(tasks) > 1 or layer_means or mteb is not None):
        raise typer.BadParameter("expected one model with several tasks, --layer-means or --mteb, got several models")
    if len(run.names) > 1 and tasks[0].kind != RETRIEVAL:
        return run.by_models(tasks[0], whole)
    if several or len(tasks) > 1 or mteb is not None:
        if split == "all":
            raise typer.BadParameter("expected validation or test for --split of several tasks, got all")
        return run.several(tasks, whole or "test", mteb)
    (task,) = tasks
    if task.kind == RETRIEVAL and not layer_means:
        return run.retrieval(_as_searched(task, whole), source[0], "cosine")
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
    """Scores tasks of each kind, and reports the score of the last layer."""

    call: PageCall
    model: Model
    names: Sequence[str]
    timed: bool
    tolerance: float
    all_pairs: bool

    def layers(self, task: Task, split: TextSplit | None, *, layer_means: bool) -> tuple[Done, float]:
        # only now: an error in the data needs no torch
        from layerprobe.scoring.layer_means import layer_means as average_layers
        from layerprobe.scoring.zero_shot import score_compared as score_layers

        (checkpoint,) = o.resolved(self.model)
        split = "test" if layer_means else split
        self.call.data(checkpoint, task, scored=split or task.scored)
        scores, embeddings = score_layers(checkpoint, task, split=split, tolerance=self.tolerance)
        warnings = tuple(dict.fromkeys((*self.call.reported, *embeddings.warnings, *scores.warnings)))
        about: dict[str, Any] = {"model": embeddings.model, "task": task.name, "kind": task.kind, "scores": scores}
        page: dict[str, Any] = {"model": embeddings.model, "task": task.name}
        parts: list[Table | str] = [
            scores.sentence,
            "",
            scores.table.with_columns(embeddings.model.parameters_column, after="layer"),
        ]
        if layer_means:
            means = average_layers(checkpoint, task)
            parts, about = [means.sentence, *parts, "", means.table], about | {"means": means}
            page = {"of": (means,)}
        done = Done(
            result=scores,
            parts=parts,
            as_json=about,
            warnings=warnings,
            page=page,
            next=[find_command(self.call, self.names[0])],
        )
        return done, scores.scores[-1]

    def several(self, tasks: Sequence[Task], split: Split, mteb: Path | None) -> tuple[Done, float]:
        from layerprobe.scoring.across import score_across

        (checkpoint,) = o.resolved(self.model)
        for name, task in zip(distinct_names([task.name for task in tasks]), tasks, strict=True):
            self.call.data(checkpoint, task, of=name, scored=split)
        result = score_across(checkpoint, tasks, split=split)
        files = {}
        if mteb is not None:
            from layerprobe.scoring.mteb import write_mteb

            files["Results"] = f"{len(write_mteb(result, mteb))} files below {mteb / 'results'}"
        done = Done(result=result, warnings=result.warnings, files=files)
        return done, result.layers[-1].mean

    def by_models(self, task: Task, split: TextSplit | None) -> tuple[Done, float]:
        # only now: an error in the data needs no torch
        from layerprobe.profiling.run import milliseconds
        from layerprobe.scoring.models import score_models

        checkpoints = o.resolved(self.model, self.names[1:])
        self.call.data(checkpoints, task, scored=split or task.scored)
        result = score_models(
            checkpoints,
            task,
            split=split,
            timing=milliseconds if self.timed else None,
            tolerance=self.tolerance,
            all_pairs=self.all_pairs,
        )
        follow = find_command(self.call, self.names[result.best_of_each[0].model])
        return Done(result=result, warnings=result.warnings, next=[follow]), result.of_model(0)[-1].score

    def retrieval(
        self, task: RetrievalTask, source: TaskSettings, ranking: Literal["cosine", "dot"]
    ) -> tuple[Done, float]:
        from layerprobe.kinds.retrieval.untrained import retrieve

        checkpoints = o.resolved(self.model, self.names[1:])
        self.call.data(checkpoints, task, texts=task.items.texts)
        prompts = {"query_prompt": source.query_prompt, "document_prompt": source.document_prompt}
        scores = [
            retrieve(checkpoint, task, ranking=ranking, tolerance=self.tolerance, **prompts)
            for checkpoint in checkpoints
        ]
        parts: list[Table | str] = []
        for score in scores:
            searched = f"{len(score.query_ids):,} queries, {score.n_documents:,} documents, by {score.ranking}"
            named = f"{score.model.name}: " if len(scores) > 1 else ""
            parts += [f"{named}{score.sentence} {searched[0].upper()}{searched[1:]}.", "", score.table, ""]
        done = Done(
            result=scores,
            parts=parts[:-1],
            as_json={"retrieval": scores},
            warnings=[warning for score in scores for warning in score.warnings],
            page={"of": scores},
        )
        return done, scores[0].scores[-1]

    def summaries(self, task: Task) -> tuple[Done, float]:
        from layerprobe.kinds.summaries.untrained import summarize

        (checkpoint,) = o.resolved(self.model)
        self.call.data(checkpoint, task)
        result = summarize(checkpoint, task)
        parts = (result.sentence, "", result.table, "", result.baselines)
        return Done(result=result, parts=parts), result.methods[0].test[result.primary][-1]
