"""Wrong calls and what each is answered: `python -m tests.cli.wrong` writes the answers anew, to be read in review."""

import contextlib
import random
import shlex
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from huggingface_hub import constants
from layerprobe_cli.main import app
from typer.testing import CliRunner

from layerprobe.readings.reading import LayerCurve
from tests.models import save_tiny

SNAPSHOT = Path(__file__).with_name("wrong.txt")
LABELS = {
    "sts": ("sentence1,sentence2,score", ("0", "1", "2.5", "5")),
    "paraphrase": ("sentence1,sentence2,label", ("0", "1")),
    "entailment": ("sentence1,sentence2,label", ("no", "some", "yes")),
    "classification": ("text,label", ("good", "bad")),
}
"""The header of a file of each kind, and the labels in it."""
TABLES = {
    "empty": "",
    "no-score": "a b,c d,e f\nb c,d e,f g\nc d,e f,g h\n",
    "equal": "a,b,1\nc,d,1\ne,f,1\ng,h,1\n" * 10,
    "few": "a,b,1\nc,d,2\n",
    "no-number": "a,b,1\nc,d,x\ne,f,2\ng,h,3\n",
}


def made(folder: Path) -> None:
    """Write what the calls name: a model, pairs, texts, and a finding that is none."""
    save_tiny("bert", folder / "model", seed=0)
    rows = [
        (f"{a} {b} c", f"{b} d {a}", (i + j) % 6) for i, a in enumerate("abcdef") for j, b in enumerate("ghijklmnop")
    ]
    (folder / "pairs.csv").write_text("".join(f"{first},{second},{score}\n" for first, second, score in rows))
    (folder / "texts.txt").write_text("".join(f"{first}\n" for first, *_ in rows))
    (folder / "finding.json").write_text("{}")
    (folder / "scores.json").write_text(LayerCurve(values=(1.0, 2.0)).to_json())
    np.save(folder / "arrays.npy", np.random.default_rng(0).normal(size=(60, 3, 4)))
    (folder / "targets.csv").write_text("".join(["stability,family\n", *(f"{n},{n % 30}\n" for n in range(60))]))
    (folder / "empty.npy").write_bytes(b"")
    (folder / "words").mkdir()
    (folder / "words" / "one.csv").write_text("word1,word2,similarity\na,b,1\n")
    (folder / "three.txt").write_text("a b\nc d\ne f\n")
    for name, content in TABLES.items():
        (folder / f"{name}.csv").write_text(content)
    for missing in ("config.json", "model.safetensors"):
        shutil.copytree(folder / "model", folder / f"no-{missing}")
        (folder / f"no-{missing}" / missing).unlink()
    for kind in LABELS:
        for odd in ("missing", "neither", "0.5", "empty", "equal-train", "equal-dev", "equal-test"):
            odd_splits(folder / f"{kind}-{odd}", kind, odd)


def odd_splits(folder: Path, kind: str, odd: str) -> None:
    """Write three splits of a kind, with something wrong in one of them."""
    header, labels = LABELS[kind]
    folder.mkdir()
    for split, n in (("train", 24), ("dev", 12), ("test", 13)):
        rng = random.Random(n)
        texts = [[" ".join(rng.sample("abcdefghijklmnop", 6)) for _ in range(header.count(","))] for _ in range(n)]
        targets = [labels[0 if odd == f"equal-{split}" else row % len(labels)] for row in range(n)]
        if split == "test":
            targets[3] = {"missing": "", "neither": odd, "0.5": odd}.get(odd, targets[3])
            texts = [] if odd == "empty" else texts
        rows = (",".join((*text, target)) for text, target in zip(texts, targets, strict=False))
        (folder / f"{split}.csv").write_text("\n".join((header, *rows)) + "\n")


def answered(call: str) -> str:
    """Return the exit code of a call and its line on stderr."""
    environment = {"COLUMNS": "2000", "HF_HUB_OFFLINE": "1", "LAYERPROBE_CACHE": "cache"}
    result = CliRunner().invoke(app, shlex.split(call), env=environment)
    assert result.exception is None or isinstance(result.exception, SystemExit), (call, result.exception)
    lines = [line.strip("│ ") for line in result.stderr.splitlines() if line.startswith(("│", "error: "))]
    assert len(lines) == 1, (call, result.stderr)
    assert not result.stdout, (call, result.stdout)
    return f"{result.exit_code} {lines[0]}".replace(f"{Path.cwd()}/", "./").replace(f"{Path.cwd().name}/", "")


def calls() -> list[str]:
    """Return the calls that the snapshot has."""
    return [line.removeprefix("$ layerprobe ") for line in SNAPSHOT.read_text().splitlines() if line.startswith("$ ")]


def snapshot(folder: Path) -> str:
    """Return every call with its answer; `folder` is the current one."""
    made(folder)
    return "".join(f"$ layerprobe {call}\n{answered(call)}\n" for call in calls())


if __name__ == "__main__":
    constants.HF_HUB_OFFLINE = True
    with TemporaryDirectory() as temporary, contextlib.chdir(temporary):
        SNAPSHOT.write_text(snapshot(Path(temporary)))
