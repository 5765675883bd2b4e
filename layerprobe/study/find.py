"""The layer to keep: readings suggest where to look, fine-tuning of truncated models decides.

`LayerSearch` chooses the next run and interprets the scores; this module makes the requested runs, or loads finished
ones, and reports their scores to the search.
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
from layerprobe.encoders.identity import ModelLike, Resolved, resolve_all
from layerprobe.encoders.loading import SharedModel, choose_workers, leave_gpus
from layerprobe.encoders.timing import timed
from layerprobe.errors import DataError, LayerProbeError, TrainingError
from layerprobe.extraction.embeddings import Extraction, layer_span, left_out_layers
from layerprobe.finetuning.outcomes import (
    RunItems,
    difference,
    not_trained,
    not_trained_lines,
    outcomes,
    outputs_in,
    run_items,
)
from layerprobe.finetuning.runs import RunJob, RunSet, RunWorker, is_marked, runs_plan
from layerprobe.finetuning.saved import RESULT, Runs, run_directory, without_checkpoint
from layerprobe.finetuning.tmft import embed
from layerprobe.finetuning.tuning import agreed, plan_tuning, pooled_by, run_folder, run_set
from layerprobe.finetuning.values import FineTuningRun, Place, Protocol
from layerprobe.interval import Interval
from layerprobe.jobs.crew import Workers, execute, make_crew, results
from layerprobe.jobs.processes import available_cores, import_ahead
from layerprobe.metrics.names import bounded
from layerprobe.names import short_name
from layerprobe.prediction.rules import rule_curves
from layerprobe.prediction.values import DropPrediction
from layerprobe.readings.reading import INFONCE, SELF_CKA, LayerCurve
from layerprobe.readings.source import Source, source_curves
from layerprobe.results.shown import Estimate, OneLayer, mask_left_out, together
from layerprobe.scoring.score import ScoredModel, check_different, score_split, untrained_layers
from layerprobe.search.ask import LayerSearch, SearchState, initial_evidence
from layerprobe.search.plan import data_use_sentences
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
from layerprobe.stats.values import TOLERANCE
from layerprobe.store.store import Store
from layerprobe.study.predict import DEFAULT_RULE, References, default_rule, drop_of_curves, model_tuple
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
"""Below so many validation examples, layers are chosen by cross-validation on training and validation examples."""
MOST_JOBS = 4
"""Largest default number of parallel runs."""
CHECKED_EXAMPLES = 512  # examples of each split whose texts are embedded before training
READING_SHARE = 0.1
"""Time of those checks and the readings, as a share of the time of the runs."""
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

    InfoNCE of the pretrained model suggests where to look first, and CKA between its layers how different they are.
    Models truncated at the layers that may be best are fine-tuned, each run chosen to be most informative, until the
    best layer is known to within the tolerance, more seeds cannot help, or the budget is spent: see
    `layerprobe.search.plan.next_run`. Runs are shared with `finetune` on the same task: finished ones are reused, and
    an interrupted search continues.

    A run that did not train (see `failure_sign`) is no evidence about its layer, which gets another seed if it may
    still be the best. A layer with two runs without a score, while others have one, is left out from then on. So is
    layer 0 with `save_models` if the model cannot run without a block and would have no checkpoint there.

    Layers are chosen by validation scores alone. With few validation examples, training and validation examples are
    pooled and divided into folds, see `folds_within`: seed k is validated on fold k modulo their number and trained on
    the others. The test split only scores the chosen layer.

    Several models share the budget, a share of the total cost of their full sweeps: each gets a first run, and the
    others go where they can still change which layer of which model is the best. A block-step costs the parameters of
    one block. A model without a score after three runs is left out and named in `failures`. Finished runs of seeds 0,
    1, ... of a layer count as evidence at no cost; they do not influence which runs are made.

    Args:
        model: A name, a folder or a `Model`; or a list of different models, which are searched together.
        task: The task to fine-tune on.
        reference: One or several models to compare the layers with before training, as in `predict`.
        tolerance: Loss that you accept for a smaller model, in points of the primary metric x 100.
        budget: Share of the full sweep (every layer with every seed) that may be spent; by default 15 %, and all of it
            for models of up to 4 blocks.
        seeds: Largest number of seeds per layer, also in the full sweep.
        cross_validation: Whether to validate runs by folds of the training and validation examples; by default with
            fewer than 1,000 validation examples.
        start: The first layer to run; by default the one with the highest InfoNCE, or the middle one.
        against_last: Number of seeds for a final comparison of the layer to keep with the last layer on the test
            split, in addition to the budget. With several models, layers of the chosen one are compared.
        final: Fine-tune the layer to keep once more, on training and validation examples together, for the number of
            epochs that validation chose, and keep its weights for `export_model`. The test split scores it and is not
            trained on. The share of paraphrases is the one chosen by the search's runs on pairs not trained on.
        protocol: Settings of fine-tuning; those of the paper by default.
        save_models: Whether to keep the checkpoint of every run.
        jobs: Number of parallel runs, in processes that share the processors or GPUs of this machine: by default one,
            in this process; None for one per GPU or core, at most four.
        ray: Address of a Ray cluster to make the runs on.

    Raises:
        DataError: If `task` is not a task, the budget is too small for one run of each model, two models are the same,
            or a setting is invalid.
        TrainingError: If no run gives a score.
        LayerProbeError: If the model cannot be loaded, or a result cannot be written.
    """
    task = checked_task(task)
    seeds, first = check_count(seeds), None if start is None else one_layer(start)
    if not isinstance(against_last, Integral) or against_last < 0:
        raise DataError(f"expected a number of seeds to compare with the last layer, 0 or more, got {against_last!r}")
    settings = SearchSettings(tolerance=tolerance, level=current().level, budget=budget, seeds=seeds)
    models = model if isinstance(model, list) else [model]
    resolved = resolve_all([*models, *model_tuple(reference)], items=task.readable) if models else []
    checkpoints, references = resolved[: len(models)], [pooled_by(protocol, one) for one in resolved[len(models) :]]
    check_different(checkpoints)
    agreements = [agreed(protocol, checkpoint) for checkpoint in checkpoints]
    at_a_time = min(jobs_at_a_time(jobs, checkpoint) for _, checkpoint in agreements)
    folders = {Store(checkpoint.asked.cache_dir).root for _, checkpoint in agreements}
    local = "here" if at_a_time == 1 else "processes"
    machines = choose_workers(agreements[0][1].asked, *sorted(folders), count=at_a_time, ray=ray, local=local)
    import_ahead(RunWorker.__module__, machines)  # in parallel with the readings
    folds = search_folds(task, settings, checkpoints, cross_validation)
    costs = block_costs([checkpoint for _, checkpoint in agreements])
    blocks = [count_blocks(checkpoint.config) for _, checkpoint in agreements]
    whole_cost = max(cost * (n + 1) for cost, n in zip(costs, blocks, strict=True))
    searched = sum(cost * settings.block_steps(n) for cost, n in zip(costs, blocks, strict=True))
    searched += 2 * against_last * whole_cost
    read = READING_SHARE * searched
    whole = read + searched + final * whole_cost
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
    with part(start=read + searched, share=final * whole_cost, whole=whole):
        return best.with_final(found) if final else found


