"""The model card: all of its words in review as one file, valid YAML, text that is only text, and whose finding it has.

python -m tests.export.test_card writes `cards.txt`.
"""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard

from layerprobe.comparison.values import Comparisons
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError
from layerprobe.export.card import card
from layerprobe.export.folder import Layout
from layerprobe.export.run import export_model
from layerprobe.finetuning.runs import RunOrigin
from layerprobe.finetuning.values import FineTuningRun, Protocol
from layerprobe.study.values import Finding
from layerprobe.versions import __version__
from tests.models import save_tiny

from .findings import HOSTILE, described, finding_of

SNAPSHOT = Path(__file__).parent / "cards.txt"
LAYOUT = Layout(pooling="mean", width=16, max_length=64, prompt="")
RUN = FineTuningRun(
    layer=2,
    seed=3,
    protocol=Protocol(learning_rate=2e-05, epochs=1),
    parameters=300,
    primary="spearman",
    best_epoch=1,
    validation={"spearman": 71.234},
    test={"spearman": 70.0},
    epochs=(),
    seconds=1.0,
    peak_memory=None,
)
ORIGIN = RunOrigin(model=described(), task="stsb", task_digest="", pairs=(600, 1500, 1379), prompt="")
RUNS = [dataclasses.replace(RUN, seed=2, test={"spearman": 72.0}), RUN]
LOCAL = "sha256:" + "0" * 32
SOME = described(blocks=(1, 5, 6), whole_parameters=tuple(range(100, 1000, 100)))
PROMPTS = dataclasses.replace(LAYOUT, query_prompt="a ", document_prompt="b c ")


def private() -> str:
    """Nothing of where data and models lie is anyone's business."""
    finding = finding_of(described(), reference="/home/someone/reference")
    assert finding.comparison
    (comparison,) = finding.comparison.comparisons
    local = dataclasses.replace(comparison.reference, revision=LOCAL)
    compared = Comparisons(comparisons=(dataclasses.replace(comparison, reference=local),))
    finding = dataclasses.replace(finding, comparison=compared)
    origin = dataclasses.replace(ORIGIN, task="/home/someone/pairs.csv")
    model = described("/home/someone/secret/my-model", revision=LOCAL)
    return card(model, 2, LAYOUT, run=RUN, origin=origin, finding=finding)


def alone() -> Finding:
    return dataclasses.replace(finding_of(described()), comparison=None, prediction=None)


CARDS = {
    "a model": lambda: card(described("org/model@v1"), 2, LAYOUT),
    "no block": lambda: card(described(), 0, LAYOUT),
    "one block and the final norm": lambda: card(described(norm="final"), 1, LAYOUT),
    "some blocks, none of them kept": lambda: card(SOME, 0, LAYOUT),
    "some blocks, one of them kept": lambda: card(SOME, 1, LAYOUT),
    "some blocks, all of them kept": lambda: card(SOME, 3, LAYOUT),
    "some blocks, for queries": lambda: card(SOME, 3, PROMPTS, made="It lost 1 point.", prompts=("a ", "b c ")),
    "random weights": lambda: card(described("org/model@v1 (random init 3)", random_init=3), 2, LAYOUT),
    "random weights, fine-tuned": lambda: card(described(random_init=3), 2, LAYOUT, run=RUN, origin=ORIGIN),
    "fine-tuned with one seed": lambda: card(described(), 2, LAYOUT, run=RUN, origin=ORIGIN),
    "fine-tuned with two seeds": lambda: card(described(), 2, PROMPTS, run=RUN, origin=ORIGIN, runs=RUNS),
    "a finding of another layer": lambda: card(described(), 2, LAYOUT, finding=finding_of(described())),
    "a finding of this layer alone": lambda: card(described(), 1, LAYOUT, finding=alone()),
    "a finding with a name of its own": lambda: card(
        described(), 2, LAYOUT, finding=finding_of(described("our model", source="org/model"))
    ),
    "private paths": private,
}


def snapshot() -> str:
    texts = (f"==== {name}\n\n{make()}" for name, make in CARDS.items())
    return "\n".join(texts).replace(f"layerprobe {__version__}", "layerprobe VERSION")


def test_the_words_of_all_cards() -> None:
    assert snapshot() == SNAPSHOT.read_text("utf-8")


@pytest.mark.parametrize("name", CARDS)
def test_a_card_is_valid_and_tells_nothing_private(name: str) -> None:
    text = CARDS[name]()
    data = ModelCard(text).data.to_dict()
    assert (data["library_name"], data["pipeline_tag"]) == ("sentence-transformers", "sentence-similarity")
    assert data.get("base_model") == (None if name == "private paths" else "org/model")
    assert {"sentence-transformers", "layerprobe"} <= set(data["tags"])
    assert "someone" not in text


def test_hostile_names_stay_text() -> None:
    model = described(HOSTILE, architecture=HOSTILE)
    finding = finding_of(model, reference=HOSTILE)
    origin = dataclasses.replace(ORIGIN, task=HOSTILE)
    layout = Layout(pooling="mean", width=16, max_length=64, prompt=HOSTILE + "\n```\n")
    text = card(model, 2, layout, run=RUN, origin=origin, finding=finding)
    front_matter: Any = yaml.safe_load(text.split("---\n")[1])
    assert front_matter["base_model"] == HOSTILE.partition("@")[0]
    assert ModelCard(text).data.library_name == "sentence-transformers"
    body = text.split("---\n", 2)[2]
    words = re.sub(r"```python.*?\n```", "", body, flags=re.DOTALL)
    assert "alert(1)" in words
    assert re.search(r"(?<!\\)[<>`]", words) is None
    assert "\n# \\`x" not in words
    assert len(re.findall(r"^# ", words, flags=re.MULTILINE)) == 1
    assert len(re.findall(r"^```", body, flags=re.MULTILINE)) == 2
    for line in words.splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) in (3, 5, 14)


def test_the_finding_of_another_model_or_of_other_blocks_is_refused(bert: Path, tmp_path: Path) -> None:
    message = r"expected a finding for .*bert at .*, got one for org/model at revision 0123.* with all 3 blocks"
    with pytest.raises(DataError, match=message):
        export_model(bert, tmp_path / "out", layer=2, finding=finding_of(described()))
    folder = save_tiny("bert", tmp_path / "bert", num_hidden_layers=4)
    whole, some, others = Model(folder), Model(folder, blocks=(1, 2, 4)), Model(folder, blocks=(1, 3, 4))
    finding = finding_of(load_encoder(some, device="cpu").description)
    for model, blocks in (whole, "all 4 blocks"), (others, "blocks 1, 3, 4"):
        message = f"expected a finding for .* with {blocks}, got one for .*bert .* with blocks 1, 2, 4$"
        with pytest.raises(DataError, match=message):
            export_model(model, tmp_path / "out", layer=2, finding=finding)
    done = export_model(some, tmp_path / "out", layer=2, finding=finding)
    text = (tmp_path / "out" / "README.md").read_text()
    assert "| 0.870 | 52.00 |" in text
    sizes = f"{done.parameters:,} instead of {done.whole_parameters:,} ("
    assert f"the embeddings and blocks 1, 2 of 4\n- **Parameters:** {sizes}" in text


if __name__ == "__main__":
    SNAPSHOT.write_text(snapshot(), "utf-8")
