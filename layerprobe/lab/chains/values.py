"""Chains: trainings one after the other from one start, what each one adds, and their TOML files. Knows no models."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any, Self

from layerprobe.encoders.model import Pooling
from layerprobe.errors import DataError
from layerprobe.files.toml import LAYERS, SEEDS, Keys, field_values, read_toml, texts, to_toml
from layerprobe.finetuning.values import (
    LayerOutcome,
    Protocol,
    best_by_validation,
    outcome_charts,
    outcomes_table,
    with_rate,
)
from layerprobe.lab.pretraining.values import Adaptation, AdaptationProtocol
from layerprobe.metrics.names import metric_title
from layerprobe.names import in_percent, short_name
from layerprobe.results import numbers
from layerprobe.results.charts import Chart, Line, Quantity
from layerprobe.results.shown import Shown, brief
from layerprobe.results.table import Column, Table, columns_of, interval_title, millions, stacked
from layerprobe.similarity.values import Measure
from layerprobe.stats.sentences import drawn_anew
from layerprobe.stats.values import CrossedInterval, read_error
from layerprobe.tasks.values import TaskSettings, model_reader, taken_task

LISTED = 4
"""A sentence names so many layers one by one, and counts more of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptStep:
    """Continued masked-language-model pretraining; all layers and seeds that follow share the result."""

    texts: tuple[str, ...]
    """Files as `load_corpus` takes them."""
    protocol: AdaptationProtocol = field(default_factory=AdaptationProtocol)
    seed: int = 0
    """Of the split, order, masking, dropout and fresh weights of the head."""

    def __post_init__(self) -> None:
        if not self.texts or not all(self.texts):
            raise DataError("expected at least one file with texts to adapt to, none of them an empty name")
        _check_seeds((self.seed,), "a seed of the adaptation")

    @property
    def label(self) -> str:
        """What it does, in a few words."""
        return f"adaptation to {', '.join(PurePath(text).name for text in self.texts)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneStep:
    """Fine-tuning at each layer: the first truncates the model, later ones continue at the same layer and seed."""

    task: TaskSettings
    protocol: Protocol = field(default_factory=Protocol)

    @property
    def label(self) -> str:
        """What it does, in a few words."""
        return f"fine-tuning on {self.task_name}"

    @property
    def task_name(self) -> str:
        """The task's name without folders."""
        return PurePath(self.task.source).name or self.task.source


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Trainings one after the other: adaptations of the whole model, then fine-tunings at each layer."""

    name: str
    """What people call it."""
    model: str
    """The start: hub id, `id@revision` or a local folder."""
    steps: tuple[AdaptStep | FinetuneStep, ...]
    """In their order; the last one is a fine-tuning, and none before an adaptation is."""
    random_init: int | None = None
    """Seed of fresh random weights of the start instead of the trained ones."""
    reference: str | None = None
    """A model that the start and what becomes of it are compared with by CKA."""
    layers: tuple[int, ...] | None = None
    """Blocks kept; None for all of the model, 0 .. n_blocks."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """One run each of every fine-tuning step at every layer."""
    control: tuple[int, ...] = ()
    """Seeds of random weights from which the same chain is run next to it."""
    baseline: bool = True
    """Whether the last step is also run straight from the start: what the steps before it add is the difference."""
    cka: bool = True
    """Whether CKA is measured before and after."""

    def __post_init__(self) -> None:
        if not self.model:
            raise DataError("expected a model to start from, got an empty text")
        kinds = [type(step) for step in self.steps]
        if not kinds or kinds[-1] is not FinetuneStep:
            raise DataError("expected at least one step, the last of which fine-tunes")
        if AdaptStep in kinds[kinds.index(FinetuneStep) :]:
            raise DataError(
                "expected no adaptation after a fine-tuning: a fine-tuned model is truncated, and masked language "
                "modelling would undo what its output has learnt; adapt first"
            )
        _check_seeds(self.seeds, "seeds")
        if self.control:
            _check_seeds(self.control, "seeds of a control")
        if self.random_init is not None:
            _check_seeds((self.random_init,), "a seed of random weights")
        if self.random_init in self.control:
            raise DataError(f"expected a control with other weights than the chain, got random weights {self.control}")
        if self.layers is not None and (not self.layers or min(self.layers) < 0 or _repeats(self.layers)):
            raise DataError(f"expected layers from 0, each once and at least one, got {list(self.layers)}")
        if self.reference is not None and not (self.cka and self.reference):
            raise DataError("expected no reference without CKA, which is all that it is for, and no empty one")
        poolings = {step.protocol.pooling for step in self.finetunings}
        if len(poolings) > 1:
            raise DataError(f"expected one way of pooling in all steps, got {' and '.join(sorted(poolings))}")

    @property
    def adaptations(self) -> tuple[AdaptStep, ...]:
        """The steps that train the whole model."""
        return tuple(step for step in self.steps if isinstance(step, AdaptStep))

    @property
    def finetunings(self) -> tuple[FinetuneStep, ...]:
        """The steps that train truncated models."""
        return tuple(step for step in self.steps if isinstance(step, FinetuneStep))

    @property
    def pooling(self) -> Pooling:
        """How token states become one embedding, in all steps and in CKA."""
        return self.finetunings[0].protocol.pooling

    @property
    def compares(self) -> bool:
        """Whether the last step is also run without the steps before it."""
        return self.baseline and len(self.steps) > 1

    def keeps_weights(self, number: int, seed: int) -> bool:
        """Return whether fine-tuning `number`, from 0, leaves weights: the last one only the first seed's, for CKA."""
        return number < len(self.finetunings) - 1 or (self.cka and seed == self.seeds[0])


