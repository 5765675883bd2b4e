"""Which modules a model passes through in `predict` and `find`, and a word from its result to the screen, in order.

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
from layerprobe.encoders.identity import Resolved
from layerprobe.encoders.loading import SharedModel
from layerprobe.encoders.model import Model
from layerprobe.results import document, terminal, words
from layerprobe.results.shown import Shown

HOLDERS = (Model, Resolved, SharedModel)
ASIDE = {"lazy", "encoders.model", "files.serialisation"}
"""Modules that look at every value, or at a model's own fields."""
OF_ANY_TEXT = {"errors", "names"}
"""Modules that escape or shorten every text."""


def profiled(call: Callable[[], object], visit: Callable[[str, FrameType, str, object], bool]) -> list[str]:
    """Return the modules of the functions that `visit` counts during a call, without repetition of the one before."""
    root, visited = Path(layerprobe.__file__).parent, list[str]()

    def entered(frame: FrameType, event: str, value: object) -> None:
        file = Path(frame.f_code.co_filename)
        if frame.f_code.co_name.startswith("<") or not file.is_relative_to(root):
            return
        module = ".".join(file.relative_to(root).with_suffix("").parts)
        if visit(module, frame, event, value):
            visited.append(module)

    sys.setprofile(entered)
    try:
        call()
    finally:
        sys.setprofile(None)
    return [module for module, _ in itertools.groupby(visited)]


def walk(call: Callable[[], object]) -> list[str]:
    """Return the modules whose functions a call gives a model."""

    def gets_a_model(module: str, frame: FrameType, event: str, _: object) -> bool:
        code = frame.f_code
        if event != "call":
            return False
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        arguments = [frame.f_locals.get(name) for name in names]
        of_holder = bool(arguments) and names[0] == "self" and isinstance(arguments[0], HOLDERS)
        several = (part for value in arguments if isinstance(value, list | tuple) for part in value)
        return not of_holder and module not in ASIDE and any(isinstance(v, HOLDERS) for v in (*arguments, *several))

    return profiled(call, gets_a_model)


def walk_of_word(result: Shown, show: Callable[[Shown], str]) -> list[str]:
    """Return the module of a result, and those whose functions return a text with its headline."""
    headline = words.headline(result.conclusion)

    def makes_it(module: str, _: FrameType, event: str, value: object) -> bool:
        return event == "return" and module not in OF_ANY_TEXT and isinstance(value, str) and headline in value

    return [type(result).__module__.removeprefix("layerprobe."), *profiled(lambda: show(result), makes_it)]


def main() -> None:
    """Print both walks on the embedded pair, and the walks of the headline of what `find` returned."""
    task, name = layerprobe.embedded_task(), str(layerprobe.embedded_model("rtd"))
    with tempfile.TemporaryDirectory() as folder, layerprobe.settings(progress=lambda *_: None):
        texts = list(task.test.texts[:200])
        results: list[Shown] = []
        calls: dict[str, Callable[[], object]] = {
            "predict": lambda: layerprobe.predict(Model(name, cache_dir=f"{folder}/predict"), texts),
            "find": lambda: results.append(
                layerprobe.find(
                    Model(name, cache_dir=f"{folder}/find"), task, budget=0.05, seeds=1, cross_validation=False
                )
            ),
        }
        walks = {what: walk(call) for what, call in calls.items()}
        screens: dict[str, Callable[[Shown], str]] = {"terminal": terminal.shown, "page": document.render}
        walks |= {f"a word in a {where}": walk_of_word(results[0], show) for where, show in screens.items()}
        for what, visited in walks.items():
            print(f"{what}: {len(visited)} stays in {len(set(visited))} modules: {' -> '.join(visited)}")


if __name__ == "__main__":
    main()
