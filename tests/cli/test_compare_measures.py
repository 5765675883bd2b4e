"""A measure of another package, through the command line."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from layerprobe.comparison.values import Comparisons
from layerprobe.files.serialisation import from_json, to_dict
from layerprobe.results.shown import read_result
from layerprobe.similarity.values import MEASURES
from tests.plugins import install
from tests.report.test_page import Page

from .conftest import Layerprobe, Pair

SOURCE = '''
from dataclasses import dataclass

import numpy as np

from layerprobe.similarity.values import LayerMeasure


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths(LayerMeasure[np.ndarray]):
    """How alike the lengths of rows are, in the p-norm."""

    name = "lengths"
    short_name = "length correlation"
    source = "made up"
    range = (-1.0, 1.0)
    symmetric = True
    invariances = frozenset({"isotropic-scaling", "permutation", "orthogonal"})

    neighbours: int = 2
    """p; an option of the command line has this name."""

    def prepare(self, layer, *, name):
        return np.linalg.norm(np.asarray(layer, dtype=np.float64), ord=self.neighbours, axis=1)

    def compare(self, first, second):
        return float(np.corrcoef(first, second)[0, 1])
'''


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    folder = tmp_path / "package"
    folder.mkdir()
    install(monkeypatch, folder, MEASURES, SOURCE, {"lengths": "Lengths"})
    yield
    monkeypatch.undo()
    MEASURES.reload()


@pytest.mark.slow
@pytest.mark.usefixtures("toy")
def test_a_measure_of_another_package(pair: Pair, pairs_file: Path, tmp_path: Path) -> None:
    def layerprobe(*arguments: str | Path) -> str:
        command = [sys.executable, "-m", "layerprobe_cli.main", "compare", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    given = (*pair, "-t", pairs_file, "--cache-dir", tmp_path / "cache", "--measure", "lengths")
    assert "lengths" in layerprobe("--help")
    table = layerprobe(*given, "--normalize", "zscore").splitlines()
    assert "length correlation of z-scored features" in table[-1]

    text = layerprobe(*given, "--neighbours", "1", "--json", "--parquet", tmp_path / "map.parquet")
    comparisons = read_result(text)
    (comparison,) = comparisons.comparisons
    assert to_dict(comparison.map.measure) == {"name": "lengths", "normalize": "raw", "neighbours": 1}
    assert json.loads(text)["comparisons"][0]["map"]["measure"]["name"] == "lengths"
    errors = comparison.curve.uncertainty
    assert errors is not None
    assert min(np.subtract(errors.upper, errors.lower)) > 0
    rows = pd.read_parquet(tmp_path / "map.parquet")
    assert (set(rows.measure), set(rows.neighbours)) == ({"lengths"}, {1})
    np.testing.assert_array_equal(rows.value, np.ravel(comparison.map.values))


def test_help_names_every_measure(layerprobe: Layerprobe) -> None:
    shown = layerprobe("compare", "--help").out
    assert all(name in shown for name in MEASURES)
    assert "{measures}" not in shown


def test_an_option_goes_to_those_of_several_measures_that_have_it(
    layerprobe: Layerprobe, pair: Pair, pairs_file: Path, tmp_path: Path
) -> None:
    page, rows = tmp_path / "compared.html", tmp_path / "map.parquet"
    several = ("--measure", "cka", "--measure", "mutual-knn", "--kernel", "rbf", "--neighbours", "3")
    done = layerprobe("compare", *pair, "-t", pairs_file, *several, "--json", "--report", page, "--parquet", rows)
    cka, knn = (from_json(Comparisons, json.dumps(each)).comparisons[0].map for each in done.json)
    assert to_dict(cka.measure)["kernel"] == "rbf"
    assert to_dict(knn.measure)["neighbours"] == 3
    assert set(pd.read_parquet(rows).measure) == {"cka", "mutual-knn"}
    read = Page(page.read_text())
    figures = json.loads(read.data("figures")).values()
    assert [figure["layout"]["yaxis"]["title"]["text"] for figure in figures] == [
        "Debiased RBF CKA with the reference",
        *("Layer of electra",) * 2,
        "Mutual kNN (k = 3) with the reference",
        "Layer of electra",
    ]
    output = layerprobe("compare", *pair, "-t", pairs_file, *several).out
    assert output.index("CKA") < output.index("mutual kNN")
