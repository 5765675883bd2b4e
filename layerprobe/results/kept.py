"""Results on disk and as JSON, read back without saying what they are. Knows their classes by name alone."""

from __future__ import annotations

import contextlib
import pkgutil
from pathlib import Path
from typing import Any, TypeVar, overload

from layerprobe.checks import public
from layerprobe.errors import DataError, LayerProbeError
from layerprobe.files import serialisation
from layerprobe.files.atomic import replace_file
from layerprobe.files.inputs import read_document
from layerprobe.results.shown import Shown
from layerprobe.results.table import FILES

T = TypeVar("T")
RESULTS = (
    "layerprobe.study.values:Study",
    "layerprobe.study.values:Finding",
    "layerprobe.study.models:FoundModels",
    "layerprobe.study.values:Prediction",
    "layerprobe.scoring.values:Scores",
    "layerprobe.finetuning.values:TuningResult",
    "layerprobe.finetuning.values:Confirmation",
    "layerprobe.comparison.values:Comparison",
    "layerprobe.comparison.values:Comparisons",
    "layerprobe.probing.values:Probing",
    "layerprobe.shrinking.values:Shrunk",
    "layerprobe.shrinking.equal:EqualSize",
    "layerprobe.profiling.values:Profiles",
    "layerprobe.profiling.values:Profile",
    "layerprobe.similarity.values:SimilarityMap",
    "layerprobe.prediction.values:DropPrediction",
    "layerprobe.readings.values:LayerCurve",
    "layerprobe.scoring.values:LayerScores",
    "layerprobe.finetuning.values:FineTuningRun",
    "layerprobe.finetuning.values:JointRun",
    "layerprobe.sweeps.values:SweepResult",
    "layerprobe.lab.chains.values:ChainResult",
    "layerprobe.lab.studies.values:LabResult",
    "layerprobe.lab.dropbench.results:Bench",
    "layerprobe.lab.ensembles:Ensemble",
)
"""Where the classes of results are; JSON is of the first one whose fields it has."""


@public
def save(result: Shown, path: str | Path) -> Path:
    """Save a result, as the file is named, and return the path.

    Args:
        result: What a function of layerprobe returned.
        path: `.json` for all of it, which `load` reads back; `.html` for its page; `.csv` or `.parquet` for its table.

    Raises:
        DataError: If it is no result, or the file is named otherwise.
        LayerProbeError: If the file cannot be written.
    """
    if not isinstance(result, Shown):
        raise DataError(f"expected a result and a path, as in save(finding, 'finding.json'), got {result!r:.80}")
    target, suffix = Path(path), Path(path).suffix.lower()
    if suffix in (".html", ".htm"):
        return result.save_html(target)
    if suffix in FILES:
        return result.table.save(target)
    if suffix != ".json":
        raise DataError(f"expected a file that ends in .json, .html, {', '.join(FILES)}, got {target}: name it so")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_file(target, serialisation.sealed(result))
    except OSError as error:
        raise LayerProbeError(f"expected to write {target}, but: {error.strerror}; choose another path") from error
    return target


@public
def load(path: str | Path) -> Any:
    """Return the result that a file holds: what `save` wrote, a study.json, or what --json printed.

    Raises:
        DataError: If it holds no result.
    """
    if not isinstance(path, str | Path):
        raise DataError(f"expected the path of a file that save wrote, got {path!r:.80}")
    file = Path(path)
    try:
        return from_json(read_document(file, None).decode("utf-8", "replace"))
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}") from error
    except DataError as error:
        raise DataError(f"{file}: {error}") from error


@overload
def from_json(kind: type[T], text: str) -> T: ...
@overload
def from_json(kind: str) -> Any: ...
@public
def from_json(kind: type[Any] | str, text: str | None = None) -> Any:
    """Return what `to_json` wrote.

    Args:
        kind: Its type, or the text itself: what it is of follows from the names of its fields.
        text: The text, after a type.

    Raises:
        DataError: If the text is not JSON, not of that type, or not what its checksum is of.
    """
    if isinstance(kind, type):
        if text is None:
            raise DataError(f"expected the text as well, as in from_json({kind.__name__}, text)")
        return serialisation.from_json(kind, text)
    if text is not None:
        raise DataError("expected the type first, then the text, or the text alone: from_json(text)")
    data, _ = serialisation.unsealed(serialisation.parse_json(kind))
    for place in RESULTS:
        result: Any = pkgutil.resolve_name(place)
        if isinstance(data, dict) and _is_of(result, data):
            return serialisation.from_json(result, kind)
    keys = ", ".join(data) if isinstance(data, dict) else type(data).__name__
    raise DataError(
        f"expected a result as JSON, got {keys or 'nothing'}: give the type too, as in from_json(Task, text)"
    )


def _is_of(kind: Any, data: dict[str, Any]) -> bool:
    """Return whether JSON has the fields of a class, in the shape of this version or an older one."""
    fields = serialisation.fields_of(kind)
    if hasattr(kind, "class_of"):
        with contextlib.suppress(LayerProbeError, LookupError, TypeError):
            _, data = kind.class_of(data)
    return {name for name, (_, is_needed) in fields.items() if is_needed} <= data.keys() <= fields.keys()
