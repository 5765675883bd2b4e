"""Reading what `layerprobe run` wrote."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layerprobe.study.values import Study


def read_study(path: Path) -> Study:
    """Read a study.json.

    Raises:
        DataError: If it cannot be read, or is no study.
    """
    from layerprobe.errors import DataError
    from layerprobe.serialisation import from_json
    from layerprobe.study.values import Study

    try:
        return from_json(Study, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}; expected the study.json of `layerprobe run`") from error
    except DataError as error:
        raise DataError(f"{path} is no study: {error}; expected the study.json of `layerprobe run`") from error
