"""The main line: predict, fine-tune where it decides, and put down what somebody needs to do it again."""

import logging
from collections.abc import Sequence
from datetime import UTC, datetime

from layerprobe.checks import LEVEL
from layerprobe.encoders.loading import Checkpoint, ModelLike, resolve_all, resolve_device
from layerprobe.encoders.model import changed
from layerprobe.errors import DataError
from layerprobe.finetuning.outcomes import outcomes
from layerprobe.finetuning.tuning import agreed, check_layers, finetune, items_of
from layerprobe.finetuning.values import LayerOutcome, Protocol
from layerprobe.scoring.zero_shot import score
from layerprobe.search.values import SEEDS, TOLERANCE, SearchSettings
from layerprobe.settings import current
from layerprobe.similarity.values import Alignment, Measure
from layerprobe.study.find import find
from layerprobe.study.predict import References, as_models, predict
from layerprobe.study.values import Finding, Provenance, Study
from layerprobe.tasks.values import Task, TextSplit, check_task
from layerprobe.versions import __version__, versions

logger = logging.getLogger(__name__)

AGAINST_LAST = 3
"""Seeds of the layer to keep and of the last one, for the difference between them on the test split."""


def run(
    model: ModelLike,
    *,
    task: Task,
    reference: References = None,
    fine_tuning: bool = True,
    layers: Sequence[int] = (),
    reference_layers: Sequence[int] = (),
    tolerance: float = TOLERANCE,
    budget: float | None = None,
    cross_validation: bool | None = None,
    seeds: int = SEEDS,
    scan: bool = False,
    against_last: int = AGAINST_LAST,
    protocol: Protocol | None = None,
    rule: str | None = None,
    measure: Measure | None = None,
    alignment: Alignment | None = None,
    split: TextSplit = "all",
    save_models: bool = False,
    command: str = "layerprobe.run",
    finetune_command: str = "",
) -> Study:
    """Predict, find the layer to keep, and score; what was done before is not done again.

    Args:
        model: A name, a folder, or a `ModelSpec`.
        task: What to learn and to score.
        reference: As for `predict`, like rule, measure, alignment and split.
        fine_tuning: False stops at the prediction.
        layers: Layers to fine-tune beside those that the search chooses, with all seeds on the task's own splits.
        reference_layers: Layers of the first reference to fine-tune so, for the contrast.
        tolerance: As for `find`, like budget, cross_validation, seeds and against_last.
        budget: Share of a full sweep.
        cross_validation: Whether each seed has a fold of its own.
        seeds: At a layer at most.
        scan: Begin with a scan.
        against_last: Seeds with which the layer to keep and the last one are compared on the test split.
        protocol: The paper's by default.
        rule: How a drop is predicted.
        measure: Of similarity to the reference.
        alignment: same-index, relative-depth or best-match.
        split: Whose texts models are compared on: train, validation, test, or all.
        save_models: Keep the weights of the runs of the search, for `export_model`.
        command: How this study was requested; kept in its provenance.
        finetune_command: The command line that fine-tunes so, likewise; from Python there is none.

    Raises:
        LayerProbeError: If any stage cannot be done; see `predict`, `find` and `score`.
    """
    level = current().level
    check_task(task)
    if fine_tuning:
        SearchSettings(tolerance=tolerance, budget=budget, seeds=seeds, level=level)  # refused before any work
    given = resolve_all([model, *as_models(reference)], items=task.readable)
    own = protocol or Protocol()
    if fine_tuning:
        own, given = agreed(protocol, given[0])[0], [agreed(protocol, each)[1] for each in given]
    checkpoint, *bases = given
    options = checkpoint.options
    check_layers(checkpoint, layers)
    if bases:
        check_layers(bases[0], reference_layers)
    elif reference_layers:
        raise DataError("expected a reference for its layers, got none")
    prediction = predict(
        checkpoint, task, reference=bases, rule=rule, measure=measure, alignment=alignment, split=split
    )
    logger.info("before fine-tuning: %s", prediction.drop.sentence)
    finding: Finding | None = None
    further: tuple[LayerOutcome, ...] = ()
    contrast: tuple[LayerOutcome, ...] = ()
    if fine_tuning:
        finding = find(
            checkpoint,
            task,
            tolerance=tolerance,
            budget=budget,
            cross_validation=cross_validation,
            seeds=seeds,
            start=prediction.recommended_layer,
            scan=scan,
            against_last=min(against_last, seeds),
            protocol=protocol,
            save_models=save_models,
        )

        def at(tuned: Checkpoint, chosen: Sequence[int]) -> tuple[LayerOutcome, ...]:
            if not chosen:
                return ()
            runs = finetune(tuned, chosen, task, seeds=range(seeds), protocol=protocol)
            return outcomes(runs, items_of(tuned, runs, task), level=level)

        further = at(checkpoint, layers)
        contrast = at(bases[0], reference_layers) if bases else ()
    scored = [score(each, task, split="test") for each in (checkpoint, *bases[:1])]
    comparison, failures = prediction.comparison, finding.failures if finding else ()
    return Study(
        comparison=comparison,
        prediction=prediction.drop,
        provenance=Provenance(
            layerprobe=__version__,
            data=prediction.data,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            command=command,
            settings=changed(options) | ({} if level == LEVEL else {"level": str(level)}),
            task=task.name,
            task_kind=task.kind,
            task_digest=task.digest,
            texts_digest=comparison.texts_digest,
            n_texts=len(task.texts(split)),
            seeds=tuple(range(seeds)) if fine_tuning else (),
            device=str(resolve_device(options.device)),
            versions=versions(),
            notes=task.notes,
            finetune_command=finetune_command,
            warnings=tuple(dict.fromkeys((*task.warnings, *prediction.warnings, *failures, *scored[0][0].warnings))),
        ),
        zero_shot=scored[0][0],
        reference_zero_shot=scored[1][0] if bases else None,
        protocol=own if fine_tuning else None,
        finding=finding,
        further_outcomes=further,
        reference_outcomes=contrast,
        further_comparisons=prediction.comparisons[1:],
        further_predictions=prediction.drops[1:],
    )
