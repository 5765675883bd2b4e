"""What importing the package costs, and which parts do without which library."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "plotly", "datasets", "pandas", "sklearn", "scipy", "ray")


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


def test_ray_is_imported_where_a_cluster_is_asked_for_alone() -> None:
    names = ("sweeps.run", "lab.studies.run", "extraction.embeddings", "finetuning.tuning")
    modules = ", ".join(f"layerprobe.{name}" for name in names)
    assert run(f"import sys; import {modules}; print('ray' in sys.modules)") == "False"


@pytest.mark.parametrize(
    "module", ["study.values", "report.page", "tasks.loading", "prediction.values", "metrics.names"]
)
def test_values_and_pages_need_no_torch(module: str) -> None:
    assert (
        run(f"import sys; sys.modules['torch'] = None; import layerprobe.{module} as found; print(bool(found))")
        == "True"
    )
