"""Memory and speed of `layerprobe extract` and `layerprobe compare` on very many short texts.

    python benchmarks/bench_many_texts.py --texts 1000000

Writes numbered sentences of the embedded language into a file, extracts it with an embedded model and compares the
model's layers each with the one before, each in a process of its own. From /proc comes how much memory that holds above
what it holds with 64 texts: its own (anonymous), and with the pages of mapped files, which the system takes back when
it needs them. The rate is that of the first and of the last tenth of the shards, by the clock and by the processor's
time, which other work on the machine changes less. Linux only.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from layerprobe.embedded import Language, embedded_model
from layerprobe.files.atomic import readable_size

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
    shards: tuple[tuple[float, float], ...]
    """When each shard of embeddings was there: seconds by the clock, and of the processor."""


def write_sentences(path: Path, n: int) -> None:
    """Write distinct sentences: some of the language again and again, each with a number of its own."""
    pool = list(Language().sentences(min(n, POOL), seed=0))
    with path.open("w") as file:
        file.writelines(f"{pool[number % len(pool)]} {number}\n" for number in range(n))


def watched(*arguments: str | Path) -> Usage:
    """Run a command of layerprobe and return what it took."""
    own, resident, shards = 0, 0, list[tuple[float, float]]()
    cache = Path(os.environ["LAYERPROBE_CACHE"])
    start = time.perf_counter()
    command = [sys.executable, "-m", "layerprobe", *map(str, arguments)]
    with tempfile.TemporaryFile("w+") as output, subprocess.Popen(command, stdout=output) as process:
        while process.poll() is None:
            status = memory(process.pid)
            own = max(own, status.get("RssAnon", 0))
            resident = max(resident, status.get("VmRSS", 0))
            while len(shards) < sum(1 for _ in cache.glob("embeddings/*/*.safetensors")):
                shards.append((time.perf_counter() - start, processor_time(process.pid)))
            time.sleep(EVERY)
        seconds = time.perf_counter() - start
        output.seek(0)
        if process.returncode:
            sys.exit(f"{' '.join(command)} failed")
        return Usage(seconds=seconds, own=own, resident=resident, printed=output.read(), shards=tuple(shards))


def memory(process: int) -> dict[str, int]:
    """Return the memory of a process in bytes, by name; nothing where it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return {}
    fields = (line.split() for line in lines if line.endswith(" kB"))
    return {field[0].rstrip(":"): int(field[1]) * 1024 for field in fields}


def processor_time(process: int) -> float:
    """Return the seconds that a process has spent on processors; 0 where it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rates(shards: Sequence[tuple[float, float]], rows: int) -> str:
    """Return texts a second in the first and in the last tenth of the shards, less the last one, which is smaller."""
    tenth = max(1, len(shards) // 10)
    parts = shards[: tenth + 1], shards[-tenth - 2 : -1]
    clock, processor = (
        " and ".join(f"{tenth * rows / (part[-1][kind] - part[0][kind]):,.0f}" for part in parts) for kind in (0, 1)
    )
    return f"texts/s of the first and the last {tenth} of {len(shards)} shards: {clock}; of processor time {processor}"


def main(given: Sequence[str] | None = None) -> None:
    """Run the commands and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, nargs="+", default=[100_000, 400_000])
    parser.add_argument("--store-dtype", default="float32", choices=("float32", "float16"))
    parser.add_argument("--no-intervals", action="store_true", help="compare without intervals")
    parser.add_argument("--no-compare", action="store_true", help="extract alone")
    parser.add_argument("--few", type=int, default=FEW, help="texts that others are compared with")
    arguments = parser.parse_args(given)
    model = embedded_model("rtd")
    folder = Path(tempfile.mkdtemp(prefix="many-texts-"))
    os.environ["LAYERPROBE_CACHE"] = str(folder / "cache")
    intervals = ["--no-intervals"] if arguments.no_intervals else []
    bases = None
    try:
        for n in (arguments.few, *arguments.texts):
            texts = folder / f"{n}.txt"
            write_sentences(texts, n)
            options = ["--texts", texts, "--store-dtype", arguments.store_dtype, "--json", "-q"]
            extracted = watched("extract", model, *options)
            usages = [("extract", extracted)]
            if not arguments.no_compare:
                usages.append(("compare", watched("compare", model, *options, *intervals)))
            if bases is None:
                bases = [usage for _, usage in usages]
                shutil.rmtree(folder / "cache" / "embeddings")
                continue
            entry = Path(json.loads(extracted.printed)["folder"])
            manifest = json.loads((entry / "manifest.json").read_text())
            disk = sum(path.stat().st_size for path in entry.iterdir())
            print(f"{n:,} texts, {texts.stat().st_size / n:.0f} bytes each, {arguments.store_dtype}:")
            for (name, usage), base in zip(usages, bases, strict=True):
                print(
                    f"  {name}: {usage.seconds:.0f} s, {n / usage.seconds:,.0f} texts/s; memory of its own "
                    f"{readable_size(usage.own - base.own)} above that with {arguments.few} texts "
                    f"({readable_size(base.own)}), with mapped files {readable_size(usage.resident - base.resident)}"
                )
            if len(extracted.shards) > 3:
                print(f"  {rates(extracted.shards, manifest['rows_per_shard'])}")
            print(f"  disk {readable_size(disk)}", flush=True)
            texts.unlink()
            shutil.rmtree(folder / "cache" / "embeddings")  # the next ones begin with no shard
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
