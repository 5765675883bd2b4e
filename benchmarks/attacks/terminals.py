"""Texts that command a terminal, outputs that cannot be written, interruptions, pipes and devices in place of files.

    python benchmarks/attacks/terminals.py [--only NAME] [--limit 60]

Prints how many were tried, and of these how many lost what was computed, said nothing, ended in a traceback, or hung
(did not end within the limit). Exits with 1 if there is any of them. Takes about ten minutes on one core.
"""

from __future__ import annotations

import argparse
import collections
import csv
import functools
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import typer
from layerprobe_cli.main import app

HOSTILE = "a\x1b]0;OWNED\x07\x1b[2J\x9b31m\x08\x08\u202eb"
FORBIDDEN = {"title": b"\x1b]0;", "clear": b"\x1b[2J", "C1": "\x9b".encode(), "backspace": b"\x08", "bell": b"\x07"}
"""What of it must not reach a terminal, where layerprobe itself writes colours and carriage returns alone."""
QUICK = "--epochs 1 --learning-rate 1e-3 --batch-size 8"
TUNED = f"-t pairs.csv --seeds 2 {QUICK}"
REPORT = "--report {0}.html"
COMMANDS = {
    "demo": "demo --files {0}",
    "find": f"find rtd --budget 20% --against-last 0 {TUNED} {REPORT}",
    "predict": f"predict rtd --texts texts.txt {REPORT}",
    "check": "check rtd",
    "probe": f"probe rtd -t labels.csv {REPORT}",
    "score": f"score rtd -t pairs.csv {REPORT}",
    "compare": f"compare rtd mlm --texts texts.txt {REPORT}",
    "readings": "predict rtd --texts texts.txt --readings",
    "profile": f"profile rtd --rounds 2 {REPORT}",
    "shrink": f"shrink rtd --texts texts.txt --size 4 --out {{0}} {QUICK} {REPORT}",
    "extract": "extract rtd --texts texts.txt",
    "finetune": f"finetune rtd --layers 1,3 {TUNED} --save-models {REPORT}",
    "export": "export rtd {0} --layer 2",
    "cache list": "cache list",
    "cache prune": "cache prune --older-than 30",
    "lab run": f"lab run objectives.toml --out {{0}} {REPORT}",
    "lab bench": f"lab bench --budget converged {REPORT}",
    "lab adapt": "lab adapt rtd --texts texts.txt --epochs 1 --out {0}",
    "lab pretrain": "lab pretrain {0} --objective mlm --corpus texts.txt --size tiny --steps 3 --batch-size 8",
    "lab reproduce": "lab reproduce figure3 --dry-run",
}
"""Every command on the files of `layerprobe demo --files`; {0} is a file or folder that it writes, {1} a folder of
runs."""
PREPARED = {
    "objectives.toml": """seeds = 1
[[step]]
pretrain = ["mlm"]
generator_sizes = [0.5]
steps = 3
batch_size = 8
max_length = 64
held_out = 20
[step.sizes]
s = { n_blocks = 2, hidden_size = 8, heads = 2, intermediate_size = 16 }
[[tasks]]
source = "language"
examples = [24, 20, 20]
[budget.gentle]
epochs = 1
""",
}
"""Files that commands read, besides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of an attack."""

    attack: str
    name: str
    problem: str = ""
    """Empty where it survived; begins with lost, silent, traceback or hang else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended."""

    code: int | None
    """None where it did not end within the limit."""
    out: bytes
    err: bytes = b""

    @property
    def problem(self) -> str:
        """What is wrong with any command that ends so."""
        if self.code is None:
            return "hang"
        text = self.out + self.err
        return "traceback" if b"Traceback" in text or b"Exception ignored" in text else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A folder with two small encoders and data, where commands run."""

    folder: Path
    limit: float
    only: str = ""
    """A regular expression of attempts by their names."""

    def command(self, line: str) -> list[str]:
        """Return the words of a command line of layerprobe."""
        return [sys.executable, "-m", "layerprobe_cli.start", *line.split()]

    @property
    def environment(self) -> dict[str, str]:
        """What processes are given."""
        return os.environ | {"LAYERPROBE_CACHE": str(self.folder / "cache"), "HF_HUB_OFFLINE": "1"}

    def started(self, line: str, **streams: object) -> subprocess.Popen[bytes]:
        """Start a command in a session of its own."""
        settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL} | streams
        settings = {"env": self.environment} | settings
        return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
            self.command(line), cwd=self.folder, start_new_session=True, **settings
        )

    def ended(self, process: subprocess.Popen[bytes]) -> Ended:
        """Wait for a command; one that hangs is killed."""
        try:
            out, err = process.communicate(timeout=self.limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return Ended(code=None, out=b"")
        return Ended(code=process.returncode, out=out or b"", err=err or b"")

    def run(self, line: str, **streams: object) -> Ended:
        """Run a command to its end."""
        return self.ended(self.started(line, **streams))

    def on_terminal(self, line: str) -> Ended:
        """Run a command on a pseudo-terminal; `out` is what reached it."""
        master, slave = pty.openpty()
        process = self.started(line, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        chunks, deadline = [], time.monotonic() + self.limit
        while time.monotonic() < deadline:
            ready = select.select([master], [], [], 0.2)[0]
            if not ready and process.poll() is None:
                continue
            try:
                chunk = os.read(master, 2**16) if ready else b""
            except OSError:  # what reading from a closed terminal gives
                chunk = b""
            if not chunk:
                break
            chunks.append(chunk)
        os.close(master)
        code = self.ended(process).code
        return Ended(code=code, out=b"".join(chunks))


# ---- control characters -------------------------------------------------------------------------------------


def control_characters(place: Place) -> Iterator[Outcome]:
    """Yield what reaches a terminal of labels, names and configurations that hold control characters."""
    folder = place.folder
    texts = (folder / "texts.txt").read_text().splitlines()[:120]
    with (folder / "hostile.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("text", "label"))
        rows.writerows((text, (HOSTILE, "other")[number % 2]) for number, text in enumerate(texts))
    shutil.copy(folder / "pairs.csv", folder / f"pairs{HOSTILE}.csv")
    shutil.copytree(folder / "rtd", folder / f"model{HOSTILE}")
    unknown = folder / "unknown"
    shutil.copytree(folder / "rtd", unknown)
    config = json.loads((unknown / "config.json").read_text())
    (unknown / "config.json").write_text(json.dumps(config | {"model_type": HOSTILE}))
    lines = {
        "label, score": "score rtd -t hostile.csv",
        "label, probe": "probe rtd -t hostile.csv",
        "label, finetune": f"finetune rtd -t hostile.csv --layers 1 --seeds 1 {QUICK}",
        "label, JSON": "score rtd -t hostile.csv --json",
        "task": f"score rtd -t pairs{HOSTILE}.csv",
        "texts": f"extract rtd --texts missing{HOSTILE}.txt",
        "model": f"score model{HOSTILE} -t pairs.csv",
        "model, compare": f"compare model{HOSTILE} mlm --texts texts.txt",
        "model, check": f"check model{HOSTILE}",
        "model, cache list": "cache list",
        "model_type": "score unknown -t pairs.csv",
        "column": f"score rtd -t pairs.csv --columns {HOSTILE},b,c",
        "option": f"score rtd -t pairs.csv --kind {HOSTILE}",
        "command": f"{HOSTILE} rtd",
        "display name": f"score rtd --name {HOSTILE} -t pairs.csv",
    }
    for name, line in lines.items():
        ended = place.on_terminal(line)
        raw = [what for what, sequence in FORBIDDEN.items() if sequence in ended.out]
        problem = ended.problem or ("silent: raw " + ", ".join(raw) if raw else "")
        yield Outcome(attack="control characters on a terminal", name=name, problem=problem)


# ---- a failing stdout ---------------------------------------------------------------------------------------


def names_of(group: Any, *words: str) -> Iterator[str]:
    """Yield the names of all commands, those of groups with the name of the group before."""
    for name, command in group.commands.items():
        yield from names_of(command, *words, name) if hasattr(command, "commands") else [" ".join((*words, name))]


def prepare(place: Place) -> None:
    """Make what commands read that no file of the demo is."""
    for name, text in PREPARED.items():
        (place.folder / name).write_text(text)
    for line in (COMMANDS["finetune"].format("first"), COMMANDS["extract"]):
        ended = place.run(line)
        assert ended.code == 0, ended.err


def failing_output(place: Place) -> Iterator[Outcome]:
    """Yield what becomes of commands whose stdout cannot be written: full, closed by its reader, or none."""
    prepare(place)
    # that of `finetune`, whose layers have runs of as many seeds
    (runs,) = {run.parents[1] for run in (place.folder / "cache" / "runs").rglob("layer-003-seed-1/result.json")}
    for name in names_of(typer.main.get_command(app)):
        if not re.match(place.only, name):
            continue
        if name not in COMMANDS:
            yield Outcome(attack="stdout fails", name=name, problem="lost: COMMANDS has no line of it")
            continue
        for what, more in (("full", ""), ("full", " --json"), ("closed", ""), ("none", ""))[: 4 if " " in name else 3]:
            out = f"{name.replace(' ', '-')}-{what}{more[3:]}"
            ended = _without_output(place, COMMANDS[name].format(out, runs) + more, what)
            problem = ended.problem or _kept(place, COMMANDS[name], out)
            if what == "full" and not problem:
                lines = [line for line in ended.err.decode().splitlines() if line.startswith("error: ")]
                problem = "" if ended.code == 1 and len(lines) == 1 else f"silent: {ended.code}, {len(lines)} lines"
            yield Outcome(attack="stdout fails", name=f"{name}{more}, {what}", problem=problem)
    for line in ("--help", "--version", "", "score --help", "cache --help", "find --help-all", "--show-completion"):
        if not re.match(place.only, "help"):
            continue
        for what in ("full", "closed", "none"):
            ended = _without_output(place, line, what)
            said = what != "full" or (ended.code and b"error: cannot print" in ended.err)
            problem = ended.problem or ("" if said else f"silent: {ended.code}")
            yield Outcome(attack="stdout fails", name=f"help, {line}, {what}", problem=problem)


def _without_output(place: Place, line: str, what: str) -> Ended:
    """Run a command whose stdout is full, closed by its reader, or none."""
    if what == "full":
        with open("/dev/full", "wb") as full:  # noqa: PTH123
            return place.run(line, stdout=full)
    if what == "none":
        return place.run(line, preexec_fn=functools.partial(os.close, 1))
    process = place.started(line)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    return place.ended(process)


def _kept(place: Place, line: str, out: str) -> str:
    """Return what is wrong with what a command should have written; empty where it is there."""
    words = line.replace("{0}", out).split()
    missing = [word for word in words if out in word and not (place.folder / word).exists()]
    return f"lost: {', '.join(missing)}" if missing else ""


# ---- interruptions ------------------------------------------------------------------------------------------


def interruptions(place: Place) -> Iterator[Outcome]:
    """Yield how commands end that are interrupted in their first seconds."""
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        for delay in (0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0, 1.3, 1.6, 2.0, 2.5, 3.0, 4.0, 6.0):
            process = place.started(COMMANDS["find"].format("interrupted"))
            time.sleep(delay)
            process.send_signal(number)
            ended = place.ended(process)
            answered = ended.code == 0 or b"interrupted" in ended.err or b"ended by SIGTERM" in ended.err
            problem = ended.problem or ("" if answered else f"silent: exit code {ended.code}")
            if not problem and ended.code not in (0, code):
                problem = f"silent: exit code {ended.code} instead of {code}"
            yield Outcome(attack="interrupted", name=f"{number.name} after {delay} s", problem=problem)


# ---- pipes, devices and depth -------------------------------------------------------------------------------


def make_pipe(path: Path) -> None:
    """Put a named pipe there, which nobody writes to."""
    os.mkfifo(path)


def link_to_zeros(path: Path) -> None:
    """Put a link to a device without an end there."""
    path.symlink_to("/dev/zero")


def make_folder(path: Path) -> None:
    """Put a folder there."""
    path.mkdir()


def write_deep(path: Path) -> None:
    """Write JSON of a hundred thousand lists in each other."""
    path.write_text("[" * 100_000 + "]" * 100_000)


def write_holes(path: Path) -> None:
    """Make a file of 200 GB without a byte on the disk."""
    with path.open("wb") as file:
        file.truncate(200 * 2**30)


PLANTED: tuple[Callable[[Path], None], ...] = (make_pipe, link_to_zeros, make_folder, write_deep, write_holes)
DATA = {
    "pairs.csv": "score rtd -t {}",
    "pairs.jsonl": "score rtd -t {}",
    "pairs.parquet": "score rtd -t {}",
    "words.conll": "finetune rtd -t {} --layers 1 --seeds 1",
    "texts.txt": "extract rtd --texts {}",
    "layers.npz": "probe {} -t pairs.csv",
    "finding.json": "export rtd out --layer 1 --finding {}",
    "layers.npy": "probe {} pairs.csv",
    "layers.safetensors": "probe {} pairs.csv",
    "targets.npy": "probe layers-of-rtd.npy {}",
    "targets.parquet": "probe layers-of-rtd.npy {}",
    "questions.json": "score rtd -t {}",
    "corpus.txt.gz": "lab pretrain out --corpus {} --steps 1",
    "zoo.json": "lab bench {}",
    "objectives.toml": "lab run {} --out lab",
}


def special_files(place: Place) -> Iterator[Outcome]:
    """Yield what becomes of commands where a file of theirs is a pipe, a device, a folder, deep or too large."""
    np.save(place.folder / "layers-of-rtd.npy", np.random.default_rng(0).normal(size=(40, 3, 4)))
    for planted in PLANTED:
        if not re.match(place.only, planted.__name__.partition("_")[2]):
            continue
        yield from _special_in_cache(place, planted)
        for name, line in DATA.items():
            path = place.folder / f"planted-{name}"
            planted(path)
            yield _special(place, planted, name, line.format(path.name))
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _special_in_cache(place: Place, planted: Callable[[Path], None]) -> Iterator[Outcome]:
    """Yield what becomes of commands where a file of the cache is such, once for each name that files have there."""
    cache, whole = place.folder / "cache", place.folder / "whole"
    tuned = COMMANDS["finetune"].format("tuned")
    if not whole.exists():
        for line in (COMMANDS["extract"], tuned):
            assert place.run(line).code == 0
        cache.rename(whole)
    names = {path.name: path.relative_to(whole) for path in sorted(whole.rglob("*")) if path.is_file()}
    for name, path in names.items():
        for line in (tuned if path.parts[0] == "runs" else COMMANDS["extract"], "cache list"):
            shutil.rmtree(cache, ignore_errors=True)
            shutil.copytree(whole, cache)
            (cache / path).unlink()
            planted(cache / path)
            yield _special(place, planted, f"{name} in the cache, {line.partition(' ')[0]}", line)
    shutil.rmtree(cache)


def _special(place: Place, planted: Callable[[Path], None], name: str, line: str) -> Outcome:
    ended = place.run(line)
    problem = ended.problem
    if not problem and ended.code and not ended.err.strip():
        problem = f"silent: exit code {ended.code}"
    what = planted.__name__.partition("_")[2]
    return Outcome(attack="pipes, devices, depth, size", name=f"{what} as {name}", problem=problem)


ATTACKS = (control_characters, failing_output, interruptions, special_files)


def run_attacks(attacks: Sequence[Callable[[Place], Iterator[Outcome]]], description: str, *, limit: float) -> None:
    """Print a line for each attack that did not survive, and the table."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="functions whose names begin so, and after a colon attempts")
    parser.add_argument("--limit", type=float, default=limit, help="seconds after which a command hangs")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    counts: dict[str, collections.Counter[str]] = {}
    with tempfile.TemporaryDirectory() as made:
        function, _, name = options.only.partition(":")
        place = Place(folder=Path(made), limit=options.limit, only=name)
        subprocess.run(
            place.command("demo --files . --json"),
            cwd=place.folder,
            env=place.environment,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        pairs = (place.folder / "pairs.csv").read_text().splitlines(keepends=True)
        (place.folder / "pairs.csv").write_text("".join(pairs[:161]))
        texts = (place.folder / "texts.txt").read_text().splitlines()
        (place.folder / "texts.txt").write_text("\n".join(texts[:300]))
        with (place.folder / "labels.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(("text", "label"))
            rows.writerows((text, ("a", "b", "c")[number % 3]) for number, text in enumerate(texts[:150]))
        for attack in attacks:
            if not attack.__name__.startswith(function):
                continue
            for outcome in attack(place):
                kind = outcome.problem.partition(":")[0]
                counts.setdefault(outcome.attack, collections.Counter()).update(("tried", kind or "survived"))
                if outcome.problem:
                    print(f"{outcome.attack}: {outcome.name}: {outcome.problem}", flush=True)
    columns = ("tried", "survived", "lost", "silent", "traceback", "hang")
    print(f"| attack | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for name, count in counts.items():
        print(f"| {name} | {' | '.join(str(count[column]) for column in columns)} |")
    sys.exit(any(count["tried"] != count["survived"] for count in counts.values()))


if __name__ == "__main__":
    run_attacks(ATTACKS, __doc__ or "", limit=60)
