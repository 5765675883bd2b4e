"""Processes killed at random moments: the same command, given again, ends in the numbers of one that was never killed.

    python benchmarks/attacks/kills.py [--rounds 3] [--kills 4] [--seed 0]

Each command runs once without harm. In every round it is then begun in an empty store, killed with SIGKILL at random
moments, and at last left to finish; what it prints as JSON must be what it printed at first, but for times and places.
The last round of each command lets two processes at one store, one of which is killed. Takes about four minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VOLATILE = re.compile(
    r"seconds|speed|created|peak_memory|per_second|versions|hardware|^path$|folder|directory|^rounds_by_layer$"
)
"""Keys whose values may differ from run to run."""
QUICK = "--epochs 1 --learning-rate 1e-3 --batch-size 8"
COMMANDS = {
    "extract": "extract rtd --texts texts.txt --json",
    "finetune": f"finetune rtd -t pairs.csv --layers 1,3 --seeds 2 {QUICK} --save-models --json",
    "scan": f"finetune --scan rtd -t pairs.csv --seeds 1 {QUICK} --json",
    "find": f"find rtd -t pairs.csv --budget 40% --against-last 0 --seeds 2 {QUICK} --json",
    "models": f"finetune rtd mlm -t pairs.csv --layers 0,2 --seeds 2 {QUICK} --workers 2 --json",
    "pretrain": "lab pretrain out --objective rtd --corpus texts.txt --size tiny --steps 12 --batch-size 8"
    " --checkpoint-every 3 --json",
}
"""By name, each on the files of `layerprobe demo --files`."""
LIMIT = 300
"""Seconds that a command may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one command that was killed and begun again."""

    command: str
    kills: int
    """That met it while it ran."""
    problem: str = ""
    """Empty where it survived; begins with silent or traceback else."""


def attacks(*, rounds: int, kills: int, seed: int, only: str = "") -> Iterator[Outcome]:
    """Yield an outcome for each command and round."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        run("demo --files . --json", folder, folder / "unused")
        for name in ("pairs.csv", "texts.txt"):  # enough to be killed in, and no more
            lines = (folder / name).read_text().splitlines(keepends=True)
            (folder / name).write_text("".join(lines[:161]))
        for name, command in COMMANDS.items():
            if not name.startswith(only):
                continue
            began = time.monotonic()
            expected = printed(command, folder, "whole")
            took = time.monotonic() - began
            for number in range(rounds):
                store, met = f"{name}-{number}", 0
                for _ in range(kills):
                    met += killed(command, folder, store, after=rng.uniform(0.05, 1.0) * took)
                beside = started(command, folder, store) if number == rounds - 1 else None
                found = printed(command, folder, store)
                if beside is not None:
                    beside.send_signal(signal.SIGKILL)
                    beside.communicate()
                    if isinstance(found, str) and "error: another process" in found:  # one folder, one pretraining
                        found = printed(command, folder, store)
                yield Outcome(command=name, kills=met, problem=problem(expected, found))


def started(command: str, folder: Path, store: str) -> subprocess.Popen[str]:
    """Start a command with a store of its own; what it writes goes beside the store."""
    home = folder / store
    home.mkdir(exist_ok=True)
    for name in ("rtd", "pairs.csv", "texts.txt"):
        if not (home / name).exists():
            (home / name).symlink_to(folder / name)
    environment = {**os.environ, "LAYERPROBE_CACHE": str(home / "cache"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, "-m", "layerprobe_cli.main", *command.split()]
    pipe = subprocess.PIPE
    return subprocess.Popen(arguments, cwd=home, env=environment, stdout=pipe, stderr=pipe, text=True)


def run(command: str, folder: Path, store: Path) -> tuple[int, str, str]:
    """Run a command to its end in a folder."""
    environment = {**os.environ, "LAYERPROBE_CACHE": str(store), "HF_HUB_OFFLINE": "1"}
    arguments = [sys.executable, "-m", "layerprobe_cli.main", *command.split()]
    done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def killed(command: str, folder: Path, store: str, *, after: float) -> int:
    """Kill a command after some seconds; return whether it still ran, and with it its own processes."""
    process = started(command, folder, store)
    try:
        process.communicate(timeout=after)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        return 1
    return 0


def printed(command: str, folder: Path, store: str) -> Any:
    """Return what a command prints as JSON, without what may differ; what it said on stderr if it fails."""
    process = started(command, folder, store)
    try:
        out, err = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"did not end within {LIMIT} s"
    return lasting(json.loads(out)) if process.returncode == 0 else err


def lasting(value: Any) -> Any:
    """Return a JSON value without the keys that differ from run to run, numbers rounded to nine digits."""
    if isinstance(value, dict):
        return {key: lasting(each) for key, each in value.items() if not VOLATILE.search(key)}
    if isinstance(value, list):
        return [lasting(each) for each in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def problem(expected: Any, found: Any) -> str:
    """Return what is wrong with what was found; empty where it is what was expected."""
    if isinstance(expected, str):
        return f"did not run unharmed: {expected.strip().splitlines()[-1]}"
    if found == expected:
        return ""
    if isinstance(found, str):
        kind = "traceback" if "Traceback" in found else "refused"
        return f"{kind}: {found.strip().splitlines()[-1] if found.strip() else 'no word'}"
    return f"silent: {difference(expected, found)}"


def difference(expected: Any, found: Any, path: str = "") -> str:
    """Return where two JSON values differ first."""
    if isinstance(expected, dict) and isinstance(found, dict) and expected.keys() == found.keys():
        return next(filter(None, (difference(expected[k], found[k], f"{path}.{k}") for k in expected)), "")
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = enumerate(zip(expected, found, strict=True))
        return next(filter(None, (difference(a, b, f"{path}[{i}]") for i, (a, b) in pairs)), "")
    return "" if expected == found else f"{path}: {str(expected)[:60]} became {str(found)[:60]}"


def main() -> None:
    """Print a line for each command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="names of commands that begin so")
    options = parser.parse_args()
    outcomes = []
    for outcome in attacks(rounds=options.rounds, kills=options.kills, seed=options.seed, only=options.only):
        outcomes.append(outcome)
        print(f"{outcome.command:10} {outcome.kills} kills  {outcome.problem or 'same numbers'}", flush=True)
    bad = [outcome for outcome in outcomes if outcome.problem]
    total = sum(outcome.kills for outcome in outcomes)
    print(f"{len(outcomes)} commands tried with {total} kills, {len(outcomes) - len(bad)} survived, {len(bad)} did not")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
