"""A chain of trainings -> what each step gave and what the first ones add; every step is stored once and shared.

What a step gives is kept by the content of the model that it starts from. So chains with the same first steps, and
further processes, find these done.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from layerprobe.adaptation.run import adapt_in_store, stored_adaptation
from layerprobe.adaptation.values import Adaptation
from layerprobe.chains.values import (
    Chain,
    ChainCurve,
    ChainEffect,
    ChainPlan,
    ChainResult,
    ChainSimilarities,
    ChainSimilarity,
    ChainTrail,
    FinetuneStep,
    PlannedStep,
)
from layerprobe.checks import LEVEL, check_level
from layerprobe.comparison.compare import compare_all
from layerprobe.comparison.values import Comparison
from layerprobe.encoders.architecture import count_blocks
from layerprobe.encoders.encoder import TruncatedEncoder
from layerprobe.encoders.heads import check_masked_lm
from layerprobe.encoders.loading import Checkpoint, resolve_checkpoint
from layerprobe.encoders.options import DEFAULT_OPTIONS, Options, computed_on, load
from layerprobe.encoders.spec import ModelSpec
from layerprobe.errors import UnsupportedArchitectureError
from layerprobe.extraction.embeddings import Embeddings, extract
from layerprobe.finetuning.confirmation import outcomes
from layerprobe.finetuning.saved import MODEL, has_model
from layerprobe.finetuning.tuning import check_layers, check_precision, finetune, run_folder, saved_models
from layerprobe.finetuning.values import FineTuningRun
from layerprobe.progress import Progress, part_of, silent
from layerprobe.similarity.measures.cka import CKA
from layerprobe.similarity.values import Matrix
from layerprobe.tasks.corpus import load_corpus
from layerprobe.tasks.settings import load_settings
from layerprobe.tasks.values import Task, TextFile
from layerprobe.versions import versions

Place = tuple[int, int]
"""Layer and seed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChainData:
    """What the steps of a chain learn from, loaded."""

    tasks: tuple[Task, ...]
    """One a fine-tuning."""
    corpora: tuple[TextFile, ...] = ()
    """One an adaptation."""

    @classmethod
    def of(cls, chain: Chain) -> ChainData:
        """Load what a chain names."""
        return cls(
            corpora=tuple(load_corpus(step.texts) for step in chain.adaptations),
            tasks=tuple(load_settings(step.task) for step in chain.finetunings),
        )


