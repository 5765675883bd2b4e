"""Runs a chain of trainings and measures what its first steps add; every step is stored once and shared.

What a step gives is kept by the content of the model that it starts from. So chains with the same first steps, and
further processes, find these done.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from layerprobe.comparison.compare import compare_all
from layerprobe.comparison.values import Comparison
from layerprobe.context import current, part
from layerprobe.encoders.architecture import count_blocks
from layerprobe.encoders.device import computed_on
from layerprobe.encoders.encoder import TruncatedEncoder
from layerprobe.encoders.first_use import load
from layerprobe.encoders.loading import Resolved, resolve
from layerprobe.encoders.model import DEFAULTS, Model
from layerprobe.encoders.workers import SharedModel
from layerprobe.errors import UnsupportedArchitectureError
from layerprobe.extraction.embeddings import Embeddings, extract
from layerprobe.finetuning.outcomes import difference, outcomes
from layerprobe.finetuning.outputs import NO_ITEMS, RunItems, run_items
from layerprobe.finetuning.runs import RunJob, RunSet, RunWorker, runs_plan
from layerprobe.finetuning.saved import MODEL
from layerprobe.finetuning.tuning import agreed, check_layers, check_precision, run_set
from layerprobe.finetuning.values import FineTuningRun
from layerprobe.jobs.crew import crew_of
from layerprobe.jobs.execute import results
from layerprobe.lab.chains.values import (
    Chain,
    ChainCurve,
    ChainResult,
    ChainSimilarities,
    ChainSimilarity,
    ChainTrail,
)
from layerprobe.lab.pretraining.run import adapt_in_store, stored_adaptation
from layerprobe.names import counted, short_name
from layerprobe.results.estimate import Estimate
from layerprobe.similarity.measures.cka import CKA
from layerprobe.similarity.values import Matrix
from layerprobe.stats.values import CrossedInterval
from layerprobe.tasks.loading import load_corpus, load_settings
from layerprobe.tasks.values import Task, TextFile
from layerprobe.training.objective import check_masked_lm
from layerprobe.versions import versions

LayerSeed = tuple[int, int]
"""Layer and seed."""
ChainData = tuple[Sequence[Task], Sequence[TextFile]]
"""The tasks of a chain, one a fine-tuning, and its texts, one an adaptation, as they are loaded."""
Tuned = tuple[Sequence[FineTuningRun], RunItems]
"""The runs of one fine-tuning step from one start, and what each item adds to their scores."""
Branch = tuple[ChainTrail, Tuned, Sequence[Resolved], dict[LayerSeed, Resolved]]
"""A chain from one start: its scores, the runs of the last step, the checkpoints after each adaptation, and those after
the last step where its weights were kept."""
Parts = Iterator[contextlib.AbstractContextManager[object]]
"""Of each fine-tuning, in turn, its share of the progress."""


def run_chain(chain: Chain, *, data: ChainData | None = None, options: Model = DEFAULTS) -> ChainResult:
    """Run the steps of a chain at every layer and with every seed; finished ones are loaded, not repeated.

    Adaptations train the whole model. The first fine-tuning truncates what they left at each layer; each further one
    goes on from the best epoch of the one before, at the same layer and with the same seed, with a new head. A chain
    that was killed goes on where it was, with the same numbers.

    effect at a layer = mean over seeds of (test score of the last step after the others - the same straight from the
    start)

    CKA after the last fine-tuning is that of the first seed: the weights of all seeds would have to be kept.

    What its steps learn from can be given, loaded, as `data`. Of the options, pooling is the chain's, and
    `max_length` for CKA that of the last step where they have none.

    Source: Rep, Dukic and Snajder 2024 (arXiv 2402.13130): word similarity or domain-adaptive pretraining, then STS.
    """
    level = current().level
    loaded = _LoadedChain.of(chain, data, options)
    before = _embed_start(loaded) if chain.cka else None
    parts = _parts(loaded)
    trail, last, adapted, trained = _run_steps(loaded, loaded.start, parts, level)
    direct: Tuned = (), NO_ITEMS
    if chain.compares:
        alone = dict.fromkeys(loaded.pairs, loaded.start)
        direct, _ = _fine_tuned(loaded, alone, len(loaded.tasks) - 1, parts, keeps=False)
    controls = tuple(_run_steps(loaded, control, parts, level)[0] for control in loaded.controls)
    warnings = [task.warnings for task in loaded.tasks]
    warnings += [adaptation.warnings for branch in (trail, *controls) for adaptation in branch.adaptations]
    return ChainResult(
        chain=chain,
        level=level,
        n_blocks=loaded.n_blocks,
        trail=trail,
        direct=outcomes(*direct, level=level),
        effects=_effects(last, direct, level),
        controls=controls,
        similarities=None if before is None else _similarities(loaded, *before, adapted, trained),
        computed_on=computed_on(loaded.options),
        versions=versions(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        notes=tuple(dict.fromkeys(note for task in loaded.tasks for note in task.notes)),
        warnings=tuple(dict.fromkeys(warning for group in warnings for warning in group)),
    )


def plan_chain(chain: Chain, *, data: ChainData | None = None, options: Model = DEFAULTS) -> Estimate:
    """Return the steps of a chain from each start, and how many of their trainings are stored."""
    loaded = _LoadedChain.of(chain, data, options)
    steps = [planned for start in (loaded.start, *loaded.controls) for planned in _planned(loaded, start)]
    if chain.compares:
        alone = dict.fromkeys(loaded.pairs, loaded.start)
        stored = len(_finished(loaded, alone, len(loaded.tasks) - 1, keeps=False))
        what = steps[-1]["what"] + ("" if len(chain.steps) == 1 else ", without the steps before it")
        steps.append({**steps[-1], "what": what, "from": short_name(loaded.start.label), "stored": stored})
    return Estimate(
        title=f"{chain.name}: layers {', '.join(map(str, loaded.layers))}, {counted(len(chain.seeds), 'seed')}",
        jobs=tuple(steps),
        numbers={"chain": chain, "layers": loaded.layers},
    )


# ---- what is loaded --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _LoadedChain:
    """A chain with its tasks loaded and its models resolved and checked, but no weights loaded."""

    chain: Chain
    options: Model
    start: Resolved
    controls: tuple[Resolved, ...]
    reference: Resolved | None
    layers: tuple[int, ...]
    tasks: tuple[Task, ...]
    """One a fine-tuning."""
    corpora: tuple[TextFile, ...]
    """One an adaptation."""

    @classmethod
    def of(cls, chain: Chain, data: ChainData | None, options: Model) -> _LoadedChain:
        # CKA is of the states that the last step learns from: texts are cut where it cuts them
        last = chain.finetunings[-1].protocol
        options = replace(
            options,
            pooling=chain.pooling,
            prompt=options.prompt or "",
            max_length=options.max_length or last.max_length,
        )
        check_precision(options)
        if data is None:
            corpora = [load_corpus(step.texts) for step in chain.adaptations]
            data = [load_settings(step.task) for step in chain.finetunings], corpora
        specs = [Model(chain.model, random_init=seed).like(options) for seed in (chain.random_init, *chain.control)]
        start, *controls = map(resolve, specs)
        if chain.adaptations:
            check_masked_lm(start)
        layers = tuple(range(count_blocks(start.config) + 1)) if chain.layers is None else chain.layers
        check_layers(start, layers)
        loaded = cls(
            chain=chain,
            options=options,
            start=start,
            controls=tuple(controls),
            reference=None if chain.reference is None else resolve(chain.reference, like=options),
            layers=layers,
            tasks=tuple(data[0]),
            corpora=tuple(data[1]),
        )
        loaded._check_layer_zero()
        return loaded

    @property
    def n_blocks(self) -> int:
        return count_blocks(self.start.config)

    @property
    def pairs(self) -> tuple[LayerSeed, ...]:
        return tuple((layer, seed) for seed in self.chain.seeds for layer in self.layers)

    def _check_layer_zero(self) -> None:
        """Refuse layer 0, before any training, where later steps or CKA need a checkpoint that it does not have."""
        if 0 not in self.layers or not (self.chain.cka or len(self.chain.finetunings) > 1):
            return
        if TruncatedEncoder(load(self.start), 0, share=True).reads_input_of_block:
            raise UnsupportedArchitectureError(
                f"{self.start.config.model_type} does not run without a block, so layer 0 has no checkpoint for "
                "further steps and CKA: expected layers from 1"
            )

    def resolve(self, folder: Path) -> Resolved:
        """Return the checkpoint that a step left."""
        return resolve(str(folder), like=self.options)


def _parts(loaded: _LoadedChain) -> Parts:
    """Yield of each fine-tuning, in turn, its share of the progress: a block costs about as much as the rest of a step.

    The steps of the chain come first, then the last one alone, and then those of the controls.
    """
    blocks = float(sum(layer + 1 for layer, _ in loaded.pairs))
    steps = zip(loaded.chain.finetunings, loaded.tasks, strict=True)
    costs = [step.protocol.epochs * len(task.train) * blocks for step, task in steps]
    costs = [*costs, *(costs[-1:] if loaded.chain.compares else ()), *costs * len(loaded.controls)]
    for start, cost in zip(itertools.accumulate(costs, initial=0.0), costs, strict=False):
        yield part(start=start, share=cost, whole=sum(costs))


def _run_steps(loaded: _LoadedChain, start: Resolved, parts: Parts, level: float) -> Branch:
    """Run all steps from one start."""
    adaptations, adapted = [], [start]
    for adapt, texts in zip(loaded.chain.adaptations, loaded.corpora, strict=True):
        path, adaptation = adapt_in_store(adapted[-1], texts, protocol=adapt.protocol, seed=adapt.seed)
        adaptations.append(adaptation)
        adapted.append(loaded.resolve(path))
    at = dict.fromkeys(loaded.pairs, adapted[-1])
    tuned = []
    for number in range(len(loaded.tasks)):
        done, at = _fine_tuned(loaded, at, number, parts)
        tuned.append(done)
    trail = ChainTrail(
        model=start.label,
        revision=start.revision,
        random_init=start.asked.random_init,
        adaptations=tuple(adaptations),
        outcomes=tuple(outcomes(*step, level=level) for step in tuned),
    )
    return trail, tuned[-1], adapted[1:], at


def _fine_tuned(
    loaded: _LoadedChain, at: dict[LayerSeed, Resolved], number: int, parts: Parts, *, keeps: bool = True
) -> tuple[Tuned, dict[LayerSeed, Resolved]]:
    """Return the runs of a step, and the checkpoints that it left where its weights are kept."""
    of, jobs = _runs(loaded, at, number, keeps=keeps)
    task = loaded.tasks[number]
    with crew_of(RunWorker, of) as crew, next(parts):
        made = results(runs_plan(of, jobs), crew)
    runs = [(cast(FineTuningRun, run), of[job.of].directory(job)) for job, run in made.items()]
    left = {
        (job.layer, job.seed): loaded.resolve(of[job.of].directory(job) / MODEL)
        for job in made
        if of[job.of].save_models
    }
    return ([run for run, _ in runs], run_items(task, runs)), left


def _runs(
    loaded: _LoadedChain, at: dict[LayerSeed, Resolved], number: int, *, keeps: bool
) -> tuple[tuple[RunSet, ...], dict[RunJob, float]]:
    """Return the runs of a step, a set for each checkpoint that it begins with, and what they cost."""
    step, task = loaded.chain.finetunings[number], loaded.tasks[number]
    sets: dict[tuple[int, bool], RunSet] = {}
    jobs: dict[RunJob, float] = {}
    for (layer, seed), checkpoint in at.items():
        key = id(checkpoint), keeps and loaded.chain.keeps_weights(number, seed)
        if key not in sets:
            whole = checkpoint.with_options(max_length=None)  # the length among the options is that for CKA
            protocol, tuned = agreed(step.protocol, whole)
            shared = SharedModel(tuned, items=task.readable)
            sets[key] = run_set(shared, task, protocol, save_models=key[1])
        jobs[RunJob(layer, seed, list(sets).index(key))] = layer + 1.0
    return tuple(sets.values()), jobs


def _effects(after: Tuned, alone: Tuned, level: float) -> tuple[CrossedInterval | None, ...]:
    """Return the mean over seeds of the paired difference at each layer, with its errors over items and seeds."""

    def at(layer: int) -> CrossedInterval | None:
        first, second = (
            sorted((run for run in runs if run.layer == layer), key=lambda run: run.seed) for runs, _ in (after, alone)
        )
        return difference(first, second, (after[1], alone[1]), level=level)

    return tuple(map(at, sorted({run.layer for run in alone[0]})))


# ---- what is stored --------------------------------------------------------------------------------------


def _planned(loaded: _LoadedChain, start: Resolved) -> Iterator[dict[str, Any]]:
    """Yield the planned steps from a start; steps after one that is not stored are not stored either."""
    checkpoint: Resolved | None = start

    def planned(label: str, *, total: int, stored: int) -> dict[str, Any]:
        what = {"step": next(numbers), "what": label, "from": short_name(start.label)}
        return {**what, "trainings": total, "stored": stored}

    numbers = itertools.count(1)
    for adapt, texts in zip(loaded.chain.adaptations, loaded.corpora, strict=True):
        if checkpoint is not None:
            adapted, adaptation = stored_adaptation(checkpoint, texts, protocol=adapt.protocol, seed=adapt.seed)
            checkpoint = None if adaptation is None else loaded.resolve(adapted)
        yield planned(adapt.label, total=1, stored=int(checkpoint is not None))
    at = {} if checkpoint is None else dict.fromkeys(loaded.pairs, checkpoint)
    for number, step in enumerate(loaded.chain.finetunings):
        done = _finished(loaded, at, number)
        yield planned(step.label, total=len(loaded.pairs), stored=len(done))
        if number < len(loaded.tasks) - 1:
            at = {pair: loaded.resolve(path / MODEL) for pair, path in done.items()}


def _finished(
    loaded: _LoadedChain, at: dict[LayerSeed, Resolved], number: int, *, keeps: bool = True
) -> dict[LayerSeed, Path]:
    """Return the directories of a step's finished runs."""
    of, jobs = _runs(loaded, at, number, keeps=keeps)
    return {(job.layer, job.seed): of[job.of].directory(job) for job in jobs if of[job.of].read(job) is not None}


