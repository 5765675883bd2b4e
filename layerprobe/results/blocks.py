"""Which blocks of a model stay, as a strip: in a line of a terminal, and as a small picture. Knows blocks alone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from layerprobe.results.markup import Markup, element
from layerprobe.results.numbers import layer_range

_SIGNS = {"kept": "■#", "undecided": "▨?", "cut": "□."}
"""A sign of Unicode and one of ASCII."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The blocks of a model, from 1: kept, undecided or cut."""

    n: int
    """How many there are."""
    kept: Collection[int]
    undecided: Collection[int] = field(default=())
    """Blocks of which it is open whether they should stay; they count before kept."""

    @classmethod
    def upto(cls, n: int, layer: int, candidates: Collection[int] = ()) -> Blocks:
        """Return the blocks of a model that is truncated at a layer, where each of the candidates may be the best."""
        low, high = min((layer, *candidates)), max((layer, *candidates))
        return cls(n=n, kept=range(1, layer + 1), undecided=range(low + 1, high + 1))

    def state(self, block: int) -> str:
        """Return kept, undecided or cut."""
        return "undecided" if block in self.undecided else "kept" if block in self.kept else "cut"

    def text(self, encoding: str = "utf-8") -> str:
        """Return the strip as a line, in ASCII where an encoding lacks the signs.

        Examples:
            >>> blocks = Blocks.upto(8, 4, (3, 5))
            >>> print(blocks.text())
            ■■■▨▨□□□ 4 of 8 blocks kept; blocks 4 to 5 are undecided
            >>> blocks.text("ascii")[:8]
            '###??...'
        """
        try:
            plain = not "".join(_SIGNS.values()).encode(encoding)
        except (UnicodeError, LookupError):
            plain = True
        return f"{''.join(_SIGNS[self.state(block)][plain] for block in range(1, self.n + 1))} {self.caption}"

    @property
    def caption(self) -> str:
        """How many blocks are kept, and which of them, or of those that go, are undecided."""
        count = f"all {self.n}" if len(self.kept) == self.n > 1 else f"{len(self.kept)} of {self.n}"
        return f"{count} blocks kept" + (
            f"; block{'s' * (len(self.undecided) > 1)} {layer_range(sorted(self.undecided)).replace('–', ' to ')} "
            f"{'are' if len(self.undecided) > 1 else 'is'} undecided"
            if self.undecided
            else ""
        )

    def svg(self) -> Markup:
        """Return the strip as a picture with its legend."""
        step = 14
        drawn = (
            element(
                "rect",
                x=str(step * place),
                y="0",
                width=str(step - 2),
                height="18",
                rx="2",
                class_=self.state(place + 1),
            )
            for place in range(self.n)
        )
        width = str(step * self.n)
        picture = element(
            "svg", *drawn, viewBox=f"0 0 {width} 18", width=width, height="18", role="img", aria_label=self.caption
        )
        return element("p", picture, " ", element("span", f"{self.caption}."), class_="strip")
