"""`layerprobe find` of several models: one answer, the same files, and what is wrong in one line."""

from pathlib import Path

from layerprobe.results import words
from layerprobe.results.shown import read_result

from .conftest import QUICK, Layerprobe, Pair


def test_it_names_model_and_layer_and_what_comes_next(
    layerprobe: Layerprobe, pair: Pair, pairs_file: Path, tmp_path: Path
) -> None:
    page = tmp_path / "found.html"
    command = ("find", *pair, "-t", pairs_file, "--name", "ours", *QUICK)
    done = layerprobe(*command, "--report", page)
    assert done.code == 0, done.err
    assert done.err.count("They share this budget") == 1
    result = read_result(layerprobe(*command, "--json").out)
    assert [each.model.name for each in result.models] == ["ours", str(pair[1])]
    answer, table, last = done.out.split("\n\n")
    assert answer.startswith(words.headline(result.conclusion))
    rows = table.splitlines()
    assert rows[0].split()[:3] == ["model", "keep", "expected"]
    assert sum(line.split()[0] in result.labels for line in rows[1:]) == sum(
        one.model.n_layers for one in result.models
    )
    assert words.cost(result.conclusion) in last
    final = done.commands[0]
    assert final[:3] == ["find", *map(str, pair)]
    assert final[-1] == "--final"
    assert "--name" in final
    assert words.headline(result.conclusion) in page.read_text(encoding="utf-8")
