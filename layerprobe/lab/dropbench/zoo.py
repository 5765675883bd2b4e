"""DropBench's zoo: models whose drops are known from fine-tuning, and their files, a JSON file each zoo."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DataError
from layerprobe.files.atomic import write_whole
from layerprobe.files.folders import parsed_as
from layerprobe.files.inputs import read_document
from layerprobe.files.serialisation import sealed
from layerprobe.finetuning.values import Protocol, Weighting
from layerprobe.readings.reading import LayerCurve, cka_with
from layerprobe.similarity.values import Matrix

TWIN: Literal["mlm"] = "mlm"
"""The objective that all others are compared with."""
SAME_SEED, OTHER_SEED = "mlm twin, same seed", "mlm twin, other seed"
"""References of CKA; the second one is all that an MLM model itself has, and so the noise floor."""

RunName = tuple[int, int]
"""Layer and seed of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemErrors:
    """How the scores of TMFT on the same items go together over other items, in squared points.

    The covariance of two runs is that of their layers, and of a run with itself also what it has of its own.
    """

    n_items: int
    units: float
    """How many items that share no text they are worth, see `item_units`."""
    common: Matrix
    """Lower triangle by layers: what runs of different seeds have in common; in some zoos scans follow."""
    own: tuple[float, ...]
    """By layer: what a run has beyond that; 0 for a single seed, of which it is unknown."""
    own_of_scan: Matrix = ()
    """Of scans, in zoos of before; nothing reads it."""
    weighting: Weighting | None = None
    """Of these scans."""

    @property
    def of_layers(self) -> NDArray[np.float64]:
        """(layers, layers): covariance of the mean scores of TMFT over seeds without end."""
        n_layers = len(self.own)
        whole = np.zeros((n_layers, n_layers))
        for i, row in enumerate(self.common[:n_layers]):
            whole[i, : i + 1] = whole[: i + 1, i] = row
        return whole

    def covariance(self, runs: Sequence[RunName]) -> NDArray[np.float64]:
        """Return (runs, runs): how the scores of different runs go together over items."""
        layers = [layer for layer, _ in runs]
        covariance: NDArray[np.float64] = self.of_layers[np.ix_(layers, layers)]
        return covariance + np.diag([self.own[layer] for layer in layers])


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanScores:
    """The scores of one scan: a run with a loss at every layer."""

    weighting: Weighting
    seed: int
    epochs: tuple[tuple[float | None, ...], ...]
    """epochs[epoch][layer] on validation, x 100; None where the layer failed."""
    validation: tuple[float | None, ...]
    """By layer, of the epoch that is best in the mean over layers."""
    test: tuple[float | None, ...]
    """The same on the test split."""

    @property
    def whole(self) -> bool:
        """Whether no layer failed."""
        return not any(score is None for row in (*self.epochs, self.validation, self.test) for score in row)


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedLayers:
    """Fine-tuning scores of every layer of a model under one budget."""

    protocol: Protocol
    """The budget."""
    steps: int
    """Optimiser steps of one run; a step costs about (layer + 1) blocks."""
    seeds: tuple[int, ...]
    """Of the runs of every layer."""
    validation: Matrix
    """validation[layer][seed]: the task's primary metric x 100, of the epoch that is best by it."""
    test: Matrix
    """test[layer][seed]: the same on the test split."""
    epochs: tuple[Matrix, ...] = ()
    """epochs[layer][seed][epoch]: validation after each epoch; empty where it was not kept, as is what follows."""
    halves: tuple[Matrix, ...] = ()
    """halves[half][layer][seed]: test scores on two random halves of the test items, to choose by one alone."""
    validation_errors: ItemErrors | None = None
    """Of validation scores over items."""
    test_errors: ItemErrors | None = None
    """Of test scores over items."""
    scans: tuple[ScanScores, ...] = ()
    """By weighting and seed."""

    @property
    def n_layers(self) -> int:
        """Layers, the embedding output among them."""
        return len(self.test)

    def whole_scans(self, weighting: Weighting) -> list[ScanScores]:
        """Return the scans of a weighting of which no layer failed."""
        return [scan for scan in self.scans if scan.weighting == weighting and scan.whole]


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooEntry:
    """One pretrained model: what a predictor may read of it, and what fine-tuning showed."""

    name: str
    """Unique in the zoo."""
    family: str
    """The pretraining objective; predictors are tuned on other families than they are scored on."""
    size: str
    """Such as tiny or small."""
    seed: int
    """Of the pretraining."""
    corpus: str
    """What it was pretrained on."""
    task: str
    """What it was fine-tuned on."""
    metric: str
    """The task's primary metric, which all scores are of."""
    n_blocks: int
    """Layers count from 0 to this."""
    budgets: dict[str, TunedLayers]
    """The truth by budget of fine-tuning, such as gentle and converged."""
    cka: dict[str, LayerCurve] = field(default_factory=dict)
    """By reference, such as "mlm twin, same seed"; never against the model itself."""
    metrics: dict[str, LayerCurve] = field(default_factory=dict)
    """What needs neither labels nor a reference, by the names of readings."""
    labelled: dict[str, LayerCurve] = field(default_factory=dict)
    """What needs labels and no fine-tuning, on the validation split, by the names of readings."""

    @property
    def curves(self) -> dict[str, LayerCurve]:
        """All numbers by layer that a rule may read, by name; CKA against a reference is `CKA, <reference>`."""
        cka = {cka_with(name): curve for name, curve in self.cka.items()}
        return {**cka, **self.metrics, **self.labelled}


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooProvenance:
    """Where a zoo comes from."""

    layerprobe: str
    """Version that made it."""
    created: str
    """ISO 8601, UTC."""
    command: str
    """How to make it again."""
    versions: dict[str, str] = field(default_factory=dict)
    """Of Python and of the libraries."""
    notes: tuple[str, ...] = ()
    """Sizes, corpora and tasks in plain words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Zoo:
    """Models whose drops are known."""

    provenance: ZooProvenance
    entries: tuple[ZooEntry, ...]

    def __post_init__(self) -> None:
        names = [entry.name for entry in self.entries]
        if not names:
            raise DataError("expected at least one model in a zoo, got none")
        if twice := sorted({name for name in names if names.count(name) > 1}):
            more = f" and {len(twice) - 3} others" if len(twice) > 3 else ""
            raise DataError(f"expected models with names of their own, got {', '.join(twice[:3])}{more} more than once")


# ---- files ---------------------------------------------------------------------------------------------------------


SHIPPED = Path(__file__).parent / "zoos"
"""The zoos that come with layerprobe, each next to the lab study that made it."""
KEPT_OUT = SHIPPED / "kept-out"
"""Those of models that no rule is tuned on."""
SEARCHED = SHIPPED / "searched"
"""Those of models whose runs kept their outputs, and that were scanned: searches can be played on them."""


def read_zoo(*paths: str | Path) -> Zoo:
    """Return the models of zoos that `write_zoo` wrote as one zoo; by default those that come with layerprobe."""
    return put_together([_read(Path(path)) for path in paths or sorted(SHIPPED.glob("*.json"))])


def read_kept_out() -> Zoo:
    """Return the models that come with layerprobe and that no rule is tuned on."""
    return put_together([_read(path) for path in sorted(KEPT_OUT.glob("*.json"))])


def read_searched(*, unseen: bool = False) -> Zoo:
    """Return the models that come with layerprobe and on which searches can be played.

    No rule is tuned on their scores. Half of them, though, are encoders of `read_zoo`, fine-tuned on other pairs; those
    that are `unseen` are not.
    """
    zoo = put_together([_read(path) for path in sorted(SEARCHED.glob("*.json"))])
    shipped = set(map(pretrained_as, read_zoo().entries)) if unseen else set()
    return replace(zoo, entries=tuple(entry for entry in zoo.entries if pretrained_as(entry) not in shipped))


def pretrained_as(entry: ZooEntry) -> tuple[str, int, int, str]:
    """Return the key that identifies a shipped encoder, whatever it was fine-tuned on."""
    return entry.family, entry.n_blocks, entry.seed, entry.corpus


def put_together(zoos: Sequence[Zoo]) -> Zoo:
    """Merge zoos into one; raise DataError if there is none, or two models have the same name."""
    if len(zoos) == 1:
        return zoos[0]
    if not zoos:
        raise DataError("expected at least one zoo, got none")
    sources = [zoo.provenance for zoo in zoos]
    newest = max(sources, key=lambda source: source.created)
    return Zoo(
        provenance=ZooProvenance(
            layerprobe=", ".join(dict.fromkeys(source.layerprobe for source in sources)),
            created=newest.created,
            command="; ".join(source.command for source in sources),
            versions=newest.versions,
            notes=tuple(note for source in sources for note in source.notes),
        ),
        entries=tuple(entry for zoo in zoos for entry in zoo.entries),
    )


def write_zoo(zoo: Zoo, path: str | Path) -> None:
    """Write a zoo on one line, whole or not at all."""
    write_whole(Path(path), sealed(zoo, indent=None))


def _read(file: Path) -> Zoo:
    try:
        return parsed_as(Zoo, read_document(file))
    except OSError as error:
        raise DataError(f"cannot read {file} as a zoo: {error.strerror}") from error
    except DataError as error:
        raise DataError(f"{file} holds no zoo: {error}") from error
