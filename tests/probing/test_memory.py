"""A memory map larger than the memory that a process may have is probed, and would not fit as a copy."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

CODE = """
import resource, sys
from pathlib import Path
import numpy as np
from layerprobe.probing.run import probe

rng = np.random.default_rng(0)
probe(rng.standard_normal((50, 2, 4)), rng.standard_normal(50), foldings=1)  # all that is imported is
targets = np.load(sys.argv[2])
status = Path("/proc/self/status").read_text()
before = 1024 * int(status.partition("VmData:")[2].split()[0])
resource.setrlimit(resource.RLIMIT_DATA, (before + int(sys.argv[3]),) * 2)
result = probe(sys.argv[1], targets, foldings=1, weighted_sum=False)
print(result.best_layer, len(result.layers))
try:
    np.array(np.load(sys.argv[1], mmap_mode="r"))
except MemoryError:
    print("a copy does not fit")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the limit of a process's own memory is that of Linux")
def test_embeddings_larger_than_the_memory_are_probed(tmp_path: Path) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "e.npy"
    n, layers, width, limit = 60_000, 3, 256, 120 * 2**20
    signal = rng.standard_normal((n, 1)).astype(np.float32)
    embeddings = np.lib.format.open_memmap(path, "w+", np.float32, (n, layers, width))
    for layer in range(layers):
        embeddings[:, layer] = rng.standard_normal((n, width), np.float32)
    embeddings[:, 1, :1] += signal
    embeddings.flush()
    np.save(tmp_path / "t.npy", signal[:, 0] + rng.standard_normal(n))
    assert path.stat().st_size > 1.4 * limit
    done = subprocess.run(
        [sys.executable, "-c", CODE, path, tmp_path / "t.npy", str(limit)], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == ["1 3", "a copy does not fit"], done.stderr
