"""The first figure of a page as a file of its own."""

import importlib.util
from pathlib import Path
from typing import Any, NoReturn

import plotly.graph_objects as go
import pytest

import layerprobe as lp
from layerprobe.checks import EXTRAS
from layerprobe.errors import MissingPackageError

from .test_shown import across


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What plotly was asked to draw, in place of a browser that draws it."""
    calls: list[dict[str, Any]] = []

    def to_image(figure: go.Figure, **how: Any) -> bytes:
        calls.append({"figure": figure, **how})
        return b"image"

    monkeypatch.setattr(go.Figure, "to_image", to_image)
    monkeypatch.setitem(EXTRAS, "figures", ())
    return calls


@pytest.mark.parametrize("name", ["figure.png", "figure.SVG", "figure.pdf"])
def test_a_file_named_as_a_figure_is_the_one_that_plot_returns(
    name: str, tmp_path: Path, drawn: list[dict[str, Any]]
) -> None:
    result = across()
    assert lp.save(result, tmp_path / name).read_bytes() == b"image"
    assert drawn[0]["format"] == name.lower()[-3:]
    assert drawn[0]["figure"].to_json() == result.plot().to_json()


def test_without_kaleido_or_a_browser_it_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_browser(*words: Any, **how: Any) -> NoReturn:
        raise RuntimeError("\n\nKaleido requires Google Chrome to be installed.\n")

    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "kaleido" else find_spec(name))
    with pytest.raises(MissingPackageError, match=r"needs kaleido, .*: pip install 'layerprobe\[figures\]'$"):
        lp.save(across(), tmp_path / "figure.png")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: find_spec("json" if name == "kaleido" else name))
    monkeypatch.setattr(go.Figure, "to_image", no_browser)
    with pytest.raises(
        MissingPackageError, match=r"^cannot draw a figure as \.png: found no Chrome or Chromium that starts"
    ):
        lp.save(across(), tmp_path / "figure.png")
    assert list(tmp_path.iterdir()) == []


def test_a_browser_draws_it(tmp_path: Path) -> None:
    pytest.importorskip("kaleido", reason="kaleido is not installed")
    try:
        written = lp.save(across(), tmp_path / "figure.svg")
    except MissingPackageError as error:
        pytest.skip(str(error))
    assert b"<svg" in written.read_bytes()