def _predicted(
    label: str, n_blocks: int, layers: range, read: Mapping[str, LayerCurve], task: Task
) -> DropPrediction | None:
    """Return the prediction of the default rule; None if it needs other readings, or the model has too few blocks."""
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
    """Return the number of parallel runs of a search; by default one per GPU, or else per core, at most four.

    Parallel runs are chosen with less information, so that a search with more of them costs more for the same answer.
    A model that is already loaded stays in this process.
    """
    if jobs is not None:
        if not isinstance(jobs, Integral) or jobs < 1:
            raise DataError(f"expected a number of parallel runs, such as 2, got {jobs!r}")
        return jobs
    if checkpoint.loaded is not None:
        return 1
    device = resolve_device(checkpoint.asked.device)
    if device.type == "cpu":
        return min(available_cores(), MOST_JOBS)
    # a device with a number, such as cuda:1, is a single one
    return min(torch.cuda.device_count(), MOST_JOBS) if str(device) == "cuda" else 1


def search_folds(
    task: Task, settings: SearchSettings, models: Sequence[Resolved], cross_validation: bool | None = None
) -> Sequence[Task]:
    """Return the tasks of the seeds in turn: with few validation examples, folds of the labelled ones by default."""
    few = len(task.validation) < SMALL_VALIDATION if cross_validation is None else cross_validation
    n_folds = folds_within(settings, [count_blocks(model.config) for model in models]) if few else 1
    return folds_of(task, n_folds) if n_folds > 1 else (task,)


