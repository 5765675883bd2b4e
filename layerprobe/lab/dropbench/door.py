"""Strategies of other packages: what they may read of a model, and the price of each reading. Knows no test scores.

An entry is a function from a `Trial` to a layer, or an `Answer`. Its readings are charged as it reads
them, so an entry cannot misstate its cost, and models are anonymous, so it cannot recognise them.
"""

from __future__ import annotations

import operator
import pkgutil
from collections.abc import Callable
from typing import Any, get_args

from layerprobe.checks import check_choice
from layerprobe.errors import DataError, LayerProbeError
from layerprobe.finetuning.values import Weighting
from layerprobe.lab.dropbench.results import Needs
from layerprobe.lab.dropbench.strategies import Answer, Recorded, Strategy
from layerprobe.names import nearest

_LOOKED: tuple[Needs, ...] = get_args(Needs)
"""In ascending order; an entry needs the highest of what it reads."""


class Trial:
    """A model as an entry sees it: free readings, and validation scores of runs at their cost.

    Seeds are counted from 0. Each trial of a model starts at another recorded seed, and the answer is
    scored on unread seeds, if any are left.
    """

    def __init__(self, model: Recorded, *, first: int = 0) -> None:
        self._model, self._first = model, first
        self._steps: dict[tuple[str, int, int], float] = {}
        self._seeds = set[int]()
        self._looked = 0

    @property
    def n_layers(self) -> int:
        """Number of layers, including the embedding output, layer 0."""
        return self._model.n_layers

    @property
    def metric(self) -> str:
        """Name of the scores' metric, x 100."""
        return self._model.entry.metric

    @property
    def n_seeds(self) -> int:
        """Number of recorded runs per layer."""
        return len(self._model.tuned.seeds)

    @property
    def n_epochs(self) -> int:
        """Number of epochs of a run."""
        return self._model.tuned.protocol.epochs

    @property
    def readings(self) -> tuple[str, ...]:
        """Names of the readings that are recorded for this model."""
        return tuple(self._model.entry.curves)

    @property
    def spent(self) -> float:
        """Cost so far, as a share of the paper's sweep of every layer with five seeds."""
        return self._model.share(sum(self._steps.values()))

    def reading(self, name: str) -> tuple[float, ...]:
        """Return the numbers by layer of a free reading; one that needs labels marks the entry as using labels.

        Raises:
            DataError: If it is not recorded for this model.
        """
        curves = self._model.entry.curves
        if name not in curves:
            raise DataError(f"expected a reading of {', '.join(curves)}, got {name!r}{nearest(name, curves)}")
        self._look("labels" if name in self._model.entry.labelled else "readings")
        return curves[name].values

    def tune(self, layer: int, *, seed: int = 0, epochs: int | None = None) -> float:
        """Return the validation score of fine-tuning the model truncated at a layer; repeating the call is free.

        A run costs (layer + 1) blocks per step. With fewer epochs it is the start of the same schedule, scored at its
        end, for that share of the cost; continuing later costs the rest.

        Raises:
            DataError: If there is no such layer, seed or epoch.
        """
        tuned = self._model.tuned
        layer, run = self._layer(layer), self._seed(seed, self.n_seeds)
        n_epochs = _number(self.n_epochs if epochs is None else epochs, "epochs", 1, self.n_epochs)
        if epochs is not None and not tuned.epochs:
            raise DataError("expected a complete run, got a number of epochs: this zoo has no scores by epoch")
        self._pay("tune", layer, run, (layer + 1) * n_epochs / self.n_epochs)
        self._seeds.add(run)
        if epochs is None:
            return tuned.validation[layer][run]
        return tuned.epochs[layer][run][n_epochs - 1]

    def scan(self, weighting: Weighting = "falling", *, seed: int = 0) -> tuple[float, ...]:
        """Return the validation scores by layer of one run with a loss at every layer; it costs one run of all blocks.

        Raises:
            DataError: If there is no such scan of this model.
        """
        check_choice(weighting, Weighting, name="weighting")
        scans = self._model.tuned.whole_scans(weighting)
        if not scans:
            raise DataError(f"expected a model with {weighting} scans, got one without: models of --searched have them")
        number = self._seed(seed, len(scans))
        self._pay(weighting, 0, number, self.n_layers)
        return tuple(float(score) for score in scans[number].validation if score is not None)

    def choice(self, answer: Any) -> Answer:
        """Return an entry's answer, a layer or an `Answer`, with the cost of everything it read.

        Raises:
            DataError: If it names no layer of the model.
        """
        if not isinstance(answer, Answer):
            answer = Answer(layer=answer)
        stated = None if answer.stated is None else tuple(sorted(set(map(self._layer, answer.stated))))
        return Answer(
            layer=self._layer(answer.layer),
            stated=stated,
            sufficient=None if answer.sufficient is None else self._layer(answer.sufficient),
            cost=self.spent,
            seeds=tuple(sorted(self._seeds)),
            needs=_LOOKED[self._looked],
        )

    def _look(self, at: Needs) -> None:
        self._looked = max(self._looked, _LOOKED.index(at))

    def _pay(self, what: str, layer: int, run: int, steps: float) -> None:
        self._look("training")
        key = (what, layer, run)
        self._steps[key] = max(self._steps.get(key, 0.0), steps)

    def _layer(self, layer: object) -> int:
        return _number(layer, "a layer", 0, self.n_layers - 1)

    def _seed(self, seed: object, n_seeds: int) -> int:
        return (_number(seed, "a seed", 0, n_seeds - 1) + self._first) % n_seeds


Entry = Callable[[Trial], int | Answer]


def load_entry(name: str) -> Strategy:
    """Import a strategy of another package, named `package:strategy`."""
    try:
        entry = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise DataError(f"expected an entry as package:strategy, {name} cannot be imported: {error}") from error
    if not callable(entry):
        raise DataError(f"expected the entry {name} to be a function of a trial, got a {type(entry).__name__}")
    return entry_strategy(name, entry)


def entry_strategy(name: str, entry: Entry) -> Strategy:
    """Wrap an entry as a strategy: it runs once with each recorded seed as its first one, all equally likely."""

    def choose(model: Recorded) -> list[Answer]:
        choices = []
        for first in range(len(model.tuned.seeds)):
            trial = Trial(model, first=first)
            try:
                choices.append(trial.choice(entry(trial)))
            except Exception as error:
                kind = "" if isinstance(error, LayerProbeError) else f"{type(error).__name__}: "
                reason = " ".join(str(error).split())
                raise DataError(f"the entry {name} failed on {model.entry.name}: {kind}{reason}") from error
        return choices

    first_line = (getattr(entry, "__doc__", None) or name).strip().splitlines()[0]
    return Strategy(name=name, source=first_line, needs=None, choose=choose)


def _number(value: Any, what: str, least: int, most: int) -> int:
    number = operator.index(value)
    if not least <= number <= most:
        raise DataError(f"expected {what} from {least} to {most}, got {value!r}")
    return number
