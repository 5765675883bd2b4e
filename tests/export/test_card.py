"""The model card: valid YAML, text that is only text, code that runs."""

import dataclasses
import re
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import yaml
from huggingface_hub import ModelCard

from layerprobe.comparison.values import Comparisons
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model, ModelDescription, Pooling
from layerprobe.errors import DataError
from layerprobe.export.card import card
from layerprobe.export.folder import Layout
from layerprobe.export.run import export_model
from layerprobe.finetuning.runs import RunOrigin
from layerprobe.finetuning.values import FineTuningRun, Protocol
from tests.models import save_tiny

from .findings import HOSTILE, described, finding_of
from .judges import layerprobe_embeddings

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


def front_matter(text: str) -> Any:
    return yaml.safe_load(text.split("---\n")[1])


def test_front_matter() -> None:
    data = ModelCard(card(described("org/model@v1"), 2, LAYOUT)).data.to_dict()
    assert data["library_name"] == "sentence-transformers"
    assert data["pipeline_tag"] == "sentence-similarity"
    assert data["base_model"] == "org/model"
    assert {"sentence-transformers", "layerprobe"} <= set(data["tags"])


def test_the_base_model_of_random_weights_is_the_one_that_was_named() -> None:
    model = described("org/model@v1 (random init 3)", random_init=3)
    assert front_matter(card(model, 2, LAYOUT))["base_model"] == "org/model"


def test_a_local_folder_is_no_base_model() -> None:
    """Nobody else could look it up, nor is it anyone's business."""
    text = card(described("/home/someone/secret/my-model", revision="sha256:" + "0" * 32), 2, LAYOUT)
    assert "base_model" not in front_matter(text)
    assert "the local folder my-model, revision sha256:000" in text
    assert "someone" not in text


def test_paths_of_data_and_reference_are_not_told() -> None:
    origin = dataclasses.replace(ORIGIN, task="/home/someone/pairs.csv")
    finding = finding_of(described(), reference="/home/someone/reference")
    assert finding.comparison
    (comparison,) = finding.comparison.comparisons
    local = dataclasses.replace(comparison.reference, revision="sha256:" + "0" * 32)
    compared = Comparisons(comparisons=(dataclasses.replace(comparison, reference=local),))
    finding = dataclasses.replace(finding, comparison=compared)
    text = card(described(), 2, LAYOUT, run=RUN, origin=origin, finding=finding)
    assert "on pairs.csv:" in text
    assert "Layers on reference:" in text
    assert "someone" not in text


def test_a_model_is_called_as_in_the_finding() -> None:
    named = finding_of(described("our model", source="org/model"))
    text = card(described(), 2, LAYOUT, finding=named)
    assert "# our model, truncated at layer 2\n" in text
    assert "org/model, revision" in text
    assert "base_model: org/model\n" in text


def test_what_it_says() -> None:
    text = card(described(), 2, LAYOUT)
    for words in (
        "# org/model, truncated at layer 2\n",
        "org/model, revision 0123456789abcdef0123456789abcdef01234567 (bert)",
        "2 of 3: the embeddings and the first 2 blocks\n",
        "300 instead of 400 (25.0 % less;",
        "the mean over the tokens, 16 features",
        "cut at 64 tokens",
        "those of the base model; not fine-tuned",
    ):
        assert words in text
    assert "Prompt" not in text
    assert "Fine-tuning" not in text
    assert "Why this layer" not in text
    assert "0 of 3: the embeddings alone\n" in card(described(), 0, LAYOUT)
    assert "the first block, then the model's final norm\n" in card(described(norm="final"), 1, LAYOUT)


@pytest.mark.parametrize(
    ("layer", "said"),
    [(0, "alone"), (1, "and block 1 of 8"), (2, "and blocks 1, 5 of 8"), (3, "and blocks 1, 5, 6 of 8")],
)
def test_of_a_model_of_some_blocks_it_says_which_and_what_they_save(layer: int, said: str) -> None:
    whole = tuple(range(100, 1000, 100))
    text = card(described(blocks=(1, 5, 6), whole_parameters=whole), layer, LAYOUT)
    assert f"{layer} of 3: the embeddings {said}\n" in text
    saved = 1 - (100 + 100 * layer) / 900
    assert f"**Parameters:** {100 + 100 * layer} instead of 900 ({100 * saved:.1f} % less;" in text


def test_random_weights_are_told() -> None:
    assert "**The weights are random numbers** (seed 3)" in card(described(random_init=3), 2, LAYOUT)
    tuned = card(described(random_init=3), 2, LAYOUT, run=RUN, origin=ORIGIN)
    assert "**The weights started from random numbers** (seed 3)" in tuned


def test_fine_tuning() -> None:
    text = card(described(), 2, LAYOUT, run=RUN, origin=ORIGIN)
    assert "on stsb: 600 examples to train on, 1,500 and 1,379 to choose" in text
    assert "Seed 3." in text
    assert "| learning rate | 2e-05 |" in text
    assert "| test Spearman | 70.00 |" in text
    assert "not fine-tuned" not in text