def _check_seeds(seeds: tuple[int, ...], what: str) -> None:
    if not seeds or _repeats(seeds) or not all(0 <= seed < 2**63 for seed in seeds):
        raise DataError(f"expected {what} from 0 to 2^63 - 1, each once and at least one, got {list(seeds)}")


def _repeats(numbers: tuple[int, ...]) -> bool:
    return len(set(numbers)) < len(numbers)


# ---- what came of it -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainTrail:
    """The results of a chain from one starting model."""

    model: str
    """The start's name, with the seed where weights are random."""
    revision: str
    """Resolved commit, or the content digest of a local folder."""
    random_init: int | None
    """Seed of random weights; None for trained ones."""
    adaptations: tuple[Adaptation, ...]
    """One an adaptation."""
    outcomes: tuple[tuple[LayerOutcome, ...], ...]
    """One a fine-tuning step, by layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainCurve:
    """CKA of each layer of one model with a layer of another."""

    values: tuple[float, ...]
    """By layer, from 0; debiased, so that a value can be negative."""
    other_layers: tuple[int, ...]
    """The layer of the other model that each is compared with."""
    lower: tuple[float, ...] | None
    """Of the pointwise intervals; None where there are too few texts."""
    upper: tuple[float, ...] | None

    def __post_init__(self) -> None:
        parts = [part for part in (self.values, self.other_layers, self.lower, self.upper) if part is not None]
        if not self.values or len({len(part) for part in parts}) != 1:
            raise DataError(f"expected a curve of layers of equal numbers, got {[len(part) for part in parts]}")

    def interval(self, layer: int) -> tuple[float, float] | None:
        """Return the pointwise interval of a layer, -1 for the last one."""
        return None if self.lower is None or self.upper is None else (self.lower[layer], self.upper[layer])


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSimilarity:
    """How far one training moved each layer, by CKA with the layers before it."""

    after: str
    """The training, in a few words."""
    layer: int | None
    """Blocks kept; None for the whole model after an adaptation."""
    seed: int
    """Of the training."""
    to_start: ChainCurve
    """Layer l after against layer l before."""
    to_reference: ChainCurve | None
    """Against the reference; None where the chain has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSimilarities:
    """CKA of a chain's models with its start and with its reference."""

    measure: Measure
    n_texts: int
    """Distinct texts: those of the last task's test split."""
    reference: str | None
    """Name of the reference."""
    start_to_reference: ChainCurve | None
    """Before any training."""
    trained: tuple[ChainSimilarity, ...]
    """After every adaptation, then after the last fine-tuning by layer, with the first seed."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ChainResult(Shown):
    """The results of a chain."""

    chain: Chain
    level: float
    """Confidence level of all intervals."""
    n_blocks: int
    """Of the start; its layers are 0 to this."""
    trail: ChainTrail
    """The chain itself."""
    direct: tuple[LayerOutcome, ...]
    """The last step straight from the start, by layer; empty where that was not requested."""
    effects: tuple[CrossedInterval | None, ...]
    """What the steps before the last one add to its test score, by layer as `direct`, over paired seeds of fine-tuning,
    all of which follow one adaptation; None for one seed whose outputs are not known."""
    controls: tuple[ChainTrail, ...]
    """The same chain from random weights."""
    similarities: ChainSimilarities | None
    computed_on: str
    """Kind of device and precision."""
    versions: dict[str, str]
    """Of the libraries that the numbers depend on."""
    created: str
    """ISO 8601, UTC."""
    notes: tuple[str, ...] = ()
    """How the tasks were understood."""
    warnings: tuple[str, ...] = ()
    """What a reader of the numbers should know, in plain words."""

    @classmethod
    def class_of(cls, values: dict[str, Any]) -> tuple[type[Self], dict[str, Any]]:
        """Return what JSON of any version says: until 0.3 an effect was a record of the layer and two intervals."""

        def effect(number: int, fields: dict[str, Any]) -> Any:
            def by_seed() -> list[float]:
                (after, alone) = values["trail"]["outcomes"][-1][number], values["direct"][number]
                return list(map(operator.sub, after["test"][after["primary"]], alone["test"][after["primary"]]))

            return read_error(fields, (), by_seed).get("error")

        effects = values.get("effects")
        if isinstance(effects, list) and any(isinstance(fields, dict) and "joint" in fields for fields in effects):
            values = {**values, "effects": [effect(number, fields) for number, fields in enumerate(effects)]}
        return cls, values

    @property
    def added(self) -> dict[int, tuple[float, CrossedInterval | None]]:
        """What the steps before the last one add, by layer: the mean over seeds, and that with its errors."""
        pairs = zip(self.outcomes, self.direct, self.effects, strict=True) if self.effects else ()
        return {
            after.layer: (after.mean - alone.mean if effect is None else effect.value, effect)
            for after, alone, effect in pairs
        }

    def joint(self, effect: CrossedInterval) -> CrossedInterval:
        """Return an effect with the wider interval that holds with those of all other layers at once (Bonferroni)."""
        return effect.at(1 - (1 - self.level) / len(self.effects), self.primary)

    @property
    def outcomes(self) -> tuple[LayerOutcome, ...]:
        """What the last step gave, by layer."""
        return self.trail.outcomes[-1]

    @property
    def primary(self) -> str:
        """The metric of the last step."""
        return self.outcomes[0].primary

    @property
    def best(self) -> LayerOutcome:
        """That of the layer that is best by validation after the last step."""
        return best_by_validation(self.outcomes)

    @property
    def first_steps(self) -> str:
        """A short label for the steps before the last one."""
        return ", then ".join(step.label for step in self.chain.steps[:-1])

    @property
    def effect_sentence(self) -> str:
        """What the steps before the last one add, in words; empty without a baseline.

        A few layers are named one by one with the interval of each; of more only those whose joint interval excludes
        0, with that.
        """
        if not self.effects:
            return ""
        what = f"{self.first_steps[0].upper()}{self.first_steps[1:]} first"
        unit = f"{metric_title(self.primary)} x 100 on {self.chain.finetunings[-1].task_name}"
        n_layers = len(self.effects)
        all_named = n_layers <= LISTED
        texts = []
        for layer, (value, effect) in self.added.items():
            stated = effect if all_named or effect is None else self.joint(effect)
            if all_named or (stated is not None and stated.sign):
                texts.append(f"{value:+.2f}{_interval(stated.interval if stated else None)} at layer {layer}")
        if not texts:
            return f"{what} adds nothing that is sure at any of {n_layers} layers ({unit})."
        listed = ", ".join(texts)
        seeds = f"{len(self.chain.seeds)} seed{'s' if len(self.chain.seeds) > 1 else ''}"
        seeds += " after one adaptation" if self.chain.adaptations else ""
        intervals = "intervals" if all_named else f"intervals for all {n_layers} layers together"
        intervals += "" if self.effects[0] is None else f" {drawn_anew(self.effects[0])}"
        left = n_layers - len(texts)
        ending = f"; at {left} other layer{'s' if left > 1 else ''} the interval holds 0" if left else ""
        return f"{what} adds {listed} ({unit}, {in_percent(self.level)} {intervals}, {seeds}){ending}."

    @property
    def cka_sentence(self) -> str:
        """How far the last layer kept is from what it was, in words; empty without CKA."""
        if self.similarities is None:
            return ""
        trained, measure = self.similarities.trained, self.similarities.measure.title
        listed = [_kept(similarity) for similarity in trained]
        if len(listed) > LISTED:
            values = {similarity.to_start.values[-1]: similarity for similarity in trained}
            listed = [f"from {_kept(values[min(values)])}", f"to {_kept(values[max(values)])}"]
        return (
            f"{measure[0].upper()}{measure[1:]} of the last layer kept with the same layer of the start, on "
            f"{self.similarities.n_texts} texts: {', '.join(listed)}."
        )

    @property
    def cut(self) -> dict[int, ChainSimilarity]:
        """CKA of the fine-tuned models with the start, by the layer they keep."""
        trained = () if self.similarities is None else self.similarities.trained
        return {similarity.layer: similarity for similarity in trained if similarity.layer is not None}

    @property
    def table(self) -> Table:
        """One row per layer: the scores of every step, and what the steps before the last one add."""
        column, effect, best = columns_of(self.outcomes), columns_of(self.added.values()), self.best.layer
        repeated = Counter(step.task_name for step in self.chain.finetunings)
        columns = [column("layer", meaning="Blocks kept."), column("parameters", form=millions)]
        tuned = zip(self.chain.finetunings, self.trail.outcomes, strict=True)
        for number, (step, outcomes) in enumerate(tuned, len(self.chain.adaptations) + 1):
            where = f", step {number}" if repeated[step.task_name] > 1 else ""
            title = f"{step.task_name} {metric_title(outcomes[0].primary)}{where}"
            columns += _score_columns(f"step_{number}", title, outcomes)
        if self.effects:
            ends = interval_title(self.level)
            columns += _score_columns("without", "without", self.direct)
            columns.append(effect("effect", lambda added: added[0], form="+.2f"))
            interval = effect("interval", lambda added: added[1] and added[1].interval, form="+.2f", interval=True)
            columns.append(replace(interval, title=ends))
        for control in self.controls:
            seed = control.random_init
            columns += _score_columns(f"random_{seed}", f"random {seed}", control.outcomes[-1])
        cut = columns_of(self.cut.get(outcome.layer) for outcome in self.outcomes)
        columns.append(cut("cka", lambda model: model.to_start.values[-1], title="CKA with before", form=".3f"))
        marks = tuple("chosen" if outcome.layer == best else None for outcome in self.outcomes)
        return Table(columns=tuple(columns), marks=marks)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What adaptations did to the held-out loss, what the first steps add, and how far the layers moved."""
        return tuple(
            filter(
                None,
                (
                    *(adaptation.sentence for adaptation in self.trail.adaptations),
                    self.effect_sentence,
                    self.cka_sentence,
                ),
            )
        )

    @property
    def heading(self) -> str:
        """What the chain adds at the layer that is best by validation, where that is known."""
        layer = self.best.layer
        if layer not in self.added:
            return f"Layer {layer} is best by validation"
        value, effect = self.added[layer]
        sure = "" if effect is not None and effect.sign else ", not significant"
        return f"The chain adds {numbers.signed(value)} at layer {layer}{sure}"

    @property
    def page(self) -> dict[str, Any]:
        """What its page has besides its table, see `layerprobe.results.declared`."""
        best, similarities = self.best, self.similarities
        title = f"test {metric_title(self.primary)} {numbers.number(best.mean)}"
        texts = similarities and f"{similarities.n_texts}, of the last task’s test split; {similarities.measure.title}"
        return {
            "kind": "a chain of trainings",
            "about": f"{self.chain.name}, from {numbers.label(short_name(self.trail.model))}",
            "lead": (
                self.effect_sentence or f"Layer {best.layer} is best by validation: {title}.",
                *filter(None, [self.cka_sentence]),
            ),
            "facts": (f"{title} at layer {best.layer}, best by validation", *self._facts()),
            "first": self._scores,
            "account": self.notes,
            "sections": {
                "CKA before and after": () if similarities is None else (self._cka_table(similarities),),
                "Adaptation": tuple(done.table for done in self.trail.adaptations),
            },
            "toml": chain_to_toml(self.chain),
            "sources": {
                "Start": self.trail.model,
                "Revision": self.trail.revision,
                "Reference": self.chain.reference or "none",
                "Texts of CKA": texts or "not measured",
                "Computed on": self.computed_on,
                "Versions": ", ".join(f"{name} {version}" for name, version in self.versions.items()),
                "Created": self.created,
            },
            "terms": ("Chain", "Adaptation", "Effect"),
        }

    def _facts(self) -> Iterator[str]:
        if added := self.added.get(self.best.layer):
            value, effect = added
            ends = f" {numbers.interval(effect.interval)}" if effect else ""
            yield f"the chain adds {numbers.signed(value)}{ends}"
        for control in self.controls[:1]:
            (at_best,) = (outcome for outcome in control.outcomes[-1] if outcome.layer == self.best.layer)
            yield f"from random weights {numbers.number(at_best.mean)}"
        if cut := self.cut.get(self.best.layer):
            yield f"CKA with before {numbers.number(cut.to_start.values[-1], 3)} (seed {cut.seed})"

    @property
    def _scores(self) -> Table:
        """The test scores of the last step by layer: after the chain, without it, and from random weights."""
        lines = {"the whole chain": self.outcomes, "the last step alone": self.direct}
        lines |= {f"random weights {control.random_init}": control.outcomes[-1] for control in self.controls}
        tables = [outcomes_table(outcomes).named(start=name) for name, outcomes in lines.items() if outcomes]
        return replace(stacked(tables), charts=(outcome_charts(by="start")[0].named("chain-scores"),))

    def _cka_table(self, similarities: ChainSimilarities) -> Table:
        """A row a training and layer: its CKA with the layer before, and with the reference."""
        before, reference = similarities.start_to_reference, similarities.reference
        curves: list[tuple[str, ChainCurve | None, ChainCurve | None]] = [("before", None, before)] if before else []
        for run in similarities.trained:
            name = f"after {run.after}" if run.layer is None else f"kept to layer {run.layer}"
            curves.append((name, run.to_start, run.to_reference))
        rows = [
            (name, layer, to_start, to_reference)
            for name, to_start, to_reference in curves
            for layer in range(len((to_start or to_reference or before).values))  # type: ignore[union-attr]
        ]
        column, charts = columns_of(rows), list[Chart]()
        columns = [column("after", lambda row: row[0], title="training"), column("layer", lambda row: row[1])]
        ends = {"title": interval_title(self.level), "form": ".3f", "interval": True, "over": "over new texts"}
        for place, name, other in ((2, "cka", "the layer before"), (3, "reference", short_name(reference or ""))):
            if not any(row[place] for row in rows):
                continue
            value = columns_of((row[place], row[1]) if row[place] else None for row in rows)
            quantity = Quantity(f"CKA with {other}", best="higher")
            columns.append(
                value(name, lambda at: at[0].values[at[1]], title=quantity.unit, form=".3f", quantity=quantity)
            )
            columns.append(value(f"{name}_interval", lambda at: at[0].interval(at[1]), **ends))
            line = Line(name, interval=f"{name}_interval")
            chart = Chart(lines=(line,), name=f"chain-{name}", by="after", band=True)
            charts.append(chart if charts else replace(chart, finding=self.cka_sentence))
        return Table(columns=tuple(columns), title="CKA by layer", charts=tuple(charts))

    @property
    def summary(self) -> str:
        """The result in one line."""
        scores = brief([outcome.mean for outcome in self.outcomes])
        layers = ", ".join(str(outcome.layer) for outcome in self.outcomes)
        return f"{self.chain.name}: {self.primary} x 100 at layers {layers}: {scores}"


