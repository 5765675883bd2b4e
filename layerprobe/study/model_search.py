"""One model in a search for the layer to keep: what is read before training, its runs, and its finding.

Makes the runs that the search requests, or loads finished ones, and reports their scores.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe.checks import one_layer
from layerprobe.comparison.compare import compare_all
from layerprobe.comparison.values import Comparisons
from layerprobe.encoders.architecture import count_blocks
from layerprobe.encoders.batching import token_batches
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.encoders.identity import Resolved
from layerprobe.encoders.loading import leave_gpus
from layerprobe.encoders.timing import timed
from layerprobe.errors import DataError, LayerProbeError, TrainingError
from layerprobe.extraction.embeddings import Embeddings, Extraction, layer_span, left_out_layers
from layerprobe.finetuning.outcomes import (
    RunItems,
    difference,
    not_trained,
    not_trained_lines,
    outcomes,
    outputs_in,
    run_items,
)
from layerprobe.finetuning.runs import (
    RunJob,
    RunSet,
    RunWorker,
    is_marked,
    run_directory,
    run_folder,
    run_set,
    runs_plan,
    without_checkpoint,
)
from layerprobe.finetuning.step import embed
from layerprobe.finetuning.values import FineTuningRun, Protocol, RunKey, Runs
from layerprobe.interval import Interval
from layerprobe.jobs.crew import Workers, execute, make_crew, results
from layerprobe.metrics.names import bounded
from layerprobe.names import short_name
from layerprobe.prediction.rules import rule_curves
from layerprobe.prediction.values import DropPrediction
from layerprobe.readings.reading import INFONCE, SELF_CKA, LayerCurve
from layerprobe.readings.source import Source, source_curves
from layerprobe.results.shown import mask_left_out
from layerprobe.scoring.score import ScoredModel, score_split, untrained_layers, zero_shot
from layerprobe.search.ask import LayerSearch, initial_evidence
from layerprobe.search.values import FAILURES, Decision, Evidence, PlannedRun, Score, SearchAnswer
from layerprobe.study.predict import DEFAULT_RULE, default_rule, drop_of_curves
from layerprobe.study.values import Finding, MadeRun, Weights
from layerprobe.tasks.evaluation import links_of
from layerprobe.tasks.explored import ItemSource, LayerOutputs
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.splitting import drawn_from, spoilt_items
from layerprobe.tasks.values import Task
from layerprobe.versions import __version__, versions

Array = NDArray[np.float64]
logger = logging.getLogger(__name__)

CHECKED_EXAMPLES = 512  # examples of each split whose texts are embedded before training
SPEED_TEXTS, SPEED_BATCH_TOKENS = 128, 2048


class SearchRuns:
    """The runs of one or several models, made in shared worker processes."""

    def __init__(self, workers: Workers, *, whole: float) -> None:
        self.workers = workers
        self.whole = whole
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


class ModelSearch:
    """One model in a search: its readings, the runs that the search requests, and its finding."""

    def __init__(
        self,
        sets: Sequence[RunSet],
        task: Task,
        runs: SearchRuns,
        *,
        references: Sequence[Resolved],
        start: int | None,
        cost: float,
    ) -> None:
        self.sets = sets
        """The runs of each fold."""
        self.model = sets[0].model
        self.protocol = sets[0].protocol
        self.task = task
        self.folds = [of_fold.task for of_fold in sets]
        self.made_by = runs
        self.first_set = len(runs.sets)
        runs.sets += sets
        checkpoint = self.model.checkpoint
        self.label = checkpoint.label
        self.n_blocks = count_blocks(checkpoint.config)
        self.runs: list[MadeRun] = []
        self.failures: list[str] = []
        self.failed = ""
        """Message of the last failed run."""
        self.not_trained: dict[tuple[int, int], str] = {}
        """Evidence in words, by layer and seed."""
        self.ahead = 0
        """Seeds of the last layer with runs requested before the search ended."""
        self._tested: dict[RunKey, Array] = {}
        """Influences of the test items, by run."""
        self.by_cosines = KINDS[task.kind].zero_shot == "cosine" and not KINDS[task.kind].fits
        self.checked = drawn_from(task, (CHECKED_EXAMPLES,) * 3)
        """The examples whose texts are embedded before training."""
        texts = self.checked.split("all")
        extraction, *others = [Extraction.of(one, texts) for one in (checkpoint, *references)]
        extraction = replace(extraction, cut=True)
        curves = source_curves(Source(extraction=extraction), _readings(task))
        curve = curves[SELF_CKA]  # it begins one layer after the first that has a reading
        layers = range(max(curve.first_layer - 1, 0), min(curve.layers.stop, self.n_blocks + 1))
        self.prediction = _predicted(checkpoint.label, self.n_blocks, layers, curves, task)
        self.comparison: Comparisons | None = None
        self.before: dict[int, float] = {}
        """Scores before training by layer, x 100, of the metric that chooses."""
        if others or self.by_cosines:
            self._read_embeddings(extraction.embed(), [one.embed() for one in others])
        unsaved = without_checkpoint(self.model.encoder) if sets[0].save_models else ""
        self._note_left_out(layers, unsaved)
        self.begun = initial_evidence(
            self.n_blocks,
            {name: _with_collapse(name, curve) for name, curve in curves.items()},
            start=None if start is None else one_layer(start, self.n_blocks, of=checkpoint.label),
            n_items=sum(len(fold.validation) for fold in self.folds),
            n_folds=len(sets),
            first_layer=1 if unsaved else layers.start,
            model=self.first_set // len(sets),
            block_cost=cost,
        )

    def _read_embeddings(self, embedded: Embeddings, references: Sequence[Embeddings]) -> None:
        """Compare the layers with references, and score them before training."""
        if references:
            self.comparison = compare_all(embedded, references, device=self.model.checkpoint.asked.device)
        if self.by_cosines:
            scored = zero_shot(embedded, self.checked, split="all")
            self.failures += scored.warnings
            if scored.primary == self.folds[0].primary:
                self.before = {layer: scored.scores[layer] for layer in scored.layers}

    def _note_left_out(self, layers: range, unsaved: str) -> None:
        """Note which first and last layers are left out, or have no reading."""
        collapsed = range(layers.stop, self.n_blocks + 1)
        if collapsed:
            which = f"{layer_span(collapsed)} of {self.label} {'gives' if len(collapsed) == 1 else 'give'}"
            self.failures.append(f"{which} all texts the same embedding: no reading favours fine-tuning there")
        if layers.start:
            read_layers = range(layers.start, self.n_blocks + 1)
            pooling = self.model.checkpoint.pooling
            self.failures += left_out_layers(self.label, pooling, read_layers, self.n_blocks + 1)
        elif unsaved:
            self.failures.append(f"layer 0 of {self.label} is left out: {unsaved}")

    def job(self, layer: int, seed: int, *, alone: bool = False) -> RunJob:
        """Return a run as a job."""
        return RunJob(layer, seed, self.first_set + seed % len(self.sets), alone=alone)

    @property
    def spent(self) -> int:
        """Block-steps of the requested runs."""
        return sum(made.layer + 1 for made in self.runs if not made.is_earlier)

    def request(self, run: PlannedRun, *, alone: bool = False) -> float:
        """Request a run, unless it was requested before; return its cost."""
        cost = self.begun.block_cost * run.cost
        self.made_by.requested.setdefault(self.job(run.layer, run.seed, alone=alone), cost)
        return cost

    def tell(self, search: LayerSearch, planned: PlannedRun) -> None:
        """Make a requested run, or load a finished one, and report its score or failure to the search."""
        outcome = self.made_by.outcome(self.job(planned.layer, planned.seed))
        fold = planned.seed % len(self.folds)
        run: FineTuningRun | None = None
        influences: Array | None = None
        if isinstance(outcome, LayerProbeError):
            self.failed = f"layer {planned.layer} failed: {outcome}"
            self.failures.append(self.failed)
        else:
            (made,) = outcome
            items = run_items(self.folds[fold], [made])
            influences = items.influences["validation"][made.key]
            self._tested.update(items.influences["test"])
            if not self._did_not_train(made, self.folds[fold]):
                run = made
        self.runs.append(MadeRun(fold=fold, layer=planned.layer, seed=planned.seed, run=run))
        value = None if run is None else run.validation[run.primary]
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
                if self.made_by.sets[job.of].read(job) is None:
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
        level = search.state.settings.level
        spent = self.spent
        answered = searched = search.state.answer(self.begun.model, decision)
        proof = None
        while against_last and not spoilt_items(self.task):
            best = answered.best_layer
            # requests depend on scores alone, but starts on speed: every requested run counts
            self._prove(search, best, self.ahead if best == self.n_blocks else against_last)
            answered = search.state.answer(self.begun.model, searched.decision)
            if answered.best_layer == best:
                proof = self._against_last(best, level)
                break
        # runs of the comparison count as evidence, but do not reopen the search
        answered = _stated(answered, self.task)
        fold = self.folds[0]
        encoder = self.model.encoder
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
        try:
            if self.by_cosines:  # texts embedded for the readings are not embedded again
                whole = Extraction.of(checkpoint, self.task).texts
                checked = Extraction.of(checkpoint, self.checked.split("all")).texts
                test = replace(Extraction.of(checkpoint, self.task.test), earlier=(checked,))
                embeddings = test.embed(whole=whole)
                scored = zero_shot(embeddings, self.task, split="test"), embeddings
            else:
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
        if not why:
            tuned = [run for run in finding.fine_tuned if run.layer == layer] or finding.fine_tuned
            runs = self._final_set(tuned)
            try:
                with make_crew(RunWorker, (runs,)) as crew:
                    ((run,),) = results(runs_plan((runs,), {RunJob(layer, 0): 1.0}), crew).values()
            except TrainingError as error:
                if not is_marked(error):
                    raise
                why = str(error)
        if why:
            return replace(finding, failures=(*finding.failures, f"there is no final model: {why}"))
        weights = Weights(directory=str(run.directory), n_train=len(runs.task.train))
        return replace(finding, final=run, weights=weights)

    def _final_set(self, tuned: Sequence[FineTuningRun]) -> RunSet:
        """Return the set of the final run, on all labelled examples, from the runs that validation scored."""
        pool = self.task.train.join(self.task.validation)
        # validation examples are also training examples here, unlike in any other run, and choose nothing
        task = replace(self.task, train=pool)
        kept_epoch = round(median(run.best_epoch for run in tuned))
        protocol = replace(self.protocol, kept_epoch=kept_epoch, patience=None)
        held_out = ((outputs_in(run.directory).of(run.layer, "validation"), run.threshold) for run in tuned)
        shares = [float(np.mean(values >= cut)) for values, cut in held_out if cut is not None and values.ndim == 1]
        if shares:
            task = replace(task, validation=pool)
            protocol = replace(protocol, positive_share=median(shares))
        return run_set(self.model, task, protocol, save_models=True)

    def _weights(self, best: int) -> Weights:
        """Return the location of the layer to keep's best run, by validation."""
        here = [made.run for made in self.runs if self.sets[0].save_models and made.run and made.layer == best]
        if not here:  # not saved, or inferred from the others: the place where `finetune` would keep it
            folder = self.sets[0].folder
            if len(self.sets) > 1:
                folder = run_folder(self.model.checkpoint, self.task, self.protocol)
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


