"""What is predicted of a model before training, and what was found by it."""

import itertools
import statistics
from dataclasses import dataclass, field
from typing import Any

from layerprobe.comparison.values import Comparison, Comparisons
from layerprobe.encoders.model import ModelDescription
from layerprobe.encoders.timing import Speedup, speedup
from layerprobe.errors import DataError
from layerprobe.files.serialisation import IN_MEMORY, RARE
from layerprobe.finetuning.values import FineTuningRun, LayerOutcome, scored_layers_of
from layerprobe.interval import ClaimVerdict, Interval
from layerprobe.metrics.names import metric_title
from layerprobe.names import distinct_names, times_as_fast
from layerprobe.prediction.values import DropPrediction
from layerprobe.results.blocks import Blocks
from layerprobe.results.numbers import capitalised
from layerprobe.results.shown import Shown
from layerprobe.results.table import Table, millions
from layerprobe.scoring.values import LayerScores
from layerprobe.search.values import SearchAnswer
from layerprobe.stats import sentences
from layerprobe.stats.paired import ScoredLayers
from layerprobe.stats.values import Floor
from layerprobe.study.tables import finding_table, models_table, prediction_table
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
    """In the order in which they were made; a scan is one a layer."""
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
    def sentence(self) -> str:
        """The answer in plain words."""
        return " ".join(filter(None, (self.kept, self.certainty, self.spent, self.doubt)))

    @property
    def proof_verdict(self) -> ClaimVerdict | None:
        """confirmed: the last layer scores lower on test; refuted: it scores higher; undecided: neither is shown."""
        return None if self.against_last is None else self.against_last.verdict

    @property
    def proof_sentence(self) -> str:
        """What comparing the layer to keep with the last one on the test split showed, or that it was not done."""
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
            chance_of_drop=1 - beliefs[-1].chance_within,
            tolerance=settings.tolerance,
            level=settings.level,
            last_run=beliefs[-1].runs > 0,
        )

    @property
    def grounds(self) -> tuple[str, ...]:
        """Untrained scores, the proof, the final model, whether it drops, what was predicted, the cost: a line each."""
        proof = "" if self.proof_verdict is None else f"{self.proof_verdict.capitalize()}: "
        lines = (
            self.untrained_sentence,
            f"{proof}{self.proof_sentence}",
            self.final_sentence,
            self.drop_sentence,
            self.expectation,
        )
        of = f"{self.labels[self.place]}: " if self.others else ""
        return (*(f"{of}{line}" for line in lines if line), " ".join(filter(None, (self.spent, self.doubt))))

    @property
    def expectation(self) -> str:
        """What was predicted before training, and where the search disagrees; empty where nothing is claimed."""
        prediction, best = self.prediction, self.best_layer
        if prediction is None or self.answer.spoilt:
            return ""
        expected, beliefs = prediction.recommended_layer, self.answer.layers
        return sentences.agreement_sentence(
            expected,
            prediction.drop_layers,
            best=best,
            runs=[belief.layer for belief in beliefs if belief.runs],
            may_be=expected in self.answer.candidates,
            behind=beliefs[best].mean - beliefs[expected].mean,
            dropped=self.drop_layers,
            no_drop=1 - beliefs[-1].chance_within <= 1 - self.answer.settings.level and beliefs[-1].runs > 0,
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
        final, n_train = self.final, self.weights.n_train
        if final is None or n_train is None:
            return ""
        return sentences.final_sentence(final.layer, n_train, final.best_epoch, final.test[self.primary], self.primary)

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
        if not self.others:
            return self.answer.kept
        n_blocks, layer, label = self.last_layer, self.best_layer, self.labels[self.place]
        if self.answer.spoilt:
            return f"{label} at layer {layer} of {n_blocks} scores highest"
        whole = layer == n_blocks
        return f"Keep all {n_blocks} layers of {label}" if whole else f"Keep {label} at layer {layer} of {n_blocks}"

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
        title = f"{metric_title(self.primary)} x 100"
        if self.tested is None:
            score = f"expected score {self.answer.expected(f'{title} on validation')}"
        else:
            score = f"{self.tested:.1f} ({title} on test)"
        if self.best_layer == self.last_layer:
            return score
        compared = "not compared with the full model on test"
        if self.against_last is not None:
            compared = sentences.from_full_model(self.against_last)
        elif self.answer.against_whole:
            compared = f"{self.answer.against_whole} on validation"
        return ", ".join(filter(None, (score, compared, self.gains(self.best_layer))))

    @property
    def certainty(self) -> str:
        """Which layers may be the best, and which smaller one will do, in sentences."""
        if self.answer.spoilt:
            return sentences.spoilt_sentence(self.answer.spoilt)
        if self.on_floor:
            return ""
        if self.others:
            return self._certainty_of_several
        smallest = self.answer.smallest_sufficient
        sufficient = self.answer.sufficient("" if smallest is None else self.gains(smallest))
        return " ".join(filter(None, (self.answer.sureness, sufficient, sentences.floor_sentence(self.floor))))

    @property
    def _certainty_of_several(self) -> str:
        """Which layers may be the best, which model has it with what chance, and which small one will do."""
        labels, settings = self.labels, self.answer.settings
        answers = [finding.among or finding.answer for finding in self.models]
        places = [(i, layer) for i, answer in enumerate(answers) for layer in answer.candidates]
        beliefs = [answers[i].layers[layer] for i, layer in places]
        chances = [sum(belief.chance_best for belief in answer.layers) for answer in answers]
        best = sentences.best_of_models_sentence(
            sentences.layers_of_models(labels, places),
            level=settings.level,
            candidates=len(beliefs),
            bare=sum(not belief.runs and not belief.failed for belief in beliefs),
            failed=sum(not belief.runs and belief.failed > 0 for belief in beliefs),
            chances=dict(zip(labels, chances, strict=True)),
        )
        enough = ""
        for label, one, answer in zip(labels, self.models, answers, strict=True):
            if (layer := answer.smallest_sufficient) is not None:
                enough = f"{label} at layer {layer} ({millions(one.model.parameters[layer])})"
        smallest = sentences.smallest_of_models_sentence(
            enough,
            behind=answers[self.place].layers[self.best_layer].behind,
            tolerance=settings.tolerance,
            level=settings.level,
            inferred=not all(belief.runs for answer in answers for belief in answer.layers),
        )
        return f"{best} {smallest}"

    @property
    def spent(self) -> str:
        """What the runs cost, and why there are no more, as a sentence."""
        if self.share is None:
            return self.answer.cost(proof=self.proof_cost, seconds=self.seconds)
        made = [len(one.fine_tuned) + len(one.scans) for one in self.models]
        runs = dict(zip(self.labels, made, strict=True))
        seeds, why = self.answer.settings.seeds, self.answer.decision.why
        return sentences.spent_sentence(self.share, seeds=seeds, seconds=self.seconds, runs=runs, why=why)

    @property
    def seconds(self) -> float:
        """Of training, all runs of all models together."""
        runs = (run for finding in self.models for run in (*finding.fine_tuned, *(scan[0] for scan in finding.scans)))
        return sum(run.seconds for run in runs)

    @property
    def doubt(self) -> str:
        """What is uncertain and what it would take, in sentences; empty where it is settled, and of several models."""
        if self.others:
            return ""
        errors = (error for outcome in self.outcomes for error in (outcome.validation_error, outcome.error) if error)
        return self.answer.doubts(next((error.unit for error in errors), "item"))

    def saved(self, layer: int) -> float:
        """Return the share of the whole model's parameters that one truncated at a layer does without."""
        return 1 - self.model.parameters[layer] / self.model.parameters[-1]

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
    def drop_layers(self) -> tuple[int, ...]:
        """The final run of layers that are worse than the best by more than the tolerance, at the level."""
        return self.answer.drop_layers

    def flag(self, layer: int) -> str:
        """Return what follows for a layer: keep, will do, may be best or drop; empty for the others."""
        return "" if self.on_floor else self.answer.flag(layer)

    @property
    def scans(self) -> tuple[tuple[FineTuningRun, ...], ...]:
        """The runs that trained all layers at once, each by layer; none of layers that failed."""
        scans = (made.run for made in self.runs if made.scan and made.run)
        return tuple(tuple(runs) for _, runs in itertools.groupby(scans, key=lambda run: run.seed))

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
        """Those below the layer to keep, undecided between layers that may be the best; None of several models."""
        return None if self.on_floor or self.others else self.answer.blocks

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
        """A row a layer, and model: what the search knows, what fine-tuning scored, and what follows."""
        return models_table(self) if self.others else finding_table(self)
