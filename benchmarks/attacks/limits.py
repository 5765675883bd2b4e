"""Limits of the system, jumping clocks, lying arrays, newer caches, kills between renames, many processes and texts.

    python benchmarks/attacks/limits.py [--only NAME] [--limit 120]

Prints and exits like `terminals.py`. Takes about an hour on one core; `--only` takes a part.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import pickle
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.attacks.terminals import QUICK, Ended, Outcome, Place, run_attacks

SCORE = "score rtd -t pairs.csv --json"
FIND = f"find rtd -t pairs.csv --budget 20% --against-last 0 --seeds 2 {QUICK} --json"
LIMITED = {"score": SCORE, "find": FIND, "find with two jobs": f"{FIND} --jobs 2"}


def answered(ended: Ended) -> str:
    """Return what is wrong with a command that must end well or in one line of an error."""
    if ended.problem or not ended.code:
        return ended.problem
    lines = ended.err.decode(errors="replace").splitlines()
    return "" if any(line.startswith("error: ") for line in lines) else f"silent: exit code {ended.code}"


# ---- limits of the system -----------------------------------------------------------------------------------


LIMITS = {
    "memory": (resource.RLIMIT_AS, (2**28, 2**29, 2**30, 2**31, 3 * 2**30, 2**32)),
    "sizes of files": (resource.RLIMIT_FSIZE, (0, 1000, 20_000, 200_000)),
    "open files": (resource.RLIMIT_NOFILE, (5, 8, 12, 20, 40)),
}
NO_MORE = """
import _posixsubprocess, errno, os, subprocess, threading
left = {0}
def refused(true, error):
    def call(*values, **keywords):
        global left
        left -= 1
        if left < 0:
            raise error
        return true(*values, **keywords)
    return call
threading._start_new_thread = refused(threading._start_new_thread, RuntimeError("can't start new thread"))
for module, name in ((os, "fork"), (_posixsubprocess, "fork_exec"), (subprocess, "_fork_exec")):
    error = BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    setattr(module, name, refused(getattr(module, name), error))
"""
"""A limit of processes and threads, by injection: that of the system does not bind the superuser."""


def limits(place: Place) -> Iterator[Outcome]:
    """Yield how a command ends under limits of memory, files and processes."""
    for name, (kind, values) in LIMITS.items():
        for value in values:
            for command, line in LIMITED.items():
                fresh(place)
                ended = place.run(line, preexec_fn=functools.partial(resource.setrlimit, kind, (value, value)))
                after = place.run(SCORE)
                lost = "lost: the next command fails" if after.code else ""
                # below what Python itself needs to start, and where a library in Rust ends the process, they speak
                early = b"layerprobe_cli" not in ended.err and b"Fatal Python error" in ended.err
                early |= b"memory allocation of " in ended.err
                problem = "" if early and not lost else answered(ended) or lost
                yield Outcome(attack="limits of the system", name=f"{name} {value}: {command}", problem=problem)
    for left in (0, 1, 2, 5, 20):
        for command, line in LIMITED.items():
            fresh(place)
            problem = answered(patched(place, NO_MORE.format(left), line)) or right(place.run(SCORE))
            yield Outcome(attack="limits of the system", name=f"{left} threads: {command}", problem=problem)


def fresh(place: Place) -> None:
    """Begin with an empty cache."""
    shutil.rmtree(place.folder / "cache", ignore_errors=True)


# ---- code that is run before the command ---------------------------------------------------------------------


def patched(place: Place, patch: str, line: str) -> Ended:
    """Run a command in a process in which something was replaced before."""
    code = f"""{patch}
import sys
sys.argv[0] = 'layerprobe'
from layerprobe_cli.start import main
if __name__ == '__main__':
    main()
