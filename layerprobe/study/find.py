"""Which layer to keep: readings say where to look, truncated fine-tuning decides where it matters.

`LayerSearch` says which run comes next, and what follows from the scores; here the runs that it asks for are made, or
loaded where they are finished, and their scores told.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import logging
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe.checks import Seeds, check_count, one_layer
from layerprobe.comparison.compare import compare_all
from layerprobe.context import current, part, report
from layerprobe.encoders.architecture import count_blocks, count_parameters
from layerprobe.encoders.batching import token_batches
from layerprobe.encoders.device import resolve_device
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.encoders.loading import ModelLike, Resolved, resolve_all
from layerprobe.encoders.timing import timed
from layerprobe.encoders.workers import SharedModel, leave_gpus, workers_of
from layerprobe.errors import DataError, LayerProbeError, TrainingError
from layerprobe.extraction.embeddings import as_read, extract_read, left_out_layers
from layerprobe.finetuning.outcomes import RunItems, difference, not_trained, outcomes, outputs_in, run_items
from layerprobe.finetuning.runs import RunJob, RunSet, RunWorker, is_marked, runs_plan
from layerprobe.finetuning.saved import RESULT, Runs, run_directory, without_checkpoint
from layerprobe.finetuning.tmft import embed
from layerprobe.finetuning.tuning import agreed, plan_tuning, pooled_by, run_folder, run_set
from layerprobe.finetuning.values import FineTuningRun, Place, Protocol
from layerprobe.interval import Interval
from layerprobe.jobs.crew import Workers, crew_of, execute, results
from layerprobe.jobs.processes import available_cores, import_ahead
from layerprobe.metrics.names import bounded
from layerprobe.names import short_name
from layerprobe.prediction.rule import rule_curves
from layerprobe.prediction.values import DropPrediction
from layerprobe.readings.reading import INFONCE, SELF_CKA, LayerCurve
from layerprobe.readings.source import read_curves
from layerprobe.results.estimate import Estimate, together
from layerprobe.results.shown import OneLayer, mask_left_out
from layerprobe.scoring.score import Scored, check_different, untrained_layers
from layerprobe.scoring.zero_shot import score_split
from layerprobe.search.ask import LayerSearch, SearchState, begun_evidence
from layerprobe.search.posterior import posterior, side_by_side
from layerprobe.search.values import (
    FAILURES,
    SEEDS,
    Decision,
    Evidence,
    PlannedRun,
    Score,
    SearchAnswer,
    SearchSettings,
)
from layerprobe.stats.sentences import data_use_sentences, layer_span, not_trained_lines
from layerprobe.stats.values import TOLERANCE
from layerprobe.store.store import Store
from layerprobe.study.predict import DEFAULT_RULE, References, as_models, default_rule, drop_of_curves
from layerprobe.study.values import Finding, MadeRun, Weights
from layerprobe.tasks.evaluation import links_of
from layerprobe.tasks.explored import ItemSource, LayerOutputs, joined
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.splitting import checked_task, drawn_from, folds_of, spoilt_items
from layerprobe.tasks.values import Task
from layerprobe.versions import __version__, versions

Array = NDArray[np.float64]
logger = logging.getLogger(__name__)

SMALL_VALIDATION = 1000
"""Validation examples below which layers are chosen by cross-validation within all labelled ones but the test split."""
MOST_JOBS = 4
"""Runs at a time where it is not said how many."""
LOOKED_AT = 512  # examples of each split, whose texts are embedded before anything is trained
READ = 0.1
"""What that and the readings take, as a share of the time of the runs."""
SPEED_TEXTS, SPEED_BATCH_TOKENS = 128, 2048


def find(
    model: ModelLike | list[Any],
    task: Task,
    *,
    reference: References = None,
    tolerance: float = TOLERANCE,
    budget: float | None = None,
    seeds: Seeds = SEEDS,
    cross_validation: bool | None = None,
    start: OneLayer | None = None,
    against_last: int = 0,
    final: bool = False,
    protocol: Protocol | None = None,
    save_models: bool = False,
    jobs: int | None = 1,
    ray: str | None = None,
) -> Finding:
    """Find the layer whose truncated, fine-tuned model scores best, for a small share of a full sweep.

    InfoNCE of the pretrained model says where to look first, and CKA between its layers how far apart they are. Models
    truncated at the layers that may be best are fine-tuned, one run after another where it tells most, until the best
    layer is known to within the tolerance, more seeds cannot help, or the budget is spent: see
    `layerprobe.search.plan.next_run`. Runs are those of `finetune` on the same task, and read where they are there; an
    interrupted search goes on where it was.

    A run that did not train (see `failure_sign`) is no evidence of its layer, which has another seed where it still
    may be the best. A layer of which two runs give no score, while others have one, is left out from then on; so is
    layer 0 with `save_models` where a model does not run without a block and would have no checkpoint there.

    Layers are chosen by validation scores alone. Where there are few validation examples, training and validation
    examples are pooled and divided into folds, see `folds_within`: seed k is validated by fold k modulo their number,
    and trained on the others. The test split scores what was chosen.

    Several models share the budget, a share of what their full sweeps cost together: each has its first run, and what
    follows goes where it can still change which layer of which model is the best. A block-step counts by the parameters
    of a block. A model without any score after three runs is left out, and named in the `failures`. Runs that were
    finished before, of seeds 0, 1, ... of a layer, count in the answer at no cost; they do not choose what is run.

    Args:
        model: A name, a folder, or a `Model`; or a list of different models, which are searched together.
        task: What to learn.
        reference: A model, or several, that the layers are compared with before anything is trained, as by `predict`.
        tolerance: Points of the primary metric x 100 that you accept to lose for a smaller model.
        budget: Share of the full sweep, every layer with every seed, that may be spent; 15 % by default, and all of it
            for models of up to 4 blocks.
        seeds: At a layer at most, and of the full sweep.
        cross_validation: Whether runs are validated by folds of all labelled examples but the test split's, by default
            where there are fewer than 1,000 validation examples.
        start: The layer to begin with, by default that of the highest InfoNCE, or the middle.
        against_last: Seeds with which the layer to keep and the last one are compared on the test split
            in the end; that is beyond the budget. Of several models, the layers of the chosen one.
        final: Fine-tune the layer to keep once more, on training and validation examples together, for as many epochs
            as validation chose, and keep its weights for `export_model`; the test split scores it and is not learnt
            from. The share of paraphrases is what the search's runs chose on pairs they had not learnt from.
        protocol: How to fine-tune; the paper's by default.
        save_models: Keep the checkpoint of every run.
        jobs: Runs at a time, in processes that share the processors or the GPUs of this machine: one, in this process,
            by default; None for one a GPU or a core, four at most.
        ray: The address of a Ray cluster on which they are made.

    Raises:
        DataError: If it is no task, the budget is too small for one run of each model, models are the same, or a
            setting is not what it should be.
        TrainingError: If no run gives a score.
        LayerProbeError: If the model cannot be loaded, or a result not be written.
    """
    task = checked_task(task)
    seeds, first = check_count(seeds), None if start is None else one_layer(start)
    if not isinstance(against_last, Integral) or against_last < 0:
        raise DataError(f"expected how many seeds to compare with the last layer, 0 or more, got {against_last!r}")
    settings = SearchSettings(tolerance=tolerance, level=current().level, budget=budget, seeds=seeds)
    models = model if isinstance(model, list) else [model]
    resolved = resolve_all([*models, *as_models(reference)], items=task.readable) if models else []
    checkpoints, references = resolved[: len(models)], [pooled_by(protocol, one) for one in resolved[len(models) :]]
    check_different(checkpoints)
    agreements = [agreed(protocol, checkpoint) for checkpoint in checkpoints]
    at_a_time = min(jobs_at_a_time(jobs, checkpoint) for _, checkpoint in agreements)
    folders = {Store(checkpoint.asked.cache_dir).root for _, checkpoint in agreements}
    local = "here" if at_a_time == 1 else "processes"
    machines = workers_of(agreements[0][1].asked, *sorted(folders), count=at_a_time, ray=ray, local=local)
    import_ahead(RunWorker.__module__, machines)  # beside the readings
    folds = search_folds(task, settings, checkpoints, cross_validation)
    costs = block_costs([checkpoint for _, checkpoint in agreements])
    blocks = [count_blocks(checkpoint.config) for _, checkpoint in agreements]
    of_whole = max(cost * (n + 1) for cost, n in zip(costs, blocks, strict=True))
    searched = sum(cost * settings.block_steps(n) for cost, n in zip(costs, blocks, strict=True))
    searched += 2 * against_last * of_whole
    read = READ * searched
    whole = read + searched + final * of_whole
    runs = _Runs(machines, whole=searched)
    with part(start=0, share=read, whole=whole):
        tuned = [
            _ModelRuns(
                SharedModel(checkpoint, items=task.readable, workers=machines),
                folds,
                task,
                agreed_protocol,
                references=references,
                start=first,
                save_models=save_models,
                runs=runs,
                cost=cost,
            )
            for (agreed_protocol, checkpoint), cost in zip(agreements, costs, strict=True)
        ]
    parts = tuple((len(fold.validation), links_of(fold.validation)) for fold in tuned[0].folds)
    search = LayerSearch.of(SearchState(models=tuple(one.begun for one in tuned), settings=settings, folds=parts))
    with runs, part(start=read, share=searched, whole=whole):
        _search(search, tuned, runs, at_a_time, against_last=against_last)
        found, best = _found(search, tuned, against_last=against_last)
        report("runs", 1, 1)
    with part(start=read + searched, share=final * of_whole, whole=whole):
        return best.with_final(found) if final else found


def _predicted(
    label: str, n_blocks: int, layers: range, read: Mapping[str, LayerCurve], task: Task
) -> DropPrediction | None:
    """Return what the default rule predicts; None where it reads something else, or the model has too few blocks."""
    rule = default_rule(task.texts())
    if not set(rule_curves(rule)) <= read.keys():
        return None
    try:
        predicted = drop_of_curves(short_name(label), n_blocks, layers, read, rule=rule)
    except DataError:
        return None
    logger.info("before fine-tuning: %s", predicted.summary)
    return predicted


def jobs_at_a_time(jobs: int | None, checkpoint: Resolved) -> int:
    """Return how many runs a search makes at a time; where it is not told, one a GPU, else one a core, four at most.

    Runs that begin beside others know less: with more of them, a search spends more to know as much. A model that was
    given loaded stays in this process.
    """
    if jobs is not None:
        if not isinstance(jobs, Integral) or jobs < 1:
            raise DataError(f"expected how many runs are made at a time, such as 2, got {jobs!r}")
        return jobs
    if checkpoint.loaded is not None:
        return 1
    device = resolve_device(checkpoint.asked.device)
    if device.type == "cpu":
        return min(available_cores(), MOST_JOBS)
    # one that is named by its number, such as cuda:1, is one
    return min(torch.cuda.device_count(), MOST_JOBS) if str(device) == "cuda" else 1


def search_folds(
    task: Task, settings: SearchSettings, models: Sequence[Resolved], cross_validation: bool | None = None
) -> Sequence[Task]:
    """Return the task of each seed in turn: by default folds of its labelled examples where few are for validation."""
    few = len(task.validation) < SMALL_VALIDATION if cross_validation is None else cross_validation
    n_folds = folds_within(settings, [count_blocks(model.config) for model in models]) if few else 1
    return folds_of(task, n_folds) if n_folds > 1 else (task,)


def folds_within(settings: SearchSettings, n_blocks: Sequence[int]) -> int:
    """Return how many folds validate the runs of a search: as many as a layer has runs on average, two at least.

    A fold on which a layer has no run says nothing of it; with fewer folds each run is scored on more items, which err
    more than seeds, and trained on fewer. All folds count in a full sweep, which has one for each seed. Measured in
    research/statements.md, "Items before seeds". The numbers of blocks are those of models that share the budget.
    """
    steps, sweeps = map(settings.block_steps, n_blocks), map(settings.full_sweep, n_blocks)
    return min(settings.seeds, max(2, round(settings.seeds * sum(steps) / sum(sweeps))))


def _readings(task: Task) -> list[str]:
    """Return the readings to start from, before training; InfoNCE only for text embeddings."""
    embeds = KINDS[task.kind].zero_shot != "own" and default_rule(task.texts()) == DEFAULT_RULE
    return [SELF_CKA, *([INFONCE] if embeds else [])]


def block_costs(checkpoints: Sequence[Resolved]) -> list[float]:
    """Return the cost of a block-step of each model relative to the largest, by parameters per block.

    Where all blocks share their weights, all of the model's count.
    """
    block_sizes = []
    for checkpoint in checkpoints if len(checkpoints) > 1 else ():
        sizes = count_parameters(checkpoint.config, trust_remote_code=checkpoint.pinned["trust_remote_code"])
        block_sizes.append((sizes[-1] - sizes[0]) / (len(sizes) - 1) or float(sizes[-1]))
    return [size / max(block_sizes) for size in block_sizes] or [1.0]


class _Runs:
    """Makes the runs of one or several models with shared worker processes."""

    def __init__(self, workers: Workers, *, whole: float) -> None:
        self.workers, self.whole = workers, whole
        self.sets: list[RunSet] = []
        self.requested: dict[RunJob, float] = {}
        """What runs cost; further ones are added while they are made."""
        self.made: dict[RunJob, Runs | LayerProbeError] = {}

    def __enter__(self) -> None:
        leave_gpus()  # of the readings
        self.crew = crew_of(RunWorker, tuple(self.sets), self.workers, most=self.workers.count or 1)
        self.outcomes = self._outcomes()

    def __exit__(self, *_: object) -> None:
        self.outcomes.close()
        self.crew.close()

    def _outcomes(self) -> Generator[tuple[RunJob, Runs | LayerProbeError], None, None]:
        yield from execute(runs_plan(self.sets, self.requested, whole=self.whole), self.crew)

    def outcome(self, job: RunJob) -> Runs | LayerProbeError:
        """Return the finished or loaded run, or its failure."""
        while job not in self.made:
            done, outcome = next(self.outcomes)
            if isinstance(outcome, LayerProbeError) and not is_marked(outcome):
                raise outcome
            self.made[done] = outcome
        return self.made[job]


def _search(
    search: LayerSearch, tuned: Sequence[_ModelRuns], runs: _Runs, at_a_time: int, *, against_last: int
) -> None:
    """Make the runs that the search asks for and tell it their scores; with spare workers, of the last layer, too.

    Several runs at a time end in the order of their costs, whoever is faster: a search that is made again is the same.
    """
    one = tuned[0]
    most = against_last if len(tuned) == 1 and not spoilt_items(one.task) else 0
    ends: dict[PlannedRun, float] = {}
    now = 0.0
    while True:
        asked = search.ask(at_a_time - len(ends))
        alone = len(asked) + len(ends) == 1 and not most and runs.workers.executor == "processes"
        for run in asked:
            ends[run] = now + tuned[run.model].request(run, alone=alone)
        evidence = search.state.models[0]
        room = min(at_a_time - len(ends), most - one.ahead) if ends else 0
        if room > 0 and evidence.scored and posterior(evidence).best_layer != one.n_blocks:
            for seed in range(one.ahead, one.ahead + room):
                runs.requested.setdefault(one.job(one.n_blocks, seed), one.n_blocks + 1)
            one.ahead += room
        if not ends:
            return
        ended = min(ends, key=ends.__getitem__)
        now = ends.pop(ended)
        tuned[ended.model].tell(search, ended)


class _ModelRuns:
    """One model's runs so far: what a search asks for is made here, and told by its scores."""

    def __init__(
        self,
        model: SharedModel,
        folds: Sequence[Task],
        task: Task,
        protocol: Protocol,
        *,
        references: Sequence[Resolved],
        start: int | None,
        save_models: bool,
        runs: _Runs,
        cost: float,
    ) -> None:
        checkpoint = model.checkpoint
        self.n_blocks = count_blocks(checkpoint.config)
        self.model, self.task, self.protocol, self.save_models = model, task, protocol, save_models
        self.label = checkpoint.label
        self.sets = [run_set(model, fold, protocol, save_models=save_models) for fold in folds]
        self.folds = [fold.task for fold in self.sets]
        self.every, self.first = runs, len(runs.sets)
        runs.sets += self.sets
        looked_at = drawn_from(task, (LOOKED_AT,) * 3)
        self.looked_at = looked_at.split("all")
        read = read_curves(checkpoint, self.looked_at, _readings(task))
        self.comparison = None
        if references:
            embedded, *others = (extract_read(as_read(each, self.looked_at)) for each in (checkpoint, *references))
            self.comparison = compare_all(embedded, others, device=checkpoint.asked.device)
        first_layer = max(read[SELF_CKA].first_layer - 1, 0)  # such a curve begins a layer later
        collapsed = range(read[SELF_CKA].layers.stop, self.n_blocks + 1)
        self.prediction = _predicted(
            checkpoint.label, self.n_blocks, range(first_layer, self.n_blocks + 1 - len(collapsed)), read, task
        )
        unsaved = without_checkpoint(model.encoder) if save_models else ""
        self.runs: list[MadeRun] = []
        self.failures: list[str] = []
        self.ahead = 0
        """Seeds of the last layer whose runs were asked for before the search was over."""
        self.failed = ""
        """What the last of them says that is a run's."""
        self.not_trained: dict[tuple[int, int], str] = {}
        """By layer and seed, what shows it, in words."""
        self._tested: dict[Place, Array] = {}  # influences of the test items, by run
        self.begun = begun_evidence(
            self.n_blocks,
            {name: _with_collapse(name, curve) for name, curve in read.items()},
            start=None if start is None else one_layer(start, self.n_blocks, of=checkpoint.label),
            n_items=sum(len(fold.validation) for fold in folds),
            n_folds=len(folds),
            first_layer=1 if unsaved else first_layer,
            model=self.first // len(folds),
            block_cost=cost,
        )
        self.by_cosines = KINDS[task.kind].zero_shot == "cosine" and not KINDS[task.kind].fits
        self.before: dict[int, float] = {}
        """Scores before training by layer, x 100, of the metric that chooses."""
        if self.by_cosines:  # of what the readings embedded
            scored = score_split(checkpoint, looked_at, split="all")[0]
            self.failures += scored.warnings
            if scored.primary == self.folds[0].primary:
                self.before = {layer: scored.scores[layer] for layer in scored.layers}
        if collapsed:
            which = f"{layer_span(collapsed)} of {checkpoint.label} {'gives' if len(collapsed) == 1 else 'give'}"
            self.failures.append(f"{which} all texts one embedding: no reading speaks for fine-tuning there")
        if first_layer:
            read_layers = range(first_layer, self.n_blocks + 1)
            self.failures += left_out_layers(checkpoint.label, checkpoint.pooling, read_layers, self.n_blocks + 1)
        elif unsaved:
            self.failures.append(f"layer 0 of {checkpoint.label} is left out: {unsaved}")

    def job(self, layer: int, seed: int, *, alone: bool = False) -> RunJob:
        """Return a run as a job of all."""
        return RunJob(layer, seed, self.first + seed % len(self.sets), alone=alone)

    @property
    def spent(self) -> int:
        """Block-steps of the runs that were asked for."""
        return sum(made.layer + 1 for made in self.runs if not made.is_earlier)

    def request(self, run: PlannedRun, *, alone: bool = False) -> float:
        """Request a run, unless it was requested before; return what it costs."""
        cost = self.begun.block_cost * run.cost
        self.every.requested.setdefault(self.job(run.layer, run.seed, alone=alone), cost)
        return cost

    def tell(self, search: LayerSearch, planned: PlannedRun) -> None:
        """Make a requested run, or load a finished one, and tell the search its score, or that it failed."""
        outcome, fold = self.every.outcome(self.job(planned.layer, planned.seed)), planned.seed % len(self.folds)
        run, value, influences = None, None, None
        if isinstance(outcome, LayerProbeError):
            self.failed = f"layer {planned.layer} failed: {outcome}"
            self.failures.append(self.failed)
        else:
            (made,) = outcome
            items = run_items(self.folds[fold], [made])
            influences = items.influences["validation"][made.place]
            self._tested.update(items.influences["test"])
            if not self._did_not_train(made, self.folds[fold]):
                run, value = made, made.validation[made.primary]
        self.runs.append(MadeRun(fold=fold, layer=planned.layer, seed=planned.seed, run=run))
        score = Score(layer=planned.layer, seed=planned.seed, value=value)
        search.add(score, influences, model=self.begun.model)

    def tell_earlier(self, search: LayerSearch) -> None:
        """Tell the search of finished runs that it did not ask for: of each layer the first seeds, without a gap."""
        asked = {(made.layer, made.seed) for made in self.runs}
        for layer in self.begun.choices:
            for seed in itertools.count():
                job = self.job(layer, seed)
                if (layer, seed) in asked:
                    continue
                if self.every.sets[job.of].read(job) is None:
                    break
                run = PlannedRun(layer=layer, seed=seed, cost=layer + 1)
                self.request(run)
                self.tell(search, run)
                self.runs[-1] = replace(self.runs[-1], is_earlier=True)

    def _did_not_train(self, run: FineTuningRun, task: Task) -> bool:
        """Note a run that did not train; return whether it is no evidence.

        Where none has trained, a third one is: nothing may be learnt from such examples.
        """
        why = not_trained(run, task, self.before.get(run.layer))
        if not why:
            return False
        self.not_trained[run.layer, run.seed] = why
        self.failed = f"layer {run.layer} did not train ({why}): lower the learning rate"
        trained = (made.run and (made.layer, made.seed) not in self.not_trained for made in self.runs)
        return any(trained) or len(self.not_trained) <= FAILURES

    def finding(self, search: LayerSearch, *, against_last: int, decision: Decision | None = None) -> Finding:
        """Return the answer with what was run, and with the proof against the last layer where seeds are given."""
        _check_scored(search, [self])
        number, level, spent = self.begun.model, search.state.settings.level, self.spent
        answered = searched = search.state.answer(number, decision)
        proof = None
        while against_last and not spoilt_items(self.task):
            best = answered.best_layer
            # what was asked for depends on scores alone, what has begun on who is faster: all that was asked for counts
            self._prove(search, best, self.ahead if best == self.n_blocks else against_last)
            answered = search.state.answer(number, searched.decision)
            if answered.best_layer == best:
                proof = self._against_last(best, level)
                break
        # what the proof's runs say counts, but they do not reopen the search
        answered = _stated(answered, self.task)
        fold, encoder = self.folds[0], self.model.encoder
        compared = (answered.best_layer, self.n_blocks, answered.smallest_sufficient)
        tested = [made.run for made in self.runs if made.run]
        untrained = self._untrained()
        floor = KINDS[self.task.kind].floors(fold.validation).get(fold.primary)
        return Finding(
            model=encoder.description,
            task=self.task.name,
            kind=self.task.kind,
            task_digest=self.task.digest,
            versions={"layerprobe": __version__, **versions()},
            prediction=self.prediction,
            comparison=self.comparison,
            answer=answered,
            primary=fold.primary,
            runs=tuple(self.runs),
            n_folds=len(self.folds),
            n_items=(len(fold.validation), len(fold.test)),
            outcomes=outcomes(tested, self._items, level=level),
            against_last=proof,
            proof_cost=self.spent - spent,
            rounds_by_layer=_seconds(encoder, {layer for layer in compared if layer is not None}, fold, self.protocol),
            weights=self._weights(answered.best_layer),
            failures=(*self.failures, *not_trained_lines(self.not_trained, len(self.runs), self.n_blocks)),
            floor=floor if floor is not None and floor.value > 0 else None,
            untrained=() if untrained is None else tuple(mask_left_out(untrained[0].layers, untrained[0].scores)),
            item_source=self._item_source(answered.best_layer, untrained),
        )

    def _untrained(self) -> Scored | None:
        """Return the test scores by layer before any fine-tuning; None where there are none."""
        checkpoint = self.model.checkpoint
        if self.by_cosines:  # texts that the readings embedded are not embedded again
            looked_at, whole = as_read(checkpoint, self.looked_at).texts, as_read(checkpoint, self.task).texts
            extract_read(as_read(checkpoint, self.task.test)._replace(earlier=(looked_at,)), whole=whole)
        try:
            scored = score_split(checkpoint, self.task, split="test")
        except DataError:
            return None
        return scored if scored[0].primary == self.folds[0].primary else None

    def _item_source(self, best: int, untrained: Scored | None) -> ItemSource | None:
        """Return whence a page has the test items: what the first run of each layer outputs, and the untrained model.

        The best layer is compared with the last one, or with itself before any fine-tuning.
        """
        first = {made.layer: made.run for made in self.runs[::-1] if made.run}
        layers = sorted(first)
        if not layers:
            return None

        def outputs() -> list[tuple[Any, float | None]]:
            return [(outputs_in(first[layer].directory).of(layer), first[layer].threshold) for layer in layers]

        scores = [first[layer].test[self.folds[0].primary] for layer in layers]
        groups = [LayerOutputs(name="fine-tuned", layers=layers, outputs=outputs, scores=scores)]
        if untrained is not None:
            groups.append(untrained_layers(self.task, "test", self.model.checkpoint, untrained, "before fine-tuning"))
        chosen = layers.index(best) if best in layers else len(layers) - 1
        against = (0, len(layers) - 1)
        if against == (0, chosen):
            against = (0, 0) if untrained is None else (1, list(groups[1].layers).index(layers[chosen]))
        return ItemSource(task=self.folds[0], split="test", groups=tuple(groups), start=(against, (0, chosen)))

    def with_final(self, finding: Finding) -> Finding:
        """Fine-tune the layer to keep on all examples but those of the test split; say why where that is not done.

        Epochs are the median of what validation chose in the search. So is the share of pairs that are paraphrases, by
        which the threshold is where that share of all pairs is: their labels were learnt from, and cosines of two
        models are not of one level.
        """
        layer = finding.best_layer
        why = "no layer is worth keeping" if finding.on_floor or finding.answer.spoilt else ""
        if not why and layer == 0:
            why = without_checkpoint(self.model.encoder)
        tuned = [run for run in finding.fine_tuned if run.layer == layer] or finding.fine_tuned
        epochs = median(run.best_epoch for run in tuned)
        pool = self.task.train.join(self.task.validation)
        if not why:
            # the validation examples are also among those to train on, which no other run may have, and choose nothing
            task, protocol = replace(self.task, train=pool), replace(self.protocol, kept_epoch=round(epochs))
            held_out = ((outputs_in(run.directory).of(run.layer, "validation"), run.threshold) for run in tuned)
            shares = [float(np.mean(values >= cut)) for values, cut in held_out if cut is not None and values.ndim == 1]
            if shares:
                task, protocol = replace(task, validation=pool), replace(protocol, positive_share=median(shares))
            runs = run_set(self.model, task, protocol, save_models=True)
            try:
                with crew_of(RunWorker, (runs,)) as crew:
                    ((run,),) = results(runs_plan((runs,), {RunJob(layer, 0): 1.0}), crew).values()
            except TrainingError as error:
                if not is_marked(error):
                    raise
                why = str(error)
        if why:
            return replace(finding, failures=(*finding.failures, f"there is no final model: {why}"))
        return replace(finding, final=run, weights=Weights(directory=str(run.directory), n_train=len(pool)))

    def _weights(self, best: int) -> Weights:
        """Return where the best run of the layer to keep is, by validation."""
        here = [made.run for made in self.runs if self.save_models and made.run and made.layer == best]
        if not here:  # not saved, or inferred from the others: where `finetune` would keep it
            one = len(self.sets) == 1
            folder = self.sets[0].folder if one else run_folder(self.model.checkpoint, self.task, self.protocol)
            return Weights(directory=str(run_directory(folder, best, 0)), kept=False)
        run = max(here, key=lambda run: run.validation[run.primary])
        return Weights(directory=str(run.directory))

    def unscored(self, evidence: Evidence) -> str:
        """Return why there is no score: what the last run that failed says, if any."""
        without = "the metric is nowhere finite" if evidence.scores else "the budget was spent before its first run"
        return self.failed or without

    def _prove(self, search: LayerSearch, best: int, seeds: int) -> None:
        """Make the missing runs of the layer to keep and the last one, and tell the search their scores.

        Of as many seeds as are wanted, those that have most of the two runs already.
        """
        runs = {(s.layer, s.seed): s.value for s in search.state.models[self.begun.model].scores}
        both = best, self.n_blocks
        lacking = {s: sum(runs.get((i, s)) is None for i in both) for s in {*range(seeds), *(s for _, s in runs)}}
        pairs = [(layer, seed) for seed in sorted(lacking, key=lambda s: (lacking[s], s))[:seeds] for layer in both]
        self.runs = [
            replace(made, is_earlier=made.is_earlier and (made.layer, made.seed) not in pairs) for made in self.runs
        ]
        missing = [
            PlannedRun(layer=layer, seed=seed, cost=layer + 1)
            for layer, seed in dict.fromkeys(pairs)
            if (layer, seed) not in runs
        ]
        for run in missing:
            self.request(run)
        for run in missing:
            self.tell(search, run)

    def _against_last(self, best: int, level: float) -> Interval | None:
        """Return the difference over the seeds that both layers have scores of; None where there is none."""
        runs = {(made.layer, made.seed): made.run for made in self.runs if made.run}
        seeds = [seed for layer, seed in sorted(runs) if layer == best and (self.n_blocks, seed) in runs]
        if not seeds or best == self.n_blocks:
            return None
        best_runs, last = ([runs[layer, seed] for seed in seeds] for layer in (best, self.n_blocks))
        return difference(best_runs, last, (self._items, self._items), level=level)

    @property
    def _items(self) -> RunItems:
        """What the test items, which all runs share, add to each run."""
        task = self.folds[0]
        return RunItems(
            unit=KINDS[task.kind].unit, influences={"test": self._tested}, links={"test": links_of(task.test)}
        )