def _readings(task: Task) -> list[str]:
    """Return the readings before training; InfoNCE only for text embeddings."""
    embeds = KINDS[task.kind].zero_shot != "own" and default_rule(task.texts()) == DEFAULT_RULE
    return [SELF_CKA, *([INFONCE] if embeds else [])]


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


def _with_collapse(name: str, curve: LayerCurve) -> tuple[float, ...]:
    """Return a reading with values for layers that give all texts the same embedding, where it has none.

    Such layers cannot match two copies of a text, so that their InfoNCE is 0 nats, or the lowest of the other layers.
    The first of them differs from the layer before, and the others are equal.
    """
    read = curve.values[: curve.layers.stop]
    if not curve.collapsed:
        return read
    if name == SELF_CKA:
        return (*read, 0.0, *(1.0,) * (curve.collapsed - 1))
    return (*read, *(min(0.0, *read),) * curve.collapsed)


def _stated(answered: SearchAnswer, task: Task) -> SearchAnswer:
    """Return an answer with scores clipped to the range of the metric, without claims if examples are in two splits."""
    n = spoilt_items(task)
    choices = tuple(range(answered.first_layer, len(answered.layers)))
    layers = []
    for belief in answered.layers:
        mean, _ = bounded(task.primary, (belief.mean, belief.mean))
        belief = replace(belief, mean=mean, interval=bounded(task.primary, belief.interval))
        if n:
            belief = replace(belief, chance_best=1 / len(choices), chance_within=0.5, behind=None, gain=None)
        layers.append(belief)
    answered = replace(answered, layers=tuple(layers))
    if not n:
        return answered
    answered = replace(answered, spoilt=n, chance=1 / len(choices), candidates=choices)
    return replace(answered, smallest_sufficient=None, whole=None)


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