"""
    (place.folder / "patched.py").write_text(code)
    process = subprocess.Popen(
        [sys.executable, "patched.py", *line.split()],
        cwd=place.folder,
        env=place.environment,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    return place.ended(process)


CLOCKS = {
    "back by a year": "lambda n: -3.2e7 if n > 3 else 0",
    "to the end of 2100": "lambda n: 2.4e9 if n > 3 else 0",
    "to and fro": "lambda n: (-1) ** n * 1e6",
    "to 1970": "lambda n: -true()",
    "stands": "lambda n: first - true()",
}


def clocks(place: Place) -> Iterator[Outcome]:
    """Yield what becomes of commands whose clock jumps, and of caches from the future."""
    for name, offset in CLOCKS.items():
        fresh(place)
        patch = (
            "import time\ntrue, true_ns, first, n = time.time, time.time_ns, time.time(), 0\n"
            f"offset = {offset}\n"
            "def now():\n    global n\n    n += 1\n    return true() + offset(n)\n"
            "time.time = now\ntime.time_ns = lambda: int(now() * 1e9)\n"
        )
        for line in (SCORE, FIND, "cache list", "cache prune --older-than 1"):
            problem = right(patched(place, patch, line))
            yield Outcome(attack="a clock that jumps", name=f"{name}: {line}", problem=problem)
    place.run(SCORE)
    for path in (place.folder / "cache").rglob("*"):
        os.utime(path, (4e9, 4e9))
    for line in (SCORE, "cache list"):
        yield Outcome(attack="a clock that jumps", name=f"files of 2096: {line}", problem=right(place.run(line)))


def right(ended: Ended) -> str:
    """Return what is wrong with a command that must end well."""
    return ended.problem or (f"lost: {ended.err[-200:]!r}" if ended.code else "")


# ---- kills between renames -----------------------------------------------------------------------------------

KILL = """
import ctypes, os
left = {0}
def counted(true):
    def call(*values, **keywords):
        global left
        left -= 1
        if left == 0 and {1!r} == "before": os.kill(os.getpid(), 9)
        result = true(*values, **keywords)
        if left == 0: os.kill(os.getpid(), 9)
        return result
    return call
for name in ("rename", "replace", "unlink", "rmdir"):
    setattr(os, name, counted(getattr(os, name)))
import layerprobe.files.atomic as folders
for name in ("_exchanged", "_swap", "_exchange"):
    if hasattr(folders, name):
        setattr(folders, name, counted(getattr(folders, name)))
"""
KILLED = {
    "export": "export rtd exported --layer 2 --overwrite --json",
    "prune": "cache prune --all --json",
    "score": SCORE,
    "extract": "extract rtd --texts texts.txt --json",
    "shrink": f"shrink rtd --texts texts.txt --size 4 -o smaller {QUICK} --overwrite --json",
    "find": FIND,
}


def renames(place: Place) -> Iterator[Outcome]:
    """Yield whether the same command ends well after kills before and after its k-th rename or removal."""
    place.run(KILLED["export"])
    for name, line in KILLED.items():
        for k in (1, 2, 3, 4, 6, 9, 14, 20, 40):
            fresh(place)
            if name == "prune":
                place.run(SCORE)
            moment = "before" if k % 2 else "after"
            ended = patched(place, KILL.format(k, moment), line)
            if ended.code != -signal.SIGKILL:
                break  # there are fewer
            problem = ended.problem
            if name == "export" and not (place.folder / "exported" / "config.json").is_file():
                problem = problem or "lost: neither version is there"
            again = place.run(line)
            problem = problem or right(again)
            left = [path.name for path in place.folder.glob(".tmp-*")] if name in ("export", "shrink") else []
            problem = problem or (f"lost: {left} is left" if left else "")
            yield Outcome(attack="killed between renames", name=f"{name}, {k}", problem=problem)


# ---- disks, homes and temporary folders ------------------------------------------------------------------------

FULL = """
import errno, os
left = {0}
true = os.fsync
def fsync(descriptor):
    global left
    left -= 1
    if left <= 0:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    true(descriptor)
