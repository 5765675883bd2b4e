"""The pipeline: predict, fine-tune the deciding layers, and record everything needed to repeat it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Unpack

from layerprobe.checks import LEVEL, check_count
from layerprobe.context import current
from layerprobe.encoders.device import resolve_device
from layerprobe.encoders.loading import ModelLike, Resolved, resolve_all
from layerprobe.errors import DataError
from layerprobe.finetuning.tuning import agreed, check_layers, finetune, pooled_by
from layerprobe.finetuning.values import LayerOutcome, Protocol
from layerprobe.scoring.zero_shot import score_split
from layerprobe.search.values import SEEDS, SearchSettings
from layerprobe.similarity.values import Alignment, Measure
from layerprobe.study.find import FindSettings, find
from layerprobe.study.predict import NumberOfTexts, References, as_models, predict
from layerprobe.study.values import Finding, Provenance, Study
from layerprobe.tasks.splitting import checked_task
from layerprobe.tasks.values import Task, TextSplit
from layerprobe.versions import __version__, versions

logger = logging.getLogger(__name__)

PREDICTING = ("rule", "measure", "alignment", "split", "n_texts")
"""Arguments of `predict`."""
AGAINST_LAST = 3
"""Seeds of the layer to keep and of the last one, for the difference between them on the test split."""


class RunSettings(FindSettings, total=False):
    """Arguments of `find` and `predict`, and how the study was requested, which is kept in its provenance."""

    rule: str | None
    measure: Measure | str | None
    alignment: Alignment | None
    split: TextSplit
    n_texts: NumberOfTexts
    command: str
    finetune_command: str
    """The command line that fine-tunes so; from Python there is none."""


def run(
    model: ModelLike,
    task: Task,
    *,
    reference: References = None,
    fine_tuning: bool = True,
    layers: object = (),
    reference_layers: object = (),
    protocol: Protocol | None = None,
    save_models: bool = False,
    **settings: Unpack[RunSettings],
) -> Study:
    """Predict, find the layer to keep, and score; what was done before is not done again.

    Args:
        model: A name, a folder, or a `Model`.
        task: What to learn and to score.
        reference: As for `predict`.
        fine_tuning: False stops at the prediction.
        layers: Layers to fine-tune besides those that the search chooses, with all seeds on the task's own splits:
            numbers, or results that choose one, as for `finetune`.
        reference_layers: Layers of the first reference to fine-tune so, for the contrast.
        protocol: The paper's by default.
        save_models: Keep the weights of the runs of the search, for `export_model`.
        settings: Those of `find`: tolerance, budget, seeds, scan, cross_validation, and against_last, by default 3
            seeds, or all that there are, and final, by default True: the weights are those of a model that learnt from
            training and validation examples; and of `predict`: rule, measure, alignment, split, and n_texts.

    Raises:
        LayerProbeError: If any stage cannot be done; see `predict`, `find` and `score`.
    """
    level = current().level
    task = checked_task(task)
    seeds = check_count(settings.get("seeds", SEEDS))
    searching: dict[str, Any] = {
        name: value for name, value in settings.items() if name in FindSettings.__annotations__
    }
    predicting: dict[str, Any] = {name: value for name, value in settings.items() if name in PREDICTING}
    searching |= {"seeds": seeds, "against_last": settings.get("against_last", min(AGAINST_LAST, seeds))}
    searching.setdefault("final", True)
    if fine_tuning:  # refused before any work
        named = {name: searching[name] for name in ("tolerance", "budget", "seeds") if name in searching}
        SearchSettings(level=level, **named)
    checkpoints = resolve_all([model, *as_models(reference)], items=task.readable)
    agreed_protocol = protocol or Protocol()
    checkpoint, *bases = (pooled_by(protocol, one_of) for one_of in checkpoints)
    if fine_tuning:
        agreed_protocol, _ = agreed(protocol, checkpoint)
    options = checkpoint.asked
    chosen = check_layers(checkpoint, layers)
    of_reference = check_layers(bases[0], reference_layers) if bases else []
    if reference_layers and not bases:
        raise DataError("expected a reference for its layers, got none")
    prediction = predict(checkpoint, task, reference=bases, **predicting)
    logger.info("before fine-tuning: %s", prediction.drop.sentence)
    finding: Finding | None = None
    further: tuple[LayerOutcome, ...] = ()
    contrast: tuple[LayerOutcome, ...] = ()
    if fine_tuning:
        finding = find(checkpoint, task, protocol=protocol, save_models=save_models, **searching)

        def at(tuned: Resolved, chosen: Sequence[int]) -> tuple[LayerOutcome, ...]:
            if not chosen:
                return ()
            return finetune(tuned, task, chosen, seeds=range(seeds), protocol=protocol).outcomes

        further = at(checkpoint, chosen)
        contrast = at(bases[0], of_reference) if bases else ()
    scored = [score_split(scored_model, task, split="test") for scored_model in (checkpoint, *bases[:1])]
    comparison, failures = prediction.comparison, finding.failures if finding else ()
    warnings = (*task.warnings, *(prediction.data.warnings if prediction.data else ()), *prediction.warnings)
    return Study(
        comparison=comparison,
        prediction=prediction.drop,
        provenance=Provenance(
            layerprobe=__version__,
            data=prediction.data,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            command=settings.get("command", "layerprobe.run"),
            settings=options.changed() | ({} if level == LEVEL else {"level": str(level)}),
            task=task.name,
            task_kind=task.kind,
            task_digest=task.digest,
            texts_digest=comparison.texts_digest,
            n_texts=comparison.map.n_samples,
            seeds=tuple(range(seeds)) if fine_tuning else (),
            device=str(resolve_device(options.device)),
            versions=versions(),
            notes=task.notes,
            finetune_command=settings.get("finetune_command", ""),
            warnings=tuple(dict.fromkeys((*warnings, *failures, *scored[0][0].warnings))),
        ),
        zero_shot=scored[0][0],
        reference_zero_shot=scored[1][0] if bases else None,
        protocol=agreed_protocol if fine_tuning else None,
        finding=finding,
        further_outcomes=further,
        reference_outcomes=contrast,
        further_comparisons=prediction.comparisons[1:],
        further_predictions=prediction.drops[1:],
    )
