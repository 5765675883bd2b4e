import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from layerprobe_cli.main import app
from typer.testing import CliRunner

import layerprobe as lp
from layerprobe.encoders.loading import load_encoder
from layerprobe.errors import DataError
from layerprobe.files.serialisation import from_json
from layerprobe.results import words
from layerprobe.stats.values import Floor
from layerprobe.study.values import Finding, Weights
from tests.report.conftest import FINDINGS

from .conftest import QUICK, Layerprobe, Outcome, Pair

PANELS = {
    "Choose a layer": ("demo", "find", "predict", "check"),
    "Inspect": ("probe", "score", "compare", "profile"),
    "Produce": ("shrink", "extract", "finetune", "export", "cache"),
    "Research": ("lab",),
}
GROUPS = {
    "lab": ("run", "bench", "adapt", "pretrain", "reproduce"),
    "cache": ("list", "prune"),
}
COMMANDS = [name for names in PANELS.values() for name in names if name not in GROUPS]
COMMANDS += [f"{group} {name}" for group, names in GROUPS.items() for name in names]


def help_of(*words: str) -> str:
    return CliRunner().invoke(app, words, env={"COLUMNS": "80"}).stdout


def test_help_has_a_line_a_command_on_80_columns() -> None:
    panels = {panel.split(" ─")[0]: panel.splitlines() for panel in help_of("--help").split("╭─ ")[2:]}
    lines = {title: [line.strip("│ ") for line in panel if line.startswith("│")] for title, panel in panels.items()}
    assert {title: tuple(line.split()[0] for line in each) for title, each in lines.items()} == PANELS
    assert all(line.endswith(".") for each in lines.values() for line in each)


@pytest.mark.parametrize("group", GROUPS)
def test_help_of_a_group_names_its_commands(group: str) -> None:
    assert tuple(re.findall(r"^│ ([a-z]+)  ", help_of(group, "--help"), re.MULTILINE)) == GROUPS[group]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_short_and_help_all_has_every_option(command: str) -> None:
    short, whole = help_of(*command.split(), "--help"), help_of(*command.split(), "--help-all")
    assert f"layerprobe {command}" in short.split("Example:")[1]
    assert len(short.splitlines()) <= 67
    assert "[required]" in short or not re.search(r"^│ \*", short, re.MULTILINE)
    options = [set(re.findall(r"^│ +(?:\* +)?--(?:no-)?([a-z-]+)", text, re.MULTILINE)) for text in (short, whole)]
    assert options[0] <= options[1]
    assert (f"See all options: layerprobe {command} --help-all" in short) == (options[0] != options[1])
    assert "--help-all" not in whole


def test_find_prints_the_answer_and_writes_its_page(found: tuple[Outcome, Path]) -> None:
    done, folder = found
    finding = lp.load(folder / "finding.json")
    lines = done.out.splitlines()
    answer, table, last = done.out.split("\n\n")
    assert len(lines) <= 24
    assert max(len(line) for line in lines if "/" not in line) <= 80
    assert answer.startswith(words.headline(finding.conclusion))
    assert table.split()[:3] == ["keep", "expected", "gain"]
    rows = table.splitlines()[1:5]
    assert [line.split()[0] for line in rows] == ["0", "1", "2", "3"]
    assert [line.split()[0] for line in rows if line.endswith(("keep", "best guess"))] == [str(finding.best_layer)]
    assert f"Why: {folder / 'report.html'}" in last
    assert words.cost(finding.conclusion) in last
    assert (folder / "report.html").stat().st_size > 1_000_000
    cost = done.err.index("note: Fine-tuning electra (3 blocks) takes at most")
    assert cost < done.err.index("info: before fine-tuning: ")