os.fsync = fsync
"""


def filling(place: Place) -> Iterator[Outcome]:
    """Yield what becomes of commands whose disk is full from the k-th file on: one line, no leftovers, and again."""
    for line in (SCORE, FIND, KILLED["extract"], KILLED["export"]):
        for k in (1, 3, 6, 12):
            fresh(place)
            problem = answered(patched(place, FULL.format(k), line))
            left = [path.name for path in place.folder.rglob(".tmp-*")]
            problem = problem or (f"lost: {left} is left" if left else "") or right(place.run(line))
            yield Outcome(attack="a disk that fills up", name=f"{line[:7]}, {k}", problem=problem)


SURROUNDINGS: dict[str, dict[str, str | None]] = {
    "no HOME": {"HOME": None},
    "HOME that nobody writes": {"HOME": "/proc/nowhere", "LAYERPROBE_CACHE": None, "XDG_CACHE_HOME": None},
    "HOME that is a file": {"HOME": "/etc/passwd", "LAYERPROBE_CACHE": None, "XDG_CACHE_HOME": None},
    "empty HOME": {"HOME": ""},
    "TMPDIR that is missing": {"TMPDIR": "/proc/nowhere"},
    "TMPDIR that is a file": {"TMPDIR": "/etc/passwd"},
    "a cache in a file": {"LAYERPROBE_CACHE": "/etc/passwd/cache"},
    "a cache that nobody writes": {"LAYERPROBE_CACHE": "/proc/cache"},
    "a relative cache": {"LAYERPROBE_CACHE": "cache"},
}


def surroundings(place: Place) -> Iterator[Outcome]:
    """Yield what becomes of commands without a home, a folder for temporary files or one for what is kept."""
    for name, changes in SURROUNDINGS.items():
        environment = {key: value for key, value in (place.environment | changes).items() if value is not None}
        for line in (SCORE, "cache list"):
            ended = place.run(line, env=environment)
            yield Outcome(attack="homes and folders", name=f"{name}: {line[:7]}", problem=answered(ended))


# ---- a newer cache -------------------------------------------------------------------------------------------


def newer(place: Place) -> Iterator[Outcome]:
    """Yield what is said of a cache in which a later version wrote one file of each kind, and what becomes of it."""
    cache = place.folder / "cache"
    for line in (SCORE, FIND):
        fresh(place)
        place.run(line)
        kinds = {re.sub(r"[0-9a-f]{32,}|\d+", "*", str(path.relative_to(cache))): path for path in _json_files(cache)}
        for kind, path in sorted(kinds.items()):
            data = path.read_bytes()
            value = json.loads(data)
            for change in ("version", "field") if isinstance(value, dict) else ():
                path.write_text(json.dumps(value | ({"format": 99} if change == "version" else {"later": 1})))
                ended = place.run(line)
                problem = answered(ended) or ("" if ended.err or not ended.code else "silent")
                yield Outcome(
                    attack="a cache of a newer version", name=f"{line[:5]}, {kind}, {change}", problem=problem
                )
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)


def _json_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.json") if not path.is_symlink())


# ---- arrays, tables and adapters that lie --------------------------------------------------------------------


class Evil:
    """Writes a file where it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return os.system, ("touch ran",)


def npy(shape: str, *, dtype: str = "<f4", data: bytes = b"\0" * 64) -> bytes:
    """Return a .npy file with such a header."""
    header = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