# ---- CKA before and after --------------------------------------------------------------------------------


def _embed_start(loaded: _LoadedChain) -> tuple[tuple[Embeddings, ...], ChainCurve | None]:
    """Return the start and the reference on the texts of the last task's test split, and start against reference.

    What is wrong with them or the texts is reported before any training.
    """
    checkpoints = (loaded.start,) if loaded.reference is None else (loaded.start, loaded.reference)
    texts = loaded.tasks[-1].test.texts
    start, *reference = (extract(step, texts).complete for step in checkpoints)
    if not reference:
        return (start,), None
    (comparison,) = compare_all(start, reference, device=loaded.options.device).comparisons
    return (start, *reference), _curve(comparison, comparison.curve.reference_layers)


def _similarities(
    loaded: _LoadedChain,
    before: Sequence[Embeddings],
    to_reference: ChainCurve | None,
    adapted: Sequence[Resolved],
    trained: dict[LayerSeed, Resolved],
) -> ChainSimilarities:
    chain, texts = loaded.chain, loaded.tasks[-1].test.texts
    trainings: list[tuple[str, int | None, int, Resolved]] = [
        (step.label, None, step.seed, checkpoint) for step, checkpoint in zip(chain.adaptations, adapted, strict=True)
    ]
    label, seed = chain.finetunings[-1].label, chain.seeds[0]
    trainings += [(label, layer, seed, trained[layer, seed]) for layer in sorted(loaded.layers)]
    similarities = []
    for after, layer, seed_of, checkpoint in trainings:
        embeddings = extract(checkpoint, texts).complete
        # of the whole map: a truncated model has fewer layers than what it is compared with
        comparisons = compare_all(embeddings, before, device=loaded.options.device).comparisons
        similarities.append(
            ChainSimilarity(
                after=after,
                layer=layer,
                seed=seed_of,
                to_start=_curve(comparisons[0], range(embeddings.n_layers)),
                to_reference=None if to_reference is None else _curve(comparisons[1], to_reference.other_layers),
            )
        )
    return ChainSimilarities(
        measure=CKA(),
        n_texts=len(texts),
        reference=None if loaded.reference is None else loaded.reference.label,
        start_to_reference=to_reference,
        trained=tuple(similarities),
    )


def _curve(comparison: Comparison, partners: Sequence[int]) -> ChainCurve:
    """Read the similarity of each layer to its partner off a map."""
    errors, partners = comparison.map.uncertainty, tuple(partners[: comparison.model.n_layers])

    def read(matrix: Matrix) -> tuple[float, ...]:
        return tuple(matrix[layer][partner] for layer, partner in enumerate(partners))

    return ChainCurve(
        values=read(comparison.map.values),
        other_layers=partners,
        lower=None if errors is None else read(errors.lower),
        upper=None if errors is None else read(errors.upper),
    )