def _found(search: LayerSearch, tuned: Sequence[_ModelRuns], *, against_last: int) -> tuple[Finding, _ModelRuns]:
    """Combine the search's answers on one model or several into one finding; return whose model it keeps, too."""
    if len(tuned) == 1:
        return tuned[0].finding(search, against_last=against_last), tuned[0]
    decision = search.state.decision
    _check_scored(search, tuned)
    scored = [one for one in tuned if search.state.models[one.begun.model].scored]
    for one in scored:
        one.tell_earlier(search)
    findings: dict[_ModelRuns, Finding] = {}
    while (best := _best_of(search.state, scored)) not in findings:
        # what is run for the comparison may make another model the best
        findings[best] = best.finding(search, against_last=against_last, decision=decision)
        best.model.forget()
    for other in scored:
        if other not in findings:
            findings[other] = other.finding(search, against_last=0, decision=decision)
            other.model.forget()
    state, place = search.state, scored.index(best)
    found = _among_all(state, scored, [findings[one] for one in scored])
    whole = sum(model.block_cost * state.settings.full_sweep(model.n_blocks) for model in state.models)
    lost = [
        f"{one.label} is left out: {one.unscored(evidence)}"
        for one, evidence in zip(tuned, state.models, strict=True)
        if one not in scored
    ]
    result = replace(
        found[place],
        others=(*found[:place], *found[place + 1 :]),
        place=place,
        share=sum(one.begun.block_cost * one.spent for one in tuned) / whole,
        failures=(*lost, *(f"{one.label}: {failure}" for one in scored for failure in one.failures)),
    )
    sources = {name: one.item_source for name, one in zip(result.labels, found, strict=True)}
    source = joined(sources, result.labels[place]) if all(sources.values()) else None
    return replace(result, item_source=source), best


