"""Which modules a model passes through in `predict` and in `find`, in order: what CONTRIBUTING counts.

python benchmarks/walks.py
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import layerprobe
from layerprobe.encoders.loading import Resolved
from layerprobe.encoders.model import Model
from layerprobe.encoders.workers import SharedModel

HOLDERS = (Model, Resolved, SharedModel)
ASIDE = {"lazy", "encoders.model", "files.serialisation"}
"""Modules that look at every value, or at a model's own fields."""


def walk(call: Callable[[], object]) -> list[str]:
    """Return the modules whose functions a call gives a model, without repetition of the one before."""
    root, visited = Path(layerprobe.__file__).parent, list[str]()

    def entered(frame: FrameType, event: str, _: object) -> None:
        code, file = frame.f_code, Path(frame.f_code.co_filename)
        if event != "call" or code.co_name.startswith("<") or not file.is_relative_to(root):
            return
        module = ".".join(file.relative_to(root).with_suffix("").parts)
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        given = [frame.f_locals.get(name) for name in names]
        of_holder = bool(given) and names[0] == "self" and isinstance(given[0], HOLDERS)
        several = (part for value in given if isinstance(value, list | tuple) for part in value)
        if not of_holder and module not in ASIDE and any(isinstance(v, HOLDERS) for v in (*given, *several)):
            visited.append(module)

    sys.setprofile(entered)
    try:
        call()
    finally:
        sys.setprofile(None)
    return [module for module, _ in itertools.groupby(visited)]


def main() -> None:
    """Print both walks on the embedded pair."""
    task, name = layerprobe.embedded_task(), str(layerprobe.embedded_model("rtd"))
    with tempfile.TemporaryDirectory() as folder, layerprobe.settings(progress=lambda *_: None):
        texts = list(task.test.texts[:200])
        calls: dict[str, Callable[[], object]] = {
            "predict": lambda: layerprobe.predict(Model(name, cache_dir=f"{folder}/predict"), texts),
            "find": lambda: layerprobe.find(
                Model(name, cache_dir=f"{folder}/find"), task, budget=0.05, seeds=1, cross_validation=False
            ),
        }
        for what, call in calls.items():
            visited = walk(call)
            print(f"{what}: {len(visited)} stays in {len(set(visited))} modules: {' -> '.join(visited)}")


if __name__ == "__main__":
    main()
