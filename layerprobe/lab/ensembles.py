"""Averages the outputs of finished runs of one task with weights chosen by validation, and measures the gain.

Source: averages of outputs: Hansen and Salamon 1990 (IEEE PAMI 12); of seeds: Lakshminarayanan, Pritzel and Blundell
2017 (NeurIPS); selection: Caruana et al. 2004 (ICML).
"""

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from layerprobe.context import current
from layerprobe.encoders.loading import resolve
from layerprobe.encoders.model import DEFAULTS, Model
from layerprobe.errors import DataError, LayerProbeError
from layerprobe.files.folders import read_kept
from layerprobe.files.serialisation import digest as digest_of
from layerprobe.finetuning.outputs import SCORED, ScoredSplit, read_outputs
from layerprobe.finetuning.saved import RESULT, is_joint, read_origin
from layerprobe.finetuning.values import FineTuningRun, JointRun, RunsOrigin
from layerprobe.metrics.names import check_primary, metric_title, points
from layerprobe.names import distinct_names, listed, short_name
from layerprobe.profiling.run import ALONE
from layerprobe.profiling.run import profile as profile_model
from layerprobe.profiling.values import LayerProfile
from layerprobe.results import numbers
from layerprobe.results.charts import Chart, Line
from layerprobe.results.shown import Shown
from layerprobe.results.table import Column, Table, millions
from layerprobe.stats.crossed import crossed, errors_known
from layerprobe.stats.sentences import error_sources, gain_in_brackets
from layerprobe.stats.values import CrossedInterval
from layerprobe.tasks.evaluation import Evaluation, evaluate_outputs, item_influences, links_of
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.loading import load_task
from layerprobe.tasks.splitting import checked_task
from layerprobe.tasks.values import Task

