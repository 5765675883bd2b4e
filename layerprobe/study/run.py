"""The main line: predict, fine-tune where it decides, and put down what somebody needs to do it again."""

from collections.abc import Sequence
from datetime import UTC, datetime

from layerprobe.checks import LEVEL, check_level, check_seeds
from layerprobe.encoders.loading import ModelLike, resolve_checkpoint, resolve_device
from layerprobe.encoders.options import DEFAULT_OPTIONS, Options, changed
from layerprobe.errors import DataError
from layerprobe.finetuning.confirmation import outcomes
from layerprobe.finetuning.tuning import (
    PAPER_SEEDS,
    agreed,
    check_layers,
    check_precision,
    confirm,
    finetune,
    items_of,
)
from layerprobe.finetuning.values import Confirmation, LayerOutcome, Protocol
from layerprobe.progress import Progress, silent
from layerprobe.scoring.zero_shot import score
from layerprobe.similarity.values import Alignment, Measure
from layerprobe.study.predict import References, as_models, predict
from layerprobe.study.values import Provenance, Study
from layerprobe.tasks.values import Task, check_task
from layerprobe.versions import __version__, versions


def run(
    model: ModelLike,
    *,
    task: Task,
    reference: References = None,
    fine_tuning: bool = True,
    layers: Sequence[int] = (),
    reference_layers: Sequence[int] = (),
    seeds: Sequence[int] = PAPER_SEEDS,
    protocol: Protocol | None = None,
    level: float = LEVEL,
    rule: str | None = None,
    all_seeds: bool = False,
    measure: Measure | None = None,
    alignment: Alignment | None = None,
    options: Options = DEFAULT_OPTIONS,
    command: str = "layerprobe.run",
    progress: Progress = silent,
) -> Study:
    """Predict, confirm and score; what was done before is not done again.

    Args:
        model: A name, a folder, or a `ModelSpec`.
        task: What to learn and to score; models are compared on the texts of its test split.
        reference: As for `predict`, like rule, measure and alignment.
        fine_tuning: False stops at the prediction.
        layers: Layers to fine-tune beside those that decide.
        reference_layers: Layers of the first reference to fine-tune, for the contrast.
        seeds: One fine-tuning run each.
        protocol: The paper's by default.
        level: Confidence level of all intervals.
        rule: How a drop is predicted.
        all_seeds: Run all seeds also where fewer settle the verdict; see `confirm`.
        measure: Of similarity to the reference.
        alignment: same-index, relative-depth or best-match.
        options: How to load and embed.
        command: How this study was asked for; kept in its provenance.
        progress: Called with what is done, how much, and of how much.

    Raises:
        LayerProbeError: If any stage cannot be done; see `predict`, `confirm` and `score`.
    """
    check_task(task)
    protocol = agreed(protocol, options)
    check_level(level)
    seeds = check_seeds(seeds)
    if fine_tuning:
        check_precision(options)
    checkpoint, *bases = (
        resolve_checkpoint(each, trust_remote_code=options.trust_remote_code) for each in (model, *as_models(reference))
    )
    check_layers(checkpoint, layers)
    if bases:
        check_layers(bases[0], reference_layers)
    elif reference_layers:
        raise DataError("expected a reference for its layers, got none")
    prediction = predict(
        checkpoint,
        task,
        reference=bases,
        rule=rule,
        measure=measure,
        alignment=alignment,
        level=level,
        options=options,
        progress=progress,
    )
    confirmation: Confirmation | None = None
    contrast: tuple[LayerOutcome, ...] = ()
    if fine_tuning:
        confirmation = confirm(
            checkpoint,
            prediction.drop,
            task,
            layers=layers,
            seeds=seeds,
            protocol=protocol,
            level=level,
            all_seeds=all_seeds,
            options=options,
            progress=progress,
        )
        if reference_layers:
            taken = confirmation.outcomes[-1].seeds
            runs = finetune(
                bases[0], reference_layers, task, seeds=taken, protocol=protocol, options=options, progress=progress
            )
            contrast = outcomes(runs, items_of(bases[0], runs, task, options=options), level=level)
    scored = [score(each, task, options=options, progress=progress) for each in (checkpoint, *bases[:1])]
    comparison = prediction.comparison
    return Study(
        comparison=comparison,
        prediction=prediction.drop,
        provenance=Provenance(
            layerprobe=__version__,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            command=command,
            settings=changed(options) | ({} if level == LEVEL else {"level": str(level)}),
            task=task.name,
            task_kind=task.kind,
            task_digest=task.digest,
            texts_digest=comparison.texts_digest,
            n_texts=len(task.test.texts),
            seeds=tuple(dict.fromkeys(seeds)) if fine_tuning else (),
            device=str(resolve_device(options.device)),
            versions=versions(),
            notes=task.notes,
            warnings=(*task.warnings, *prediction.warnings),
        ),
        zero_shot=scored[0][0],
        reference_zero_shot=scored[1][0] if bases else None,
        protocol=protocol if fine_tuning else None,
        confirmation=confirmation,
        reference_outcomes=contrast,
        further_comparisons=prediction.comparisons[1:],
        further_predictions=prediction.drops[1:],
    )
