"""Texts without scores from one or more files, to train on. Knows files, not models."""

from collections.abc import Sequence
from pathlib import Path

from layerprobe.errors import DataError
from layerprobe.tasks.formats import Format
from layerprobe.tasks.loading import load_texts, texts_of_lines
from layerprobe.tasks.values import TextFile


def load_corpus(paths: Sequence[str | Path], *, columns: str | None = None, format: Format | None = None) -> TextFile:
    """Load texts without scores from files, one behind the other.

    Files, columns and format are as in `load_texts`; empty texts are left out, since blank lines part
    paragraphs. A text file with one text a line can also be compressed, `.txt.gz`.
    """
    if not paths:
        raise DataError("expected at least one file with texts, got none")
    files = [
        _load_compressed(path, format)
        if Path(path).suffix.lower() == ".gz"
        else load_texts(path, columns=columns, format=format, skip_empty=True)
        for path in paths
    ]
    return TextFile(
        name=", ".join(file.name for file in files),
        texts=tuple(text for file in files for text in file.texts),
        notes=tuple(note for file in files for note in file.notes),
        warnings=tuple(warning for file in files for warning in file.warnings),
    )


def _load_compressed(path: str | Path, format: Format | None) -> TextFile:
    if not Path(path).name.lower().endswith(".txt.gz"):
        raise DataError(f"expected compressed texts to be a .txt.gz file with one per line, got {path}")
    return texts_of_lines(path, format, skip_empty=True)