def folds_within(settings: SearchSettings, n_blocks: Sequence[int]) -> int:
    """Return the number of folds of a search: the average number of runs of a layer, at least two.

    A fold without a run of a layer says nothing about it. With fewer folds, each run is scored on more items, which
    cause more error than seeds, and trained on fewer. A full sweep has one fold per seed. Measured in
    research/statements.md, "Items before seeds". `n_blocks` are those of all models that share the budget.
    """
    steps, sweeps = map(settings.block_steps, n_blocks), map(settings.full_sweep, n_blocks)
    return min(settings.seeds, max(2, round(settings.seeds * sum(steps) / sum(sweeps))))


def _readings(task: Task) -> list[str]:
    """Return the readings before training; InfoNCE only for text embeddings."""
    embeds = KINDS[task.kind].zero_shot != "own" and default_rule(task.texts()) == DEFAULT_RULE
    return [SELF_CKA, *([INFONCE] if embeds else [])]


def block_costs(checkpoints: Sequence[Resolved]) -> list[float]:
    """Return the cost of a block-step of each model relative to the largest, by parameters per block.

    If all blocks share their weights, all parameters of the model count.
    """
    block_sizes = []
    for checkpoint in checkpoints if len(checkpoints) > 1 else ():
        sizes = count_parameters(checkpoint.config, trust_remote_code=checkpoint.pinned["trust_remote_code"])
        block_sizes.append((sizes[-1] - sizes[0]) / (len(sizes) - 1) or float(sizes[-1]))
    return [size / max(block_sizes) for size in block_sizes] or [1.0]


