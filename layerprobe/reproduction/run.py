"""An experiment of the paper -> its figures beside ours; finished runs are read, not repeated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from layerprobe.chains.run import ChainData, plan_chain, run_chain
from layerprobe.chains.values import AdaptStep, Chain, FinetuneStep
from layerprobe.checks import check_seeds
from layerprobe.comparison.compare import compare
from layerprobe.encoders.loading import Checkpoint, resolve_checkpoint
from layerprobe.encoders.options import DEFAULT_OPTIONS, Options
from layerprobe.encoders.spec import ModelSpec
from layerprobe.errors import DataError
from layerprobe.extraction.embeddings import extract
from layerprobe.finetuning.confirmation import outcomes
from layerprobe.finetuning.tuning import PAPER_SEEDS, check_layers, finetune
from layerprobe.finetuning.values import LayerOutcome, Protocol
from layerprobe.prediction.values import PLATEAU
from layerprobe.progress import Progress, silent
from layerprobe.reproduction.differences import (
    NotRun,
    ReproducedPair,
    Reproduction,
    SimilarityReproduction,
    front_of,
    judgement,
    reproduced_layer,
    reproduced_pair,
)
from layerprobe.reproduction.paper import (
    Before,
    Experiment,
    PlannedModel,
    compared_metrics,
    experiment,
    notes_on,
    planned_models,
    read_paper,
)
from layerprobe.similarity.measures.cka import CKA
from layerprobe.study.predict import predict_drop
from layerprobe.tasks.values import Task, TaskSettings, TextFile


def reproduce(
    name: str,
    task: Task,
    *,
    models: Mapping[str, str] | None = None,
    words: Task | None = None,
    corpus: TextFile | None = None,
    seeds: Sequence[int] = PAPER_SEEDS,
    options: Options = DEFAULT_OPTIONS,
    progress: Progress = silent,
) -> Reproduction | SimilarityReproduction:
    """Do an experiment again, and compare.

    Models are fine-tuned at its layers by the paper's protocol, or compared by CKA where that is what it shows.
    All models are found, and have the layers, before the first is trained. Chains of steps are run where the data of
    the first one are given; the others are named in `not_run` of the result.

    Args:
        name: One of `experiment_names`.
        task: The experiment's data.
        models: Hub ids of the paper to what is run instead; those left out are not run. All by default.
        words: Word pairs for what is fine-tuned on word similarity first, as `load_word_similarity` loads them.
        corpus: Texts for what is adapted to a domain first, as `load_corpus` loads them.
        seeds: One run each.
        options: How to load; pooling is the paper's.
        progress: Told the share of the work that is done.

    Raises:
        DataError: If there is no such experiment, model or layer, the task is of another kind, or nothing of the
            experiment learns from the words or the corpus.
        ModelError: If a model cannot be had.
        TrainingError: If a run fails.
    """
    chosen, options = experiment(name), options
    planned = planned_models(chosen, models)
    check_seeds(seeds)
    kind = read_paper().data_set(chosen.data).kind
    if task.kind != kind:
        raise DataError(f"expected a task of kind {kind} for {name}, got {task.name}, which is {task.kind}")
    firsts = _firsts(words, corpus)
    if unused := [before for before in firsts if before not in chosen.befores]:
        raise DataError(f"expected no data for {' and '.join(unused)}, which {name} does not have")
    if chosen.pairs:
        return _compared(chosen, planned, task, options=options, progress=progress)
    return _tuned(chosen, planned, task, firsts=firsts, seeds=seeds, options=options, progress=progress)


# ---- scores -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _First:
    """A step before TMFT, and what it learns from."""

    step: AdaptStep | FinetuneStep
    data: Task | TextFile

    @property
    def note(self) -> str:
        how, name = self.step.protocol, self.data.name
        if isinstance(self.step, FinetuneStep):
            return f"word similarity: {how.epochs} epochs on {name} in batches of {how.batch_size}, then TMFT"
        return f"domain adaptation: {how.epochs} epochs of masked language modelling on {name}, then TMFT"


def _firsts(words: Task | None, corpus: TextFile | None) -> dict[Before, _First]:
    """Return the steps that can come before TMFT, by the paper's protocols."""
    firsts: dict[Before, _First] = {}
    if words is not None:
        paper = read_paper().before.word_similarity
        protocol = Protocol(epochs=paper.epochs, batch_size=paper.batch_size)
        step = FinetuneStep(task=TaskSettings(source=words.name), protocol=protocol)
        firsts["word similarity"] = _First(step=step, data=words)
    if corpus is not None:
        firsts["domain adaptation"] = _First(step=AdaptStep(texts=(corpus.name,)), data=corpus)
    return firsts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Part:
    """What is fine-tuned together: a model's layers, alone or after one step."""

    model: PlannedModel
    before: Before | None
    random_init: int | None
    layers: tuple[int, ...]
    checkpoint: Checkpoint
    chain: Chain | None
    """None for TMFT alone."""
    data: ChainData | None


