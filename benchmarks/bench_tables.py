"""How long the table of a finding takes as a DataFrame, in a new process each time, as a user waits for it.

The import of pandas is measured apart, since most users have it loaded.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

FINDING = Path(__file__).parents[1] / "docs" / "gallery" / "finding.json"
CODE = """
import sys, time
from layerprobe.results.shown import load
finding = load(sys.argv[1])
began = time.perf_counter()
import pandas
imported = time.perf_counter()
finding.to_pandas()
done = time.perf_counter()
loaded = [name for name in ("plotly", "torch") if name in sys.modules]
assert not loaded, loaded
print(done - imported, done - began)
"""


def main(given: Sequence[str] | None = None) -> None:
    """Print the median of some processes without and with the import of pandas."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--finding", type=Path, default=FINDING, help="finding.json")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args(given)
    rounds = [_seconds(arguments.finding) for _ in range(arguments.rounds)]
    for name, seconds in zip(
        ("to_pandas", "to_pandas with the import of pandas"), zip(*rounds, strict=True), strict=True
    ):
        print(f"{name}: {1e3 * statistics.median(seconds):.1f} ms, median of {len(seconds)} processes")


def _seconds(finding: Path) -> tuple[float, ...]:
    command = [sys.executable, "-c", CODE, str(finding)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return tuple(map(float, done.stdout.split()))


if __name__ == "__main__":
    main()
