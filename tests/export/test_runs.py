"""Runs that keep their weights, and what is exported of them."""

import dataclasses
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoConfig, AutoTokenizer

from layerprobe.encoders.identity import resolve
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model
from layerprobe.errors import DamagedStoreError, DataError, StoreError
from layerprobe.export.run import export_model
from layerprobe.finetuning import runs
from layerprobe.finetuning.runs import has_model, load_saved_run
from layerprobe.finetuning.tuning import finetune
from layerprobe.finetuning.values import FineTuningRun, Protocol
from tests.encoders.test_recipe import without_end
from tests.finetuning.finished import Tuned, directories_of, evaluated
from tests.models import TEXTS, given, save_tiny
from tests.toy_task import toy_task

from .judges import layerprobe_embeddings, sentence_transformer

TASK = toy_task(train=16, validation=16, test=16)
PROTOCOL = Protocol(learning_rate=3e-3, epochs=2, batch_size=8)
LAYERS = (1, 2)


def numbers(found: Sequence[FineTuningRun]) -> list[FineTuningRun]:
    """Runs without what differs from time to time."""
    return [dataclasses.replace(run, seconds=0.0, peak_memory=0) for run in found]


def tuned(model: Path, cache: Path, *, save: bool = True, layers: Sequence[int] = LAYERS, **options: Any) -> Any:
    """The runs, and their directories."""
    settings = Model(cache_dir=cache, device="cpu", **options)
    protocol = dataclasses.replace(PROTOCOL, pooling=settings.pooling or "mean")
    found = finetune(given(str(model), settings), TASK, layers, seeds=(0,), protocol=protocol, save_models=save)
    return found.runs, directories_of(found)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The layer of every run that is really made."""
    made: list[int] = []
    fine_tune = runs.fine_tune

    def counting(encoder: Any, layer: int, *arguments: Any, **options: Any) -> Tuned:
        made.append(layer)
        return fine_tune(encoder, layer, *arguments, **options)

    monkeypatch.setattr(runs, "fine_tune", counting)
    return made


# ---- keeping weights ----------------------------------------------------------------------------------


def test_runs_are_made_again_only_for_their_weights(bert: Path, tmp_path: Path, trained: list[int]) -> None:
    plain, directories = tuned(bert, tmp_path, save=False)
    assert trained == [1, 2]
    assert [has_model(directory) for directory in directories] == [False, False]
    kept, directories = tuned(bert, tmp_path)
    assert trained == [1, 2, 1, 2]
    assert numbers(kept) == numbers(plain)
    for layer, directory in zip(LAYERS, directories, strict=True):
        assert directory.name == f"layer-00{layer}-seed-0"
        assert sorted(path.name for path in directory.iterdir()) == [
            "lock",
            "model",
            "outputs.safetensors",
            "result.json",
        ]
        assert AutoConfig.from_pretrained(directory / "model").num_hidden_layers == layer
    assert tuned(bert, tmp_path)[0] == kept
    assert tuned(bert, tmp_path, save=False)[0] == kept
    assert trained == [1, 2, 1, 2]


def test_the_weights_are_those_that_were_scored(bert: Path, tmp_path: Path) -> None:
    from layerprobe.encoders.encoder import TruncatedEncoder
    from layerprobe.finetuning.losses import criterion_of, prepared_sides

    found, directories = tuned(bert, tmp_path, layers=(2,))
    encoder = load_encoder(str(directories[0] / "model"), device="cpu")
    test = prepared_sides(encoder, TASK.test, max_length=PROTOCOL.max_length)
    criterion = criterion_of(TASK, width=encoder.description.hidden_size)
    scores = evaluated(encoder, TruncatedEncoder(encoder, 2), test, PROTOCOL, criterion, kind=TASK.kind).metrics
    assert scores == pytest.approx(found[0].test, abs=1e-4)


def test_layer_0_without_a_checkpoint_fails_without_training(tmp_path: Path, trained: list[int]) -> None:
    model = given(str(save_tiny("modernbert", tmp_path / "model")), Model(cache_dir=tmp_path / "cache", device="cpu"))
    failed, other = finetune(model, TASK, (0, 1), seeds=(0,), protocol=PROTOCOL, save_models=True).runs
    assert "layer 0 has no checkpoint to save: expected layers from 1" in failed.error
    assert not other.error
    assert trained == [1]


def test_an_interrupted_run_leaves_no_weights(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: list[int]
) -> None:
    fine_tune = runs.fine_tune

    def interrupted(*arguments: Any, save_to: Path, **options: Any) -> Tuned:
        fine_tune(*arguments, save_to=save_to, **options)
        assert (save_to / "model.safetensors").is_file()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(runs, "fine_tune", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tuned(bert, tmp_path, layers=(1,))
    (directory,) = (path.parent for path in tmp_path.rglob("lock") if path.parent.name.startswith("layer"))
    assert [path.name for path in directory.iterdir()] == ["lock"]
    # what a kill would leave goes with the next run
    (directory / ".tmp-dead").mkdir()
    tuned(bert, tmp_path, layers=(1,))
    assert sorted(path.name for path in directory.iterdir()) == ["lock", "model", "outputs.safetensors", "result.json"]
    assert trained == [1, 1]


def test_a_disk_that_is_full(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("layerprobe.encoders.encoder.TruncatedEncoder.save", full)
    with pytest.raises(StoreError, match=r"cannot write the folder .*model: No space left on device: free space, or"):
        tuned(bert, tmp_path, layers=(1,))
    assert not list(tmp_path.rglob("result.json"))


# ---- exporting them -----------------------------------------------------------------------------------


def test_export_of_a_run(bert: Path, tmp_path: Path) -> None:
    found, directories = tuned(bert, tmp_path / "cache", layers=(2,), pooling="max", prompt="a: ")
    out = tmp_path / "out"
    done = export_model(directories[0], out)
    assert (done.layer, done.n_blocks, done.pooling, done.prompt) == (2, 3, "max", "a: ")
    whole = load_encoder(str(bert), device="cpu").description
    assert (done.parameters, done.whole_parameters) == (whole.parameters[2], whole.parameters[3])
    assert (done.model, done.revision) == (str(bert), whole.revision)
    expected = layerprobe_embeddings(directories[0] / "model", 2, pooling="max", prompt="a: ")
    np.testing.assert_allclose(sentence_transformer(out).encode(list(TEXTS)), expected, rtol=0, atol=1e-5)
    untuned = layerprobe_embeddings(bert, 2, pooling="max", prompt="a: ")
    assert np.abs(expected - untuned).max() > 0.01
    text = (out / "README.md").read_text()
    for words in (
        "2 of 3: the embeddings and the first 2 blocks",
        f"{whole.parameters[2]:,} instead of {whole.parameters[3]:,}",
        "fine-tuned on toy: 16 examples to train on, 16 and 16 to choose",
        "| learning rate | 0.003 |",
        f"| test Spearman | {found[0].test['spearman']:.2f} |",
        f"| validation Pearson | {found[0].validation['pearson']:.2f} |",
    ):
        assert words in text


@pytest.mark.parametrize("end_token", [None, False])
def test_a_decoder_is_exported_with_the_texts_that_it_was_trained_on(end_token: bool | None, tmp_path: Path) -> None:
    model = Model(str(save_tiny("llama", tmp_path / "model", tokenizer=without_end())), end_token=end_token)
    options = Model(cache_dir=tmp_path / "cache", device="cpu")
    found = finetune(given(model, options), TASK, [1], seeds=(0,), protocol=PROTOCOL, save_models=True)
    (directory,) = directories_of(found)
    export_model(directory, tmp_path / "out")
    trained_on = resolve(model).tokenizer("ab c")["input_ids"]
    assert (trained_on[-1] == 3) == (end_token is None)
    for folder in (directory / "model", tmp_path / "out"):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert tokenizer("ab c")["input_ids"] == trained_on
        assert tokenizer.padding_side == "right"
    with pytest.raises(DataError, match="expected no --end-token: the run has its own"):
        export_model(Model(str(directory), end_token=True), tmp_path / "other")
    with pytest.raises(DataError, match="expected no --keep-blocks: the run has its own"):
        export_model(Model(str(directory), blocks=(1,)), tmp_path / "other")


def test_options_that_contradict_the_run(bert: Path, tmp_path: Path) -> None:
    _, directories = tuned(bert, tmp_path / "cache", layers=(1,))
    wrong: dict[str, Any]
    for wrong, words in (
        ({"layer": 2}, "fine-tuned with --layer 1: expected that or none, got 2"),
        ({"pooling": "cls"}, "fine-tuned with --pooling 'mean': expected that or none, got 'cls'"),
        ({"max_length": 20}, "fine-tuned with --max-length 128: expected"),
        ({"prompt": "q"}, "fine-tuned with --prompt '': expected"),
    ):
        layer = wrong.pop("layer", None)
        with pytest.raises(DataError, match=words):
            export_model(Model(directories[0], **wrong), tmp_path / "out", layer=layer)
    with pytest.raises(DataError, match="fine-tuned with --random-init None: expected"):
        export_model(Model(str(directories[0]), random_init=1), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_runs_without_weights_and_damaged_ones(bert: Path, tmp_path: Path) -> None:
    _, directories = tuned(bert, tmp_path / "cache", layers=(1,), save=False)
    with pytest.raises(
        DataError,
        match="has no weights, since it was made without --save-models: repeat `layerprobe finetune` with",
    ):
        export_model(directories[0], tmp_path / "out")
    _, directories = tuned(bert, tmp_path / "cache", layers=(1,))
    damaged = tmp_path / "damaged"
    shutil.copytree(directories[0], damaged)
    (damaged / "model" / "layerprobe.json").write_text(json.dumps({"model": 1}))
    with pytest.raises(
        DamagedStoreError,
        match=r"damaged/model/layerprobe\.json: its checksum does not .*: to make it again, repeat `layer",
    ):
        export_model(damaged, tmp_path / "out")
    (damaged / "model" / "SHA256SUMS").unlink()
    with pytest.raises(DamagedStoreError, match=r"damaged/model/layerprobe\.json cannot be read \(it has no checksum"):
        load_saved_run(damaged)
    (damaged / "model" / "layerprobe.json").write_bytes(b"\xff\xfe")
    with pytest.raises(DamagedStoreError, match=r"damaged/model/layerprobe\.json cannot be read"):
        load_saved_run(damaged)


def test_the_card_has_the_other_seeds_of_the_layer(bert: Path, tmp_path: Path) -> None:
    options = Model(cache_dir=tmp_path / "cache", device="cpu")
    found = finetune(given(str(bert), options), TASK, (1, 2), seeds=(0, 3), protocol=PROTOCOL, save_models=True)
    directories = directories_of(found)
    (directories[0].parent / "layer-001-seed-7").mkdir()
    (directories[0].parent / "layer-001-seed-7" / "result.json").write_text("{")  # a write that was cut short
    export_model(directories[0], tmp_path / "out")
    text = (tmp_path / "out" / "README.md").read_text()
    scores = [run.test["spearman"] for run in found.runs if run.layer == 1]
    assert f"{scores[0]:.2f} {scores[1]:.2f}" in text
    assert "of the seeds 0, 3;" in text
