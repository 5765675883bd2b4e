"""The paper's figures are those that were checked against the paper."""

import hashlib
import json
from importlib import resources


def test_the_figures_are_those_that_were_checked() -> None:
    # test_reproduce.py compares them with a transcript of the paper, where there is one: change this only after that
    figures = json.loads((resources.files("layerprobe.lab") / "paper" / "paper.json").read_text(encoding="utf-8"))
    canonical = json.dumps(figures, sort_keys=True, separators=(",", ":"))
    assert (
        hashlib.sha256(canonical.encode()).hexdigest()
        == "3007525a0af24e389be63f9226744b5fd22d7846002b1b9405d2cc538490e0ea"
    )