def run_chain(
    chain: Chain,
    *,
    data: ChainData | None = None,
    level: float = LEVEL,
    options: Options = DEFAULT_OPTIONS,
    progress: Progress = silent,
) -> ChainResult:
    """Do the steps of a chain at every layer and with every seed; what is stored is read, not repeated.

    Adaptations train the whole model. The first fine-tuning truncates what they left at each layer; each further one
    goes on from the best epoch of the one before, at the same layer and with the same seed, with a new head. A chain
    that was killed goes on where it was, with the same numbers.

    effect at a layer = mean over seeds of (test score of the last step after the others - the same straight from the
    start)

    CKA after the last fine-tuning is that of the first seed: the weights of all seeds would have to be kept.

    Args:
        chain: What `load_chain` read, or one made by hand.
        data: What its steps learn from, where that is loaded; by default what the chain names.
        level: Confidence level of all intervals.
        options: How to load, and the prompt; how to pool is said by the chain, and so is the `max_length` of texts for
            CKA, that of the last step, where the options have none.
        progress: Told how much is done.

    Raises:
        ModelError: If a model cannot be had, cannot fill in masked tokens, or a layer has no checkpoint to go on from.
        DataError: If a task, a file with texts or a layer is not what it should be.
        TrainingError: If a training fails.
        StoreError: If a result cannot be written.

    Source: Rep, Dukic and Snajder 2024 (arXiv 2402.13130): word similarity or domain-adaptive pretraining, then STS.
    """
    check_level(level)
    work = _Work.of(chain, data, options)
    work.check_layer_zero()
    before = _before(work, level, progress) if chain.cka else None
    bar = _Bar(progress, work)
    walked = _follow(work, work.start, bar)
    direct = _straight(work, bar) if chain.compares else ()
    controls = [_follow(work, control, bar) for control in work.controls]
    last = walked.runs[-1]
    told = [each.warnings for each in work.tasks]
    adapted = [adaptation.warnings for each in (walked, *controls) for adaptation in each.adaptations]
    return ChainResult(
        chain=chain,
        level=level,
        n_blocks=work.n_blocks,
        trail=walked.trail(level),
        direct=outcomes(direct, level=level),
        effects=_effects(work.layers, last, direct, level) if direct else (),
        controls=tuple(each.trail(level) for each in controls),
        similarities=None if before is None else _similarities(work, before, walked, level, progress),
        computed_on=computed_on(work.options),
        versions=versions(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        notes=tuple(dict.fromkeys(note for task in work.tasks for note in task.notes)),
        warnings=tuple(dict.fromkeys(warning for part in (*told, *adapted) for warning in part)),
    )


def plan_chain(chain: Chain, *, data: ChainData | None = None, options: Options = DEFAULT_OPTIONS) -> ChainPlan:
    """Return the steps of a chain from each start, and how many of their trainings are stored.

    Args:
        chain: As for `run_chain`.
        data: As for `run_chain`.
        options: As for `run_chain`.

    Raises:
        LayerProbeError: As `run_chain` does for what is wrong before any training.
    """
    work = _Work.of(chain, data, options)
    work.check_layer_zero()
    steps = [planned for start in (work.start, *work.controls) for planned in _planned(work, start)]
    if chain.compares:
        step, task = chain.finetunings[-1], work.tasks[-1]
        done = [_finished(work, work.start, task, step, place, keep=False) for place in work.places]
        steps.append(
            PlannedStep(
                start=work.start.label,
                number=len(chain.steps),
                label=step.label,
                total=len(done),
                stored=sum(path is not None for path in done),
                after=False,
            )
        )
    return ChainPlan(chain=chain, layers=work.layers, steps=tuple(steps))


# ---- what is needed --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Work:
    """A chain with all that it names found and checked, but no weights loaded."""

    chain: Chain
    options: Options
    start: Checkpoint
    controls: tuple[Checkpoint, ...]
    reference: Checkpoint | None
    layers: tuple[int, ...]
    tasks: tuple[Task, ...]
    """One a fine-tuning."""
    corpora: tuple[TextFile, ...]
    """One an adaptation."""

    @classmethod
    def of(cls, chain: Chain, data: ChainData | None, options: Options) -> _Work:
        # CKA is of the states that the last step learns from: texts are cut where it cuts them
        last = chain.finetunings[-1].protocol
        options = replace(options, pooling=chain.pooling, max_length=options.max_length or last.max_length)
        check_precision(options)
        data = data or ChainData.of(chain)
        trust = options.trust_remote_code
        start = resolve_checkpoint(ModelSpec(chain.model, random_init=chain.random_init), trust_remote_code=trust)
        if chain.adaptations:
            check_masked_lm(start)
        layers = tuple(range(count_blocks(start.config) + 1)) if chain.layers is None else chain.layers
        check_layers(start, layers)
        return cls(
            chain=chain,
            options=options,
            start=start,
            controls=tuple(
                resolve_checkpoint(ModelSpec(chain.model, random_init=seed), trust_remote_code=trust)
                for seed in chain.control
            ),
            reference=None if chain.reference is None else resolve_checkpoint(chain.reference, trust_remote_code=trust),
            layers=layers,
            tasks=data.tasks,
            corpora=data.corpora,
        )

    @property
    def n_blocks(self) -> int:
        return count_blocks(self.start.config)

    @property
    def places(self) -> tuple[Place, ...]:
        return tuple((layer, seed) for seed in self.chain.seeds for layer in self.layers)

    def check_layer_zero(self) -> None:
        """Refuse layer 0, before any training, where later steps or CKA need a checkpoint that it does not have."""
        if 0 not in self.layers or not (self.chain.cka or len(self.chain.finetunings) > 1):
            return
        if TruncatedEncoder(load(self.start, self.options), 0).reads_input_of_block:
            raise UnsupportedArchitectureError(
                f"{self.start.config.model_type} does not run without a block, so layer 0 has no checkpoint for "
                "further steps and CKA: expected layers from 1"
            )

    def find(self, folder: Path) -> Checkpoint:
        """Return the checkpoint that a step left."""
        return resolve_checkpoint(str(folder), trust_remote_code=self.options.trust_remote_code)


class _Bar:
    """How much of all fine-tuning is done: a block costs about as much as the rest of a step."""

    def __init__(self, progress: Progress, work: _Work) -> None:
        self.progress = progress
        n_starts = 1 + len(work.controls)
        times = [n_starts] * len(work.tasks)
        times[-1] += work.chain.compares
        steps = zip(work.chain.finetunings, work.tasks, times, strict=True)
        self._whole = sum(count * _cost(step, task, work.places) for step, task, count in steps)
        self._done = 0.0

    def part(self, step: FinetuneStep, task: Task, places: Sequence[Place]) -> Progress:
        """Return what is told of these runs."""
        share = _cost(step, task, places)
        self._done += share
        return part_of(self.progress, start=self._done - share, share=share, whole=self._whole)


def _cost(step: FinetuneStep, task: Task, places: Sequence[Place]) -> float:
    return float(step.protocol.epochs * len(task.train) * sum(layer + 1 for layer, _ in places))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Walked:
    """What a chain left from one start."""

    start: Checkpoint
    adaptations: tuple[Adaptation, ...]
    adapted: tuple[Checkpoint, ...]
    """After each adaptation."""
    runs: tuple[tuple[FineTuningRun, ...], ...]
    """Of each fine-tuning."""
    trained: dict[Place, Checkpoint]
    """After the last fine-tuning, where its weights were kept."""

    def trail(self, level: float) -> ChainTrail:
        return ChainTrail(
            model=self.start.label,
            revision=self.start.revision,
            random_init=self.start.random_init,
            adaptations=self.adaptations,
            outcomes=tuple(outcomes(runs, level=level) for runs in self.runs),
        )


def _follow(work: _Work, start: Checkpoint, bar: _Bar) -> _Walked:
    """Do all steps from a start."""
    adaptations, adapted, options = [], [start], work.options
    for adapt, texts in zip(work.chain.adaptations, work.corpora, strict=True):
        path, adaptation = adapt_in_store(
            adapted[-1], texts, protocol=adapt.protocol, seed=adapt.seed, options=options, progress=bar.progress
        )
        adaptations.append(adaptation)
        adapted.append(work.find(path))
    at = dict.fromkeys(work.places, adapted[-1])
    runs = []
    for number, (step, task) in enumerate(zip(work.chain.finetunings, work.tasks, strict=True)):
        done, at = _fine_tuned(work, at, number, step, task, bar)
        runs.append(done)
    return _Walked(
        start=start, adaptations=tuple(adaptations), adapted=tuple(adapted[1:]), runs=tuple(runs), trained=at
    )


def _fine_tuned(
    work: _Work, at: dict[Place, Checkpoint], number: int, step: FinetuneStep, task: Task, bar: _Bar
) -> tuple[tuple[FineTuningRun, ...], dict[Place, Checkpoint]]:
    """Return the runs of a step, and the checkpoints that it left."""
    # runs from one checkpoint are made together, so that it is loaded once
    groups: dict[tuple[int, bool], dict[Place, Checkpoint]] = {}
    for place, checkpoint in at.items():
        groups.setdefault((id(checkpoint), work.chain.keeps_weights(number, place[1])), {})[place] = checkpoint
    runs: list[FineTuningRun] = []
    left: dict[Place, Checkpoint] = {}
    for (_, keep), places in groups.items():
        checkpoint = next(iter(places.values()))
        made = finetune(
            checkpoint,
            list(dict.fromkeys(layer for layer, _ in places)),
            task,
            seeds=list(dict.fromkeys(seed for _, seed in places)),
            protocol=step.protocol,
            options=work.options,
            save_models=keep,
            progress=bar.part(step, task, list(places)),
        )
        runs += made
        if keep:
            directories = saved_models(checkpoint, made, task, options=work.options)
            for run, directory in zip(made, directories, strict=True):
                left[run.layer, run.seed] = work.find(directory / MODEL)
    return tuple(runs), left


def _straight(work: _Work, bar: _Bar) -> tuple[FineTuningRun, ...]:
    """Do the last step from the start, without those before it."""
    step, task = work.chain.finetunings[-1], work.tasks[-1]
    return tuple(
        finetune(
            work.start,
            work.layers,
            task,
            seeds=work.chain.seeds,
            protocol=step.protocol,
            options=work.options,
            progress=bar.part(step, task, work.places),
        )
    )


def _effects(
    layers: Sequence[int], after: Sequence[FineTuningRun], straight: Sequence[FineTuningRun], level: float
) -> tuple[ChainEffect, ...]:
    """Return the mean over seeds of the paired difference at each layer, with Student's t intervals."""
    first, second = ({(run.layer, run.seed): run.test[run.primary] for run in runs} for runs in (after, straight))
    differences: dict[int, list[float]] = {layer: [] for layer in sorted(layers)}
    for layer, seed in sorted(first):
        differences[layer].append(first[layer, seed] - second[layer, seed])
    return tuple(
        ChainEffect.of(layer, values, level=level, n_layers=len(differences)) for layer, values in differences.items()
    )


# ---- what is stored --------------------------------------------------------------------------------------


def _planned(work: _Work, start: Checkpoint) -> Iterator[PlannedStep]:
    """Yield the steps from a start; what would follow one that is not stored is not stored either."""
    checkpoint: Checkpoint | None = start

    def planned(label: str, *, total: int, stored: int) -> PlannedStep:
        return PlannedStep(start=start.label, number=next(numbers), label=label, total=total, stored=stored, after=True)

    numbers = itertools.count(1)
    for adapt, texts in zip(work.chain.adaptations, work.corpora, strict=True):
        if checkpoint is not None:
            known = stored_adaptation(checkpoint, texts, protocol=adapt.protocol, seed=adapt.seed, options=work.options)
            checkpoint = None if known.adaptation is None else work.find(known.path)
        yield planned(adapt.label, total=1, stored=int(checkpoint is not None))
    at = {} if checkpoint is None else dict.fromkeys(work.places, checkpoint)
    for number, (step, task) in enumerate(zip(work.chain.finetunings, work.tasks, strict=True)):
        done: dict[Place, Path] = {}
        for place, start_of in at.items():
            keep = work.chain.keeps_weights(number, place[1])
            path = _finished(work, start_of, task, step, place, keep=keep)
            if path is not None:
                done[place] = path
        yield planned(step.label, total=len(work.places), stored=len(done))
        if number < len(work.tasks) - 1:
            at = {place: work.find(path / MODEL) for place, path in done.items()}


def _finished(
    work: _Work, checkpoint: Checkpoint, task: Task, step: FinetuneStep, place: Place, *, keep: bool
) -> Path | None:
    """Return the directory of a run that need not be made again, or None."""
    folder = run_folder(checkpoint, task, step.protocol, work.options)
    path = folder.run_path(*place)
    return None if folder.load(*place) is None or (keep and not has_model(path)) else path


# ---- CKA before and after --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Before:
    """The start and the reference on the texts of the last task's test split."""

    texts: tuple[str, ...]
    start: Embeddings
    reference: Embeddings | None
    partners: tuple[int, ...] | None
    """The reference's layer that each layer of the start is compared with."""
    curve: ChainCurve | None
    """Start against reference."""


def _before(work: _Work, level: float, progress: Progress) -> _Before:
    """Compare the start with the reference; what is wrong with them or the texts is told before any training."""
    texts = work.tasks[-1].test.texts
    start = extract(work.start, texts, options=work.options, progress=progress)
    if work.reference is None:
        return _Before(texts=texts, start=start, reference=None, partners=None, curve=None)
    reference = extract(work.reference, texts, options=work.options, progress=progress)
    (comparison,) = _compared(start, [reference], work, level)
    partners = comparison.curve.reference_layers
    return _Before(texts=texts, start=start, reference=reference, partners=partners, curve=_curve(comparison, partners))


def _similarities(work: _Work, before: _Before, walked: _Walked, level: float, progress: Progress) -> ChainSimilarities:
    seed = work.chain.seeds[0]
    steps = zip(work.chain.adaptations, walked.adapted, strict=True)
    trained: list[tuple[str, int | None, int, Checkpoint]] = [
        (step.label, None, step.seed, checkpoint) for step, checkpoint in steps
    ]
    label = work.chain.finetunings[-1].label
    trained += [(label, layer, seed, walked.trained[layer, seed]) for layer in sorted(work.layers)]
    found = []
    for after, layer, seed_of, checkpoint in trained:
        embeddings = extract(checkpoint, before.texts, options=work.options, progress=progress)
        others = [before.start] if before.reference is None else [before.start, before.reference]
        comparisons = _compared(embeddings, others, work, level)
        indices = tuple(range(embeddings.n_layers))
        found.append(
            ChainSimilarity(
                after=after,
                layer=layer,
                seed=seed_of,
                to_start=_curve(comparisons[0], indices),
                to_reference=None if before.partners is None else _curve(comparisons[1], before.partners),
            )
        )
    return ChainSimilarities(
        measure=CKA(),
        n_texts=len(before.texts),
        reference=None if work.reference is None else work.reference.label,
        start_to_reference=before.curve,
        trained=tuple(found),
    )


def _compared(model: Embeddings, others: Sequence[Embeddings], work: _Work, level: float) -> tuple[Comparison, ...]:
    # of the whole map: a truncated model has fewer layers than what it is compared with
    return compare_all(model, others, level=level, device=work.options.device).comparisons


def _curve(comparison: Comparison, partners: Sequence[int]) -> ChainCurve:
    """Read the similarity of each layer to its partner off a map."""
    errors = comparison.map.uncertainty
    pairs = tuple(enumerate(partners[: comparison.model.n_layers]))

    def read(matrix: Matrix) -> tuple[float, ...]:
        return tuple(matrix[layer][partner] for layer, partner in pairs)

    return ChainCurve(
        values=read(comparison.map.values),
        other_layers=tuple(partner for _, partner in pairs),
        lower=None if errors is None else read(errors.lower),
        upper=None if errors is None else read(errors.upper),
    )
