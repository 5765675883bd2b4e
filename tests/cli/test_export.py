from pathlib import Path

from huggingface_hub import ModelCard

import layerprobe as lp
from layerprobe.results import words
from tests.export.judges import read_layout

from .conftest import QUICK, Layerprobe, Outcome, Pair


def test_export(layerprobe: Layerprobe, pair: Pair, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = layerprobe("export", pair[0], out, "--layer", "2", "--pooling", "cls", "--prompt", "q: ")
    assert done.code == 0, done.err
    assert done.err == ""
    assert "2 of 3" in done.out
    assert done.out.splitlines()[-1].endswith(f"hf upload USER/NAME {out} . --private")
    layout = read_layout(out)
    assert (layout.pooling, layout.prompt, layout.max_length) == ("cls", "q: ", 64)
    again = layerprobe("export", pair[0], out, "--layer", "1")
    assert again.code == 1
    assert "replace it with --overwrite" in again.error
    printed = layerprobe("export", pair[0], out, "--layer", "1", "--overwrite", "--json").json
    assert (printed["layer"], printed["path"], printed["warnings"]) == (1, str(out), [])


def test_probe_exports_the_weighted_mean(layerprobe: Layerprobe, pair: Pair, tmp_path: Path) -> None:
    file, out = tmp_path / "texts.csv", tmp_path / "out"
    rows = [f"{a} {b} {word},{word}" for a in "abcdef" for b in "ghijkl" for word in ("one", "two")]
    file.write_text("\n".join(["text,label", *rows]) + "\n")
    call = "probe", pair[0], "-t", file, "--folds", "3", "--foldings", "1"
    done = layerprobe(*call, "--out", out)
    assert done.code == 0, done.err
    assert "weighted mean" in done.out
    assert f"Folder: {out}" in done.out.splitlines(), done.out
    assert "How the weights were learned" in (out / "README.md").read_text()
    assert "replace it with --overwrite" in layerprobe(*call, "-o", out).error
    weights = [layer["weight"] for layer in layerprobe(*call, "--weighted-mean", "--json").json["layers"]]
    assert abs(sum(weights) - 1) < 1e-9
    arrays = layerprobe("probe", tmp_path / "e.npy", tmp_path / "y.csv", "-o", out)
    assert "expected no --out without --task" in arrays.err


def test_a_model_of_somebody_else_is_never_offered_for_overwriting(
    layerprobe: Layerprobe, pair: Pair, tmp_path: Path
) -> None:
    before = {file: file.read_bytes() for file in pair[0].iterdir()}
    for further in ((), ("--overwrite",)):
        swapped = layerprobe("export", tmp_path / "out", pair[0], "--layer", "1", *further)
        assert swapped.code == 1
        assert f"{pair[0]} contains a model: to export that one, put it first" in swapped.error
        assert "--overwrite" not in swapped.error
    assert {file: file.read_bytes() for file in pair[0].iterdir()} == before
    assert layerprobe("export", pair[0], tmp_path / "whole", "--layer", "3").code == 0
    for model in (tmp_path / "out", tmp_path / "whole"):  # an export of ours is a model, too
        assert "--overwrite" not in layerprobe("export", model, tmp_path / "whole", "--layer", "1").error


def test_fine_tuned_weights_are_kept_and_exported(
    layerprobe: Layerprobe, pair: Pair, pairs_file: Path, tmp_path: Path
) -> None:
    done = layerprobe("finetune", pair[0], "-t", pairs_file, *QUICK, "--layers", "1-2", "--save-models")
    assert done.code == 0, done.err
    listed = [line for line in done.out.splitlines() if line.startswith("Weights ")]
    directories = [Path(line.partition(": ")[2]) for line in listed]
    names = [f"layer-00{layer}-seed-{seed}" for seed in (0, 1) for layer in (1, 2)]
    assert [directory.name for directory in directories] == names
    exported = layerprobe("export", directories[-1], tmp_path / "out")
    assert exported.code == 0, exported.err
    text = ModelCard.load(tmp_path / "out" / "README.md").text
    assert "test Spearman" in text


def test_a_run_and_its_evidence(
    layerprobe: Layerprobe, pair: Pair, found: tuple[Outcome, Path], tmp_path: Path
) -> None:
    finding = found[1] / "finding.json"
    assert layerprobe("export", pair[0], tmp_path / "out", "--layer", "2", "--finding", finding).code == 0
    assert words.headline(lp.load(finding).conclusion) in (tmp_path / "out" / "README.md").read_text()
    other = layerprobe("export", pair[1], tmp_path / "other", "--layer", "2", "--finding", finding)
    assert "expected a finding for" in other.error