def test_the_next_command_writes_the_model_that_was_found(
    layerprobe: Layerprobe, pair: Pair, pairs_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = layerprobe("find", "--final", pair[0], "-t", pairs_file, *QUICK)
    commands = {words[0]: words for words in done.commands}
    match = re.search(r"(\d) of 3 blocks|the whole model|ll 3 blocks", done.out)
    assert match, done.out
    exported = layerprobe(*commands["export"])
    assert exported.code == 0, exported.err
    config = json.loads((tmp_path / commands["export"][2] / "config.json").read_text())
    assert config["num_hidden_layers"] == int(match[1] or 3)


def test_what_keeps_all_blocks_names_shrink(
    layerprobe: Layerprobe, pair: Pair, pairs_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = replace(FINDINGS["found, no drop"](), weights=Weights(directory="run", kept=True))
    assert whole.best_layer == whole.last_layer
    monkeypatch.setattr(lp, "find", lambda *_, **__: whole)
    done = layerprobe("find", pair[0], str(pairs_file), *QUICK, "--seeds", "2")
    assert done.code == 0, done.err
    (following,) = done.commands
    assert following == ["shrink", str(pair[0]), "-t", str(pairs_file), "--tune"]
    assert not layerprobe("find", pair[0], str(pairs_file), *QUICK, "--max-length", "16").commands
    planned = layerprobe(*following, "--size", "2", "--dry-run")
    assert planned.code == 0, planned.err
    on_floor = replace(whole, floor=Floor(value=99.0, by="always predicting the largest class"))
    monkeypatch.setattr(lp, "find", lambda *_, **__: on_floor)
    assert not layerprobe("find", pair[0], str(pairs_file), *QUICK).commands


@pytest.mark.slow
def test_find_compares_other_blocks(layerprobe: Layerprobe, pair: Pair, pairs_file: Path, tmp_path: Path) -> None:
    command = ("find", pair[0], "-t", pairs_file, *QUICK)
    refused = layerprobe(*command, "--other-blocks", "1,9")
    assert "ascending, from 1 to 3, got 1, 9" in refused.error
    assert not (tmp_path / "cache" / "runs").exists(), "expected it to be refused before it trains"
    plain, planned = (layerprobe(*command, "--dry-run", *more).out for more in ((), ("--other-blocks", "1,2")))
    assert plain != planned
    page = tmp_path / "found.html"
    done = layerprobe(*command, "--other-blocks", "1,3", "--report", page)
    assert done.code == 0, done.err
    assert "blocks 1, 3" in page.read_text(encoding="utf-8")
    assert "blocks 1, 3" in done.out
    printed = layerprobe(*command, "--other-blocks", "1,3", "--json").json
    assert from_json(Finding, json.dumps(printed["finding"])).best_layer in range(4)
    assert [outcome.get("blocks") for outcome in printed["other_blocks"]["outcomes"]][:2] == [None, [1, 3]]
    found = layerprobe(*command, "--other-blocks", "found")
    best = printed["finding"]["answer"]["best_layer"]
    assert ("no others of that number" in found.err) == (best in (0, 3))


def test_stages_alone_agree_with_run_and_are_not_done_again(
    layerprobe: Layerprobe, pair: Pair, pairs_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, reference = pair
    data = ("-t", pairs_file)
    extracted = layerprobe("extract", model, *data, "--json")
    assert extracted.json["layers"] == 4
    assert layerprobe("compare", model, reference, *data, "--json").code == 0
    predicted = layerprobe("predict", model, "-r", reference, *data, "--json").json
    tuned = layerprobe("finetune", model, *data, *QUICK, "--layers", "0-3", "--json").json
    assert [(run["layer"], run["seed"]) for run in tuned["runs"]] == [
        (layer, seed) for seed in (0, 1) for layer in range(4)
    ]
    assert all(layer["best_seed"] in layer["seeds"] for layer in tuned["outcomes"])

    found = layerprobe("find", model, *data, *QUICK, "--against-last", "2", "--final", "--json").json

    # from here on nothing may be computed by a model again, but how fast it is
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a stage that was done is done again")

    monkeypatch.setattr("layerprobe.encoders.loading.load_encoder", refuse)
    monkeypatch.setattr("layerprobe.encoders.loading.load", load_encoder)
    monkeypatch.setattr("layerprobe.finetuning.runs.fine_tune", refuse)
    assert layerprobe("predict", model, "-r", reference, *data, "--json").json == predicted
    again = layerprobe("find", model, *data, *QUICK, "--against-last", "2", "--final", "--json").json
    times = {"rounds_by_layer": None}
    assert again | times == found | times


def test_models_are_called_as_the_command_line_says(layerprobe: Layerprobe, pair: Pair, pairs_file: Path) -> None:
    named = "--name", "our ELECTRA", "--reference-name", "our BERT"
    printed = layerprobe("predict", pair[0], "-r", pair[1], "-t", pairs_file, "--rule", "plateau of CKA", *named)
    assert str(pair[0]) not in printed.out


def test_compare_prints_curve_and_map(layerprobe: Layerprobe, pair: Pair, pairs_file: Path, tmp_path: Path) -> None:
    def printed(*options: str) -> list[str]:
        out: str = layerprobe("compare", *pair, "-t", pairs_file, *options).out
        return out.removesuffix("\n\nAll columns: --wide\n").splitlines()

    curve = printed()
    assert "fall" in curve[0]
    assert curve[-1] == "  debiased linear CKA with the reference; bars: 95 % interval"
    assert curve[-6].split()[:2] == ["layer", "similarity"]
    wide = printed("--wide")
    value, low, _, high, band_low, _, band_high = (float(cell) for cell in wide[-2].replace("to", "0").split()[2:9])
    assert band_low < low < value < high < band_high
    assert [line.split()[:2] for line in curve[-5:-1]] == [[line.split()[0], line.split()[2]] for line in wide[-5:-1]]
    assert "without intervals" in printed("--no-intervals")[0]
    whole = printed("--map")
    (start,) = (place for place, line in enumerate(whole) if line.startswith("All pairs of layers: electra and bert"))
    assert whole[start + 2].split() == ["layer", "0", "1", "2", "3"]
    assert float(whole[start + 4].split()[1]) == float(curve[-5].split()[1])
    assert "CKA; rows: layer of electra, columns: layer of bert" in whole
    assert "Diagnostics of the layers" in whole
    others = [shutil.copytree(pair[1], tmp_path / name / "bert") for name in ("old", "new")]
    maps = layerprobe("compare", pair[0], *others, "-t", pairs_file, "--map", "--no-intervals").out.splitlines()
    titles = [line for line in maps if line.startswith("All pairs of layers")]
    assert [title[-8:] for title in titles] == ["old/bert", "new/bert"]


def test_compare_several_models(layerprobe: Layerprobe, pair: Pair, pairs_file: Path, tmp_path: Path) -> None:
    model, reference = pair
    options = ("--reference-random-init", "1", "-t", pairs_file, "--parquet", tmp_path / "map.parquet")
    lines = layerprobe("compare", model, model, reference, *options).out.partition("\n\nAll columns")[0].splitlines()
    assert lines[0].startswith("Perhaps closest to electra (random init 1) at the last layer")
    assert [line.split()[0] for line in lines[-8:]] == [model.name] * 4 + [reference.name] * 4
    assert "minus the first" in lines[-9]
    table = pd.read_parquet(tmp_path / "map.parquet")
    assert len(table) == 2 * 2 * 4 * 4
    assert table.normalize.value_counts().to_dict() == {"raw": 32, "zscore": 32}
    assert table.on_curve.sum() == 8
    assert (table.lower <= table.value).all()


def test_groups_are_the_unit_of_intervals(layerprobe: Layerprobe, pair: Pair, tmp_path: Path) -> None:
    table = tmp_path / "texts.csv"
    rows = [f"{a} {b},{a}" for a in "abcdef" for b in "ghij"]
    table.write_text("\n".join(["text,document", *rows]))
    printed = layerprobe("compare", *pair, "--texts", table, "--groups", "document", "--json").json
    assert printed["comparisons"][0]["map"]["uncertainty"]["n_groups"] == 6
    assert "no column 'source'" in layerprobe("compare", *pair, "--texts", table, "--groups", "source").err


def test_check_looks_at_data(
    layerprobe: Layerprobe, pair: Pair, pairs_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("openvino", "onnxruntime"):  # it would make graphs
        monkeypatch.setitem(sys.modules, package, None)
    printed = layerprobe("check", pair[0], "-t", pairs_file)
    assert "texts of other splits also in train" in printed.out
    texts = tmp_path / "texts.txt"
    texts.write_text("a b\nжзиклн\n", encoding="utf-16")
    done = layerprobe("check", pair[0], "--texts", texts, "--json")
    assert done.json["data"]["n_texts"] == 2
    assert done.json["data"]["unknown_characters"] == 0.75
    assert f"note: {texts}: read as utf-16 text; --format chooses otherwise" in done.err
    assert "cannot read these texts: 75 % of their characters are unknown to its tokenizer" in done.err


def test_what_is_odd_about_data_is_said_before_the_work(
    layerprobe: Layerprobe, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("".join(f"жзик {'abcdefgh'[i % 8]};лмн {'abcdefgh'[i % 7]};{i % 6},5\n" for i in range(60)))

    def refuse(*args: object, **kwargs: object) -> None:
        raise DataError("work has begun")

    monkeypatch.setattr("layerprobe.study.predict.Extraction.embed", refuse)
    read = ("-t", path, "--format", "delimiter=semicolon")
    done = layerprobe("predict", pair[0], *read)
    assert done.code == 1
    lines = done.err.splitlines()
    assert "read as decimal commas, texts in column 0 and column 1, target in column 2" in lines[0]
    assert any("cannot read these texts" in line for line in lines[:-1])
    assert "work has begun" in lines[-1]
    monkeypatch.undo()
    assert "choose --format delimiter=semicolon" in layerprobe("predict", pair[0], "-t", path).error
    done = layerprobe("predict", pair[0], *read)
    assert done.err.count("cannot read these texts") == 1
    assert done.out.startswith("Nothing can be predicted  (the model cannot read these texts)\n")
    checked = layerprobe("predict", pair[0], *read, "--fail-on-drop")
    assert (checked.code, "failed: nothing can be predicted" in checked.err) == (3, True)


def test_check_compares_a_model_with_what_it_was(layerprobe: Layerprobe, pair: Pair, tmp_path: Path) -> None:
    file = tmp_path / "before.json"
    saved = layerprobe("check", pair[0], "--save", file, "--prompt", "a ")
    assert (saved.code, saved.err) == (0, "")
    assert saved.out.startswith("Saved tokens and embeddings of 32 texts\n")
    assert f"Saved: {file}" in saved.out
    same = layerprobe("check", pair[0], "--against", file, "--batch-tokens", "1")
    assert (same.code, same.err) == (0, "")
    assert same.out.startswith("Tokens and embeddings are as before  (within rounding in float32)\n")
    other = layerprobe("check", pair[0], "--against", file, "--prompt", "b ", "--save", tmp_path / "new.json")
    assert (other.code, other.err) == (
        3,
        "failed: Tokens of 32 texts have changed (embeddings, too, at layers 0, 1 and 3)\n",
    )
    assert re.search(
        "^text +token  was +now +embedding moved\n'The quick brown fox jump' +2  a [(]5[)] +b [(]6[)] ", other.out, re.M
    )
    assert re.search("^prompt +a +b$", other.out, re.MULTILINE)
    assert lp.load(tmp_path / "new.json").options == {"prompt": "b "}
    by_max = layerprobe("check", pair[0], "--against", file, "--json", "--pooling", "max")
    assert (by_max.code, by_max.json["conclusion"]["headline"]) == (
        3,
        "Embeddings have changed at layers 0, 1 and 3",
    )
    for option, place, message in (
        ("--save", tmp_path / "x.png", "expected a file that ends in .json for --save, got"),
        ("--save", file / "x.json", "cannot write"),
        ("--texts", file, "expected no data with --save and --against"),
        ("--against", tmp_path, "Is a directory"),
    ):
        assert message in " ".join(layerprobe("check", pair[0], "--against", file, option, place).err.split())


def test_check_prints_every_check_and_says_which_backends_there_are(
    layerprobe: Layerprobe, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("openvino", "onnxruntime"):
        monkeypatch.setitem(sys.modules, package, None)
    done = layerprobe("check", pair[0])
    assert done.code == 0
    printed = done.out
    assert printed.startswith("Layerprobe can trust this model\n")
    checks = printed.partition("\ncheck ")[2].partition("\n\n")[0].splitlines()[1:]
    assert [line.split()[1] for line in checks if not line.startswith(" ")] == ["ok"] * 5
    assert "\nbackend   " in printed
    needed = "the backend openvino needs openvino, which is not installed: pip install 'layerprobe[openvino]'"
    assert needed in " ".join(printed.split())
    assert "--backend auto selects torch: no other backend can be used" in printed


def test_cache_commands(layerprobe: Layerprobe, pair: Pair, pairs_file: Path) -> None:
    assert layerprobe("cache", "list").out.endswith("cache: 0 B\n")
    fingerprint = layerprobe("extract", pair[0], "-t", pairs_file, "--json").json["fingerprint"]
    (entry,) = layerprobe("cache", "list", "--json").json
    assert (entry["fingerprint"], entry["state"], entry["layers"]) == (fingerprint, "complete", 4)
    assert layerprobe("cache", "prune", fingerprint[:6], "--dry-run", "--json").json["removed"] == [fingerprint]
    assert layerprobe("cache", "prune", "--all", "--json").json["removed"] == [fingerprint]
    assert layerprobe("cache", "list", "--json").json == []


def test_extract_says_what_it_takes_before_it_begins(
    layerprobe: Layerprobe, pair: Pair, pairs_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = "extract", pair[0], "-t", pairs_file, "--store-dtype", "float16"
    planned = layerprobe(*command, "--dry-run", "--json").json
    assert layerprobe("cache", "list", "--json").json == []
    assert layerprobe(*command, "--dry-run").out.startswith(f"Embedding {planned['n_texts']} texts with ")
    with monkeypatch.context() as patch:
        patch.setattr("layerprobe.store.store.shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
        assert "of free space in" in layerprobe(*command, "--quiet").error
    done = layerprobe(*command, "--json")
    assert "features in float16, takes " in done.err
    assert done.json["store_dtype"] == "float16"
    assert layerprobe("cache", "list", "--json").json[0]["dtype"] == "float16"
    again = layerprobe(*command, "--dry-run", "--json")  # all of it is there
    assert again.json == done.json
    assert "takes" not in again.err


def test_data_on_stdout_and_the_rest_on_stderr(layerprobe: Layerprobe, pair: Pair, tmp_path: Path) -> None:
    """The installed command, in a process of its own."""
    texts = tmp_path / "texts.txt"
    texts.write_text("a b c\n\nd e f\n" + "g " * 500 + "\n")
    arguments = ["extract", pair[0], "--texts", texts, "--json", "--skip-empty", "--cache-dir", tmp_path / "cache"]
    command = [str(Path(sys.executable).with_name("layerprobe")), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("{")
    assert "warning: 1 of 3 texts were cut at 64 tokens" in done.stderr
    quiet = layerprobe(*arguments, "--quiet")
    assert (quiet.out, quiet.err) == (done.stdout, "")


def test_help_loads_no_model_library() -> None:
    code = (
        "import sys; from layerprobe_cli.main import app\n"
        "from typer.testing import CliRunner\n"
        "assert all(CliRunner().invoke(app, [name, '--help']).exit_code == 0 for name in ('find', 'compare'))\n"
        "heavy = {'torch', 'transformers', 'plotly', 'datasets', 'pandas', 'scipy', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_format_of_files_is_one_option(
    layerprobe: Layerprobe, pair: Pair, pairs_file: Path, tmp_path: Path
) -> None:
    options = ("--format", "delimiter=semicolon", "--format", "header=no,quotes=yes,encoding=utf-8,decimal=,")
    other = tmp_path / "pairs.csv"
    other.write_text(pairs_file.read_text().replace(",", ";").replace(".", ","))
    scored = layerprobe("score", pair[0], "-t", other, *options, "--json").json["scores"]
    assert scored == layerprobe("score", pair[0], "-t", pairs_file, "--json").json["scores"]
