"""Results of the pipeline: a prediction, a finding and the whole study, which is read from study.json."""

import contextlib
import itertools
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from layerprobe.checks import LEVEL
from layerprobe.comparison.values import Comparison
from layerprobe.encoders.model import check_layers
from layerprobe.encoders.timing import Speedup, speedup
from layerprobe.errors import DataError, option
from layerprobe.files.atomic import from_home
from layerprobe.files.folders import parsed_as
from layerprobe.files.inputs import read_document
from layerprobe.files.serialisation import IN_MEMORY, RARE
from layerprobe.finetuning.values import Confirmation, FineTuningRun, LayerOutcome, Protocol, outcomes_table
from layerprobe.metrics.names import metric_title
from layerprobe.names import short_name, times_as_fast
from layerprobe.prediction.values import DropPrediction
from layerprobe.results.blocks import Blocks
from layerprobe.results.numbers import capitalised
from layerprobe.results.shown import Shown
from layerprobe.results.table import Table
from layerprobe.scoring.values import LayerScores
from layerprobe.search.values import SearchAnswer
from layerprobe.stats import sentences
from layerprobe.stats.values import ClaimVerdict, CrossedInterval, Floor
from layerprobe.study.tables import finding_table, prediction_table, study_table
from layerprobe.tasks.kind import KINDS
from layerprobe.tasks.quality import DataQuality


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What somebody needs to get the same numbers again."""

    layerprobe: str
    """Version."""
    created: str
    """ISO 8601, UTC."""
    command: str
    """What was requested, as one line."""
    settings: dict[str, str]
    """Options that were not left at their default, by name."""
    task: str
    task_digest: str
    texts_digest: str
    n_texts: int
    seeds: tuple[int, ...]
    device: str
    task_kind: str
    """One of `KINDS`."""
    versions: dict[str, str]
    """Of Python and the libraries that the numbers depend on."""
    notes: tuple[str, ...] = ()
    """How the data was understood."""
    warnings: tuple[str, ...] = ()
    """What the user was warned of on the way."""
    finetune_command: str = ""
    """The command line that fine-tunes this model on this task so, but for layers and seeds; empty from Python."""
    data: DataQuality | None = None
    """What was to be known of texts and labels beforehand; None in studies of older versions."""

    def __post_init__(self) -> None:
        KINDS.check(self.task_kind)


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

    def __post_init__(self) -> None:
        if not self.comparisons or len(self.comparisons) != len(self.drops):
            raise DataError(
                f"expected a prediction from each comparison, got {len(self.drops)} from {len(self.comparisons)}"
            )

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
    def sentence(self) -> str:
        """The prediction in plain words."""
        return self.drop.sentence

    @property
    def table(self) -> Table:
        """One row per layer: similarity, the rule's curves and flags, from the first comparison."""
        return self.tables[0]

    @property
    def tables(self) -> tuple[Table, ...]:
        """One table per comparison."""
        return tuple(map(prediction_table, self.comparisons, self.drops))

    @property
    def parts(self) -> tuple[Table | str, ...]:
        """What is predicted from each reference, its table, and what one would do without it."""
        parts: list[Table | str] = []
        for comparison, drop, table in zip(self.comparisons, self.drops, self.tables, strict=True):
            if len(self.drops) > 1:
                other = drop.rule != self.drop.rule
                by = f", by the {drop.rule}, as the other rule reads the model alone" if other else ""
                parts.append(f"{chr(10) if parts else ''}Against {comparison.reference.name}{by}:")
            answer, *grounds = drop.trusted
            others = ", ".join(f"{name} {layer}" for name, layer in drop.baselines.items())
            parts += [f"{answer}\n", table, "", *grounds, f"Other ways to choose a layer: {others}.{self.scored}"]
        return tuple(parts)

    @property
    def scored(self) -> str:
        """How many validation items chose the best zero-shot layer, with a space before it; empty where all did."""
        drawn = self.zero_shot and self.zero_shot.n_items
        return f" The best zero-shot layer is by {drawn[0]:,} of {drawn[1]:,} validation items." if drawn else ""

    @property
    def summary(self) -> str:
        """The result in one line."""
        return self.sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeRun:
    """One run of a search, at one layer."""

    scan: bool
    """Whether the run trained all layers at once."""
    fold: int
    """Which part of the labelled examples validated it; 0 where all seeds share the validation split."""
    layer: int
    """The last one for a scan without a score."""
    seed: int
    run: FineTuningRun | None
    """None where it gave no score at any layer, which costs as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Where the fine-tuned model to keep is, or will be."""

    directory: str
    """Of its run, for `layerprobe export`."""
    scan: bool = False
    """Whether it is the run of all layers at once, whose model `export` truncates."""
    kept: bool = True
    """Whether they are there; else the run is one of the layer to keep with seed 0, to be made with --save-models."""
    n_train: int | None = field(default=None, metadata=RARE)
    """Labelled examples of training and validation that they have learnt from, where that is all of them; else None."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Finding(Shown):
    """Which layer to keep, and the runs that say so."""

    answer: SearchAnswer
    """By validation."""
    primary: str
    """The metric of all scores."""
    parameters: tuple[int, ...]
    """Of the model truncated at each layer, without the pooler."""
    runs: tuple[MadeRun, ...]
    """In the order in which they were made; a scan is one a layer. Files of before 0.2 have no runs without a score."""
    n_folds: int
    """1 where all seeds share the validation split."""
    n_items: tuple[int, int]
    """Validation examples of the first fold, and test examples."""
    seconds_by_layer: tuple[float | None, ...]
    """What the model truncated there takes for the same texts; None but at the best, the smallest sufficient and the
    last layer."""
    rounds_by_layer: tuple[tuple[float, ...], ...] = field(default=(), metadata=RARE)
    """Of these seconds by round, of which they are the median."""
    outcomes: tuple[LayerOutcome, ...] = ()
    """The runs of truncated models put together by layer, ascending."""
    against_last: CrossedInterval | None = None
    """Test score at the layer to keep less that at the last one, x 100, over paired seeds and test items, which chose
    neither; None where that was not requested, or the last layer is the one to keep."""
    proof_cost: int = 0
    """Of what was spent, in block-steps: runs that were made for it alone, when the search was over."""
    weights: Weights | None = None
    """Of the layer to keep; None in files of before."""
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

    @classmethod
    def class_of(cls, values: dict[str, Any]) -> tuple[type[Self], dict[str, Any]]:
        """Return what JSON of any version says.

        Until 0.3 the difference from the last layer stood in a record, and runs without a score beside the others.
        """
        read = {name: value for name, value in values.items() if name != "lost"}
        with contextlib.suppress(LookupError, TypeError, AttributeError):  # what is no finding is left to checks
            if "difference" in (values.get("against_last") or ()):
                read["against_last"] = values["against_last"]["difference"]
            names = ("layer", "seed")
            read["runs"] = [
                {**{name: made["run"][name] for name in names if made["run"]}, **made} for made in read["runs"]
            ]
            for run in reversed(values.get("lost") or ()):
                lost = {name: value for name, value in run.items() if name != "before"}
                read["runs"].insert(run["before"], {**lost, "run": None})
        return cls, read

    @property
    def best_layer(self) -> int:
        """With the highest expected score."""
        return self.answer.best_layer

    @property
    def last_layer(self) -> int:
        """That of the whole model."""
        return len(self.parameters) - 1

    @property
    def sentence(self) -> str:
        """The answer in plain words."""
        return " ".join(filter(None, (self.kept, self.certainty, self.spent, self.doubt)))

    @property
    def proof_verdict(self) -> ClaimVerdict | None:
        """confirmed: the last layer scores lower on test; refuted: it scores higher; undecided: neither is shown."""
        return None if self.against_last is None else self.against_last.verdict()

    @property
    def proof_sentence(self) -> str:
        """What comparing the layer to keep with the last one on the test split showed, or that it was not done."""
        if self.against_last is None:
            return sentences.not_compared(self.best_layer, self.last_layer)
        return sentences.against_last(self.best_layer, self.last_layer, self.against_last, self.primary)

    @property
    def drop_sentence(self) -> str:
        """Whether the last layers are worse than the best one, as found on validation; empty of spoilt scores."""
        if self.answer.spoilt:
            return ""
        dropped, beliefs, settings = self.drop_layers, self.answer.layers, self.answer.settings
        return sentences.found_drop_sentence(
            dropped,
            [belief.layer for belief in beliefs[dropped[0] :] if not belief.runs] if dropped else (),
            chance_of_drop=self.drop_chance,
            tolerance=settings.tolerance,
            level=settings.level,
        )

    @property
    def no_drop(self) -> bool:
        """Whether the last layer is surely within the tolerance of the best."""
        return self.drop_chance <= 1 - self.answer.settings.level

    @property
    def grounds(self) -> tuple[str, ...]:
        """The scores without fine-tuning, the proof, the final model, whether the model drops, and the cost."""
        proof = "" if self.proof_verdict is None else f"{self.proof_verdict.capitalize()}: "
        return (
            *filter(None, (self.untrained_sentence,)),
            f"{proof}{self.proof_sentence}",
            *filter(None, (self.final_sentence,)),
            *filter(None, (self.drop_sentence,)),
            " ".join(filter(None, (self.spent, self.doubt))),
        )

    @property
    def untrained_sentence(self) -> str:
        """What the layer to keep, the last and the best layer score without fine-tuning; empty where not known."""
        scores = {layer: score for layer, score in enumerate(self.untrained) if score is not None}
        if not scores or self.answer.spoilt:
            return ""
        return sentences.untrained_sentence(self.best_layer, scores, self.tested)

    @property
    def final_sentence(self) -> str:
        """What the final model has learnt from and what it scores; empty where there is none."""
        final, weights = self.final, self.weights
        if final is None or weights is None or weights.n_train is None:
            return ""
        return sentences.final_sentence(
            final.layer, weights.n_train, final.best_epoch, final.test[self.primary], self.primary
        )

    @property
    def tested(self) -> float | None:
        """The mean test score of the layer to keep over the runs of the search; None where it was not run."""
        return next((outcome.mean for outcome in self.outcomes if outcome.layer == self.best_layer), None)

    @property
    def heading(self) -> str:
        """Which layer to keep, the start of a sentence; where the test split says otherwise, that it does."""
        if self.proof_verdict == "refuted":
            return f"Validation chose layer {self.best_layer}, but the full model scores higher on test"
        if self.on_floor and self.floor is not None:
            return f"No layer predicts better than {self.floor.by}"
        return self.answer.kept

    @property
    def on_floor(self) -> bool:
        """Whether no layer is above the floor with its error: then none is to be kept."""
        best = self.answer.layers[self.best_layer]
        return self.floor is not None and not self.answer.spoilt and self.floor.unbeaten(best.interval)

    @property
    def kept(self) -> str:
        """Which layer to keep, what it scores, how that compares with the whole model, and what it saves."""
        if self.on_floor and self.floor is not None:
            name, score = f"layer {self.best_layer}, the highest,", self.answer.expected("on validation")
            return sentences.none_above_floor(self.floor, self.primary, name, score)
        return f"{self.heading}: {self.promise}."

    @property
    def promise(self) -> str:
        """What the layer to keep scores, how that compares with the whole model, and what it saves."""
        return ", ".join(filter(None, (self._score, self._comparison, self.gains(self.best_layer))))

    @property
    def _score(self) -> str:
        """What the layer to keep scores on the test split, or if it was not run there what is expected of it."""
        title = f"{metric_title(self.primary)} x 100"
        if self.tested is None:
            return f"expected score {self.answer.expected(f'{title} on validation')}"
        return f"{self.tested:.1f} ({title} on test)"

    @property
    def _comparison(self) -> str:
        """How the layer to keep compares with the whole model on the test split; empty of the whole model itself."""
        if self.best_layer == self.last_layer:
            return ""
        if self.against_last is None:
            return "not compared with the full model on test"
        return sentences.from_full_model(self.against_last)

    @property
    def certainty(self) -> str:
        """Which layers may be the best, and which smaller one will do, in sentences."""
        if self.answer.spoilt:
            return sentences.spoilt_sentence(self.answer.spoilt)
        if self.on_floor:
            return ""
        smallest = self.answer.smallest_sufficient
        sufficient = self.answer.sufficient("" if smallest is None else self.gains(smallest))
        return " ".join(filter(None, (self.answer.sureness, sufficient, sentences.floor_sentence(self.floor))))

    @property
    def spent(self) -> str:
        """What the runs cost, and why there are no more, as a sentence."""
        return self.answer.cost(proof=self.proof_cost, seconds=self.seconds)

    @property
    def seconds(self) -> float:
        """Of training, all runs together."""
        return sum(run.seconds for run in (*self.fine_tuned, *(scan[0] for scan in self.scans)))

    @property
    def doubt(self) -> str:
        """What is uncertain and what it would take, in sentences; empty where the best layer is settled."""
        errors = (error for outcome in self.outcomes for error in (outcome.validation_error, outcome.error) if error)
        return self.answer.doubts(next((error.unit for error in errors), "item"))

    def saved(self, layer: int) -> float:
        """Return the share of the whole model's parameters that one truncated at a layer does without."""
        return 1 - self.parameters[layer] / self.parameters[-1]

    def gains(self, layer: int) -> str:
        """Return what truncating at a layer saves, in plain words; nothing for the last one.

        Example: `two fifths smaller, 1.5 times as fast [1.4 to 1.6]`.
        """
        if layer == self.last_layer:
            return ""
        speed, smaller = self.speed(layer), f"{sentences.part(self.saved(layer))} smaller"
        return smaller if speed is None else f"{smaller}, {times_as_fast(speed)}"

    def speed(self, layer: int) -> Speedup | None:
        """Return how many times as fast as the whole model one is that is truncated there; None if not measured."""
        rounds = self.rounds_by_layer
        return speedup(rounds[-1], rounds[layer]) if rounds and rounds[-1] and rounds[layer] else None

    @property
    def drop_chance(self) -> float:
        """That the last layer is worse than the best by more than the tolerance."""
        return 1 - self.answer.layers[-1].chance_within

    @property
    def drop_layers(self) -> tuple[int, ...]:
        """The final run of layers that are worse than the best by more than the tolerance, at the level."""
        return self.answer.drop_layers

    def flag(self, layer: int) -> str:
        """Return what follows for a layer: keep, will do, may be best or drop; empty for the others."""
        if self.answer.spoilt or self.on_floor:
            return ""
        if layer == self.best_layer:
            return "keep"
        if layer == self.answer.smallest_sufficient:
            return "will do"
        if layer in self.answer.candidates:
            return "may be best"
        return "drop" if layer in self.drop_layers else ""

    @property
    def scans(self) -> tuple[tuple[FineTuningRun, ...], ...]:
        """The runs that trained all layers at once, each by layer; none of layers that failed."""
        by_seed = itertools.groupby(
            (made.run for made in self.runs if made.scan and made.run), key=lambda run: run.seed
        )
        return tuple(tuple(runs) for _, runs in by_seed)

    def scanned(self, layer: int) -> float | None:
        """Return the validation score of a layer by the scans, their mean; None where it has none."""
        scores = [run.validation[run.primary] for scan in self.scans for run in scan if run.layer == layer]
        return statistics.fmean(scores) if scores else None

    @property
    def fine_tuned(self) -> tuple[FineTuningRun, ...]:
        """The runs of truncated models."""
        return tuple(made.run for made in self.runs if made.run and not made.scan)

    @property
    def blocks(self) -> Blocks | None:
        """Those below the layer to keep, undecided between the layers that may be the best; None without a claim."""
        if self.answer.spoilt or self.on_floor:
            return None
        return Blocks.upto(len(self.parameters) - 1, self.best_layer, self.answer.candidates)

    @property
    def rest(self) -> str:
        """What it scores, and how certain that is."""
        return self.kept if self.on_floor else f"{capitalised(self.promise)}. {self.certainty}"

    @property
    def summary(self) -> str:
        """The result in one line."""
        return " ".join(filter(None, (self.kept, self.certainty)))

    @property
    def parts(self) -> tuple[Table | str, ...]:
        """The answer, the table of layers, and the evidence."""
        return f"{self.kept} {self.certainty}\n", self.table, "", *self.grounds

    @property
    def table(self) -> Table:
        """A row a layer: what the search knows, what fine-tuning scored, and what follows."""
        return finding_table(self)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Study(Shown):
    """The whole pipeline's result: what the report shows."""

    comparison: Comparison
    prediction: DropPrediction
    provenance: Provenance
    zero_shot: LayerScores | None = None
    """Of the model, on the test split."""
    reference_zero_shot: LayerScores | None = None
    """Of the reference, on the test split."""
    protocol: Protocol | None = None
    """How layers were fine-tuned."""
    finding: Finding | None = None
    """Which layer to keep, where that was searched for."""
    confirmation: Confirmation | None = None
    """Of studies that fine-tuned two layers instead."""
    reference_outcomes: tuple[LayerOutcome, ...] = ()
    """The reference fine-tuned at its own layers, where that was requested."""
    further_outcomes: tuple[LayerOutcome, ...] = ()
    """The model fine-tuned at other layers, where that was requested."""
    further_comparisons: tuple[Comparison, ...] = ()
    """The model against other references, where more than one was given; the prediction is from the first."""
    further_predictions: tuple[DropPrediction, ...] = ()
    """What each of these alone would predict; by the plateau of CKA where the prediction's rule reads no reference."""

    def __post_init__(self) -> None:
        if len(self.further_comparisons) != len(self.further_predictions):
            raise DataError(
                f"expected a prediction from each further reference, got {len(self.further_predictions)} from "
                f"{len(self.further_comparisons)}"
            )
        model, reference, drop = self.comparison.model, self.comparison.reference, self.prediction
        check_layers(drop.drop_layers, model, what="drop layers")
        check_layers((drop.recommended_layer,), model, what="a recommended layer")
        if drop.evidence is not None:
            check_layers(drop.evidence.plateau_layers, model, what="plateau layers")
        check_layers(tuple(drop.baselines.values()), model, what="layers of baselines")
        if short := [name for name, values in drop.read.items() if len(values) != model.n_layers]:
            raise DataError(f"expected {short[0]} of {model.n_layers} layers, got {len(drop.read[short[0]])}")
        shares = drop.probability
        if shares is not None and len(shares.by_layer) != model.n_layers:
            raise DataError(
                f"expected probabilities of {model.n_layers} layers of {model.name}, got {len(shares.by_layer)}"
            )
        for scores, scored in (self.zero_shot, model), (self.reference_zero_shot, reference):
            if scores is not None and len(scores.scores) != scored.n_layers:
                raise DataError(
                    f"expected zero-shot scores of {scored.n_layers} layers of {scored.name}, got {len(scores.scores)}"
                )
        parts = (
            *(self.zero_shot, self.reference_zero_shot, self.confirmation, self.finding),
            *(*self.outcomes, *self.reference_outcomes),
        )
        if others := {part.primary for part in parts if part is not None} - {self.metric}:
            raise DataError(
                f"expected scores by {self.metric} in a study of {self.provenance.task_kind}, got {', '.join(others)}"
            )
        compared = self.confirmation.compared_layers if self.confirmation else ()
        tuned = (*compared, *(outcome.layer for outcome in self.outcomes))
        check_layers(tuned, model, what="fine-tuned layers")
        if self.finding is not None and len(self.finding.parameters) != model.n_layers:
            raise DataError(f"expected a search of {model.n_layers} layers, got {len(self.finding.parameters)}")
        check_layers(tuple(outcome.layer for outcome in self.reference_outcomes), reference, what="fine-tuned layers")

    @property
    def outcomes(self) -> tuple[LayerOutcome, ...]:
        """What fine-tuning the model truncated at a layer gave, by layer, ascending."""
        if self.finding is not None:
            outcomes = self.finding.outcomes
        else:
            outcomes = () if self.confirmation is None else self.confirmation.outcomes
        by_layer = {outcome.layer: outcome for outcome in (*outcomes, *self.further_outcomes)}
        return tuple(by_layer[layer] for layer in sorted(by_layer))

    @property
    def level(self) -> float:
        """Confidence level of what fine-tuning showed."""
        if self.finding is not None:
            return self.finding.answer.settings.level
        return LEVEL if self.confirmation is None else self.confirmation.level

    @property
    def kept_layer(self) -> int:
        """The layer to keep: the one that was found, or without a search the one that is recommended."""
        return self.prediction.recommended_layer if self.finding is None else self.finding.best_layer

    @property
    def blocks(self) -> Blocks | None:
        """As found; as tested or expected without a search."""
        if self.finding is not None:
            return self.finding.blocks
        expected = Blocks.upto(self.comparison.model.n_blocks, self.kept_layer)
        return expected if self.confirmation is None else self.confirmation.blocks

    @property
    def drop_layers(self) -> tuple[int, ...]:
        """The final layers that are worse: as found, or without a search as predicted."""
        return self.prediction.drop_layers if self.finding is None else self.finding.drop_layers

    @property
    def metric(self) -> str:
        """The primary metric of the task."""
        kind, scores = KINDS[self.provenance.task_kind], (self.zero_shot, self.finding, *self.outcomes)
        if any(score is not None and score.primary == kind.primary_if_rare for score in scores):
            return kind.primary_if_rare or kind.metrics[0]
        return kind.metrics[0]

    @property
    def parts(self) -> tuple[Table | str, ...]:
        """The answer, the table of layers, what was fine-tuned besides, and the evidence."""
        finding, parts = self.finding, list[Table | str]([self.table])
        if finding is not None:
            parts.insert(0, f"{finding.kept} {finding.certainty}\n")
        elif self.outcomes:
            parts += ["\nFine-tuned:", outcomes_table(self.outcomes)]
        if self.reference_outcomes:
            parts += [f"\nThe reference, {self.comparison.reference.name}:", outcomes_table(self.reference_outcomes)]
        parts += ["", *self.grounds]
        if finding is None and self.confirmation is not None:
            parts += [self.confirmation.sentence, f"Verdict: {self.confirmation.verdict}"]
        return tuple(parts)

    @property
    def heading(self) -> str:
        """Which layer to keep, as found, as tested or as expected: the start of a sentence."""
        if self.finding is not None:
            return self.finding.heading
        n_blocks, layer = self.comparison.model.n_blocks, self.prediction.recommended_layer
        if self.confirmation is None:
            if self.prediction.drops:
                return f"Before training: look first at layer {layer} of {n_blocks}"
            expected = sentences.keep_phrase(layer, n_blocks)
            return f"Predicted before training: {expected[0].lower()}{expected[1:]}"
        earlier, last = self.confirmation.compared_layers
        if self.confirmation.verdict == "undecided":
            return f"Layer {earlier} or layer {last} of {n_blocks}: not decided"
        dropped = self.prediction.drops == (self.confirmation.verdict == "confirmed")
        return sentences.keep_phrase(earlier if dropped else last, n_blocks)

    @property
    def rest(self) -> str:
        """The scores, the savings and the certainty behind the heading."""
        if self.finding is not None:
            return self.finding.rest
        return self.prediction.sentence if self.confirmation is None else self.confirmation.sentence

    @property
    def expectation(self) -> str:
        """What was expected before training, and where the search disagrees; DataError without a search."""
        finding, prediction = self.finding, self.prediction
        if finding is None:
            raise DataError(f"expected a study with a search, got none: run it without {option('fine_tuning', False)}")
        expected, best = prediction.recommended_layer, finding.best_layer
        predicted = sentences.predicted_sentence(expected, prediction.drop_layers)
        if finding.answer.spoilt:
            return predicted
        agreement = sentences.agreement_sentence(
            expected,
            [layer for layer in prediction.drop_layers if finding.answer.layers[layer].runs],
            best=best,
            may_be=expected in finding.answer.candidates,
            behind=finding.answer.layers[best].mean - finding.answer.layers[expected].mean,
            dropped=finding.drop_layers,
            no_drop=finding.no_drop,
            any_flag=prediction.drops,
        )
        return f"{predicted} {agreement}"

    @property
    def grounds(self) -> tuple[str, ...]:
        """What a search rests on, with what had been expected; without one how far to trust the rule: a line each."""
        if self.finding is None:
            return self.prediction.trusted
        *grounds, cost = self.finding.grounds
        return *grounds, self.expectation, cost

    @property
    def summary(self) -> str:
        """The result in one line."""
        sentence = self.prediction.sentence if self.finding is None else self.finding.summary
        return f"{short_name(self.comparison.model.name)} on {self.provenance.task}: {sentence}"

    @property
    def table(self) -> Table:
        """One row per layer, with all results of the study."""
        return study_table(self)


def read_study(path: str | Path) -> Study:
    """Return the study that `layerprobe run` wrote.

    Raises:
        DataError: If the file cannot be read or is no study.
    """
    try:
        return parsed_as(Study, read_document(from_home(path)))
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"cannot read {path}: {reason}; expected the study.json of `layerprobe run`") from error
    except DataError as error:
        raise DataError(f"{path} is no study: {error}; expected the study.json of `layerprobe run`") from error
