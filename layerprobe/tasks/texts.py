"""Cleans texts that would break a tokenizer or a pooling. Knows characters, not files."""

import re
from dataclasses import dataclass

MAX_CHARACTERS = 100_000

# Control characters but tab and line ends, and lone surrogates, which no UTF-8 can hold.
_UNUSABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(slots=True)
class Cleaner:
    """Cleans texts one by one and counts what it changed."""

    with_control: int = 0
    """Texts in which control characters became a space."""
    cut: int = 0
    """Texts cut to `MAX_CHARACTERS`."""
    empty: int = 0
    """Pairs or texts dropped because nothing but white space was in them."""

    def clean(self, text: str) -> str:
        r"""Return the text without control characters and not longer than `MAX_CHARACTERS`.

        Examples:
            >>> Cleaner().clean("a\x00b")
            'a b'
        """
        cleaned = _UNUSABLE.sub(" ", text)
        self.with_control += cleaned != text
        self.cut += len(cleaned) > MAX_CHARACTERS
        return cleaned[:MAX_CHARACTERS]

    def keeps(self, *texts: str) -> bool:
        """Return whether none of the texts is empty or white space; count it where one is."""
        whole = all(text.strip() for text in texts)
        self.empty += not whole
        return whole

    def warnings(self, source: str, unit: str) -> tuple[str, ...]:
        """Return what was changed, in plain words; `unit` is what is dropped, such as pair."""
        changes = (
            (self.empty, f"dropped {count(self.empty, unit)} with an empty text"),
            (self.with_control, f"replaced control characters by a space in {count(self.with_control, 'text')}"),
            (self.cut, f"cut {count(self.cut, 'text')} to {MAX_CHARACTERS:,} characters"),
        )
        return tuple(f"{source}: {change}" for n, change in changes if n)


def count(n: int, unit: str) -> str:
    """Return a number with its noun.

    Examples:
        >>> count(1, "text"), count(2000, "text")
        ('1 text', '2,000 texts')
    """
    return f"{n:,} {unit}{'' if n == 1 else 's'}"