def _tuned(
    chosen: Experiment,
    planned: Sequence[PlannedModel],
    task: Task,
    *,
    firsts: Mapping[Before, _First],
    seeds: Sequence[int],
    options: Options,
    progress: Progress,
) -> Reproduction:
    runnable = chosen.after(firsts)
    parts = [
        part for model in planned for part in _parts(runnable, model, task, firsts=firsts, seeds=seeds, options=options)
    ]
    ours = {}
    for part in parts:
        for outcome in _outcomes(part, task, seeds=seeds, options=options, progress=progress):
            ours[part.model.hub_id, part.before, part.random_init, outcome.layer] = outcome
    metrics = compared_metrics(chosen)
    layers = [
        reproduced_layer(score, model, ours[score.model, score.before, score.random_init, score.layer], metrics)
        for model in planned
        for score in runnable.of_model(model.hub_id)
    ]
    not_run = [
        NotRun(model=score.model, before=score.before, layer=score.layer, test=score.test)
        for model in planned
        for score in chosen.of_model(model.hub_id)
        if score.before is not None and score.before not in firsts
    ]
    millions = [read_paper().model(layer.model).millions(layer.layer) for layer in layers]
    return Reproduction(
        experiment=chosen.name,
        source=chosen.source,
        task=task.name,
        protocol=Protocol(),
        primary=task.primary,
        layers=tuple(layers),
        not_run=tuple(not_run),
        front=front_of(layers, task.primary, millions) if chosen.shows == "front" else None,
        sentence=judgement(layers, task.primary),
        notes=(*notes_on(chosen, tuple(planned)), *(first.note for first in firsts.values())),
    )


def _parts(
    runnable: Experiment,
    model: PlannedModel,
    task: Task,
    *,
    firsts: Mapping[Before, _First],
    seeds: Sequence[int],
    options: Options,
) -> list[_Part]:
    """Return what is fine-tuned of a model; what is wrong with it is told before any of it is."""
    scores = runnable.of_model(model.hub_id)
    checkpoint = resolve_checkpoint(model.runs, trust_remote_code=options.trust_remote_code)
    check_layers(checkpoint, sorted({score.layer for score in scores}))
    parts = []
    for before, init in dict.fromkeys((score.before, score.random_init) for score in scores):
        layers = tuple(sorted(score.layer for score in scores if (score.before, score.random_init) == (before, init)))
        chain = data = None
        if before is not None:
            first = firsts[before]
            chain = Chain(
                name=f"{runnable.name}: {before}, then TMFT",
                model=model.runs,
                steps=(first.step, FinetuneStep(task=TaskSettings(source=task.name))),
                random_init=init,
                layers=layers,
                seeds=tuple(seeds),
                baseline=False,
                cka=False,
            )
            data = _chain_data(first, task)
            plan_chain(chain, data=data, options=options)
        parts.append(
            _Part(
                model=model,
                before=before,
                random_init=init,
                layers=layers,
                checkpoint=checkpoint
                if init is None
                else resolve_checkpoint(
                    ModelSpec(model.runs, random_init=init), trust_remote_code=options.trust_remote_code
                ),
                chain=chain,
                data=data,
            )
        )
    return parts


def _chain_data(first: _First, task: Task) -> ChainData:
    if isinstance(first.data, Task):
        return ChainData(tasks=(first.data, task))
    return ChainData(tasks=(task,), corpora=(first.data,))


def _outcomes(
    part: _Part, task: Task, *, seeds: Sequence[int], options: Options, progress: Progress
) -> tuple[LayerOutcome, ...]:
    if part.chain is not None:
        return run_chain(part.chain, data=part.data, options=options, progress=progress).outcomes
    runs = finetune(
        part.checkpoint,
        part.layers,
        task,
        seeds=seeds,
        protocol=Protocol(),
        options=options,
        progress=progress,
    )
    return outcomes(runs)


# ---- similarity ---------------------------------------------------------------------------------------


def _compared(
    chosen: Experiment, planned: Sequence[PlannedModel], task: Task, *, options: Options, progress: Progress
) -> SimilarityReproduction:
    by_id = {model.hub_id: model for model in planned}
    pairs = [pair for pair in chosen.pairs if {pair.model, pair.reference} <= by_id.keys()]
    if not pairs:
        raise DataError(
            f"expected a model and its reference for {chosen.name}, such as {chosen.pairs[0].model} and "
            f"{chosen.pairs[0].reference}, got {', '.join(by_id)}"
        )
    checkpoints = {
        name: resolve_checkpoint(model.runs, trust_remote_code=options.trust_remote_code)
        for name, model in by_id.items()
    }
    embedded = {
        name: extract(checkpoints[name], task.test.texts, options=options, progress=progress)
        for name in dict.fromkeys(name for pair in pairs for name in (pair.model, pair.reference))
    }
    done: list[ReproducedPair] = []
    for pair in pairs:
        model, reference = embedded[pair.model], embedded[pair.reference]
        comparison = compare(model, reference, device=options.device, progress=progress)
        biased = compare(model, reference, measure=CKA(estimator="biased"), device=options.device, progress=progress)
        prediction = predict_drop(comparison, rule=PLATEAU)
        done.append(reproduced_pair(pair, by_id[pair.model], by_id[pair.reference], comparison, biased, prediction))
    borne_out = sum(pair.bears_out for pair in done)
    return SimilarityReproduction(
        experiment=chosen.name,
        source=chosen.source,
        task=task.name,
        n_texts=len(next(iter(embedded.values())).texts),
        measure=comparison.map.measure,
        pairs=tuple(done),
        sentence=f"{borne_out} of {len(done)} pairs bear out the paper's claim.",
        notes=notes_on(chosen, tuple(model for model in planned if model.hub_id in embedded)),
    )
