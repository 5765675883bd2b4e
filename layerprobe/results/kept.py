"""Results on disk and as JSON; reading finds their class. Knows classes from a registry alone."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from layerprobe.errors import DataError, LayerProbeError
from layerprobe.files import serialisation
from layerprobe.files.atomic import write_file
from layerprobe.files.inputs import read_document
from layerprobe.names import some
from layerprobe.registry import Registry
from layerprobe.results.shown import IMAGES, Shown
from layerprobe.results.table import FILES

SHIPPED = {
    "Finding": "layerprobe.study.values:Finding",
    "Prediction": "layerprobe.study.values:Prediction",
    "Scores": "layerprobe.scoring.values:Scores",
    "TuningResult": "layerprobe.finetuning.values:TuningResult",
    "Differences": "layerprobe.comparison.differences:Differences",
    "Comparison": "layerprobe.comparison.values:Comparison",
    "Comparisons": "layerprobe.comparison.values:Comparisons",
    "Probing": "layerprobe.probing.values:Probing",
    "Shrunk": "layerprobe.shrinking.values:Shrunk",
    "Profiles": "layerprobe.profiling.values:Profiles",
    "Profile": "layerprobe.profiling.values:Profile",
    "SimilarityMap": "layerprobe.similarity.values:SimilarityMap",
    "DropPrediction": "layerprobe.prediction.values:DropPrediction",
    "LayerCurve": "layerprobe.readings.reading:LayerCurve",
    "LayerScores": "layerprobe.scoring.values:LayerScores",
    "SearchAnswer": "layerprobe.search.values:SearchAnswer",
    "ExportResult": "layerprobe.export.layout:ExportResult",
    "Diagnosis": "layerprobe.extraction.check:Diagnosis",
}
"""The classes of results by name, in the order in which `read_result` tries them."""
RESULTS: Registry[type] = Registry("layerprobe.results", type, what="class of results", shipped=SHIPPED)
"""The classes of results by name; JSON is read as the first class whose fields it has."""
logger = logging.getLogger(__name__)


def save(result: Shown, path: str | Path) -> Path:
    """Save a result in the format of the file's ending, and return the path.

    Args:
        result: The result of a function of layerprobe.
        path: `.json` for the full result, which `load` reads back; `.html` for its page; `.png`, `.svg` or `.pdf` for
            its first figure, as `plot` returns it; `.csv`, `.parquet` or `.tex` for its table; `.safetensors` for the
            full result of `probe` with its fitted probes, which `load` reads back.

    Raises:
        DataError: If it is not a result, or the file has another ending.
        LayerProbeError: If the file cannot be written.
    """
    if not isinstance(result, Shown):
        raise DataError(f"expected a result and a path, as in save(finding, 'finding.json'), got {result!r:.80}")
    target, suffix = Path(path), Path(path).suffix.lower()
    if suffix in (".html", ".htm", *IMAGES):
        return result.save_html(target)
    if suffix in FILES:
        return result.table.save(target)
    if suffix == ".safetensors" and hasattr(result, "as_safetensors"):
        return write_file(target, result.as_safetensors())
    if suffix != ".json":
        raise DataError(f"cannot save {target.name}: use an ending of .json, .html, {', '.join((*IMAGES, *FILES))}")
    return write_file(target, serialisation.sealed(result))


def load(path: str | Path) -> Any:
    """Return the result in a file that `save` or `--json` wrote.

    Raises:
        DataError: If the file holds no result.
    """
    file = Path(path)
    try:
        data = read_document(file, None)
        if file.suffix.lower() == ".safetensors":
            return next(kind for kind in _classes() if hasattr(kind, "from_safetensors")).from_safetensors(data)
        return read_result(data.decode("utf-8", "replace"))
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}") from error
    except DataError as error:
        raise DataError(f"{file}: {error}") from error


def read_result(text: str) -> Any:
    """Return the result in a JSON text; its class follows from the names of the fields.

    Raises:
        DataError: If the text is not JSON, is not a result, or does not match its checksum.
    """
    data, _ = serialisation.unsealed(serialisation.parse_json(text))
    if isinstance(data, dict):
        data.pop("conclusion", None)  # it follows from the rest
    for result in _classes():
        if isinstance(data, dict) and _is_of(result, data):
            return serialisation.from_dict(result, data)
    keys = some(list(data), 12) if isinstance(data, dict) else type(data).__name__
    raise DataError(f"expected a result as JSON, such as lp.save writes, got {keys or 'nothing'}")


def _classes() -> Iterator[Any]:
    """Yield the classes of results, loaded one by one; a class of another package that cannot be loaded is left out."""
    for name in RESULTS:
        try:
            yield RESULTS[name]
        except DataError as error:
            logger.warning("%s: this class is left out", error)


def _is_of(kind: Any, data: dict[str, Any]) -> bool:
    """Return whether JSON has the fields of a class."""
    fields = serialisation.field_types(kind)
    data = {name: item for name, item in data.items() if name not in getattr(kind, "json_tags", ())}
    if hasattr(kind, "class_of"):
        with contextlib.suppress(LayerProbeError, LookupError, TypeError):
            _, data = kind.class_of(data)
    return {name for name, (_, is_needed) in fields.items() if is_needed} <= data.keys() <= fields.keys()
