"""What importing the package costs, and which parts do without which library."""

import subprocess
import sys

HEAVY = ("torch", "transformers", "plotly", "datasets", "pandas", "sklearn", "scipy", "ray")


def run(code: str) -> str:
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


def test_the_package_imports_nothing_heavy() -> None:
    assert run(f"import sys, layerprobe; print([name for name in {HEAVY} if name in sys.modules])") == "[]"


STAGES = (
    "extraction.embeddings",
    "finetuning.tuning",
    "similarity.cka",
    "comparison.compare",
    "lab.run",
)
VALUES = ("study.values", "results.document", "tasks.loading", "prediction.values", "metrics.names")


def importing(names: tuple[str, ...], *, without: tuple[str, ...]) -> str:
    """Import modules in turn, in one process: torch takes longer than all of them."""
    missing = "".join(f"sys.modules[{name!r}] = None; " for name in without)
    return (
        f"import sys; {missing}import {', '.join(f'layerprobe.{name}' for name in names)}; print('ray' in sys.modules)"
    )


def test_stages_need_no_datasets_and_no_plotly_and_ray_only_where_a_cluster_is_asked_for() -> None:
    assert run(importing(STAGES, without=("datasets", "plotly"))) == "False"


def test_values_and_pages_need_no_torch() -> None:
    assert run(importing(VALUES, without=("torch",))) == "False"
