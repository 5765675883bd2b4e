"""An experiment of the paper -> its figures beside ours; finished runs are read, not repeated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from layerprobe.errors import DataError
from layerprobe.finetuning import outcomes
from layerprobe.progress import Progress, silent
from layerprobe.reproduction import Reproduction, experiment, planned_models, read_paper, reproduced_layer
from layerprobe.reproduction.paper import compared_metrics
from layerprobe.results import Protocol, Task
from layerprobe.study.options import Options, found
from layerprobe.study.tuning import PAPER_SEEDS, check_layers, check_seeds, finetune


def reproduce(
    name: str,
    task: Task,
    *,
    models: Mapping[str, str] | None = None,
    seeds: Sequence[int] = PAPER_SEEDS,
    options: Options | None = None,
    progress: Progress = silent,
) -> Reproduction:
    """Fine-tune the models of an experiment at its layers by the paper's protocol, and compare.

    All models are found, and have the layers, before the first is trained.

    Args:
        name: table2, figure2a, mrpc or sick.
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
    chosen, options, protocol = experiment(name), options or Options(), Protocol()
    planned = planned_models(chosen, models)
    check_seeds(seeds)
    kind = read_paper().data_set(chosen.data).kind
    if task.kind != kind:
        raise DataError(f"expected a task of kind {kind} for {name}, got {task.name}, which is {task.kind}")
    checkpoints = [found(model.runs, None, options) for model in planned]
    for model, checkpoint in zip(planned, checkpoints, strict=True):
        check_layers(checkpoint, [score.layer for score in chosen.of_model(model.hub_id)])
    metrics, layers = compared_metrics(chosen), []
    for model, checkpoint in zip(planned, checkpoints, strict=True):
        scores = chosen.of_model(model.hub_id)
        runs = finetune(
            checkpoint,
            sorted(score.layer for score in scores),
            task,
            seeds=seeds,
            protocol=protocol,
            options=options,
            progress=progress,
        )
        ours = {outcome.layer: outcome for outcome in outcomes(runs)}
        layers += [reproduced_layer(score, model, ours[score.layer], metrics) for score in scores]
    return Reproduction(
        experiment=name,
        source=chosen.source,
        task=task.name,
        protocol=protocol,
        primary=task.primary,
        layers=tuple(layers),
    )
