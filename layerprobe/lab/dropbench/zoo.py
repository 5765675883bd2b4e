"""DropBench's zoo: models whose drops are known from fine-tuning, and their files, one JSON file per zoo."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DataError
from layerprobe.files.atomic import parsed_as, write_whole
from layerprobe.files.inputs import read_document
from layerprobe.files.serialisation import sealed
from layerprobe.finetuning.values import Protocol, Weighting
from layerprobe.readings.reading import LayerCurve, cka_with
from layerprobe.similarity.values import Matrix

TWIN: Literal["mlm"] = "mlm"
"""The objective that all others are compared with."""
SAME_SEED, OTHER_SEED = "mlm twin, same seed", "mlm twin, other seed"
"""References of CKA; an MLM model itself has only the second one, which is the noise floor."""

RunName = tuple[int, int]
"""Layer and seed of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemErrors:
    """Covariances over items of TMFT scores on the same items, in squared points.

    The covariance of two runs is that of their layers; a run's variance adds its own part.
    """

    n_items: int
    units: float
    """Effective number of items that share no text, see `item_units`."""
    common: Matrix
    """Lower triangle by layers: covariance of runs with different seeds; in some zoos scans follow."""
    own: tuple[float, ...]
    """Additional variance of a run, by layer; 0 for a single seed, where it is unknown."""
    own_of_scan: Matrix = ()
    """For scans, in older zoos; unused."""
    weighting: Weighting | None = None
    """Weighting of these scans."""

    @property
    def layer_covariance(self) -> NDArray[np.float64]:
        """Covariance of mean TMFT scores over infinitely many seeds, (layers, layers)."""
        n_layers = len(self.own)
        whole = np.zeros((n_layers, n_layers))
        for i, row in enumerate(self.common[:n_layers]):
            whole[i, : i + 1] = whole[: i + 1, i] = row
        return whole

    def covariance(self, runs: Sequence[RunName]) -> NDArray[np.float64]:
        """Return the covariance of the scores of different runs over items, (runs, runs)."""
        layers = [layer for layer, _ in runs]
        covariance: NDArray[np.float64] = self.layer_covariance[np.ix_(layers, layers)]
        return covariance + np.diag([self.own[layer] for layer in layers])


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanScores:
    """The scores of one scan: a run with a loss at every layer."""

    weighting: Weighting
    seed: int
    epochs: tuple[tuple[float | None, ...], ...]
    """epochs[epoch][layer] on validation, x 100; None if the layer failed."""
    validation: tuple[float | None, ...]
    """Validation scores by layer, at the epoch with the best mean over layers."""
    test: tuple[float | None, ...]
    """Test scores by layer, at the same epoch."""

    @property
    def whole(self) -> bool:
        """Whether no layer failed."""
        return not any(score is None for row in (*self.epochs, self.validation, self.test) for score in row)


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedLayers:
    """Fine-tuning scores of every layer of a model under one budget."""

    protocol: Protocol
    """Protocol of the budget."""
    steps: int
    """Optimiser steps of one run; a step costs about (layer + 1) blocks."""
    seeds: tuple[int, ...]
    """Seeds of the runs of every layer."""
    validation: Matrix
    """validation[layer][seed]: the task's primary metric x 100, at the epoch where it is best."""
    test: Matrix
    """test[layer][seed]: the same on the test split."""
    epochs: tuple[Matrix, ...] = ()
    """epochs[layer][seed][epoch]: validation after each epoch; empty if not recorded, like the following fields."""
    halves: tuple[Matrix, ...] = ()
    """halves[half][layer][seed]: test scores on two random halves of the test items, for choosing by one of them."""
    validation_errors: ItemErrors | None = None
    """Errors of validation scores over items."""
    test_errors: ItemErrors | None = None
    """Errors of test scores over items."""
    scans: tuple[ScanScores, ...] = ()
    """Scans by weighting and seed."""

    @property
    def n_layers(self) -> int:
        """Number of layers, including the embedding output."""
        return len(self.test)

    def whole_scans(self, weighting: Weighting) -> list[ScanScores]:
        """Return the scans of a weighting without failed layers."""
        return [scan for scan in self.scans if scan.weighting == weighting and scan.whole]


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooEntry:
    """One pretrained model: readings for predictors, and fine-tuning results."""

    name: str
    """Unique in the zoo."""
    family: str
    """The pretraining objective; predictors are tuned on other families than they are scored on."""
    size: str
    """Name of the size, such as tiny or small."""
    seed: int
    """Seed of the pretraining."""
    corpus: str
    """Corpus of the pretraining."""
    task: str
    """Task of the fine-tuning."""
    metric: str
    """The task's primary metric, for all scores."""
    n_blocks: int
    """Layers count from 0 to this."""
    budgets: dict[str, TunedLayers]
    """Fine-tuning scores by budget, such as gentle and converged."""
    cka: dict[str, LayerCurve] = field(default_factory=dict)
    """CKA by reference, such as "mlm twin, same seed"; never with the model itself."""
    metrics: dict[str, LayerCurve] = field(default_factory=dict)
    """Readings without labels or a reference, by name."""
    labelled: dict[str, LayerCurve] = field(default_factory=dict)
    """Readings with labels but without fine-tuning, on the validation split, by name."""

    @property
    def curves(self) -> dict[str, LayerCurve]:
        """All numbers by layer for rules, by name; CKA with a reference is `CKA, <reference>`."""
        cka = {cka_with(name): curve for name, curve in self.cka.items()}
        return {**cka, **self.metrics, **self.labelled}


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooProvenance:
    """Provenance of a zoo."""

    layerprobe: str
    """Version of layerprobe that made it."""
    created: str
    """ISO 8601, UTC."""
    command: str
    """Command that made it."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of Python and of the libraries."""
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
            raise DataError(f"expected models with unique names, got {', '.join(twice[:3])}{more} more than once")


# ---- files ---------------------------------------------------------------------------------------------------------


SHIPPED = Path(__file__).parent / "zoos"
"""Zoos that come with layerprobe, each with the lab study that made it."""
KEPT_OUT = SHIPPED / "kept-out"
"""Zoos with models that no rule is tuned on."""
SEARCHED = SHIPPED / "searched"
"""Zoos of models with recorded outputs and scans: searches can be replayed on them."""


def read_zoo(*paths: str | Path) -> Zoo:
    """Return the models of zoo files by `write_zoo` as one zoo; by default layerprobe's zoos."""
    return put_together([_read(Path(path)) for path in paths or sorted(SHIPPED.glob("*.json"))])


def read_kept_out() -> Zoo:
    """Return layerprobe's models that no rule is tuned on."""
    return put_together([_read(path) for path in sorted(KEPT_OUT.glob("*.json"))])


def read_searched(*, unseen: bool = False) -> Zoo:
    """Return layerprobe's models for replaying searches.

    No rule is tuned on their scores. Half of them are encoders of `read_zoo`, though, fine-tuned on other pairs; the
    `unseen` ones are not.
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
        raise DataError(f"{file} is not a zoo: {error}") from error
