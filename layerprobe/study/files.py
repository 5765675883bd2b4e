"""Reads a study from study.json. Knows files; computes nothing."""

from pathlib import Path

from layerprobe.errors import DataError
from layerprobe.files.atomic import from_home
from layerprobe.files.folders import parsed_as, warn_of_older
from layerprobe.files.inputs import read_document
from layerprobe.study.values import Study


def read_study(path: str | Path) -> Study:
    """Return the study that `layerprobe run` wrote.

    Raises:
        DataError: If the file cannot be read or is no study.
    """
    try:
        study, checksum = parsed_as(Study, read_document(from_home(path)))
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"cannot read {path}: {reason}; expected the study.json of `layerprobe run`") from error
    except DataError as error:
        raise DataError(f"{path} is no study: {error}; expected the study.json of `layerprobe run`") from error
    if checksum is None:
        warn_of_older(str(path))
    return study
