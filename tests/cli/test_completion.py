"""What the shell completes, through the protocol by which it asks."""

import json
import subprocess
import sys

import pytest
from layerprobe_cli.main import app
from typer.testing import CliRunner

from layerprobe.lab.pretraining.values import OBJECTIVES
from layerprobe.lab.reproduction import experiments
from layerprobe.prediction.rules import rule_names
from layerprobe.similarity.values import MEASURES
from layerprobe.tasks.kind import KINDS


def asked(*words: str) -> dict[str, str]:
    """Return the environment in which bash asks for the last word."""
    typed = [f"'{word}'" if " " in word else word for word in ("layerprobe", *words)]
    return {"_LAYERPROBE_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(typed), "COMP_CWORD": str(len(words))}


def completed(*words: str) -> list[str]:
    """Return what bash would offer for the last word."""
    lines = CliRunner().invoke(app, [], prog_name="layerprobe", env=asked(*words)).stdout.splitlines()
    return list(filter(None, lines))


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("predict", "--rule", ""), rule_names()),
        (("compare", "--measure", ""), MEASURES),
        (("score", "--kind", ""), KINDS),
        (("lab", "pretrain", "--objective", ""), OBJECTIVES),
        (("lab", "reproduce", ""), tuple(experiments())),
        (("compare", "--plotly", ""), ("embedded", "cdn")),
    ],
)
def test_all_names_are_offered(words: tuple[str, ...], names: list[str]) -> None:
    assert set(completed(*words)) == set(names)
    first = next(iter(names))
    assert first in completed(*words[:-1], first[:3])
    assert completed(*words[:-1], "no such name") == []


QUESTIONS = """
import json, os, sys
from layerprobe_cli.main import app
for question in json.loads(sys.argv[1]):
    os.environ.update(question)
    try:
        app(prog_name="layerprobe")
    except SystemExit:
        print("answered")
print([name for name in ("torch", "transformers", "datasets", "plotly") if name in sys.modules], file=sys.stderr)
"""


def test_completion_loads_no_model_library() -> None:
    questions = [
        asked(*words) for words in (("predict", "--rule", ""), ("compare", "--measure", ""), ("score", "-t", ""))
    ]
    command = [sys.executable, "-c", QUESTIONS, json.dumps(questions)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "fall of InfoNCE" in done.stdout.partition("answered")[0]
    assert done.stdout.count("answered") == 3
    assert done.stderr.strip() == "[]"
