"""Measures by name: in JSON, and nowhere else in the code."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from layerprobe.errors import DataError
from layerprobe.files.serialisation import from_json, to_dict
from layerprobe.similarity.measures import CKA, SVCCA, MutualKNN, Procrustes
from layerprobe.similarity.values import MEASURES, Measure, measure_class
from tests.plugins import install
from tests.similarity.beside_cka import BESIDE_CKA
from tests.sources import FILES, ROOT

SETTINGS: list[tuple[dict[str, Any], Measure]] = [
    ({"name": "cka", "kernel": "linear", "estimator": "biased"}, CKA(estimator="biased")),
    (
        {"name": "cka", "kernel": "rbf", "estimator": "debiased", "bandwidth_multiplier": 0.5, "normalize": "zscore"},
        CKA(kernel="rbf", bandwidth_multiplier=0.5, normalize="zscore"),
    ),
    ({"name": "mutual-knn", "neighbours": 7}, MutualKNN(neighbours=7)),
    ({"name": "procrustes"}, Procrustes()),
]


@pytest.mark.parametrize(("settings", "measure"), SETTINGS)
def test_measures_are_read_by_name(settings: dict[str, Any], measure: Measure) -> None:
    assert from_json(Measure, json.dumps(settings)) == measure


def test_titles_say_what_is_not_by_default() -> None:
    titles = [
        measure.title
        for measure in (SVCCA(), SVCCA(variance=1), CKA(kernel="rbf"), CKA(kernel="rbf", bandwidth_multiplier=0.5))
    ]
    assert titles == [
        "SVCCA",
        "SVCCA (100 % of the variance)",
        "debiased RBF CKA",
        "debiased RBF CKA (bandwidth x 0.5)",
    ]


def test_json_has_the_name_and_the_settings_of_a_measure_alone() -> None:
    assert to_dict(MutualKNN()) == {"name": "mutual-knn", "normalize": "raw", "neighbours": 10}
    assert to_dict(Procrustes(normalize="zscore")) == {"name": "procrustes", "normalize": "zscore"}
    rbf = {"kernel": "rbf", "estimator": "debiased", "bandwidth_multiplier": 1.0}
    assert to_dict(CKA(kernel="rbf")) == {"name": "cka", "normalize": "raw", **rbf}
    assert to_dict(CKA()) == {"name": "cka", "kernel": "linear", "normalize": "raw", "estimator": "debiased"}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "expected the name of a measure, got None"),
    ({"name": "cka", "kernel": "rbf", "bandwidth_multiplier": -1.0}, "expected a positive finite number such as 1.0"),
    (
        {"name": "cka", "kernel": "rbf", "neighbours": 3},
        "unknown key neighbours, expected normalize, kernel, estimator, bandwidth_multiplier",
    ),
    (
        {"name": "cka", "kernel": "linear", "bandwidth_multiplier": 1.0},
        "expected no bandwidth with the linear kernel, got 1.0: use --kernel rbf",
    ),
    ({"name": "cka", "kernel": "cosine"}, 'expected kernel to be one of linear, rbf, got "cosine"'),
    ({"name": "cka", "estimator": "unbiased"}, 'expected estimator to be one of debiased, biased, got "unbiased"'),
    (
        {"name": "procrustes", "kernel": "rbf", "estimator": "biased"},
        "unknown key kernel, estimator, expected normalize",
    ),
    ({"name": "procrustes", "range": 3}, "unknown key range, expected normalize"),
    ({"name": "procrustess"}, "expected a measure, one of cka, .*, got 'procrustess'; did you mean 'procrustes'"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_json(Measure, json.dumps(settings))


def test_what_another_package_registers_is_a_measure_of_that_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = "from layerprobe.similarity.measures import Procrustes\nclass Toy: name = 'toy'"
    install(monkeypatch, tmp_path, MEASURES, source, {"toy": "Toy", "other": "Procrustes"})
    for name, kind in (("toy", "toy_plugin:Toy"), ("other", "layerprobe.similarity.measures:Procrustes")):
        with pytest.raises(DataError, match=f"expected {kind} to be a Measure with the name '{name}'"):
            measure_class(name)
    monkeypatch.undo()
    MEASURES.reload()


def test_a_measure_is_named_in_its_module_and_its_row_alone() -> None:
    """Strings, docstrings left out, and names: a new measure needs no line elsewhere."""
    words = [*BESIDE_CKA, *(re.escape(measure_class(name).__name__) for name in BESIDE_CKA)]
    named = re.compile(rf"\b({'|'.join(words)})\b")
    places = {
        file.relative_to(ROOT).as_posix()
        for file in FILES
        if named.search(text := file.read_text("utf-8")) and any(map(named.search, _said(ast.parse(text))))
    }
    assert places == {"layerprobe/similarity/values.py", "layerprobe/similarity/measures.py"}


def _said(tree: ast.Module) -> list[str]:
    """Strings that are not docstrings, and identifiers."""
    docstrings = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    strings = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    ]
    return strings + [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
