"""An experiment of the paper -> its figures beside ours; finished runs are read, not repeated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from layerprobe.encoders import Checkpoint
from layerprobe.errors import DataError
from layerprobe.finetuning import outcomes
from layerprobe.progress import Progress, silent
from layerprobe.reproduction import (
    Experiment,
    NotRun,
    PlannedModel,
    ReproducedLayer,
    ReproducedPair,
    Reproduction,
    SimilarityReproduction,
    experiment,
    front_of,
    judgement,
    notes_on,
    planned_models,
    read_paper,
    reproduced_layer,
    reproduced_pair,
)
from layerprobe.reproduction.paper import compared_metrics
from layerprobe.results import Measure, Protocol, Task
from layerprobe.study.comparison import compare
from layerprobe.study.embeddings import extract
from layerprobe.study.options import Options, found
from layerprobe.study.prediction import predict
from layerprobe.study.tuning import PAPER_SEEDS, check_layers, check_seeds, finetune


def reproduce(
    name: str,
    task: Task,
    *,
    models: Mapping[str, str] | None = None,
    seeds: Sequence[int] = PAPER_SEEDS,
    options: Options | None = None,
    progress: Progress = silent,
) -> Reproduction | SimilarityReproduction:
    """Do an experiment again, and compare.

    Models are fine-tuned at its layers by the paper's protocol, or compared by CKA where that is what it shows.
    All models are found, and have the layers, before the first is trained. Of chains of steps only TMFT alone is
    run: see `not_run` of the result.

    Args:
        name: One of `experiment_names`.
        task: The experiment's data.
        models: Hub ids of the paper to what is run instead; those left out are not run. All by default.
        seeds: One run each.
        options: How to load; pooling is the paper's.
        progress: Told the share of the work that is done.

    Raises:
        DataError: If there is no such experiment, model or layer, or the task is of another kind.
        ModelError: If a model cannot be had.
        TrainingError: If a run fails.
    """
    chosen, options = experiment(name), options or Options()
    planned = planned_models(chosen, models)
    check_seeds(seeds)
    kind = read_paper().data_set(chosen.data).kind
    if task.kind != kind:
        raise DataError(f"expected a task of kind {kind} for {name}, got {task.name}, which is {task.kind}")
    if chosen.pairs:
        return _compared(chosen, planned, task, options=options, progress=progress)
    return _tuned(chosen, planned, task, seeds=seeds, options=options, progress=progress)


# ---- scores -------------------------------------------------------------------------------------------


def _tuned(
    chosen: Experiment,
    planned: Sequence[PlannedModel],
    task: Task,
    *,
    seeds: Sequence[int],
    options: Options,
    progress: Progress,
) -> Reproduction:
    checkpoints = [found(model.runs, None, options) for model in planned]
    for model, checkpoint in zip(planned, checkpoints, strict=True):
        check_layers(checkpoint, [score.layer for score in chosen.alone.of_model(model.hub_id)])
    layers = [
        layer
        for model, checkpoint in zip(planned, checkpoints, strict=True)
        for layer in _tuned_model(chosen, model, checkpoint, task, seeds=seeds, options=options, progress=progress)
    ]
    not_run = [
        NotRun(model=score.model, before=score.before, layer=score.layer, test=score.test)
        for model in planned
        for score in chosen.of_model(model.hub_id)
        if score.before is not None
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
        notes=notes_on(chosen, tuple(planned)),
    )


def _tuned_model(
    chosen: Experiment,
    model: PlannedModel,
    checkpoint: Checkpoint,
    task: Task,
    *,
    seeds: Sequence[int],
    options: Options,
    progress: Progress,
) -> list[ReproducedLayer]:
    """Return the layers of a model that are fine-tuned alone, in the order of the paper."""
    alone = chosen.alone.of_model(model.hub_id)
    ours = {}
    for init in dict.fromkeys(score.random_init for score in alone):
        runs = finetune(
            checkpoint if init is None else found(model.runs, init, options),
            sorted(score.layer for score in alone if score.random_init == init),
            task,
            seeds=seeds,
            protocol=Protocol(),
            options=options,
            progress=progress,
        )
        ours.update({(init, outcome.layer): outcome for outcome in outcomes(runs)})
    metrics = compared_metrics(chosen)
    return [reproduced_layer(score, model, ours[score.random_init, score.layer], metrics) for score in alone]


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
    checkpoints = {name: found(model.runs, None, options) for name, model in by_id.items()}
    embedded = {
        name: extract(checkpoints[name], task.test.texts, options=options, progress=progress)
        for name in dict.fromkeys(name for pair in pairs for name in (pair.model, pair.reference))
    }
    done: list[ReproducedPair] = []
    for pair in pairs:
        model, reference = embedded[pair.model], embedded[pair.reference]
        comparison = compare(model, reference, device=options.device, progress=progress)
        biased = compare(
            model, reference, measure=Measure(estimator="biased"), device=options.device, progress=progress
        )
        prediction = predict(comparison)
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