def _check_scored(search: LayerSearch, tuned: Sequence[_ModelRuns]) -> None:
    """Raise TrainingError, with the last reason, if no run of any model gave a score."""
    models = search.state.models
    if not any(models[one.begun.model].scored for one in tuned):
        failed = (one.failed for one in reversed(tuned) if one.failed)
        reason = next(failed, tuned[0].unscored(models[tuned[0].begun.model]))
        raise TrainingError(f"expected a score from one run at least, got none: {reason}")


def _best_of(state: SearchState, tuned: Sequence[_ModelRuns]) -> _ModelRuns:
    """Return the model that has the layer with the highest expected score."""
    beliefs = side_by_side([posterior(state.models[one.begun.model]) for one in tuned])
    return tuned[bisect.bisect_right(beliefs.starts.tolist(), beliefs.best_layer) - 1]


def _among_all(state: SearchState, tuned: Sequence[_ModelRuns], findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings with what is known of their layers among those of all models."""
    evidence, settings = [state.models[one.begun.model] for one in tuned], state.settings
    beliefs = side_by_side([posterior(of_model) for of_model in evidence])
    claimed = side_by_side([posterior(of_model, claims=True) for of_model in evidence])
    spoilt, among = bool(spoilt_items(tuned[0].task)), list[SearchAnswer]()
    chances, within = claimed.chances, claimed.chances_within(settings.tolerance)
    stated = [*claimed.statement(settings.tolerance, settings.level)[0], beliefs.best_layer]
    likely = np.isin(np.arange(len(chances)), beliefs.choices if spoilt else stated)
    if spoilt:  # nothing is claimed
        chances, within = likely / likely.sum(), np.full(len(chances), 0.5)
    behind = claimed.behind(settings.tolerance, settings.level)
    by_model = np.split(np.stack([chances, within, behind, likely]), claimed.starts[1:], axis=1)
    for finding, of_model in zip(findings, by_model, strict=True):
        layers = [
            replace(belief, chance_best=chance, chance_within=near, behind=ahead)
            for belief, chance, near, ahead in zip(finding.answer.layers, *of_model[:3].tolist(), strict=True)
        ]
        candidates = tuple(np.flatnonzero(of_model[3]).tolist())
        among.append(replace(finding.answer, layers=tuple(layers), candidates=candidates, smallest_sufficient=None))
    enough = [
        (finding.model.parameters[belief.layer], i, belief.layer)
        for i, (finding, answered) in enumerate(zip(findings, among, strict=True))
        for belief in answered.layers[answered.first_layer :]
        if belief.runs and belief.chance_within >= settings.level and not spoilt
    ]
    if enough:
        _, i, layer = min(enough)
        among[i] = replace(among[i], smallest_sufficient=layer)
    return [replace(finding, among=answered) for finding, answered in zip(findings, among, strict=True)]


def _stated(answered: SearchAnswer, task: Task) -> SearchAnswer:
    """Return an answer whose scores are inside what the metric can be, and that claims nothing of spoilt ones."""
    n, layers = spoilt_items(task), []
    choices = tuple(range(answered.first_layer, len(answered.layers)))
    for belief in answered.layers:
        (mean, _), ends = bounded(task.primary, (belief.mean, belief.mean)), bounded(task.primary, belief.interval)
        belief = replace(belief, mean=mean, interval=ends)
        if n:
            belief = replace(belief, chance_best=1 / len(choices), chance_within=0.5, behind=None, gain=None)
        layers.append(belief)
    answered = replace(answered, layers=tuple(layers))
    if n:
        answered = replace(answered, spoilt=n, chance=1 / len(choices), candidates=choices)
        answered = replace(answered, smallest_sufficient=None, whole=None)
    return answered


def _with_collapse(name: str, curve: LayerCurve) -> tuple[float, ...]:
    """Return a reading with the values of layers that give all texts one embedding, where it has none of its own.

    They say nothing of two copies of a text, so their InfoNCE is 0 nats, and no more than that of other layers; the
    first of them is unlike the layer before, and the others are alike.
    """
    read, n = curve.values[: curve.layers.stop], curve.collapsed
    constant = (0.0, *(1.0,) * n)[:n] if name == SELF_CKA else (min(0.0, *read),) * n
    return read + constant


@torch.inference_mode()
def _seconds(
    encoder: Encoder, layers: Collection[int], task: Task, protocol: Protocol
) -> tuple[tuple[float, ...], ...]:
    """Return, by layer and round, the seconds that models truncated at these layers take for the same texts, in turn.

    None of the other layers.
    """
    texts = encoder.tokenize(task.test.texts[:SPEED_TEXTS], max_length=protocol.max_length)
    batches = list(token_batches(texts.lengths, budget=SPEED_BATCH_TOKENS, same_length=not encoder.padding_invariant))

    def through(model: TruncatedEncoder) -> None:
        for rows in batches:
            embed(encoder, model, texts, rows, protocol)[0].cpu()

    models = {layer: TruncatedEncoder(encoder, layer).eval() for layer in layers}
    seconds = timed({layer: functools.partial(through, model) for layer, model in models.items()})
    return tuple(tuple(seconds.get(layer, ())) for layer in range(encoder.n_layers))


# ---- what it will cost ----------------------------------------------------------------------------------


def plan_find(
    models: Sequence[ModelLike],
    task: Task,
    *,
    tolerance: float = TOLERANCE,
    budget: float | None = None,
    seeds: int = SEEDS,
    cross_validation: bool | None = None,
    against_last: int = 0,
    final: bool = False,
    protocol: Protocol | None = None,
    goes_on: bool = True,
    further: int = 0,
) -> Estimate | None:
    """Estimate the most that `find` of one model or several takes, with its arguments; raises as `find` would.

    With `goes_on` None where a finished run is there, so that less is left than planned. `further` block-steps are
    fine-tuned besides. Nothing is written.
    """
    resolved = resolve_all(models, items=task.readable) if models else []
    check_different(resolved)
    task = checked_task(task)
    settings = SearchSettings(tolerance=tolerance, level=current().level, budget=budget, seeds=seeds)
    folds, n_labelled = search_folds(task, settings, resolved, cross_validation), len(task.train) + len(task.validation)
    fold, agreements = folds[0], [agreed(protocol, checkpoint) for checkpoint in resolved]
    folders = [run_folder(checkpoint, fold, tuned_by) for tuned_by, checkpoint in agreements]
    if goes_on and any(any(folder.glob(f"*/{RESULT}")) for folder in folders):
        return None

    def block_steps(n_blocks: int) -> float:
        # the layer to keep and the last one, if none of their runs is there
        most = settings.block_steps(n_blocks) + against_last * 2 * (n_blocks + 1)
        # no run is made twice, and the sweep has all but seeds of that comparison beyond its own
        others = 2 * max(against_last - seeds, 0) * (n_blocks + 1)
        final_run = final * (n_blocks + 1) * n_labelled / len(fold.train)
        return min(most, settings.full_sweep(n_blocks) + others) + further + final_run

    plans = [plan_tuning(model, fold, block_steps=block_steps, seeds=seeds, protocol=protocol) for model in resolved]
    notes = [
        data_use_sentences(
            [len(part) for part in (task.train, task.validation, task.test)],
            [len(fold.train), len(fold.validation)],
            KINDS[task.kind].unit,
            n_folds=len(folds),
            epochs=agreements[0][0].epochs,
            few=SMALL_VALIDATION if cross_validation is None else None,
        )
    ]
    if final:
        notes.append(
            f"Then the layer to keep is fine-tuned once more, on all {n_labelled:,} training and validation examples."
        )
    plans = [*(replace(plan, details=()) for plan in plans[:-1]), replace(plans[-1], details=tuple(notes))]
    return plans[0] if len(plans) == 1 else together(plans, "They share this budget, about {} together.")
