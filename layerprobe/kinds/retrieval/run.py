"""Queries and documents -> how well every layer of a model finds the one from the other."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from layerprobe.checks import LEVEL, check_choice, check_level
from layerprobe.encoders.loading import ModelLike, resolve_checkpoint
from layerprobe.encoders.options import DEFAULT_OPTIONS, Options
from layerprobe.errors import MisalignedSamplesError
from layerprobe.extraction.embeddings import Embeddings, extract
from layerprobe.kinds.retrieval.metrics import float32_rows, ranking_metrics, relevant_ranks
from layerprobe.kinds.retrieval.values import Ranking, RetrievalScores, RetrievalTask
from layerprobe.metrics.names import RETRIEVAL_METRICS
from layerprobe.progress import Progress, notebook_bar
from layerprobe.similarity.values import Difference, Interval

Values = NDArray[np.float64]


def retrieve(
    model: ModelLike,
    task: RetrievalTask,
    *,
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    ranking: Ranking = "cosine",
    level: float = LEVEL,
    options: Options = DEFAULT_OPTIONS,
    progress: Progress = notebook_bar,
) -> RetrievalScores:
    """Embed queries and documents at every layer, or take them from the store, and score every layer.

    Args:
        model: A name, a folder, or a `ModelSpec`.
        task: What `load_retrieval` returned.
        query_prompt: Put before every query, such as "query: "; by default the prompt of the options, or else
            the one that a configuration of sentence-transformers has for queries; likewise for documents.
        document_prompt: Put before every document.
        ranking: cosine, or dot: the inner product.
        level: Confidence level of intervals.
        options: How to load and embed.
        progress: Called with what is done, how much, and of how much.

    Raises:
        ModelError: If the model cannot be loaded or truncated.
        DataError: As `evaluate_retrieval`.
        StoreError: If the store cannot be written.
    """
    check_choice(ranking, Ranking, name="ranking")
    check_level(level)
    checkpoint = resolve_checkpoint(model, trust_remote_code=options.trust_remote_code)
    embedded = []
    if options.prompt is None and (prompts := checkpoint.recipe.retrieval_prompts):
        query_prompt = prompts[0] if query_prompt is None else query_prompt
        document_prompt = prompts[1] if document_prompt is None else document_prompt
    for texts, prompt in ((task.queries, query_prompt), (task.documents, document_prompt)):
        own = options if prompt is None else dataclasses.replace(options, prompt=prompt)
        embedded.append(extract(checkpoint, texts, options=own, progress=progress))
    queries, documents = embedded
    return evaluate_retrieval(queries, documents, task, ranking=ranking, level=level, progress=progress)


def evaluate_retrieval(
    queries: Embeddings,
    documents: Embeddings,
    task: RetrievalTask,
    *,
    ranking: Ranking = "cosine",
    level: float = LEVEL,
    progress: Progress = notebook_bar,
) -> RetrievalScores:
    """Return how well every layer finds the relevant documents, from what `extract` returned; no model is needed.

    Every document is ranked for every query by the similarity of their embeddings; of equal ones the document with
    the higher id comes first, as in trec_eval. A document that is the query itself (`RetrievalTask.own`) is not ranked.
    Memory is that of one layer and of blocks of 64 MB. `ranking` and `level` are as in `retrieve`.

    Returns:
        All metrics by layer and query, their means with Student's t intervals over queries, and the paired
        differences of every layer to the last one, whose intervals hold for all layers together.

    Raises:
        MisalignedSamplesError: If a text was not embedded, or the two are not of one model.
        DegenerateLayerError: If an embedding is not finite or has no direction.
    """
    check_choice(ranking, Ranking, name="ranking")
    check_level(level)
    first, second = ((each.model.name, each.model.revision, each.pooling) for each in (queries, documents))
    if first != second:
        raise MisalignedSamplesError(
            f"expected queries and documents embedded by one model and pooling, got {' '.join(first)} and "
            f"{' '.join(second)}"
        )
    by_query: dict[str, list[tuple[float, ...]]] = {metric: [] for metric in RETRIEVAL_METRICS}
    for layer, ranked in enumerate(_ranks_by_layer(queries, documents, task, ranking)):
        scores = [ranking_metrics(ranks, gains) for ranks, gains in ranked]
        for metric, layers in by_query.items():
            layers.append(tuple(100 * score[metric] for score in scores))
        progress(f"ranking by {queries.model.name}", layer + 1, queries.n_layers)
    return RetrievalScores(
        model=queries.model,
        task=task.name,
        task_digest=task.digest,
        n_documents=len(task.documents),
        ranking=ranking,
        query_ids=task.query_ids,
        by_query={metric: tuple(layers) for metric, layers in by_query.items()},
        means={metric: tuple(_mean(np.array(each), level) for each in layers) for metric, layers in by_query.items()},
        differences=_to_the_last([np.array(each) for each in by_query[RETRIEVAL_METRICS[0]]], level),
        settings=_settings(queries, documents),
        warnings=tuple(dict.fromkeys((*queries.warnings, *documents.warnings))),
    )


def _settings(queries: Embeddings, documents: Embeddings) -> dict[str, str]:
    settings = {name: value for name, value in queries.settings.items() if name != "prompt"}
    prompts = {"query_prompt": queries.settings.get("prompt"), "document_prompt": documents.settings.get("prompt")}
    return settings | {name: prompt for name, prompt in prompts.items() if prompt is not None}


def _ranks_by_layer(
    queries: Embeddings, documents: Embeddings, task: RetrievalTask, ranking: Ranking
) -> Iterator[list[tuple[NDArray[np.int64], Values]]]:
    """Yield, layer by layer, the ranks and the gains of the relevant documents of every query."""
    # documents in the order of ties, the highest id first
    order = sorted(range(len(task.documents)), key=task.document_ids.__getitem__, reverse=True)
    place = {document: i for i, document in enumerate(order)}
    texts, numbers = np.unique(documents.rows([task.documents[i] for i in order]), return_inverse=True)
    judgements: list[list[tuple[int, float]]] = [[] for _ in task.queries]
    for query, document, gain in task.relevance:
        judgements[query].append((place[document], gain))
    relevant = [np.array([document for document, _ in each]) for each in judgements]
    gains = [np.array([gain for _, gain in each]) for each in judgements]
    own = np.array([place.get(document, -1) for document in task.own])
    asked = queries.rows(task.queries)
    units = ranking == "cosine"
    for layer in range(queries.n_layers):
        name = f"layer {layer} of {queries.model.name}"
        query_rows = float32_rows(queries.layer(layer), asked, units=units, name=f"{name} for queries")
        text_rows = float32_rows(documents.layer(layer), texts, units=units, name=f"{name} for documents")
        ranks = list(relevant_ranks(query_rows, text_rows, numbers, relevant, own))
        del query_rows, text_rows  # before the next layer is read
        yield list(zip(ranks, gains, strict=True))


# ---- intervals over queries ---------------------------------------------------------------------------


def _mean(values: Values, level: float) -> Interval:
    mean, error = float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))
    half = float(stats.t.ppf((1 + level) / 2, len(values) - 1)) * error
    return Interval(value=mean, standard_error=error, lower=mean - half, upper=mean + half, level=level)


def _to_the_last(layers: Sequence[Values], level: float) -> tuple[Difference, ...]:
    """Return each layer less the last; with m differences each interval is at 1 - (1 - level) / m."""
    *others, last = layers
    differences = []
    for layer, values in enumerate(others):
        mean = _mean(values - last, 1 - (1 - level) / len(others))
        p_value = min(1.0, len(others) * _p_value(mean, len(last) - 1))
        differences.append(
            Difference(
                label=f"layer {layer} less layer {len(others)}",
                value=mean.value,
                standard_error=mean.standard_error,
                lower=mean.lower,
                upper=mean.upper,
                level=level,
                p_value=p_value,
            )
        )
    return tuple(differences)


def _p_value(mean: Interval, degrees: int) -> float:
    """Return the two-sided p of a mean of zero; differences that are all the same have no error."""
    if mean.standard_error == 0:
        return 1.0 if mean.value == 0 else 0.0
    return float(2 * stats.t.sf(abs(mean.value) / mean.standard_error, degrees))
