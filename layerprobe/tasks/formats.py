"""Format of a delimited file: encoding, delimiter, decimal mark and header. Knows no columns."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from layerprobe.errors import DataError
from layerprobe.files.inputs import open_measured

DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
"""Usual delimiters by name; these are detected."""
_SAMPLE = 2**18
_MARKS = ((codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
# What no text has; ISO 2022 has the escape.
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """Format of a file; fields that are None are detected."""

    delimiter: str | None = None
    """comma, semicolon, tab, pipe, or any other single character."""
    encoding: str | None = None
    """Python's name of the encoding: utf-8, utf-16, cp1252 and so on."""
    decimal: Literal[".", ","] | None = None
    """Decimal mark of numbers; with a point, commas between digits group thousands."""
    quotes: bool | None = None
    """Whether fields can be in quotes, as in RFC 4180; otherwise a `"` is text."""
    header: bool | None = None
    """Whether the first row names the columns."""

    def __post_init__(self) -> None:
        if self.delimiter is not None and (len(self.mark) != 1 or self.mark in '"\r\n\0'):
            raise DataError(f"expected the delimiter {', '.join(DELIMITERS)} or one character, got {self.delimiter!r}")
        if self.decimal not in (None, ".", ","):
            raise DataError(f"expected the decimal mark '.' or ',', got {self.decimal!r}")
        if self.encoding is not None:
            try:
                "".encode(self.encoding)
            except (LookupError, ValueError) as error:
                raise DataError(
                    f"expected the name of an encoding such as utf-8, utf-16 or cp1252, got {self.encoding[:40]!r}"
                ) from error

    @classmethod
    def of(cls, value: Format | str | None) -> Format:
        """Return a format from a format, or from a text such as on the command line."""
        return cls(**cls.fields_in(value)) if isinstance(value, str) else value or cls()  # type: ignore[arg-type]

    @classmethod
    def fields_in(cls, text: str) -> dict[str, str | bool]:
        """Return the fields in a text such as delimiter=;,decimal=,.

        Examples:
            >>> Format.fields_in("delimiter=;,decimal=,,header=no")
            {'delimiter': ';', 'decimal': ',', 'header': False}

        Raises:
            DataError: If the text is invalid.
        """
        names, switches = [field.name for field in fields(cls)], {"yes": True, "no": False}
        values: dict[str, str | bool] = {}
        for part in re.split(rf",(?=(?:{'|'.join(names)})=)", text):
            key, equals, value = part.partition("=")
            of_switch = key in ("quotes", "header")
            if key not in names or not (equals and value) or (of_switch and value not in switches):
                raise DataError(
                    f"expected KEY=VALUE with the key {', '.join(names)}, the last two yes or no, got {part!r}"
                )
            values[key] = switches[value] if of_switch else value
        return values

    @property
    def mark(self) -> str:
        """The delimiter itself; empty if it has to be detected."""
        return DELIMITERS.get(self.delimiter or "", self.delimiter or "")

    @property
    def delimiter_name(self) -> str:
        """The delimiter, for messages."""
        return next((name for name, mark in DELIMITERS.items() if mark == self.mark), repr(self.mark))


def find_encoding(path: Path) -> str:
    """Return the encoding of a text file; utf-8 also if none is detected, so that reading fails.

    A byte order mark decides first, then whether all of the file is UTF-8; for other files, chardet decides from the
    lines that are not ASCII. A file that is mostly UTF-8 counts as damaged UTF-8.

    Raises:
        DataError, OSError: As in `open_measured`.
    """
    sample, whole = b"", True
    with open_measured(path) as file:
        for number, line in enumerate(file):
            mark = next((name for mark, name in _MARKS if not number and line.startswith(mark)), None)
            if mark is not None:
                return mark
            if line.isascii():
                continue
            whole = whole and _is_utf8(line)
            if len(sample) < _SAMPLE:
                sample += line[:_SAMPLE]
            elif not whole:
                break
    if whole or _BINARY.search(sample) or _is_damaged_utf8(sample):
        return "utf-8"
    import chardet

    # with few letters, chardet prefers encodings of today to those of DOS
    detected = chardet.detect(sample, encoding_era=chardet.EncodingEra.MODERN_WEB, prefer_superset=True)
    try:
        name = codecs.lookup(detected["encoding"] or "utf-8").name
    except LookupError:
        return "utf-8"
    # bytes without text in ISO 8859 are typographic signs in Windows, so that name is better if both read the same
    return "cp1252" if sample.decode("cp1252", "replace") == sample.decode(name, "replace") else name


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_damaged_utf8(data: bytes) -> bool:
    """Return whether there are at least as many characters as stray bytes, or only lone surrogates are wrong."""
    try:
        data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        text = data.decode("utf-8", "surrogateescape")
        stray = sum("\udc80" <= character <= "\udcff" for character in text)
        return sum(not character.isascii() for character in text) >= 2 * stray
    return True
