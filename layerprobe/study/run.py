"""All stages in the order a reader tells them, and what somebody needs to do them again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from layerprobe.checks import LEVEL, check_level, check_seeds
from layerprobe.comparison.compare import compare_all
from layerprobe.encoders.loading import ModelLike, resolve_checkpoint, resolve_device
from layerprobe.encoders.options import DEFAULT_OPTIONS, Options, changed
from layerprobe.errors import DataError
from layerprobe.extraction.embeddings import extract
from layerprobe.finetuning.confirmation import outcomes
from layerprobe.finetuning.tuning import PAPER_SEEDS, agreed, check_layers, check_precision, confirm, finetune
from layerprobe.finetuning.values import Confirmation, LayerOutcome, Protocol
from layerprobe.progress import Progress, silent
from layerprobe.scoring.zero_shot import zero_shot
from layerprobe.similarity.values import Alignment, Measure
from layerprobe.study.predict import cautions, chosen_rule, predict, rule_by_reference, rule_readings
from layerprobe.study.values import Provenance, Study
from layerprobe.tasks.kinds.kind import KINDS
from layerprobe.tasks.values import Task
from layerprobe.versions import __version__, versions


def run(
    model: ModelLike,
    *,
    reference: ModelLike | None = None,
    task: Task,
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
    further_references: Sequence[ModelLike] = (),
    options: Options = DEFAULT_OPTIONS,
    command: str = "layerprobe.run",
    progress: Progress = silent,
) -> Study:
    """Extract, compare, predict and confirm; what was done before is not done again.

    Args:
        model: A name, a folder, or a `ModelSpec`.
        reference: The same of a model that was pretrained by masked language modelling. None where there is no such
            model: a rule that reads the model alone predicts, and each layer is compared with the one before.
        task: What to learn and to score; models are compared on the texts of its test split.
        fine_tuning: False stops at the prediction.
        layers: Layers to fine-tune beside those that decide.
        reference_layers: Layers of the reference to fine-tune, for the contrast.
        seeds: One fine-tuning run each.
        protocol: The paper's by default.
        level: Confidence level of the intervals.
        rule: How a drop is foreseen, see `predict`; what `chosen_rule` names by default.
        all_seeds: Run all seeds also where fewer settle the verdict; see `confirm`.
        measure: Which CKA; debiased linear of raw features by default.
        alignment: same-index, relative-depth or best-match.
        further_references: More models to compare with; the prediction is from the first.
        options: How to load and embed.
        command: How this study was asked for; kept in its provenance.
        progress: Told what is being done, and how much of it.

    Raises:
        LayerProbeError: If any stage cannot be done; see the stages.
    """
    protocol = agreed(protocol, options)
    check_level(level)
    seeds = check_seeds(seeds)
    if fine_tuning:
        check_precision(options)
    rule = chosen_rule(rule, task.test.texts, labelled=True, referenced=reference is not None)
    checkpoint = resolve_checkpoint(model, trust_remote_code=options.trust_remote_code)
    check_layers(checkpoint, layers)
    base_checkpoint = None
    if reference is not None:
        base_checkpoint = resolve_checkpoint(reference, trust_remote_code=options.trust_remote_code)
        check_layers(base_checkpoint, reference_layers)
    elif reference_layers or further_references:
        raise DataError("expected a reference for its layers, and before further references, got none")
    texts = task.test.texts
    tested = extract(checkpoint, texts, options=options, progress=progress)
    bases = [
        extract(each, texts, options=options, progress=progress)
        for each in (
            base_checkpoint,
            *(resolve_checkpoint(other, trust_remote_code=options.trust_remote_code) for other in further_references),
        )
        if each is not None
    ]
    validated = extract(checkpoint, task.validation.texts, options=options, progress=progress)
    fit = KINDS[task.kind].fitted_on
    fitted, base_fitted = (
        None
        if each is None or fit is None
        else extract(each, task.split(fit).texts, options=options, progress=progress)
        for each in (checkpoint, base_checkpoint)
    )
    compared = compare_all(
        tested,
        bases or [tested],
        measure=measure,
        alignment=alignment if bases else "previous-layer",
        level=level,
        device=options.device,
        progress=progress,
    )
    comparison, *further = compared.comparisons
    labelled = zero_shot(validated, task, split="validation", fitted=fitted, progress=progress)
    read = rule_readings(checkpoint, texts, rule=rule, task=task, level=level, options=options, progress=progress)
    prediction = predict(comparison, zero_shot_validation=labelled, rule=rule, read=read)
    confirmed: Confirmation | None = None
    contrast: tuple[LayerOutcome, ...] = ()
    if fine_tuning:
        confirmed = confirm(
            checkpoint,
            prediction,
            task,
            layers=layers,
            seeds=seeds,
            protocol=protocol,
            level=level,
            all_seeds=all_seeds,
            options=options,
            progress=progress,
        )
        if base_checkpoint is not None and reference_layers:
            runs = finetune(
                base_checkpoint,
                reference_layers,
                task,
                seeds=confirmed.outcomes[-1].seeds,
                protocol=protocol,
                options=options,
                progress=progress,
            )
            contrast = outcomes(runs, level=level)
    return Study(
        comparison=comparison,
        prediction=prediction,
        provenance=Provenance(
            layerprobe=__version__,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            command=command,
            settings=_settings(options, level=level),
            task=task.name,
            task_kind=task.kind,
            task_digest=task.digest,
            texts_digest=comparison.texts_digest,
            n_texts=len(texts),
            seeds=tuple(dict.fromkeys(seeds)) if fine_tuning else (),
            device=str(resolve_device(options.device)),
            versions=versions(),
            notes=task.notes,
            warnings=(
                *task.warnings,
                *tested.warnings,
                *(warning for base in bases for warning in base.warnings),
                *(warning for each in (validated, fitted, base_fitted) if each for warning in each.warnings),
                *(warning for each in compared.comparisons for warning in each.warnings),
                *cautions(comparison, prediction, labelled),
            ),
        ),
        zero_shot=zero_shot(tested, task, fitted=fitted, progress=progress),
        reference_zero_shot=zero_shot(bases[0], task, fitted=base_fitted, progress=progress) if bases else None,
        protocol=protocol if fine_tuning else None,
        confirmation=confirmed,
        reference_outcomes=contrast,
        further_comparisons=tuple(further),
        further_predictions=tuple(predict(each, rule=rule_by_reference(rule), read=read) for each in further),
    )


def _settings(options: Options, *, level: float) -> dict[str, str]:
    """Return the settings that differ from their defaults."""
    return changed(options) | ({} if level == LEVEL else {"level": str(level)})
