"""Memory and speed of `layerprobe extract` and `layerprobe compare` on very many short texts.

    python tests/benchmarks/bench_many_texts.py --texts 1000000

Writes numbered sentences of the embedded language into a file, extracts it with an embedded model and compares the
model's layers each with the one before, each in a process of its own. From /proc comes how much memory that holds above
what it holds with 64 texts: its own (anonymous), and with the pages of mapped files, which the system takes back when
it needs them. The rate is that of the first and of the last tenth of the shards, by when they were written. Linux
only.
"""

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from layerprobe.files import readable_size
from layerprobe.pretraining.embedded import embedded_model
from layerprobe.pretraining.language import Language

FEW = 64
POOL = 20_000
EVERY = 0.02
"""Seconds from one look at the memory to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a command took."""

    seconds: float
    own: int
    """Bytes of memory of its own at most."""
    resident: int
    """Bytes of resident memory at most, pages of mapped files included."""
    printed: str
    """What came on stdout."""


def write_sentences(path: Path, n: int) -> None:
    """Write distinct sentences: some of the language again and again, each with a number of its own."""
    pool = list(Language().sentences(min(n, POOL), seed=0))
    with path.open("w") as file:
        file.writelines(f"{pool[number % len(pool)]} {number}\n" for number in range(n))


def watched(*arguments: str | Path) -> Usage:
    """Run a command of layerprobe and return what it took."""
    own = resident = 0
    start = time.perf_counter()
    command = [sys.executable, "-m", "layerprobe", *map(str, arguments)]
    with tempfile.TemporaryFile("w+") as output, subprocess.Popen(command, stdout=output) as process:
        while process.poll() is None:
            status = memory(process.pid)
            own = max(own, status.get("RssAnon", 0))
            resident = max(resident, status.get("VmRSS", 0))
            time.sleep(EVERY)
        seconds = time.perf_counter() - start
        output.seek(0)
        if process.returncode:
            sys.exit(f"{' '.join(command)} failed")
        return Usage(seconds=seconds, own=own, resident=resident, printed=output.read())


def memory(process: int) -> dict[str, int]:
    """Return the memory of a process in bytes, by name; nothing where it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return {}
    fields = (line.split() for line in lines if line.endswith(" kB"))
    return {field[0].rstrip(":"): int(field[1]) * 1024 for field in fields}


def rates(folder: Path, rows: int) -> Iterator[float]:
    """Yield texts a second, shard by shard from the second one on; all but the last have equally many rows."""
    times = sorted(path.stat().st_mtime for path in folder.glob("*.safetensors"))
    yield from (rows / (later - earlier) for earlier, later in itertools.pairwise(times[:-1]))


def main() -> None:
    """Run the commands and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, nargs="+", default=[100_000, 400_000])
    parser.add_argument("--store-dtype", default="float32", choices=("float32", "float16"))
    parser.add_argument("--no-intervals", action="store_true", help="compare without intervals")
    arguments = parser.parse_args()
    model = embedded_model("rtd")
    folder = Path(tempfile.mkdtemp(prefix="many-texts-"))
    os.environ["LAYERPROBE_CACHE"] = str(folder / "cache")
    intervals = ["--no-intervals"] if arguments.no_intervals else []
    bases = None
    try:
        for n in (FEW, *arguments.texts):
            texts = folder / f"{n}.txt"
            write_sentences(texts, n)
            options = ["--texts", texts, "--store-dtype", arguments.store_dtype, "--json", "-q"]
            extracted = watched("extract", model, *options)
            compared = watched("compare", model, *options, *intervals)
            if bases is None:
                bases = extracted, compared
                continue
            entry = Path(json.loads(extracted.printed)["folder"])
            manifest = json.loads((entry / "manifest.json").read_text())
            by_shard = list(rates(entry, manifest["rows_per_shard"]))
            disk = sum(path.stat().st_size for path in entry.iterdir())
            print(f"{n:,} texts, {texts.stat().st_size / n:.0f} bytes each, {arguments.store_dtype}:")
            for name, usage, base in zip(("extract", "compare"), (extracted, compared), bases, strict=True):
                print(
                    f"  {name}: {usage.seconds:.0f} s, {n / usage.seconds:,.0f} texts/s; memory of its own "
                    f"{readable_size(usage.own - base.own)} above that with {FEW} texts "
                    f"({readable_size(base.own)}), with mapped files {readable_size(usage.resident - base.resident)}"
                )
            if by_shard:
                tenth = max(1, len(by_shard) // 10)
                first, last = (sum(part) / tenth for part in (by_shard[:tenth], by_shard[-tenth:]))
                print(f"  first shards {first:,.0f} texts/s, last {last:,.0f}, of {manifest['rows_per_shard']:,} texts")
            print(f"  disk {readable_size(disk)}", flush=True)
            texts.unlink()
            shutil.rmtree(folder / "cache" / "embeddings")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
