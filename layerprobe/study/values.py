"""What is predicted of a model before training, and what was found by it."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from layerprobe.comparison.values import Comparison, Comparisons
from layerprobe.encoders.model import ModelDescription, described
from layerprobe.encoders.timing import Speedup, speedup
from layerprobe.errors import DataError
from layerprobe.files.serialisation import IN_MEMORY, RARE, to_dict
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
from layerprobe.stats.paired import ScoredLayers
from layerprobe.stats.values import Floor
from layerprobe.study.tables import finding_table, models_table, prediction_table, references_table, runs_table
from layerprobe.tasks.quality import DataQuality


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Prediction(Shown):
    """What is expected of a model before anything is trained, and what that rests on."""

    comparisons: tuple[Comparison, ...]
    """One a reference; without one, the model with itself, each layer with the one before."""
    drops: tuple[DropPrediction, ...]
    """One a comparison; the first one counts."""
    zero_shot: LayerScores | None = None
    """Of the model on the validation split; None for texts without labels."""
    warnings: tuple[str, ...] = ()
    """What a reader should know, in plain words."""
    data: DataQuality | None = None
    """What was to be known of the texts beforehand."""

    @property
    def comparison(self) -> Comparison:
        """The model with the first reference, or with itself."""
        return self.comparisons[0]

    @property
    def drop(self) -> DropPrediction:
        """Which layers are expected to drop, by the requested rule."""
        return self.drops[0]

    @property
    def recommended_layer(self) -> int:
        """Where to truncate."""
        return self.drop.recommended_layer

    @property
    def conclusion(self) -> Conclusion:
        """Where to look first, by what it rests on."""
        comparison, scored = self.comparison, self.zero_shot and self.zero_shot.n_items
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
        """What simpler rules and other references predict, and the comparisons."""
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
    """Which part of the labelled examples validated it; 0 where all seeds share the validation split."""
    layer: int
    seed: int
    run: FineTuningRun | None
    """None where it gave no score, which costs as much."""
    is_earlier: bool = field(default=False, metadata=RARE)
    """Whether it was finished before and not asked for: it counts as evidence, and costs nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Where the fine-tuned model to keep is, or will be."""

    directory: str
    """Of its run, for `layerprobe export`."""
    kept: bool = True
    """Whether they are there; else the run is one of the layer to keep with seed 0, to be made with --save-models."""
    n_train: int | None = field(default=None, metadata=RARE)
    """Labelled examples of training and validation that they have learnt from, where that is all of them; else None."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Finding(Shown):
    """Which layer to keep, of one model or of the best of several, and the runs that say so."""

    model: ModelDescription
    """The one to keep."""
    task: str
    """As the user gave it."""
    kind: str
    """Of the task, one of `KINDS`."""
    task_digest: str
    """sha256 of its examples."""
    versions: dict[str, str]
    """Of Python, layerprobe and the libraries that the numbers depend on."""
    prediction: DropPrediction | None = None
    """Where to look first by the readings that the search begins with; None where the default rule reads others."""
    comparison: Comparisons | None = field(default=None, metadata=RARE)
    """With the references, where there are any."""
    answer: SearchAnswer
    """By validation."""
    primary: str
    """The metric of all scores."""
    runs: tuple[MadeRun, ...]
    """In the order in which they were made."""
    n_folds: int
    """Seed k is validated by fold k modulo this; 1 where all seeds share the validation split."""
    n_items: tuple[int, int]
    """Validation examples of the first fold, and test examples."""
    rounds_by_layer: tuple[tuple[float, ...], ...] = field(default=(), metadata=RARE)
    """Seconds that the model truncated there takes for the same texts, by round; none but at the best, the smallest
    sufficient and the last layer."""
    outcomes: tuple[LayerOutcome, ...] = ()
    """The runs of truncated models put together by layer, ascending."""
    against_last: Interval | None = None
    """Test score at the layer to keep less that at the last one, x 100, over paired seeds and test items, which chose
    neither; None where that was not requested, or the last layer is the one to keep."""
    proof_cost: int = 0
    """Of what was spent, in block-steps: runs that were made for it alone, when the search was over."""
    weights: Weights
    """Of the layer to keep."""
    failures: tuple[str, ...] = ()
    """Runs and layers that gave no score, and why; labels that seem the wrong way round."""
    floor: Floor | None = field(default=None, metadata=RARE)
    """What a trivial answer scores on the validation examples; None where that is 0, as for correlations."""
    untrained: tuple[float | None, ...] = field(default=(), metadata=RARE)
    """Test scores by layer before any fine-tuning; None of layers that are left out, empty where there are none."""
    item_source: Any = field(default=None, compare=False, metadata=IN_MEMORY)
    """Whence its page has single test items, an `ItemSource`; None of a finding that was read from a file."""
    final: FineTuningRun | None = field(default=None, metadata=RARE)
    """The layer to keep, fine-tuned on training and validation examples for as many epochs as validation chose in the
    search; its weights are those to keep."""
    others: tuple["Finding", ...] = field(default=(), metadata=RARE)
    """What was found of the other models that were searched together, in the order in which they were given."""
    place: int = field(default=0, metadata=RARE)
    """Where among them the model to keep was given, from 0."""
    among: SearchAnswer | None = field(default=None, metadata=RARE)
    """Of several models, the answer with chances among the layers of all of them."""
    share: float | None = field(default=None, metadata=RARE)
    """Of several models, the cost as a share of what their full sweeps cost together, by the parameters of blocks."""

    @classmethod
    def class_of(cls, data: dict[str, Any]) -> tuple[type["Finding"], dict[str, Any]]:
        """Return the fields of JSON, also of earlier versions."""
        return cls, {**data, **{name: without_scans(data[name]) for name in ("runs", "weights") if name in data}}

    @property
    def models(self) -> tuple["Finding", ...]:
        """What was found of each model, in the order in which they were given."""
        return (*self.others[: self.place], self, *self.others[self.place :])

    @property
    def scored_layers(self) -> ScoredLayers:
        """The layers that were fine-tuned, by which it is compared with another finding; DataError of spoilt scores."""
        if self.answer.spoilt:
            raise DataError(f"no score of {self.model.name} on {self.task} is claimed: examples stand in two splits")
        return scored_layers_of(self.outcomes, model=self.model.name, task=self.task)

    @property
    def labels(self) -> tuple[str, ...]:
        """What the models are called in tables and plots."""
        return tuple(distinct_names([finding.model.name for finding in self.models]))

    @property
    def best_layer(self) -> int:
        """With the highest expected score."""
        return self.answer.best_layer

    @property
    def last_layer(self) -> int:
        """That of the whole model."""
        return self.model.n_blocks

    @property
    def tested(self) -> LayerOutcome | None:
        """The runs of the layer to keep; None where it was not run by itself."""
        return next((outcome for outcome in self.outcomes if outcome.layer == self.best_layer), None)

    @property
    def on_floor(self) -> bool:
        """Whether no layer is above the floor with its error: then none is to be kept."""
        best = self.answer.layers[self.best_layer]
        return self.floor is not None and not self.answer.spoilt and self.floor.unbeaten(best.interval)

    @property
    def is_refuted(self) -> bool:
        """Whether the whole model scores higher on test than the layer that validation chose."""
        return self.against_last is not None and self.against_last.verdict == "refuted"

    @property
    def places(self) -> int:
        """How many layers, of all models, may be the best."""
        return sum(len((one.among or one.answer).candidates) for one in self.models)

    @property
    def verdict(self) -> Verdict:
        """How much is known of the layer to keep, of all models; one that is lower on test is no more than a guess."""
        if self.on_floor or self.is_refuted:
            return Verdict.FAILED
        verdict = (self.among or self.answer).verdict_among(self.places)
        is_below = self.against_last is not None and self.against_last.value < 0
        return Verdict.UNDECIDED if verdict is Verdict.PROBABLE and is_below else verdict

    @property
    def conclusion(self) -> Conclusion:
        """Which layer to keep of which model, what it gains on test, and how certain that is."""
        answer = self.among or self.answer
        searched, choice = answer.conclusion, answer.conclusion.choice
        case = "floor" if self.on_floor else "refuted" if self.is_refuted else searched.case
        facts, names = dict(searched.facts), {**searched.names, "metric": f"{metric_title(self.primary)} x 100"}
        if case in ("floor", "refuted"):  # of a layer that is not to be kept, no more is said
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
        if self.others:  # the candidates are layers of all models
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
        """Return what truncating at a layer saves: parameters and time."""
        size, whole, speed = self.model.parameters[layer], self.model.parameters[-1], self.speed(layer)
        facts = {
            "parameters": Fact(value=size / whole - 1, unit="share", better="lower"),
            "size": Fact(value=size, unit="parameters"),
            "whole_size": Fact(value=whole, unit="parameters"),
        }
        if speed is not None:
            facts["speed"] = Fact(value=speed[0], unit="times", interval=speed[1:], better="higher")
        return facts

    def _checks(self) -> Iterator[Check]:
        """Yield what the test split, the prediction, scores without fine-tuning, the final model and runs say."""
        best, prediction, proof = self.best_layer, self.prediction, self.against_last
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
            expected, beliefs = prediction.recommended_layer, self.answer.layers
            candidates = (self.among or self.answer).candidates
            lower = Fact(value=beliefs[best].mean - beliefs[expected].mean)
            is_compared = beliefs[expected].runs and beliefs[best].runs
            passed = True if expected in candidates else False if is_compared else None
            yield Check(name="prediction", passed=passed, facts={"lower": lower}, names={"expected": expected})
        yield from self._of_several() if self.others else self.answer.conclusion.checks
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

    def _of_several(self) -> Iterator[Check]:
        """Yield which model has the best layer, what is known of its layers, and which of all is enough."""
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
        """Yield how to write the model to keep, where its weights are there."""
        is_new = self.best_layer != self.last_layer or self.final is not None
        if self.weights.kept and is_new and not self.is_refuted:
            layer = str(self.best_layer)
            yield Step(name="export", command=("export", self.weights.directory, f"layer-{layer}"))

    @property
    def warnings(self) -> tuple[str, ...]:
        """What gave no score, and why."""
        return self.failures

    @property
    def seconds(self) -> float:
        """Of training, all runs of all models together."""
        return sum(run.seconds for run in self._made)

    @property
    def _made(self) -> list[FineTuningRun]:
        """The runs with a score of all models that the search asked for."""
        return [made.run for one in self.models for made in one.runs if made.run and not made.is_earlier]

    def speed(self, layer: int) -> Speedup | None:
        """Return how many times as fast as the whole model one is that is truncated there; None if not measured."""
        rounds = self.rounds_by_layer
        return speedup(rounds[-1], rounds[layer]) if rounds and rounds[-1] and rounds[layer] else None

    @property
    def drop_layers(self) -> tuple[int, ...]:
        """The final run of layers that are worse than the best by more than the tolerance, at the level."""
        return self.answer.drop_layers

    def flag(self, layer: int) -> str:
        """Return what follows for a layer, as of `SearchAnswer`; empty where no layer is above the floor."""
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
        """A row a layer, and model: what the search knows, what fine-tuning scored, and what follows."""
        return models_table(self) if self.others else finding_table(self)

    @property
    def details(self) -> tuple[Table, ...]:
        """The runs, what was known before training, and the similarity to the references."""
        predicted = () if self.prediction is None else (replace(self.prediction.table, title="Before training"),)
        compared = () if self.comparison is None else self.comparison.details
        return (runs_table(self), *predicted, *compared)

    @property
    def sources(self) -> dict[str, str]:
        """The models, the data, how models were fine-tuned, and versions."""
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