def zipped(files: dict[str, bytes]) -> bytes:
    """Return a .npz of files."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


def arrays() -> dict[str, bytes]:
    """Return hostile .npy and .npz files by name."""
    pickled, good = pickle.dumps(Evil()), io.BytesIO()
    np.save(good, np.zeros((100, 3, 4), np.float32))
    bad = {
        "pickled": npy("(100, 3, 4)", dtype="|O", data=pickled),
        "object": npy("(1,)", dtype="|O", data=pickled),
        "huge": npy("(1000000000000, 3, 4)"),
        "negative": npy("(-1, 3, 4)"),
        "overflow": npy("(4294967296, 4294967296, 4)"),
        "nested": npy("(" * 3000 + ")" * 3000),
        "code": npy("__import__('os').system('touch ran')"),
        "structured": npy("(4,)", dtype="V16"),
        "short": good.getvalue()[:200],
        "empty": b"",
        "no array": b"PK\x03\x04",
        "header without end": b"\x93NUMPY\x02\x00" + (2**31).to_bytes(4, "little"),
    }
    whole = {f"{name}.npy": data for name, data in bad.items()}
    layer = good.getvalue()
    whole |= {f"{name}.npz": zipped({"layer_0.npy": data, "layer_1.npy": layer}) for name, data in bad.items()}
    whole["bomb.npz"] = zipped({"layer_0.npy": npy("(60000, 3000)", data=b"\0" * 720_000_000)})
    whole["outside.npz"] = zipped({"../../layer_0.npy": good.getvalue()})
    whole["pickle.npz"] = zipped({"layer_0.pkl": pickled})
    return whole


def hostile_arrays(place: Place) -> Iterator[Outcome]:
    """Yield what becomes of embeddings and targets that are pickles, bombs or of false shapes."""
    attack = "arrays that lie"
    (place.folder / "rows.txt").write_text("".join(f"{number / 7}\n" for number in range(100)))
    np.save(place.folder / "good.npy", np.random.default_rng(0).normal(size=(100, 3, 4)).astype(np.float32))
    yield Outcome(attack=attack, name="one that does not", problem=right(place.run("probe ./good.npy rows.txt")))
    for name, data in arrays().items():
        path = place.folder / name.replace(" ", "-")
        path.write_bytes(data)
        for what, line in {"embeddings": "probe ./{} rows.txt", "targets": "probe ./good.npy ./{}"}.items():
            ended = place.run(line.format(path.name))
            ran = "silent: code ran" if (place.folder / "ran").exists() else ""
            accepted = "" if ended.code else "silent: accepted"
            yield Outcome(attack=attack, name=f"{name} as {what}", problem=ran or answered(ended) or accepted)
        path.unlink()


def safetensors(header: bytes, size: int | None = None) -> bytes:
    """Return a safetensors file with such a header, whose size may be false."""
    return (len(header) if size is None else size).to_bytes(8, "little") + header


def adapters(place: Place) -> Iterator[Outcome]:
    """Yield what becomes of adapters and weights whose headers lie and tokenizers that explode."""
    tensors = {"F32": [10**12], "F16": [2**63, 2**63], "X9": [1], "U8": [-1]}
    weights = {}
    for kind, shape in tensors.items():
        header = {"a": {"dtype": kind, "shape": shape, "data_offsets": [0, 10**12]}}
        weights[f"{kind} {shape}"] = safetensors(json.dumps(header).encode())
    weights |= {"header of 1e12 bytes": safetensors(b"{}", 10**12), "deep": safetensors(b"[" * 100_000), "empty": b""}
    config = {"peft_type": "LORA", "task_type": "FEATURE_EXTRACTION", "r": 4, "target_modules": ["query"]}
    config |= {"base_model_name_or_path": "rtd"}
    configs = {
        "plain": config,
        "itself": config | {"base_model_name_or_path": "hostile"},
        "code": config | {"auto_mapping": {"base_model_class": "x", "parent_library": "antigravity"}},
        "rank 1e9": config | {"r": 10**9},
        "regular expression": config | {"target_modules": "(a+)+" * 20 + "$"},
        "no kind": {"base_model_name_or_path": "rtd"},
        "list": ["x"],
    }
    folder = place.folder / "hostile"

    def tried(name: str, line: str = "score hostile -t pairs.csv") -> Outcome:
        ended = place.run(line)
        ran = "silent: code ran" if (place.folder / "ran").exists() else ""
        return Outcome(attack="weights, adapters and tokenizers that lie", name=name, problem=ran or answered(ended))

    for name, data in weights.items():
        for file in ("model.safetensors", "adapter_model.safetensors"):
            shutil.rmtree(folder, ignore_errors=True)
            if file == "model.safetensors":
                shutil.copytree(place.folder / "rtd", folder)
                (folder / "SHA256SUMS").unlink(missing_ok=True)
            else:
                folder.mkdir()
                (folder / "adapter_config.json").write_text(json.dumps(configs["plain"]))
            (folder / file).write_bytes(data)
            yield tried(f"{file}: {name}")
    for name, content in configs.items():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "adapter_config.json").write_text(json.dumps(content))
        (folder / "adapter_model.safetensors").write_bytes(safetensors(b"{}"))
        yield tried(f"adapter_config.json: {name}")
    patterns = {"nested": "(a+)+$", "alternatives": "(a|a)*b", "backwards": "(?<=a)(a*)*c", "wide": "(.*){1,60}x"}
    for name, pattern in patterns.items():
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(place.folder / "rtd", folder)
        (folder / "SHA256SUMS").unlink(missing_ok=True)
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        tokenizer["pre_tokenizer"] = split
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        with (place.folder / "long.txt").open("w") as file:
            file.writelines(f"{'a' * 40} {number}\n" for number in range(50))
        yield tried(f"regular expression: {name}", "extract hostile --texts long.txt")


# ---- many ------------------------------------------------------------------------------------------------------


CROWD = """
import os, random, sys, time, traceback
import layerprobe as lp

def work(number):
    rng, cache, model = random.Random(number), lp.cache("cache"), lp.Model("rtd", cache_dir="cache")
    time.sleep(rng.uniform(0, 1))
    task, texts = lp.load_task("pairs.csv"), lp.load_texts("texts.txt").texts
    if number % 5 == 0:
        return lp.score(model, task).scores
    if number % 5 == 1:
        return lp.extract(model, texts[: 50 * (1 + number % 4)]).layer(2)[:3].tolist()
    if number % 5 == 2:
        return lp.compare(model, lp.Model("mlm", cache_dir="cache"), texts[:100]).curve.values
    if number % 5 == 3:
        return cache.prune(everything=True) if number % 4 == 0 else cache.prune(partial_only=True)
    return len(cache.entries())

