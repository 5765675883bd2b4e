"""What importing the package costs; which parts do without which library is a contract of their imports."""

import subprocess
import sys

HEAVY = ("torch", "transformers", "plotly", "datasets", "pandas", "sklearn", "scipy", "ray")


def test_the_package_imports_nothing_heavy() -> None:
    code = f"import sys, layerprobe; print([name for name in {HEAVY} if name in sys.modules])"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert process.stdout.strip() == "[]"