class _Runs:
    """The runs of one or several models, made in shared worker processes."""

    def __init__(self, workers: Workers, *, whole: float) -> None:
        self.workers, self.whole = workers, whole
        self.sets: list[RunSet] = []
        self.requested: dict[RunJob, float] = {}
        """Cost of the requested runs; further ones are added while they are made."""
        self.made: dict[RunJob, Runs | LayerProbeError] = {}

    def __enter__(self) -> None:
        leave_gpus()  # used by the readings
        self.crew = make_crew(RunWorker, tuple(self.sets), self.workers, most=self.workers.count or 1)
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
    """Make the requested runs and report their scores; spare workers make runs of the last layer.

    Parallel runs are reported in the order of their costs, not of their speed, so that a search can be repeated.
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
    """One model's runs so far: makes the runs that a search requests, and reports their scores."""

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
        checked = drawn_from(task, (CHECKED_EXAMPLES,) * 3)
        self.checked = checked.split("all")
        extraction, *others = (Extraction.of(one, self.checked) for one in (checkpoint, *references))
        read = source_curves(Source(extraction=extraction), _readings(task))
        self.comparison = None
        if references:
            embedded = [one.embed() for one in others]
            self.comparison = compare_all(extraction.embed(), embedded, device=checkpoint.asked.device)
        first_layer = max(read[SELF_CKA].first_layer - 1, 0)  # such a curve begins one layer later
        collapsed = range(read[SELF_CKA].layers.stop, self.n_blocks + 1)
        self.prediction = _predicted(
            checkpoint.label, self.n_blocks, range(first_layer, self.n_blocks + 1 - len(collapsed)), read, task
        )
        unsaved = without_checkpoint(model.encoder) if save_models else ""
        self.runs: list[MadeRun] = []
        self.failures: list[str] = []
        self.ahead = 0
        """Seeds of the last layer with runs requested before the search ended."""
        self.failed = ""
        """Message of the last failed run."""
        self.not_trained: dict[tuple[int, int], str] = {}
        """Evidence in words, by layer and seed."""
        self._tested: dict[Place, Array] = {}  # influences of the test items, by run
        self.begun = initial_evidence(
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
        if self.by_cosines:  # from the embeddings of the readings
            scored = score_split(checkpoint, checked, split="all")[0]
            self.failures += scored.warnings
            if scored.primary == self.folds[0].primary:
                self.before = {layer: scored.scores[layer] for layer in scored.layers}
        if collapsed:
            which = f"{layer_span(collapsed)} of {checkpoint.label} {'gives' if len(collapsed) == 1 else 'give'}"
            self.failures.append(f"{which} all texts the same embedding: no reading favours fine-tuning there")
        if first_layer:
            read_layers = range(first_layer, self.n_blocks + 1)
            self.failures += left_out_layers(checkpoint.label, checkpoint.pooling, read_layers, self.n_blocks + 1)
        elif unsaved:
            self.failures.append(f"layer 0 of {checkpoint.label} is left out: {unsaved}")

    def job(self, layer: int, seed: int, *, alone: bool = False) -> RunJob:
        """Return a run as a job."""
        return RunJob(layer, seed, self.first + seed % len(self.sets), alone=alone)

    @property
    def spent(self) -> int:
        """Block-steps of the requested runs."""
        return sum(made.layer + 1 for made in self.runs if not made.is_earlier)

    def request(self, run: PlannedRun, *, alone: bool = False) -> float:
        """Request a run, unless it was requested before; return its cost."""
        cost = self.begun.block_cost * run.cost
        self.every.requested.setdefault(self.job(run.layer, run.seed, alone=alone), cost)
        return cost

    def tell(self, search: LayerSearch, planned: PlannedRun) -> None:
        """Make a requested run, or load a finished one, and report its score or failure to the search."""
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
        """Report finished runs that the search did not request: the first seeds of each layer, without a gap."""
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
        """Note a run that did not train; return whether to ignore its score.

        If no run has trained, the third one counts: such examples may not be learnable.
        """
        why = not_trained(run, task, self.before.get(run.layer))
        if not why:
            return False
        self.not_trained[run.layer, run.seed] = why
        self.failed = f"layer {run.layer} did not train ({why}): lower the learning rate"
        trained = (made.run and (made.layer, made.seed) not in self.not_trained for made in self.runs)
        return any(trained) or len(self.not_trained) <= FAILURES

    def finding(self, search: LayerSearch, *, against_last: int, decision: Decision | None = None) -> Finding:
        """Return the answer with its runs and, if requested, the comparison with the last layer on the test split."""
        _check_scored(search, [self])
        number, level, spent = self.begun.model, search.state.settings.level, self.spent
        answered = searched = search.state.answer(number, decision)
        proof = None
        while against_last and not spoilt_items(self.task):
            best = answered.best_layer
            # requests depend on scores alone, but starts on speed: every requested run counts
            self._prove(search, best, self.ahead if best == self.n_blocks else against_last)
            answered = search.state.answer(number, searched.decision)
            if answered.best_layer == best:
                proof = self._against_last(best, level)
                break
        # runs of the comparison count as evidence, but do not reopen the search
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

    def _untrained(self) -> ScoredModel | None:
        """Return the test scores by layer before any fine-tuning; None if there are none."""
        checkpoint = self.model.checkpoint
        if self.by_cosines:  # texts embedded for the readings are not embedded again
            whole = Extraction.of(checkpoint, self.task).texts
            extraction = Extraction.of(checkpoint, self.task.test)
            replace(extraction, earlier=(Extraction.of(checkpoint, self.checked).texts,)).embed(whole=whole)
        try:
            scored = score_split(checkpoint, self.task, split="test")
        except DataError:
            return None
        return scored if scored[0].primary == self.folds[0].primary else None

    def _item_source(self, best: int, untrained: ScoredModel | None) -> ItemSource | None:
        """Return the source of test items for a page: outputs of each layer's first run, and of the untrained model.

        The page first compares the best layer with the last one, or with itself before fine-tuning.
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
        """Fine-tune the layer to keep on training and validation examples; if that is impossible, say why.

        The number of epochs is the median of those that validation chose in the search. So is the share of paraphrases
        that sets the threshold: the final model was trained on all labels, and cosines of two models differ in level.
        """
        layer = finding.best_layer
        why = "no layer is worth keeping" if finding.on_floor or finding.answer.spoilt else ""
        if not why and layer == 0:
            why = without_checkpoint(self.model.encoder)
        tuned = [run for run in finding.fine_tuned if run.layer == layer] or finding.fine_tuned
        epochs = median(run.best_epoch for run in tuned)
        pool = self.task.train.join(self.task.validation)
        if not why:
            # validation examples are also training examples here, unlike in any other run, and choose nothing
            task, protocol = replace(self.task, train=pool), replace(self.protocol, kept_epoch=round(epochs))
            held_out = ((outputs_in(run.directory).of(run.layer, "validation"), run.threshold) for run in tuned)
            shares = [float(np.mean(values >= cut)) for values, cut in held_out if cut is not None and values.ndim == 1]
            if shares:
                task, protocol = replace(task, validation=pool), replace(protocol, positive_share=median(shares))
            runs = run_set(self.model, task, protocol, save_models=True)
            try:
                with make_crew(RunWorker, (runs,)) as crew:
                    ((run,),) = results(runs_plan((runs,), {RunJob(layer, 0): 1.0}), crew).values()
            except TrainingError as error:
                if not is_marked(error):
                    raise
                why = str(error)
        if why:
            return replace(finding, failures=(*finding.failures, f"there is no final model: {why}"))
        return replace(finding, final=run, weights=Weights(directory=str(run.directory), n_train=len(pool)))

    def _weights(self, best: int) -> Weights:
        """Return the location of the layer to keep's best run, by validation."""
        here = [made.run for made in self.runs if self.save_models and made.run and made.layer == best]
        if not here:  # not saved, or inferred from the others: the place where `finetune` would keep it
            one = len(self.sets) == 1
            folder = self.sets[0].folder if one else run_folder(self.model.checkpoint, self.task, self.protocol)
            return Weights(directory=str(run_directory(folder, best, 0)), kept=False)
        run = max(here, key=lambda run: run.validation[run.primary])
        return Weights(directory=str(run.directory))

    def unscored(self, evidence: Evidence) -> str:
        """Return why there is no score: the message of the last failed run, if any."""
        without = "the metric is nowhere finite" if evidence.scores else "the budget was spent before its first run"
        return self.failed or without

    def _prove(self, search: LayerSearch, best: int, seeds: int) -> None:
        """Make the missing runs of the layer to keep and the last one, and report their scores to the search.

        Among the seeds, those with most of the two runs finished are used.
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
        """Return the difference over the seeds with scores of both layers; None if there are none."""
        runs = {(made.layer, made.seed): made.run for made in self.runs if made.run}
        seeds = [seed for layer, seed in sorted(runs) if layer == best and (self.n_blocks, seed) in runs]
        if not seeds or best == self.n_blocks:
            return None
        best_runs, last = ([runs[layer, seed] for seed in seeds] for layer in (best, self.n_blocks))
        return difference(best_runs, last, (self._items, self._items), level=level)

    @property
    def _items(self) -> RunItems:
        """Influences of the test items, which all runs share, on each run."""
        task = self.folds[0]
        return RunItems(
            unit=KINDS[task.kind].unit, influences={"test": self._tested}, links={"test": links_of(task.test)}
        )


def _found(search: LayerSearch, tuned: Sequence[_ModelRuns], *, against_last: int) -> tuple[Finding, _ModelRuns]:
    """Return the finding of a search over one or several models, and the model that it keeps."""
    if len(tuned) == 1:
        return tuned[0].finding(search, against_last=against_last), tuned[0]
    decision = search.state.decision
    _check_scored(search, tuned)
    scored = [one for one in tuned if search.state.models[one.begun.model].scored]
    for one in scored:
        one.tell_earlier(search)
    findings: dict[_ModelRuns, Finding] = {}
    while (best := _best_of(search.state, scored)) not in findings:
        # runs of the comparison may make another model the best
        findings[best] = best.finding(search, against_last=against_last, decision=decision)
        best.model.forget()
    for other in scored:
        if other not in findings:
            findings[other] = other.finding(search, against_last=0, decision=decision)
            other.model.forget()
    state, place = search.state, scored.index(best)
    answers = _with_global_chances(state, scored, [findings[one] for one in scored])
    whole = sum(model.block_cost * state.settings.full_sweep(model.n_blocks) for model in state.models)
    lost = [
        f"{one.label} is left out: {one.unscored(evidence)}"
        for one, evidence in zip(tuned, state.models, strict=True)
        if one not in scored
    ]
    result = replace(
        answers[place],
        others=(*answers[:place], *answers[place + 1 :]),
        place=place,
        share=sum(one.begun.block_cost * one.spent for one in tuned) / whole,
        failures=(*lost, *(f"{one.label}: {failure}" for one in scored for failure in one.failures)),
    )
    sources = {name: one.item_source for name, one in zip(result.labels, answers, strict=True)}
    source = joined(sources, result.labels[place]) if all(sources.values()) else None
    return replace(result, item_source=source), best


def _check_scored(search: LayerSearch, tuned: Sequence[_ModelRuns]) -> None:
    """Raise TrainingError, with the last reason, if no run of any model gave a score."""
    models = search.state.models
    if not any(models[one.begun.model].scored for one in tuned):
        failed = (one.failed for one in reversed(tuned) if one.failed)
        reason = next(failed, tuned[0].unscored(models[tuned[0].begun.model]))
        raise TrainingError(f"no run gave a score: {reason}")


def _best_of(state: SearchState, tuned: Sequence[_ModelRuns]) -> _ModelRuns:
    """Return the model with the layer of the highest expected score."""
    beliefs = side_by_side([posterior(state.models[one.begun.model]) for one in tuned])
    return tuned[bisect.bisect_right(beliefs.starts.tolist(), beliefs.best_layer) - 1]


def _with_global_chances(state: SearchState, tuned: Sequence[_ModelRuns], findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings with the chances of their layers among those of all models."""
    evidence, settings = [state.models[one.begun.model] for one in tuned], state.settings
    beliefs = side_by_side([posterior(of_model) for of_model in evidence])
    claimed = side_by_side([posterior(of_model, claims=True) for of_model in evidence])
    spoilt, among = bool(spoilt_items(tuned[0].task)), list[SearchAnswer]()
    chances, within = claimed.chances, claimed.chances_within(settings.tolerance)
    stated = [*claimed.statement(settings.tolerance, settings.level)[0], beliefs.best_layer]
    likely = np.isin(np.arange(len(chances)), beliefs.choices if spoilt else stated)
    if spoilt:  # no conclusion
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
    """Return an answer with scores clipped to the range of the metric, without claims if examples are in two splits."""
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
    """Return a reading with values for layers that give all texts the same embedding, where it has none.

    Such layers cannot match two copies of a text, so that their InfoNCE is 0 nats, or the lowest of the other layers.
    The first of them differs from the layer before, and the others are equal.
    """
    read, n = curve.values[: curve.layers.stop], curve.collapsed
    constant = (0.0, *(1.0,) * n)[:n] if name == SELF_CKA else (min(0.0, *read),) * n
    return read + constant


@torch.inference_mode()
def _seconds(
    encoder: Encoder, layers: Collection[int], task: Task, protocol: Protocol
) -> tuple[tuple[float, ...], ...]:
    """Return seconds by layer and round, measured in turn on the same texts for models truncated at these layers.

    Other layers have none.
    """
    texts = encoder.tokenize(task.test.texts[:SPEED_TEXTS], max_length=protocol.max_length)
    batches = list(token_batches(texts.lengths, budget=SPEED_BATCH_TOKENS, same_length=not encoder.padding_invariant))

    def through(model: TruncatedEncoder) -> None:
        for rows in batches:
            embed(encoder, model, texts, rows, protocol)[0].cpu()

    models = {layer: TruncatedEncoder(encoder, layer).eval() for layer in layers}
    seconds = timed({layer: functools.partial(through, model) for layer, model in models.items()})
    return tuple(tuple(seconds.get(layer, ())) for layer in range(encoder.n_layers))


# ---- estimated cost -------------------------------------------------------------------------------------


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
    """Estimate the largest cost of `find` with these arguments, for one or several models; raises like `find`.

    With `goes_on`, None if a finished run exists, so that less is left than planned. `further` block-steps are
    fine-tuned in addition. Nothing is written.
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
        # no run is made twice, and the sweep has all runs except further seeds of that comparison
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
            f"Then the layer to keep is fine-tuned once more on all {n_labelled:,} training and validation examples."
        )
    plans = [*(replace(plan, details=()) for plan in plans[:-1]), replace(plans[-1], details=tuple(notes))]
    return plans[0] if len(plans) == 1 else together(plans, "They share this budget, about {} in total.")
