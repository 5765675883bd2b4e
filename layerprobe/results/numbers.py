"""Numbers and names in the typography of a page. Knows no HTML and no plots."""

import re
from collections.abc import Iterable

LABEL_LENGTH = 30
"""Longest model name in a plot; longer ones are cut."""


def number(value: float, digits: int = 2) -> str:
    """Return a number with a true minus sign; what rounds to 0 has none."""
    return f"{value:z.{digits}f}".replace("-", "−")


def typeset(cell: str) -> str:
    r"""Return a cell of a table with true minus signs and non-breaking units; an empty cell becomes a dash.

    Examples:
        >>> typeset("-0.50"), typeset("12 %"), typeset("")
        ('−0.50', '12\xa0%', '–')
    """
    return re.sub(r"(?<=\d) (?=M\b)", "\u00a0", typeset_text(cell)) or "–"


def typeset_text(plain: str) -> str:
    r"""Return a sentence with true minus signs, non-breaking percent signs, and × 100.

    Examples:
        >>> typeset_text("R2 x 100 is -0.5 (95 % -1.0 to 0.0) of all-MiniLM-L6-v2")
        'R2 × 100 is −0.5 (95\xa0% −1.0 to 0.0) of all-MiniLM-L6-v2'
    """
    signs = re.sub(r"(?<![\w.\-])-(?=[\d.])", "−", plain)
    return re.sub(r"\bx 100\b", "× 100", re.sub(r"(?<=\d) ?%(?![\w{(])", "\u00a0%", signs))


def percent(share: float) -> str:
    """Return a share of 0 .. 1 in percent, with a non-breaking space."""
    return f"{number(100 * share, 1).removesuffix('.0')}\u00a0%"


def label(name: str) -> str:
    """Return a name that fits into a plot; a long name loses its middle."""
    half = LABEL_LENGTH // 2
    return name if len(name) <= LABEL_LENGTH else f"{name[:half]}…{name[-half + 1 :]}"


def labels(names: Iterable[str]) -> list[str]:
    """Return names that fit into a plot; names that would become equal are not cut."""
    names = list(names)
    cut = [label(name) for name in names]
    same = {
        shortened
        for shortened in cut
        if len({name for name, one in zip(names, cut, strict=True) if one == shortened}) > 1
    }
    return [name if shortened in same else shortened for name, shortened in zip(names, cut, strict=True)]


def capitalised(text: str) -> str:
    """Return a text with its first letter capitalised."""
    return text[:1].upper() + text[1:]
