"""Sentences with tags through the commands that take tasks."""

from pathlib import Path

import pytest
from transformers import AutoModelForTokenClassification

from layerprobe.kinds.tokens import TaggedSentences
from tests.toy_task import toy_task_of

from .conftest import QUICK, Layerprobe, Pair


@pytest.fixture
def conll(tmp_path: Path) -> Path:
    """A folder of CoNLL files."""
    folder, task = tmp_path / "toy", toy_task_of("entities", train=48, validation=24, test=24)
    folder.mkdir()
    for name, items in (("train", task.train), ("dev", task.validation), ("test", task.test)):
        assert isinstance(items, TaggedSentences)
        lines = []
        for words, tags in zip(items.words, items.tags, strict=True):
            lines += [f"{word}\t{task.labels[tag]}" for word, tag in zip(words, tags, strict=True)] + ["\t"]
        (folder / f"{name}.conll").write_text("\n".join(lines) + "\n")
    return folder


def test_every_command_takes_entities(layerprobe: Layerprobe, pair: Pair, conll: Path, tmp_path: Path) -> None:
    scored = layerprobe("score", pair[1], "-t", conll, "--json")
    assert scored.code == 0, scored.err
    assert (scored.json["kind"], scored.json["scores"]["primary"]) == ("entities", "entity f1")
    tuned = layerprobe("finetune", pair[1], "-t", conll, *QUICK, "--layers", "1", "--save-models", "--json")
    assert tuned.code == 0, tuned.err
    assert tuple(tuned.json["runs"][0]["test"]) == ("entity f1", "entity precision", "entity recall", "accuracy")
    done = layerprobe("find", pair[1], "-t", conll, *QUICK, "--report", tmp_path / "page.html")
    assert done.code == 0, done.err
    assert "entity F1" in (tmp_path / "page.html").read_text()
    exported = layerprobe("export", pair[1], tmp_path / "exported", "--layer", "1")
    assert exported.code == 0, exported.err
    AutoModelForTokenClassification.from_pretrained(tmp_path / "exported", num_labels=3)
