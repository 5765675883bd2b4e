"""What every page says, in one file that is read in review: `python -m tests.report.test_snapshot` writes it."""

import html
import re
from pathlib import Path

import pytest

from layerprobe.results.document import render

from .test_shown import CASES

FILE = Path(__file__).parent / "pages.txt"
KINDS = [kind for kind in CASES if "hostile" not in kind and kind not in ("tiny", "25 layers")]
_DROPPED = re.compile(r"<(script|style|noscript|table|button|nav|dl)\b.*?</\1>", re.DOTALL)


def told(kind: str) -> str:
    """Return the text of a page below its name: headings, sentences, captions; no tables and no glossary."""
    body = render(CASES[kind](), plotly="cdn").partition("<main")[2].partition("</main>")[0]
    lines = re.sub(r"</?(h\d|p|li|figcaption|summary|pre)\b[^>]*>", "\n", _DROPPED.sub("", body))
    text = html.unescape(re.sub(r"<[^>]*>", "", lines)).replace("\u00a0", " ")
    written = [" ".join(line.split()) for line in text.split("\n")[1:]]
    return "\n".join((f"==== {kind}", *filter(None, written), ""))


def test_every_page_says_what_was_read_in_review() -> None:
    snapshot = FILE.read_text(encoding="utf-8")
    assert re.findall(r"^==== (.*)$", snapshot, re.MULTILINE) == KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_says_what_was_read_in_review(kind: str) -> None:
    assert told(kind) in FILE.read_text(encoding="utf-8"), "write pages.txt again, and read what differs"


if __name__ == "__main__":
    FILE.write_text("\n".join(map(told, KINDS)), encoding="utf-8")
