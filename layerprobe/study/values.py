"""Predictions about a model before training, and findings from training."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from layerprobe.comparison.values import Comparison, Comparisons
from layerprobe.encoders.model import ModelDescription, described
from layerprobe.encoders.timing import Speedup, speedup
from layerprobe.errors import DataError
from layerprobe.files.serialisation import RARE, UNSAVED, to_dict
from layerprobe.finetuning.values import FineTuningRun, LayerOutcome, scored_layers_of
from layerprobe.interval import Interval
from layerprobe.metrics.names import metric_title
from layerprobe.names import distinct_names
from layerprobe.prediction.values import PLATEAU, DropPrediction
from layerprobe.results.conclusion import Check, Choice, Conclusion, Fact, Step, Verdict
from layerprobe.results.shown import Shown
from layerprobe.results.table import Table
from layerprobe.scoring.values import LayerScores
from layerprobe.search.values import FIRST, SearchAnswer, without_scans
from layerprobe.stats.values import Floor, ScoredLayers
from layerprobe.study.tables import finding_table, models_table, prediction_table, references_table, runs_table
from layerprobe.tasks.quality import DataQuality


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Prediction(Shown):
    """A prediction before any training, with its evidence."""

    comparisons: tuple[Comparison, ...]
    """One comparison per reference; without a reference, each layer of the model with the one before."""
    drops: tuple[DropPrediction, ...]
    """One prediction per comparison; the first one counts."""
    zero_shot: LayerScores | None = None
    """Scores of the model on the validation split; None for texts without labels."""
    warnings: tuple[str, ...] = ()
    """Warnings for the reader."""
    data: DataQuality | None = None
    """Quality of the texts; None if they were not checked."""

    @property
    def comparison(self) -> Comparison:
        """The model with the first reference, or with itself."""
        return self.comparisons[0]

    @property
    def drop(self) -> DropPrediction:
        """The layers expected to drop, by the requested rule."""
        return self.drops[0]

    @property
    def recommended_layer(self) -> int:
        """The layer to try first."""
        return self.drop.recommended_layer

    @property
    def conclusion(self) -> Conclusion:
        """The layer to try first, with its evidence."""
        comparison = self.comparison
        scored = self.zero_shot and self.zero_shot.n_items
        reference = () if comparison.alone else (comparison.reference.name,)
        prediction = self.drop.conclusion
        checks = list(prediction.checks)
        if len({drop.recommended_layer for drop in self.drops}) > 1:
            others = tuple(sorted({drop.recommended_layer for drop in self.drops} - {self.recommended_layer}))
            checks.append(Check(name="other references", passed=False, names={"others": others}))
        if scored:
            items = {"items": Fact(value=scored[0], unit="count"), "available": Fact(value=scored[1], unit="count")}
            checks.append(Check(name="zero-shot items", passed=None, facts=items))
        names = dict(prediction.names)
        if self.drop.rule == PLATEAU:
            names["reading"] = comparison.map.measure.short_name
        return replace(prediction, subject=(comparison.model.name, *reference), names=names, checks=tuple(checks))

    @property
    def table(self) -> Table:
        """One row per layer: similarity, the rule's curves and flags, from the first comparison."""
        return prediction_table(self.comparison, self.drop)

    @property
    def details(self) -> tuple[Table, ...]:
        """Predictions of simpler rules and other references, and the comparisons."""
        names = [comparison.reference.name for comparison in self.comparisons]
        further = (references_table(names, self.drops),) if len(self.drops) > 1 else ()
        return (*self.drop.details, *further, *Comparisons(comparisons=self.comparisons).details)

    @property
    def sources(self) -> dict[str, str]:
        """The models and the rule."""
        references = [] if self.comparison.alone else [comparison.reference for comparison in self.comparisons]
        return described(self.comparison.model, *references) | self.drop.sources


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeRun:
    """One run of a search, at one layer."""

    fold: int
    """The fold that validated it; 0 if all seeds share the validation split."""
    layer: int
    seed: int
    run: FineTuningRun | None
    """The run; None if it gave no score, which costs as much."""
    is_earlier: bool = field(default=False, metadata=RARE)
    """Whether it was finished before and not requested: it counts as evidence and costs nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The location of the fine-tuned model to keep."""

    directory: str
    """Directory of its run, for `layerprobe export`."""
    kept: bool = True
    """Whether the weights exist; otherwise the run, with seed 0, has to be repeated with --save-models."""
    n_train: int | None = field(default=None, metadata=RARE)
    """Number of training and validation examples if all were trained on; else None."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Finding(Shown):
    """The layer to keep, of one model or of the best of several, with the runs as evidence."""

    model: ModelDescription
    """The model to keep."""
    task: str
    """Name of the task, as given by the user."""
    kind: str
    """Kind of the task, one of `KINDS`."""
    task_digest: str
    """sha256 of the task's examples."""
    versions: dict[str, str]
    """Versions of Python, layerprobe and the libraries that the numbers depend on."""
    prediction: DropPrediction | None = None
    """The prediction from the readings before the search; None if the default rule needs others."""
    comparison: Comparisons | None = field(default=None, metadata=RARE)
    """Similarity to the references; None without references."""
    answer: SearchAnswer
    """The answer of the search, from validation scores."""
    primary: str
    """Name of the metric of all scores."""
    runs: tuple[MadeRun, ...]
    """Runs in the order they were made."""
    n_folds: int
    """Number of folds: seed k is validated on fold k modulo this; 1 if all seeds share the validation split."""
    n_items: tuple[int, int]
    """Number of validation examples (of the first fold) and of test examples."""
    rounds_by_layer: tuple[tuple[float, ...], ...] = field(default=(), metadata=RARE)
    """Seconds for the same texts by layer and round; only for models truncated at the best, the smallest sufficient
    and the last layer."""
    outcomes: tuple[LayerOutcome, ...] = ()
    """Runs of truncated models combined by layer, ascending."""
    against_last: Interval | None = None
    """Test score of the layer to keep minus that of the last one, x 100, over paired seeds and test items, which chose
    neither; None if not requested, or if the last layer is the one to keep."""
    proof_cost: int = 0
    """Cost, in block-steps, of runs made only for `against_last` after the search."""
    weights: Weights
    """Weights of the layer to keep."""
    failures: tuple[str, ...] = ()
    """Runs and layers without a score, with reasons; labels that seem reversed."""
    floor: Floor | None = field(default=None, metadata=RARE)
    """Score of a trivial baseline on the validation examples; None where that is 0, as for correlations."""
    untrained: tuple[float | None, ...] = field(default=(), metadata=RARE)
    """Test scores by layer before any fine-tuning; None for layers left out, empty if there are none."""
    item_source: Any = field(default=None, compare=False, metadata=UNSAVED)
    """Source of single test items for the page, an `ItemSource`; None if the finding was read from a file."""
    final: FineTuningRun | None = field(default=None, metadata=RARE)
    """Final run of the layer to keep, on training and validation examples for the number of epochs that validation
    chose in the search; its weights are those to keep."""
    others: tuple["Finding", ...] = field(default=(), metadata=RARE)
    """Findings of the other models that were searched together, in the given order."""
    place: int = field(default=0, metadata=RARE)
    """Position of the model to keep in the given order, from 0."""
    among: SearchAnswer | None = field(default=None, metadata=RARE)
    """With several models, the answer with chances among the layers of all models."""
    share: float | None = field(default=None, metadata=RARE)
    """With several models, the cost as a share of the total cost of their full sweeps, by parameters of blocks."""

    @classmethod
    def class_of(cls, data: dict[str, Any]) -> tuple[type["Finding"], dict[str, Any]]:
        """Return this class and its fields from JSON, also of earlier versions."""
        return cls, {**data, **{name: without_scans(data[name]) for name in ("runs", "weights") if name in data}}

    @property
    def models(self) -> tuple["Finding", ...]:
        """The findings of all models, in the given order."""
        return (*self.others[: self.place], self, *self.others[self.place :])

    @property
    def scored_layers(self) -> ScoredLayers:
        """The fine-tuned layers, to compare with another finding; DataError if examples are in two splits."""
        if self.answer.spoilt:
            raise DataError(f"scores of {self.model.name} on {self.task} are unreliable: examples are in two splits")
        return scored_layers_of(self.outcomes, model=self.model.name, task=self.task)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the models in tables and plots."""
        return tuple(distinct_names([finding.model.name for finding in self.models]))

    @property
    def best_layer(self) -> int:
        """The layer with the highest expected score."""
        return self.answer.best_layer

    @property
    def last_layer(self) -> int:
        """The last layer, that of the whole model."""
        return self.model.n_blocks

    @property
    def tested(self) -> LayerOutcome | None:
        """The runs of the layer to keep; None if it was not run."""
        return next((outcome for outcome in self.outcomes if outcome.layer == self.best_layer), None)

    @property
    def on_floor(self) -> bool:
        """Whether no layer is significantly above the floor, so that none should be kept."""
        best = self.answer.layers[self.best_layer]
        return self.floor is not None and not self.answer.spoilt and self.floor.unbeaten(best.interval)

    @property
    def is_refuted(self) -> bool:
        """Whether the whole model scores higher on test than the layer that validation chose."""
        return self.against_last is not None and self.against_last.verdict == "refuted"

    @property
    def places(self) -> int:
        """Number of layers, of all models, that may be the best."""
        return sum(len((one.among or one.answer).candidates) for one in self.models)

    @property
    def verdict(self) -> Verdict:
        """Confidence in the layer to keep, among all models; undecided at most if it scores lower on test."""
        if self.on_floor or self.is_refuted:
            return Verdict.FAILED
        verdict = (self.among or self.answer).verdict_with_candidates(self.places)
        is_below = self.against_last is not None and self.against_last.value < 0
        return Verdict.UNDECIDED if verdict is Verdict.PROBABLE and is_below else verdict

    @property
    def conclusion(self) -> Conclusion:
        """The layer to keep, of which model, its gain on test, and the certainty."""
        answer = self.among or self.answer
        searched = answer.conclusion
        choice = answer.conclusion.choice
        case = "floor" if self.on_floor else "refuted" if self.is_refuted else searched.case
        facts = dict(searched.facts)
        names = {**searched.names, "metric": f"{metric_title(self.primary)} x 100"}
        if case in ("floor", "refuted"):  # no layer is to be kept
            facts = {name: facts[name] for name in ("score", "level", "tolerance")}
            choice = None if case == "floor" else Choice.upto(self.last_layer, self.last_layer)
        is_claimed = case not in ("floor", "spoilt")
        if is_claimed and self.tested is not None:
            facts["score"] = score_fact(self.tested)
        if is_claimed and self.against_last is not None:
            facts["gain"] = Fact.of(self.against_last, split="test", better="higher")
        if case in ("cut", "embeddings"):
            facts |= self._saved(self.best_layer)
        if self.seconds:
            facts["seconds"] = Fact(value=self.seconds, unit="seconds")
        facts["share"] = Fact(value=self.answer.share if self.share is None else self.share, unit="share")
        facts["runs"] = Fact(value=len(self._made), unit="count")
        if self.floor is not None:
            facts["floor"] = Fact(value=self.floor.value, unit="score", split="validation")
            names["trivial"] = self.floor.by
        if self.others:  # candidates are layers of all models
            names = {name: value for name, value in names.items() if name != "layers"}
            names |= {"label": self.labels[self.place], "models": self.labels}
            choice = choice and replace(choice, candidates=())
            if case not in ("floor", "refuted", "spoilt"):
                facts["places"] = Fact(value=self.places, unit="count")
        return replace(
            searched,
            case=case,
            verdict=self.verdict,
            subject=(" and ".join(self.labels), self.task),
            choice=choice,
            facts={name: facts[name] for name in (*FIRST, *facts) if name in facts},
            names=names,
            checks=tuple(self._checks()) if is_claimed else (),
            steps=tuple(self._steps()) if is_claimed else (),
        )

    def _saved(self, layer: int) -> dict[str, Fact]:
        """Return the savings of truncating at a layer: parameters and time."""
        size = self.model.parameters[layer]
        whole = self.model.parameters[-1]
        speed = self.speed(layer)
        facts = {
            "parameters": Fact(value=size / whole - 1, unit="share", better="lower"),
            "size": Fact(value=size, unit="parameters"),
            "whole_size": Fact(value=whole, unit="parameters"),
        }
        if speed is not None:
            facts["speed"] = Fact(value=speed[0], unit="times", interval=speed[1:], better="higher")
        return facts

    def _checks(self) -> Iterator[Check]:
        """Yield checks of the test split, the prediction, scores without fine-tuning, the final model and the runs."""
        best = self.best_layer
        prediction = self.prediction
        proof = self.against_last
        by_layer = {outcome.layer: outcome for outcome in self.outcomes}
        if proof is not None:
            scores = {"score": by_layer.get(best), "whole": by_layer.get(self.last_layer)}
            passed = {"confirmed": True, "refuted": False, "undecided": None}[proof.verdict]
            about = {"gain": Fact.of(proof, split="test", better="higher")}
            about |= {name: score_fact(outcome) for name, outcome in scores.items() if outcome is not None}
            about |= {} if proof.sign else {"visible": Fact(value=proof.visible)}
            yield Check(name="test", passed=passed, facts=about)
        elif best != self.last_layer:
            yield Check(name="not tested", passed=None)
        if prediction is not None:
            expected = prediction.recommended_layer
            beliefs = self.answer.layers
            candidates = (self.among or self.answer).candidates
            lower = Fact(value=beliefs[best].mean - beliefs[expected].mean)
            is_compared = beliefs[expected].runs and beliefs[best].runs
            passed = True if expected in candidates else False if is_compared else None
            yield Check(name="prediction", passed=passed, facts={"lower": lower}, names={"expected": expected})
        yield from self._several_model_checks() if self.others else self.answer.conclusion.checks
        if self.floor is not None and self.floor.value:
            floor = Fact(value=self.floor.value, unit="score", split="validation")
            yield Check(name="floor", passed=True, facts={"floor": floor}, names={"trivial": self.floor.by})
        without = {layer: score for layer, score in enumerate(self.untrained) if score is not None}
        if without and self.tested is not None:
            highest = max(without, key=without.__getitem__)
            is_needed = without[highest] < self.tested.mean
            untrained = {
                "untrained": Fact(value=without[highest], unit="score", split="test"),
                "at": Fact(value=highest, unit="layer"),
                "score": score_fact(self.tested),
            }
            yield Check(name="fine-tuning", passed=is_needed, facts=untrained)
        if self.final is not None and self.weights.n_train is not None:
            learnt = {
                "score": Fact(value=self.final.test[self.primary], unit="score", split="test"),
                "items": Fact(value=self.weights.n_train, unit="count"),
                "epochs": Fact(value=self.final.best_epoch, unit="count"),
            }
            yield Check(name="final", passed=None, facts=learnt)

    def _several_model_checks(self) -> Iterator[Check]:
        """Yield checks of several models: which has the best layer, how certain that is, and which layer is enough."""
        answer = self.among or self.answer
        elsewhere = any((one.among or one.answer).candidates for one in self.others)
        chance = Fact(value=sum(belief.chance_best for belief in answer.layers), unit="chance")
        yield Check(name="model", passed=None if elsewhere else True, facts={"has_best": chance})
        if earlier := sum(made.is_earlier for one in self.models for made in one.runs):
            yield Check(name="earlier runs", passed=None, facts={"earlier": Fact(value=earlier, unit="count")})
        yield from (check for check in answer.conclusion.checks if check.name not in ("enough", "rival"))
        for label, one in zip(self.labels, self.models, strict=True):
            enough = (one.among or one.answer).smallest_sufficient
            if enough is not None and (one is not self or enough != self.best_layer):
                yield Check(name="enough", passed=True, names={"enough": enough, "label": label})

    def _steps(self) -> Iterator[Step]:
        """Yield the export of the model to keep, if its weights exist."""
        is_new = self.best_layer != self.last_layer or self.final is not None
        if self.weights.kept and is_new and not self.is_refuted:
            layer = str(self.best_layer)
            yield Step(name="export", command=("export", self.weights.directory, f"layer-{layer}"))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Runs and layers without a score, with reasons."""
        return self.failures

    @property
    def seconds(self) -> float:
        """Training time of all runs of all models, in seconds."""
        return sum(run.seconds for run in self._made)

    @property
    def _made(self) -> list[FineTuningRun]:
        """Requested runs with a score, of all models."""
        return [made.run for one in self.models for made in one.runs if made.run and not made.is_earlier]

    def speed(self, layer: int) -> Speedup | None:
        """Return the speed of the model truncated at a layer, relative to the whole model; None if not measured."""
        rounds = self.rounds_by_layer
        return speedup(rounds[-1], rounds[layer]) if rounds and rounds[-1] and rounds[layer] else None

    @property
    def drop_layers(self) -> tuple[int, ...]:
        """The last consecutive layers that are worse than the best by more than the tolerance, at the level."""
        return self.answer.drop_layers

    def flag(self, layer: int) -> str:
        """Return the flag of a layer, see `SearchAnswer.flag`; empty if no layer is above the floor."""
        if self.on_floor:
            return ""
        if self.is_refuted and layer in (self.best_layer, self.last_layer):
            return "keep" if layer == self.last_layer else "best on validation"
        flag = self.answer.flag(layer)
        return "best guess" if flag == "keep" and self.verdict is Verdict.UNDECIDED else flag

    @property
    def fine_tuned(self) -> tuple[FineTuningRun, ...]:
        """The runs with a score."""
        return tuple(made.run for made in self.runs if made.run)

    @property
    def table(self) -> Table:
        """One row per layer and model: estimates of the search, scores of fine-tuning, and flags."""
        return models_table(self) if self.others else finding_table(self)

    @property
    def details(self) -> tuple[Table, ...]:
        """The runs, the readings before training, and the similarity to the references."""
        predicted = () if self.prediction is None else (replace(self.prediction.table, title="Before training"),)
        compared = () if self.comparison is None else self.comparison.details
        return (runs_table(self), *predicted, *compared)

    @property
    def sources(self) -> dict[str, str]:
        """The models, the data, the settings of fine-tuning, and versions."""
        protocol: dict[str, Any] = next((to_dict(made.run.protocol) for made in self.runs if made.run), {})
        return {
            **described(*(one.model for one in self.models)),
            "Task": f"{self.task} ({self.kind}, sha256 {self.task_digest})",
            "Fine-tuning": ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in protocol.items()),
            "Versions": ", ".join(f"{name} {version}" for name, version in self.versions.items()),
        }


def score_fact(outcome: LayerOutcome) -> Fact:
    """Return the test score of a layer with its interval."""
    if outcome.error is None:
        return Fact(value=outcome.mean, unit="score", split="test")
    return Fact.of(outcome.error, "score", "test")