def test_evidence_says_which_layer_is_kept_and_what_was_expected() -> None:
    finding = finding_of(described())
    text = card(described(), 2, LAYOUT, finding=finding)
    order = [
        "## What the search says",
        "Layer 2 was asked for; the search keeps layer 1.",
        f"{finding.summary}. Cut after block 1, ",
        "- Not compared with the whole model on test",
        "- Predicted before training: layer 2, which may be the best",
        "Layers on org/reference:",
        "| keep | parameters | CKA | untrained test |",
        "| 1 | 200 | 0.880 | 51.00 |",
        "| may be best |",
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    alone = card(described(), 1, LAYOUT, finding=dataclasses.replace(finding, comparison=None, prediction=None))
    assert "## Why this layer" in alone
    assert not any(word in alone for word in ("CKA", "Predicted before"))


def test_hostile_names_stay_text() -> None:
    model = described(HOSTILE, architecture=HOSTILE)
    finding = finding_of(model, reference=HOSTILE)
    origin = dataclasses.replace(ORIGIN, task=HOSTILE)
    layout = Layout(pooling="mean", width=16, max_length=64, prompt=HOSTILE + "\n```\n")
    text = card(model, 2, layout, run=RUN, origin=origin, finding=finding)
    assert front_matter(text)["base_model"] == HOSTILE.partition("@")[0]
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


# ---- the code in it -----------------------------------------------------------------------------------


def run_code(text: str, folder: Path) -> list[tuple[list[str], np.ndarray[Any, Any]]]:
    """Run the code of a card; return its texts and embeddings."""
    found = []
    for code in re.findall(r"```python\n(.*?)\n```", text, flags=re.DOTALL):
        values: dict[str, Any] = {}
        exec(code.replace("path/to/this/folder", str(folder)), values)
        found.append((values["texts"], np.asarray(values["embeddings"])))
    return found


@pytest.mark.parametrize("pooling", get_args(Pooling))
def test_the_code_runs(bert: Path, pooling: Pooling, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_model(Model(bert, pooling=pooling, prompt='a "query": '), out, layer=2)
    for texts, embeddings in run_code((out / "README.md").read_text(), out):
        expected = layerprobe_embeddings(bert, 2, texts=texts, pooling=pooling, prompt='a "query": ')
        np.testing.assert_allclose(embeddings, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["t5", "gpt2", "fnet"])
def test_the_code_of_other_architectures_runs(name: str, tmp_path: Path) -> None:
    model, out = save_tiny(name, tmp_path / "model"), tmp_path / "out"
    done = export_model(model, out, layer=2)
    assert done.pooling == ("last" if name == "gpt2" else "mean")
    text = (out / "README.md").read_text()
    assert ("texts of one length at a time" in text) == (name == "fnet")
    for texts, embeddings in run_code(text, out):
        expected = layerprobe_embeddings(model, 2, texts=texts, pooling=done.pooling)
        np.testing.assert_allclose(embeddings, expected, rtol=0, atol=1e-5)


# ---- whose finding --------------------------------------------------------------------------------------


def test_the_finding_of_another_model_is_refused(bert: Path, tmp_path: Path) -> None:
    message = r"expected a finding for .*bert at .*, got one for org/model at revision 0123.* with all 3 blocks"
    with pytest.raises(DataError, match=message):
        export_model(bert, tmp_path / "out", layer=2, finding=finding_of(described()))


def test_the_finding_of_other_blocks_is_refused(tmp_path: Path) -> None:
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
    assert done.whole_parameters == load_encoder(whole, device="cpu").description.parameters[-1]
    sizes = f"{done.parameters:,} instead of {done.whole_parameters:,} ("
    assert f"the embeddings and blocks 1, 2 of 4\n- **Parameters:** {sizes}" in text


def test_the_finding_of_the_model_is_in_the_card(bert: Path, tmp_path: Path) -> None:
    model: ModelDescription = load_encoder(str(bert), device="cpu").description
    export_model(bert, tmp_path / "out", layer=2, finding=finding_of(model))
    assert "| 0.870 | 52.00 |" in (tmp_path / "out" / "README.md").read_text()


def test_of_several_seeds_the_mean_counts_and_this_one_stands_beside_it() -> None:
    runs = [dataclasses.replace(RUN, seed=2, test={"spearman": 72.0}), RUN]
    text = card(described(), 2, LAYOUT, run=RUN, origin=ORIGIN, runs=runs)
    assert "| test Spearman | 71.00 ± 1.41 | 58.29 to 83.71 | 72.00 70.00 | 70.00 |" in text
    assert "this checkpoint, seed 3" in text
    assert "the score of this layer is the mean over seeds" in text


def test_one_seed_says_that_nothing_is_known_of_others() -> None:
    text = card(described(), 2, LAYOUT, run=RUN, origin=ORIGIN)
    assert "| test Spearman | 70.00 |" in text
    assert "One seed: the spread over seeds is unknown." in text