def _score_columns(name: str, title: str, outcomes: Sequence[LayerOutcome]) -> list[Column]:
    column = columns_of(outcomes)
    return [
        column(name, lambda outcome: outcome.mean, title=title, form=".2f"),
        column(f"{name}_std", lambda outcome: outcome.std, title=f"std of {title}", form=".2f"),
        column(f"{name}_seeds", lambda outcome: outcome.scores, shown=False),
    ]


def _interval(ends: tuple[float, float] | None) -> str:
    return "" if ends is None else f" [{ends[0]:.2f}, {ends[1]:.2f}]"


def _kept(similarity: ChainSimilarity) -> str:
    curve = similarity.to_start
    where = f"layer {len(curve.values) - 1}"
    return f"{curve.values[-1]:.2f}{_interval(curve.interval(-1))} at {where} after {similarity.after}"


# ---- a chain as a TOML file -------------------------------------------------------------------------------


def chain_to_toml(chain: Chain) -> str:
    """Return a chain as TOML, with every setting: a default of a later version changes nothing.

    Examples:
        >>> step = FinetuneStep(task=TaskSettings(source="stsb"))
        >>> chain_to_toml(Chain(name="plain", model="bert", steps=(step,))).splitlines()[:3]
        ['name = "plain"', 'model = "bert"', 'layers = "all"']
    """
    values = field_values(chain)
    del values["steps"]
    top = {**values, "layers": "all" if chain.layers is None else chain.layers}
    return to_toml(("", top), *(("[[step]]", _step_values(step)) for step in chain.steps))


