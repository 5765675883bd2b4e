"""Zoos on disk, a JSON file each. Knows the files, not what predictors make of them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from layerprobe.errors import DataError
from layerprobe.files.atomic import write_whole
from layerprobe.files.checked_json import parsed_as, warn_of_older
from layerprobe.files.inputs import read_document
from layerprobe.files.serialisation import sealed
from layerprobe.lab.dropbench.values import Zoo, ZooEntry, ZooProvenance

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
    """Return what tells the encoders apart that come with layerprobe, whatever they were fine-tuned on."""
    return entry.family, entry.n_blocks, entry.seed, entry.corpus


def put_together(zoos: Sequence[Zoo]) -> Zoo:
    """Return one zoo with the models of some; raise DataError if there is none, or two models have one name."""
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
        zoo, checksum = parsed_as(Zoo, read_document(file))
    except OSError as error:
        raise DataError(f"cannot read {file} as a zoo: {error.strerror}") from error
    except DataError as error:
        raise DataError(f"{file} holds no zoo: {error}") from error
    if checksum is None:
        warn_of_older(str(file))
    return zoo
