"""Names of models in sentences, plots and progress, and suggestions for misspelt names. Knows names only."""

import difflib
import math
import posixpath
import re
from collections.abc import Iterable, Sequence

from layerprobe.errors import shortened

_GENERIC = re.compile(r"model|checkpoint(-\d+)?|best|final|output", re.IGNORECASE)


def plural(noun: str) -> str:
    """Return the plural of a noun.

    Examples:
        >>> plural("text"), plural("query")
        ('texts', 'queries')
    """
    return f"{noun[:-1]}ies" if re.search("[^aeiou]y$", noun) else f"{noun}s"


def counted(n: int, noun: str) -> str:
    """Return a number with its noun: `3 seeds`.

    Examples:
        >>> counted(1, "text"), counted(2000, "text")
        ('1 text', '2,000 texts')
    """
    return f"{n:,} {noun if n == 1 else plural(noun)}"


def percentage(level: float) -> str:
    """Return a confidence level in percent with all of its digits: rounding could claim certainty.

    Examples:
        >>> percentage(0.95), percentage(0.975), percentage(0.9999)
        ('95 %', '97.5 %', '99.99 %')
    """
    return f"{100 * level:.12g} %"


def format_distinct(value: float, other: float, digits: int, sign: str = "") -> str:
    """Return a number with `digits` decimals, or as many as show on which side of `other` it lies.

    Examples:
        >>> format_distinct(60.0284, 60.03, 2), format_distinct(1.04, 1.0, 1), format_distinct(1.0, 1.0, 1)
        ('60.028', '1.04', '1.0')
    """

    def side(number: float) -> int:
        return (number > other) - (number < other)

    is_same = math.isclose(value, other, abs_tol=1e-9)  # a rounding error apart
    while side(float(written := f"{value:{sign}z.{digits}f}")) != side(value) and not is_same:
        digits += 1
    return written


MANY_TIMES = 40.0
"""Speed-up above which only this lower limit is reported: overhead of each call then dominates the faster one."""


def times_as_fast(speed: tuple[float, float, float]) -> str:
    """Return a speed-up, the median with its range, to the digits that are known.

    Examples:
        >>> times_as_fast((1.93, 1.86, 1.95)), times_as_fast((2.4, 1.1, 3.9)), times_as_fast((1.1, 0.9, 1.3))
        ('1.93 times as fast [1.86 to 1.95]', '2 times as fast [1 to 4]', 'about as fast [0.9 to 1.3 times]')
        >>> times_as_fast((281.7, 23.5, 300.0)), times_as_fast((90.0, 60.0, 95.0))
        ('more than 23 times as fast', 'more than 40 times as fast')
    """
    value, low, high = speed
    digits = 0 if high - low >= 2 else 1 if high - low >= 0.1 else 2
    if value > MANY_TIMES:
        least = min(low, MANY_TIMES)
        return f"more than {math.floor(10**digits * least) / 10**digits:.{digits}f} times as fast"
    ends = f"{low:.{digits}f} to {'more than ' if high > MANY_TIMES else ''}{min(high, MANY_TIMES):.{digits}f}"
    return f"about as fast [{ends} times]" if low <= 1 <= high else f"{value:.{digits}f} times as fast [{ends}]"


def some(names: Sequence[object], most: int = 5, *, between: str = ", ") -> str:
    """Return the first few names, with dots where there are more; long names lose their middle.

    Examples:
        >>> some(["a", "b"]), some([1, 2, 3], 2)
        ('a, b', '1, 2, ...')
    """
    words = [shortened(str(name), 200) for name in names[:most]]
    return between.join(words if len(names) <= most else [*words, "..."])


def quoted(value: object, most: int = 80) -> str:
    r"""Return a value from a file as messages quote it: on one line, escaped, and shortened in the middle.

    Examples:
        >>> quoted("a\nb"), quoted("a" * 100, 12)
        ("'a\\nb'", "'aaaaaaa ... aa'")
    """
    return shortened(repr(value), most)


def listed(things: Sequence[object], word: str = "and") -> str:
    """Return things as a list in words, with a word before the last one.

    Examples:
        >>> listed(["a"]), listed([4, 5, 6], "or")
        ('a', '4, 5 or 6')
    """
    *others, last = map(str, things)
    return f"{', '.join(others)} {word} {last}" if others else last


def is_generic(name: str) -> bool:
    """Return whether a folder's name does not identify the model in it.

    Examples:
        >>> is_generic("checkpoint-500"), is_generic("electra-500")
        (True, False)
    """
    return _GENERIC.fullmatch(name) is not None


def short_name(name: str) -> str:
    """Return a model's name without organisation or folder; generic names keep their folder.

    Examples:
        >>> short_name("google/electra-base-discriminator")
        'electra-base-discriminator'
        >>> short_name("runs/electra/checkpoint-500")
        'electra/checkpoint-500'
    """
    *before, last = re.split(r"(?<=\w)[/\\](?=\w)", name.rstrip("/\\"))
    parent = re.split(r"[/\\]", before[-1])[-1] if before else ""
    return f"{parent}/{last}" if parent and is_generic(last) else last


def distinct_names(names: Sequence[str]) -> list[str]:
    """Return names without organisation or folder; full names where two would be equal, paths without
    their common beginning.

    Examples:
        >>> distinct_names(["google/bert", "FacebookAI/roberta-base", "old/bert-tiny", "new/bert-tiny"])
        ['google/bert', 'FacebookAI/roberta-base', 'old/bert-tiny', 'new/bert-tiny']
        >>> distinct_names(["/home/me/old/bert", "/home/me/new/bert"])
        ['old/bert', 'new/bert']
    """
    short = [short_name(name) for name in names]
    if len(set(short)) == len(set(names)):
        return short
    shared = f"{posixpath.commonpath(names)}/" if all(name.startswith("/") for name in names) else ""
    return [name.removeprefix(shared) for name in names]


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a question with the closest name, to end a message about a misspelt one; empty if none is close.

    Examples:
        >>> nearest("fall of inofnce", ["fall of InfoNCE", "plateau of CKA"])
        "; did you mean 'fall of InfoNCE'?"
        >>> nearest("fall", ["plateau of CKA"])
        ''
    """
    lower = {candidate.lower(): candidate for candidate in names}
    near = difflib.get_close_matches(str(name)[:80].lower(), lower, n=1)
    return f"; did you mean {lower[near[0]]!r}?" if near else ""


def without_password(text: str) -> str:
    """Return a text without the user and the password of its addresses.

    Examples:
        >>> without_password("cannot reach https://me:secret@hub.example/api")
        'cannot reach https://hub.example/api'
    """
    return re.sub(r"(?<=://)[^/?#\s]*@", "", text)
