"""What importing the package costs, and which parts do without which library."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "plotly", "datasets", "pandas", "sklearn", "scipy")


def run(code: str) -> str:
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


def test_the_package_imports_nothing_heavy() -> None:
    assert run(f"import sys, layerprobe; print([name for name in {HEAVY} if name in sys.modules])") == "[]"


STAGES = ("extraction.embeddings", "finetuning.tuning", "similarity.cka", "comparison.compare")


@pytest.mark.parametrize("module", STAGES)
def test_no_need_of_datasets_and_plotly(module: str) -> None:
    blocked = "import sys; sys.modules['datasets'] = sys.modules['plotly'] = None"
    assert run(f"{blocked}; import layerprobe.{module} as found; print(bool(vars(found)))") == "True"


@pytest.mark.parametrize(
    "module", ["study.values", "report.page", "tasks.loading", "prediction.values", "metrics.names"]
)
def test_values_and_pages_need_no_torch(module: str) -> None:
    assert (
        run(f"import sys; sys.modules['torch'] = None; import layerprobe.{module} as found; print(bool(found))")
        == "True"
    )