ChosenBy = Literal["line", "pair", "greedy"]
"""How the weights are chosen by the validation split, see `CHOICES`."""
CHOICES: dict[ChosenBy, str] = {
    "line": "of two, the best of all from 0 and 1 to 1 and 0 in steps of 0.05",
    "pair": "every two, each with the best weights in steps of 0.05",
    "greedy": "forward selection with replacement, 20 additions (Caruana et al. 2004)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A candidate of the ensemble: a layer of a model, fine-tuned with each seed."""

    label: str
    """Such as `layer 3`, with the model or the seed where that tells members apart."""
    model: str
    layer: int
    parameters: int
    """Of the truncated model, without the pooler."""
    shares: int | None
    """Members with the same number are layers of one joint run, whose blocks are run once; None: a model of its own."""
    weight: float
    """In the average, 0 .. 1; 0 where it takes no part."""
    validation: tuple[float, ...]
    """The primary metric of this one alone by seed, x 100."""
    test: tuple[float, ...]
    """The primary metric of this one alone by seed, x 100."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleCost:
    """The inference cost of an ensemble: every member's model, and of layers of one run only the deepest."""

    parameters: int
    blocks: int
    """Blocks that a text goes through."""
    flops: int | None = None
    """A text of `length` tokens; None where it was not measured."""
    seconds: float | None = None
    """One text of `length` tokens at a time, the models one after the other; None where it was not measured."""
    length: int | None = None
    """Tokens a text."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Ensemble(Shown):
    """A weighted average of the outputs of runs of one task, compared with the best single one."""

    task: str
    kind: str
    primary: str
    """The metric that chose the weights and the single one."""
    choice: ChosenBy
    seeds: tuple[int, ...]
    """One ensemble each; empty where members are of different seeds, or seeds are the members."""
    members: tuple[Member, ...]
    """All that were given, those of weight 0 too."""
    best: int
    """Number of the member with the highest mean validation score, which the ensemble is compared with."""
    validation: dict[str, tuple[float, ...]]
    """Of the ensemble by metric and seed, x 100."""
    test: dict[str, tuple[float, ...]]
    """Of the ensemble by metric and seed, x 100."""
    thresholds: tuple[float | None, ...]
    """By seed: chosen on the validation split, where the kind has one."""
    gain: CrossedInterval | None
    """Test score of the ensemble less that of the best single one; None where nothing is known of its error."""
    cost: EnsembleCost
    single_cost: EnsembleCost
    """Of the best single one."""

    def __post_init__(self) -> None:
        check_primary(self.primary, self.test, what="the metrics of an ensemble")
        if not 0 <= self.best < len(self.members):
            raise DataError(f"expected the number of one of {len(self.members)} members as the best, got {self.best}")

    @property
    def single(self) -> Member:
        """The best single member by validation."""
        return self.members[self.best]

    @property
    def used(self) -> tuple[Member, ...]:
        """Members with a positive weight, the highest first."""
        return tuple(sorted((member for member in self.members if member.weight), key=lambda chosen: -chosen.weight))

    @property
    def score(self) -> float:
        """Mean of the primary metric on the test split over seeds, x 100."""
        return fmean(self.test[self.primary])

    @property
    def single_score(self) -> float:
        """The same of the best single one."""
        return fmean(self.single.test)

    @property
    def table(self) -> Table:
        """One row per member, and one for the average."""
        members, title = self.members, metric_title(self.primary)
        validation = [*(member.validation for member in members), self.validation[self.primary]]
        test = [*(member.test for member in members), self.test[self.primary]]
        best = [*(number == self.best for number in range(len(members))), False]
        return Table(
            columns=(
                Column("member", (*(member.label for member in members), "average"), title="what"),
                Column("model", (*(member.model for member in members), None), form=short_name),
                Column("layer", (*(member.layer for member in members), None), shown=False),
                Column("weight", (*(member.weight for member in members), 1.0), form=".2f"),
                Column("parameters", (*(member.parameters for member in members), self.cost.parameters), form=millions),
                Column("validation", tuple(map(fmean, validation)), title=f"validation {title}", form=".2f"),
                Column(
                    "test",
                    tuple(map(fmean, test)),
                    title=f"test {title}",
                    form=".2f",
                    quantity=points(self.primary, "test"),
                ),
                Column("scores", tuple(test), title="by seed", form=".2f"),
                Column("flag", tuple("best alone" if it else None for it in best)),
            ),
            title="What was averaged",
            charts=(
                Chart(
                    lines=(Line("test", seeds="scores"),),
                    name="ensemble",
                    x="member",
                    chosen="best alone by validation",
                ),
            ),
            marks=tuple("chosen" if it else None for it in best),
        )

    @property
    def sentence(self) -> str:
        """The gain of the average with its interval and cost, as a sentence."""
        title, single = metric_title(self.primary), self.single
        if len(self.used) == 1:
            return (
                f"On the validation split nothing scores higher than {self.used[0].label} alone: there is no ensemble. "
                f"It scores {self.single_score:.2f} on test ({title} x 100)."
            )
        members = ", ".join(f"{member.label} ({member.weight:.2f})" for member in self.used)
        gained = self.score - self.single_score
        return (
            f"The average of {members} scores {self.score:.2f} on test, {gained:+.2f} {title} x 100 compared "
            f"with {single.label}, the best single one by validation {gain_in_brackets(self.gain)} {self._cost}"
        )

    @property
    def _cost(self) -> str:
        cost, single = self.cost, self.single_cost
        sentence = (
            f"It runs {cost.blocks} blocks and has {cost.parameters / 1e6:.1f} M parameters, against {single.blocks} "
            f"and {single.parameters / 1e6:.1f} M"
        )
        if cost.seconds is not None and single.seconds is not None:
            sentence += f"; a text of {cost.length} tokens takes {1e3 * cost.seconds:.1f} ms against "
            sentence += f"{1e3 * single.seconds:.1f}"
        return f"{sentence}."

    @property
    def heading(self) -> str:
        """The gain of the average in a few words."""
        if len(self.used) == 1:
            return f"{self.used[0].label} alone scores highest: no ensemble"
        gained, unsure = self.score - self.single_score, self.gain is None or self.gain.sign == 0
        more = f"{numbers.number(abs(gained))} {'more' if gained >= 0 else 'less'}"
        return f"The average scores {more} than the best single one{', not significant' if unsure else ''}"

    @property
    def page(self) -> dict[str, Any]:
        """What its page has besides its table, see `layerprobe.results.declared`."""
        title, gain, cost, single = metric_title(self.primary), self.gain, self.cost, self.single_cost
        gained = numbers.signed(self.score - self.single_score)
        bounds = "no interval" if gain is None else numbers.interval(gain.interval)
        facts = [
            f"test {title} {numbers.number(self.score)}, gain {gained} {bounds}",
            f"{cost.blocks} blocks, {numbers.millions(cost.parameters)} parameters; the best single one "
            f"{single.blocks}, {numbers.millions(single.parameters)}",
        ]
        if cost.seconds and single.seconds and cost.flops and single.flops:
            time, alone = (numbers.significant(1e3 * price) for price in (cost.seconds, single.seconds))
            flops, least = (numbers.significant(price / 1e9) for price in (cost.flops, single.flops))
            facts += [f"{time} ms for a text of {cost.length} tokens, {alone} alone"]
            facts += [f"{flops} GFLOPs per text, {least} alone"]
        return {
            "kind": "ensemble",
            "about": f"{' + '.join(member.label for member in self.used)} on {self.task}",
            "lead": (self.sentence,),
            "facts": facts,
            "sources": {
                "Task": f"{self.task}, {self.kind}",
                "Weights": f"by {title} on the validation split: {CHOICES[self.choice]}",
                "Seeds": listed([str(seed) for seed in self.seeds]) if self.seeds else "of each member",
                "Interval": None if gain is None else error_sources(gain),
            },
            "terms": ("Ensemble",),
        }

    @property
    def summary(self) -> str:
        """The result in one line."""
        return f"{self.task}: {self.sentence}"


# ---- the average of runs --------------------------------------------------------------------------------

Array = NDArray[np.float64]

ScoreOf = Callable[[Array], float]
"""(k,) weights of at least 0 that add up to 1 -> the score of the average, higher is better."""

PARTS = 20
"""Weights are whole numbers of such parts, or of fewer: validation splits tell no finer ones apart."""
LENGTH = 64
"""Tokens of the texts whose cost is measured."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Run:
    """One layer with one seed."""

    folder: Path
    """Of the runs of its model and task."""
    origin: RunsOrigin
    joint: str | None
    """The weighting of a joint run; None where the layer was fine-tuned by itself."""
    run: FineTuningRun
    outputs: dict[ScoredSplit, Array]
    """(n,) or (n, ...), as they are averaged."""

    @property
    def of(self) -> tuple[Path, str, int]:
        """What the runs of several seeds have in common."""
        return self.folder, self.joint or "", self.run.layer


Groups = Sequence[Sequence[_Run]]
"""(member, replicate): a replicate, such as a seed, has an ensemble of its own."""


def ensemble(
    runs: Sequence[str | Path],
    task: Task | None = None,
    *,
    layers: Sequence[int] | None = None,
    profile: bool = False,
    options: Model = DEFAULTS,
) -> Ensemble:
    """Average the outputs of two or more finished runs of one task, and compare that with the best single one.

    The weights are at least 0, add up to 1, and have the highest primary metric on the validation split, in the mean
    over seeds: of two runs on a line, of more by forward selection. A run of `scan` brings all its layers; without
    `layers`, of all candidates the best two are taken. Scores of classes are averaged as probabilities (softmax): the
    logits of heads trained apart have scales of their own, so that a run that is surer than it should be would outvote
    the others. Other outputs, such as cosines, are averaged as they are. Where the kind has a threshold, it is chosen
    anew on validation.

    Where each layer has runs of the same seeds, there is one ensemble a seed with the same weights, and the interval of
    the gain is over test items and seeds; where seeds differ, or one layer has several, which are then the members, it
    is over test items alone. Weights, thresholds and the best single one count as given: other items chose them.

    Args:
        runs: Directories of `finetune` and `scan`, or the folder that several of them lie in.
        task: Of the runs; by default what they noted as its name is loaded.
        layers: Of these alone.
        profile: Whether FLOPs and time are measured; the models must be there.
        options: How models are loaded to be measured.

    Raises:
        DataError: If there are fewer than two candidates, their tasks or seeds differ, or a run has no outputs.
        DamagedStoreError: If a result is not as it was written.
        StoreError: If the disk does not let it be read.
    """
    level = current().level
    read = list(_read(runs, layers))
    task = _task_of(read, task)
    how = _check_kind(task.kind)
    groups = _grouped([_as_averaged(run, how) for run in read])

    def score(weights: Array) -> float:
        return fmean(scored.metrics[task.primary] for scored in _evaluated(task, groups, weights, "validation"))

    pair = layers is None and any(run.joint for run in read)
    choice, weights = _chosen(score, len(groups), pair=pair)
    best = max(range(len(groups)), key=lambda member: fmean(_scores(groups[member], "validation", task.primary)))
    chosen = _evaluated(task, groups, weights, "validation")
    thresholds = tuple(evaluation.threshold for evaluation in chosen)
    tested = _evaluated(task, groups, weights, "test", thresholds)
    members = _members(groups, weights, task.primary)
    seeds = {tuple(member.run.seed for member in group) for group in groups}
    result = Ensemble(
        task=task.name,
        kind=task.kind,
        primary=task.primary,
        choice=choice,
        seeds=next(iter(seeds)) if len(seeds) == 1 else (),
        members=members,
        best=best,
        validation=_by_metric(chosen),
        test=_by_metric(tested),
        thresholds=thresholds,
        gain=_gain(task, _averaged(groups, weights, "test"), tested, groups[best], level=level),
        cost=_cost(members),
        single_cost=_cost([replace(members[best], weight=1.0)]),
    )
    return _profiled(result, groups, options) if profile else result


def _averaged(groups: Groups, weights: Array, split: ScoredSplit) -> list[Array]:
    """Return the weighted average of the members' outputs, of each replicate."""
    return [
        np.sum(
            [weight * member.outputs[split] for weight, member in zip(weights, members, strict=True) if weight], axis=0
        )
        for members in zip(*groups, strict=True)
    ]


def _evaluated(
    task: Task, groups: Groups, weights: Array, split: ScoredSplit, thresholds: Sequence[float | None] | None = None
) -> list[Evaluation]:
    """Return the scores of the average, of each replicate; thresholds are chosen where none are given."""
    averages, gold = _averaged(groups, weights, split), task.split(split).gold
    thresholds = thresholds or [None] * len(averages)
    return [
        evaluate_outputs(task.kind, outputs, gold, threshold=threshold)
        for outputs, threshold in zip(averages, thresholds, strict=True)
    ]


def _gain(
    task: Task, averages: Sequence[Array], tested: Sequence[Evaluation], single: Sequence[_Run], *, level: float
) -> CrossedInterval | None:
    """Return the gain of the average over a single member on test, with its errors over items and replicates."""
    kind, gold, links, primary = task.kind, task.test.gold, links_of(task.test), task.primary

    def influences(outputs: Array, threshold: float | None) -> Array:
        return item_influences(kind, outputs, gold, metric=primary, threshold=threshold)

    pairs = list(zip(averages, tested, single, strict=True))
    values = [whole.metrics[primary] - one.run.test[primary] for _, whole, one in pairs]
    of_items = None
    if errors_known(len(gold), links):
        of_items = np.stack(
            [
                influences(average, whole.threshold) - influences(one.outputs["test"], one.run.threshold)
                for average, whole, one in pairs
            ]
        )
    return crossed(values, of_items, links=links, level=level, unit=KINDS[kind].unit, metric=primary)


# ---- what is averaged -----------------------------------------------------------------------------------


def _read(paths: Iterable[str | Path], layers: Sequence[int] | None) -> Iterable[_Run]:
    """Yield the runs of directories, those of joint runs by layer, of the requested layers."""
    directories = [directory for path in paths for directory in _directories(Path(os.path.realpath(path)))]
    numbers, folders = set[int](), dict[str, Path]()
    for directory in dict.fromkeys(directories):
        origin = read_origin(directory.parent)
        if origin is None:
            raise DataError(
                f"expected origin.json beside {directory}: an older layerprobe made the run and did not write what it "
                "is of; repeat the command that made it, which reads the run and writes that"
            )
        kind: type[JointRun] | type[FineTuningRun] = JointRun if is_joint(directory / RESULT) else FineTuningRun
        result, outputs = read_kept(kind, directory / RESULT, root=directory.parent.parent), read_outputs(directory)
        if result is None or outputs is None:
            raise DataError(f"expected {directory} to hold the outputs of its run: repeat the command that made it")
        if (same := folders.setdefault(digest_of([origin, result]), directory)) != directory:
            raise DataError(f"expected different runs, got {directory}, a copy of {same}: give one of them")
        joint = result.weighting if isinstance(result, JointRun) else None
        for run in _by_layer(result):
            if layers is None or run.layer in layers:
                numbers.add(run.layer)
                by_split = {split: outputs.of(run.layer, split) for split in SCORED}
                yield _Run(folder=directory.parent, origin=origin, joint=joint, run=run, outputs=by_split)
    if missing := sorted(set(layers or ()) - numbers):
        raise DataError(f"expected layers that the runs have, got {', '.join(map(str, missing))}")


def _directories(path: Path) -> list[Path]:
    """Return a directory of a run, or those in a folder of runs."""
    folders = [path] if (path / RESULT).is_file() else sorted(file.parent for file in path.glob(f"*/{RESULT}"))
    if not folders:
        raise DataError(f"expected the directory of a finished run, or a folder of such, got {path}")
    return folders


def _by_layer(result: JointRun | FineTuningRun) -> list[FineTuningRun]:
    if isinstance(result, FineTuningRun):
        return [result]
    return [result.truncated(layer) for layer, test in enumerate(result.test) if test is not None]


def _task_of(runs: Sequence[_Run], task: Task | None) -> Task:
    """Return the one task of all runs; DataError where there are several, or it is not the one that was given."""
    origins = {run.origin.task_digest: run.origin for run in runs}
    if len(origins) > 1:
        first, second = list(origins.values())[:2]
        names = first.task if first.task == second.task else f"{first.task} and {second.task}"
        raise DataError(f"expected runs of one task with one split, got runs whose texts or targets differ: {names}")
    if not runs:
        raise DataError("expected at least two runs, or layers of a scan, to average, got none")
    (origin,) = origins.values()
    if task is None:
        try:
            task = load_task(origin.task)
        except LayerProbeError as error:
            raise DataError(f"expected the task of the runs, {origin.task}, give it by --task: {error}") from error
    task = checked_task(task)
    if task.digest != origin.task_digest:
        raise DataError(
            f"expected the task that the runs are of, {origin.task} as it was read then, got other texts or targets "
            f"from {task.name}: give --task with the options that the runs were made with"
        )
    return task


def _as_averaged(run: _Run, how: str) -> _Run:
    """Return the run with what is averaged, see `Kind.averages`."""
    if how == "values":
        return run
    return replace(run, outputs={split: softmax(outputs, axis=-1) for split, outputs in run.outputs.items()})


def _check_kind(kind: str) -> str:
    """Return how outputs of a kind are averaged; DataError where they are not."""
    how = KINDS[kind].averages
    if how is None:
        kinds = ", ".join(name for name, kind in KINDS.usable().items() if kind.averages is not None)
        raise DataError(f"expected runs of a task whose outputs have a mean, of kind {kinds}, got one of kind {kind}")
    return how


def _grouped(runs: Sequence[_Run]) -> list[list[_Run]]:
    """Return the runs by member, and within one by seed; as many of each, so that each seed has an ensemble."""
    by_member: dict[tuple[Path, str, int], list[_Run]] = {}
    for saved in sorted(runs, key=lambda saved: saved.run.seed):
        by_member.setdefault(saved.of, []).append(saved)
    groups = [
        by_member[member] for member in sorted(by_member, key=lambda member: (str(member[0]), member[1], member[2]))
    ]
    if len(groups) == 1:
        groups = [[member] for member in groups[0]]  # the seeds are the members
    if len(groups) < 2:
        raise DataError("expected at least two runs, or layers of a scan, to average, got one")
    seeds = {tuple(member.run.seed for member in group) for group in groups}
    if len(seeds) > 1 and max(map(len, seeds)) > 1:
        raise DataError(
            f"expected runs of the same seeds for each layer, or of one seed each, got seeds "
            f"{' and '.join(', '.join(map(str, numbers)) for numbers in sorted(seeds))}"
        )
    return groups


def _chosen(score: ScoreOf, k: int, *, pair: bool) -> tuple[ChosenBy, Array]:
    """Return how the weights of k members are chosen, and the weights."""
    if k == 2:
        return "line", line_search(score)
    if not pair:
        return "greedy", greedy_selection(score, k)

    def of_pair(members: tuple[int, int]) -> Array:
        def weights(two: Array) -> Array:
            all_of_them = np.zeros(k)
            all_of_them[list(members)] = two
            return all_of_them

        return weights(line_search(lambda two: score(weights(two))))

    return "pair", max([*np.eye(k), *map(of_pair, itertools.combinations(range(k), 2))], key=score)


def line_search(score: ScoreOf) -> Array:
    """Return the best weights of two, of all from 0 and 1 to 1 and 0 in steps of 1 / `PARTS`.

    Of equals one by itself is taken, which costs less, and the first; of averages alone the most even.

    Examples:
        >>> line_search(lambda weights: -abs(weights[0] - 0.3)).round(12).tolist()
        [0.3, 0.7]
    """
    parts = [PARTS, 0, *sorted(range(1, PARTS), key=lambda part: abs(2 * part - PARTS))]
    choices = [np.array([part, PARTS - part]) / PARTS for part in parts]
    return max(choices, key=score)


def greedy_selection(score: ScoreOf, k: int) -> Array:
    """Return weights of k by forward selection with replacement.

    It begins with nothing and adds, again and again, the one whose addition scores best, one that is in already among
    them; after `PARTS` additions, the ones up to where the score was highest count, each as often as it was added.

    Source: Caruana, Niculescu-Mizil, Crew and Ksikes 2004 (ICML), section 2.2.

    Examples:
        >>> greedy_selection(lambda weights: -np.abs(weights - [0.5, 0.0, 0.5]).sum(), 3).tolist()
        [0.5, 0.0, 0.5]
    """
    counts, best, highest = np.zeros(k), np.zeros(k), -np.inf
    for size in range(1, PARTS + 1):
        scores = [score((counts + one) / size) for one in np.eye(k)]
        counts[int(np.argmax(scores))] += 1
        if max(scores) > highest:
            highest, best = max(scores), counts / size
    return best


# ---- what is said of it ---------------------------------------------------------------------------------


def _scores(group: Sequence[_Run], split: ScoredSplit, metric: str) -> tuple[float, ...]:
    return tuple(getattr(member.run, split)[metric] for member in group)


def _by_metric(evaluations: Sequence[Evaluation]) -> dict[str, tuple[float, ...]]:
    return {name: tuple(evaluation.metrics[name] for evaluation in evaluations) for name in evaluations[0].metrics}


def _members(groups: Groups, weights: Array, metric: str) -> tuple[Member, ...]:
    return tuple(
        Member(
            label=label,
            model=group[0].origin.model.label,
            layer=group[0].run.layer,
            parameters=group[0].run.parameters,
            shares=share,
            weight=float(weight),
            validation=_scores(group, "validation", metric),
            test=_scores(group, "test", metric),
        )
        for label, share, weight, group in zip(_labels(groups), _shares(groups), weights, groups, strict=True)
    )


def _labels(groups: Groups) -> list[str]:
    """Return labels of members: the layer, and the model, way of training and seed where these differ."""
    first = [group[0] for group in groups]
    models = distinct_names([member.origin.model.label for member in first])
    labels = []
    for one, model in zip(first, models, strict=True):
        parts = [f"layer {one.run.layer}"]
        if len({other.origin.model_digest for other in first}) > 1:
            parts.insert(0, short_name(model))
        if len({other.joint for other in first}) > 1:
            parts.append("of the scan" if one.joint else "by itself")
        if len({tuple(run.run.seed for run in group) for group in groups}) > 1:
            parts.append(f"seed {one.run.seed}")
        labels.append(" ".join(parts))
    return labels if len(set(labels)) == len(labels) else [f"{label} ({i})" for i, label in enumerate(labels, 1)]


def _shares(groups: Groups) -> list[int | None]:
    """Return a number for each joint run that several members are layers of, of each seed alike."""
    numbers: dict[tuple[Path, str, tuple[int, ...]], int] = {}
    return [
        None
        if group[0].joint is None
        else numbers.setdefault(
            (group[0].folder, group[0].joint, tuple(member.run.seed for member in group)), len(numbers)
        )
        for group in groups
    ]


def _deepest(members: Iterable[Member]) -> list[Member]:
    """Return the models to run: of members that share their blocks only the deepest."""
    models: dict[tuple[int | None, int], Member] = {}
    for number, member in enumerate(members):
        if member.weight:
            key = (member.shares, 0) if member.shares is not None else (None, number)
            if key not in models or models[key].layer < member.layer:
                models[key] = member
    return list(models.values())


def _cost(members: Iterable[Member]) -> EnsembleCost:
    models = _deepest(members)
    return EnsembleCost(
        parameters=sum(model.parameters for model in models), blocks=sum(model.layer for model in models)
    )


def _profiled(result: Ensemble, groups: Groups, options: Model) -> Ensemble:
    """Measure FLOPs and time of the ensemble and of the best single model."""
    origins = {member.label: group[0].origin for member, group in zip(result.members, groups, strict=True)}
    models, single = _deepest(result.members), _deepest([replace(result.single, weight=1.0)])
    settings = replace(ALONE, lengths=(LENGTH,))
    measured: dict[tuple[str, int], LayerProfile] = {}
    for digest in dict.fromkeys(origins[model.label].model_digest for model in (*models, *single)):
        origin = next(origin for origin in origins.values() if origin.model_digest == digest)
        layers = sorted({model.layer for model in (*models, *single) if origins[model.label].model_digest == digest})
        checkpoint = resolve(origin.model.like(options))
        if digest_of(checkpoint.identity) != digest:
            raise DataError(
                f"expected the model that the runs began with to measure, {checkpoint.label} is another now"
            )
        profile = profile_model(checkpoint, layers=layers, settings=settings)
        measured |= {(digest, layer.layer): layer for layer in profile.layers}

    def with_times(cost: EnsembleCost, of: Sequence[Member]) -> EnsembleCost:
        costs = [measured[origins[model.label].model_digest, model.layer].cost(LENGTH, 1) for model in of]
        return replace(
            cost, flops=sum(cost.flops for cost in costs), seconds=sum(cost.seconds for cost in costs), length=LENGTH
        )

    return replace(result, cost=with_times(result.cost, models), single_cost=with_times(result.single_cost, single))
