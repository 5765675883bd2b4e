"""The words of results: every template is used, and names what there is; all of them are read in review as one file.

python -m tests.results.test_words writes `words.txt`: what a terminal and a page say of every case.
"""

import html
import re
import string
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import layerprobe
from layerprobe.results import words
from layerprobe.results.conclusion import Conclusion, Fact, Verdict
from layerprobe.results.document import render
from tests.report.test_shown import CASES
from tests.shown import assert_shows_itself

from .contract import UNFINISHED, assert_keeps_contract, texts
from .variants import RARE, VARIANTS

ROOT = Path(layerprobe.__file__).parents[1]
SNAPSHOT = Path(__file__).parent / "words.txt"
OF_CHOICE = {"kept", "blocks", "which", "left", "candidates"}
"""Names of templates that are of a `Choice`."""


def templates(section: object = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Yield each clause of `words.toml` with the place of its template."""
    section = words._words() if section is None else section
    if isinstance(section, str):
        yield ".".join(path), section
    elif isinstance(section, dict):
        for name, value in section.items():
            if name not in ("by_sign", "title"):
                yield from templates(value, (*path, name))
    elif isinstance(section, list):
        yield from chain.from_iterable(templates(clause, path) for clause in section)


def of_section(place: str, section: str) -> bool:
    """Return whether the place of a template is in a section."""
    return place == section or place.startswith(f"{section}.")


@cache
def conclusions() -> dict[str, Conclusion]:
    """Return what every case says."""
    return {kind: make().conclusion for kind, make in (CASES | VARIANTS).items()}


def test_nothing_is_recommended_by_a_prediction_that_could_not_be_made() -> None:
    table = VARIANTS["predict: unread"]().table
    assert {*table.column("flag").values} | {*table.marks} == {None}


def test_every_template_is_used_by_a_case_or_named_as_rare() -> None:
    used: set[str] = set()
    fill = words._filled

    def filled(template: words.Template, values: dict[str, object]) -> str:
        used.update(
            clause for clause in ([template] if isinstance(template, str) else template) if fill(clause, values)
        )
        return fill(template, values)

    with patch.object(words, "_filled", filled):
        for conclusion in conclusions().values():
            list(texts(conclusion))
    unused = [(place, clause) for place, clause in templates() if clause and clause not in used]
    assert [one for one in unused if not any(of_section(one[0], section) for section in RARE)] == []
    places = [place for place, _ in templates()]
    assert [section for section in RARE if not any(of_section(place, section) for place in places)] == []


class AnyFact(dict[str, Any]):
    """A number with all that a fact can have, for every name of a template."""

    def __missing__(self, name: str) -> Any:
        fact = Fact(value=3, unit="count", split="test", interval=(2, 4), level=0.95, over=("900 pairs", "3 seeds"))
        about = Conclusion(kind="find", case="cut", verdict=Verdict.DECIDED, facts={"fact": fact})
        return words._values(about)["fact"]


@pytest.mark.parametrize("section", RARE)
def test_a_rare_template_can_be_filled(section: str) -> None:
    for place, clause in templates():
        if of_section(place, section):
            filled = words._FIELD.sub(lambda field: words._written(AnyFact()[field[1]], field[2]), clause)
            assert not UNFINISHED.search(filled.strip(" ,;:.")), clause


@cache
def constants() -> set[str]:
    """Return the texts and the names of arguments that stand in the library and the command line."""
    sources = [*(ROOT / "layerprobe").rglob("*.py"), *(ROOT / "cli").rglob("*.py")]
    written = (re.findall(r'"([^"\n]+)"|\b(\w+)=', source.read_text("utf-8")) for source in sources)
    return set(chain.from_iterable(chain.from_iterable(written)))


def test_what_templates_name_is_given_by_the_library() -> None:
    fields = {name for _, clause in templates() for _, name, *_ in string.Formatter().parse(clause) if name}
    names = {name.removesuffix(" shown").removesuffix(" open") for name in fields}
    assert names - OF_CHOICE - constants() == set()


def test_kinds_checks_and_steps_are_used_by_the_library() -> None:
    toml = words._words()
    named = set().union(*(toml[section] for section in ("tiles", "checks", "steps"))) | set(toml) - {"any"}
    made = {f"search {stop}" for stop in ("settled", "gain", "seeds", "budget", "goes on")}
    assert named - constants() - made - {"by_sign"} == set()


_DROPPED = re.compile(
    r"<(script|style|noscript|table|button|nav|dl|h1|pre|label)\b.*?</\1>|<div class=\"tiles.*?</div>|"
    r"<p class=\"(pill|overline).*?</p>",
    re.DOTALL,
)
READ = [kind for kind in (CASES | VARIANTS) if "hostile" not in kind and kind != "several tuned"]


DIFFERS = "python -m tests.results.test_words, and read what differs"


def written(kind: str, page: str = "") -> str:
    """Return what a terminal shows of a case, and below what its page says besides; of a variant its texts alone."""
    if kind in VARIANTS:
        return "\n".join((f"==== {kind}", *filter(None, texts(conclusions()[kind])), ""))
    result = CASES[kind]()
    body = (page or render(result, plotly="cdn")).partition("<main")[2].partition("</main>")[0].partition(">")[2]
    lines = re.sub(r"</?(h\d|p|li|figcaption|summary|small)\b[^>]*>", "\n", _DROPPED.sub("", body))
    text = html.unescape(re.sub(r"<[^>]*>", "", lines)).replace("\u00a0", " ")
    on_page = (" ".join(line.split()) for line in text.split("\n"))
    return "\n".join((f"==== {kind}", str(result), "----", *filter(None, on_page), ""))


@pytest.mark.parametrize("kind", CASES)
def test_a_result_shows_itself_keeps_the_contract_and_says_what_was_read_in_review(kind: str, tmp_path: Path) -> None:
    result = CASES[kind]()
    page = assert_shows_itself(result, tmp_path)
    assert_keeps_contract(result, extra=2 * (kind == "several tasks"), long_names="hostile" in kind, is_read=False)
    assert kind not in READ or written(kind, page) in SNAPSHOT.read_text("utf-8"), DIFFERS


@pytest.mark.parametrize("kind", VARIANTS)
def test_a_variant_keeps_the_contract_and_says_what_was_read_in_review(kind: str) -> None:
    assert_keeps_contract(VARIANTS[kind](), long_names=True)
    assert written(kind) in SNAPSHOT.read_text("utf-8"), DIFFERS


if __name__ == "__main__":
    SNAPSHOT.write_text("\n".join(written(kind) for kind in READ), "utf-8")