def _step_values(step: AdaptStep | FinetuneStep) -> dict[str, object]:
    if isinstance(step, AdaptStep):
        return {"adapt": step.texts, "seed": step.seed, **field_values(step.protocol)}
    settings = field_values(step.task)
    return {"finetune": settings.pop("source"), **settings, **field_values(step.protocol)}


def load_chain(path: str | Path) -> Chain:
    """Read a chain from a TOML file; paths in it are relative to the file.

        model = "google/electra-base-discriminator"
        reference = "google-bert/bert-base-cased"   # CKA against it; none by default
        layers = [3, 9, 12]                         # or "all", the default
        seeds = 5                                   # or a list of them
        control = [0]                               # the same from random weights; none by default
        [[step]]
        adapt = ["captions.txt"]                    # with the fields of AdaptationProtocol, and seed
        max_steps = 200
        [[step]]
        finetune = "words"                          # with the fields of TaskSettings and Protocol
        merge = true
        epochs = 50
        batch_size = 128
        [[step]]
        finetune = "stsb"

    Further keys are those of `Chain`: name, random_init, baseline, cka. With `lora`, learning_rate is 2e-4 by default.
    """
    return chain_of(read_toml(path, "the chain", absolute=True), name=Path(path).stem)


def chain_of(keys: Keys, *, name: str) -> Chain:
    """Return the chain that a table describes, called `name` where it does not say."""
    model = model_reader(keys)
    values = {"name": keys.take("name", str, default=name), "steps": tuple(map(_step, keys.tables("step")))}
    readers = {"model": model, "reference": model, "layers": LAYERS, "seeds": SEEDS}
    return keys.whole(Chain, values, readers=readers)


def _step(keys: Keys) -> AdaptStep | FinetuneStep:
    kinds = [kind for kind in ("adapt", "finetune") if kind in keys.data]
    if len(kinds) != 1:
        raise DataError(f"{keys.where}: expected either adapt or finetune, got {' and '.join(kinds) or 'neither'}")
    if kinds == ["adapt"]:
        files = keys.take("adapt", texts(keys.path, "a file or a list of files"))
        return keys.whole(AdaptStep, {"texts": files, "protocol": keys.fields(AdaptationProtocol)})
    keys.data = with_rate(keys.data)
    return keys.whole(FinetuneStep, {"task": taken_task(keys, "finetune"), "protocol": keys.fields(Protocol)})