def child(number):
    try:
        answer = f"answered {number % 5} {number % 4 if number % 5 == 1 else 0} {hash(repr(work(number)))}"
    except lp.LayerProbeError as error:
        answer = f"refused {error}"
    except BaseException:
        answer = "traceback " + traceback.format_exc(limit=-2).replace(chr(10), " ")
    os.write(1, f"{number} {answer}\\n".encode())
    os._exit(0)

if __name__ == "__main__":
    for number in (0, 1, 2):  # imports, and what is looked at once
        work(number)
    began, running = time.monotonic(), set()
    for number in range(200):
        while len(running) == 25:
            running.discard(os.wait()[0])
        pid = os.fork()
        if not pid:
            child(number)
        running.add(pid)
    while running:
        running.discard(os.wait()[0])
"""


def crowd(place: Place) -> Iterator[Outcome]:
    """Yield what becomes of 200 processes, 25 at a time, that read, write, list and empty one cache."""
    fresh(place)
    (place.folder / "crowd.py").write_text(CROWD)
    environment = place.environment | {"PYTHONHASHSEED": "0"}
    command = [sys.executable, "crowd.py"]
    try:
        limit = max(280.0, place.limit)
        done = subprocess.run(
            command, cwd=place.folder, env=environment, capture_output=True, text=True, timeout=limit, check=False
        ).stdout
    except subprocess.TimeoutExpired as error:
        done = (error.stdout or b"").decode()
    lines = dict(line.partition(" ")[::2] for line in done.splitlines())
    answers: dict[str, str] = {}
    for number in range(200):
        kind, _, rest = lines.get(str(number), "hang").partition(" ")
        problem = "" if kind in ("answered", "refused") else f"{kind}: {rest}"
        what, _, answer = rest.rpartition(" ")
        if kind == "answered" and what[0] in "012" and answers.setdefault(what, answer) != answer:
            problem = "lost: another answer"
        if kind == "refused":
            print(f"200 processes on one cache: {number}: {rest}", flush=True)
        yield Outcome(attack="200 processes on one cache", name=str(number), problem=problem)


MILLION = ("extract rtd --texts million.txt --json", "predict rtd --texts million.txt --json")


def million(place: Place) -> Iterator[Outcome]:
    """Yield what becomes of a million short texts: memory and seconds, and where the disk is too small for them."""
    fresh(place)
    with (place.folder / "million.txt").open("w") as file:
        file.writelines(f"text {number:x}\n" for number in range(1_000_000))
    slow = Place(folder=place.folder, limit=max(place.limit, 1800))
    for line in MILLION:
        began = time.monotonic()
        ended = slow.run(line)
        peak, seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20, time.monotonic() - began
        print(f"a million texts: {line.split()[0]}: {seconds:.0f} s, at most {peak:.1f} GiB", flush=True)
        yield Outcome(attack="a million short texts", name=line.split()[0], problem=answered(ended))


def ray(place: Place) -> Iterator[Outcome]:
    """Yield what becomes of a search by workers of Ray, of which the first, and then all, are killed."""
    if find_spec("ray") is None:
        print("Ray is not installed: its workers were not attacked", flush=True)
        return
    for name, most in {"one of them": 1, "all of them": None}.items():
        fresh(place)
        process = place.started(f"{FIND} --ray local")
        end, workers = time.monotonic() + place.limit / 2, list[int]()
        while not workers and process.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
            workers = _ray_workers(place)[:most]
        for number in workers:
            os.kill(number, signal.SIGKILL)
        problem = right(place.ended(process)) or ("" if workers else "silent: none was killed")
        yield Outcome(attack="workers of Ray killed", name=name, problem=problem)


def _ray_workers(place: Place) -> list[int]:
    """Return the processes of jobs whose cache is that of the place."""
    cache, workers = f"LAYERPROBE_CACHE={place.folder / 'cache'}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            named = (folder / "cmdline").read_bytes().startswith(b"ray::_Served")
            if named and cache in (folder / "environ").read_bytes().split(b"\0"):
                workers.append(int(folder.name))
    return workers


if __name__ == "__main__":
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # a limit would leave half of it, in this tree
    run_attacks(
        (limits, clocks, renames, filling, surroundings, newer, hostile_arrays, adapters, ray, crowd, million),
        __doc__ or "",
        limit=120,
    )
