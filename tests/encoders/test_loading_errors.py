"""Whatever is wrong with a checkpoint, the user reads one line that says so."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.errors import FileMetadataError, OfflineModeIsEnabled
from safetensors.torch import load_file, save_file

from layerprobe.encoders import failures
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model
from layerprobe.errors import ModelError
from tests.models import save_tiny, tiny_model

Saved = Callable[[str], Path]


@pytest.fixture
def folder(checkpoint: Saved, tmp_path: Path) -> Path:
    """A checkpoint to damage."""
    shutil.copytree(checkpoint("bert"), tmp_path / "model")
    return tmp_path / "model"


def assert_one_line(name: str | Path, message: str) -> None:
    with pytest.raises(ModelError, match=message) as raised:
        load_encoder(str(name))
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500 + 2 * len(str(name))


def change_weights(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})


def change_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def change_length(folder: Path) -> None:
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "model_max_length": "x"}))


TABLE = "embeddings.word_embeddings.weight"
DAMAGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "attention code of others": (
        lambda folder: change_config(folder, _attn_implementation="kernels-community/attention"),
        "requests attention code from kernels-community/attention: review it, then allow it with --tr",
    ),
    "lists in lists": (
        lambda folder: (folder / "config.json").write_text("[" * 100_000 + "]" * 100_000),
        "cannot be loaded",
    ),
    "a length": (change_length, "has model_max_length 'x': expected a number of tokens"),
    "missing weights": (
        lambda folder: change_weights(folder, lambda all_: {k: w for k, w in all_.items() if ".layer.1." not in k}),
        r"lacks 16 of its weights \(such as encoder\.layer\.1\.attention\.output.*expected a complete encoder",
    ),
    "another shape": (
        lambda folder: change_weights(folder, lambda all_: {**all_, TABLE: torch.zeros(7, 16)}),
        rf"has 1 of its weights in another shape \(such as {TABLE}\)",
    ),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_checkpoint_is_one_line(damage: str, folder: Path) -> None:
    change, message = DAMAGED[damage]
    change(folder)
    assert_one_line(folder, message)


@pytest.mark.parametrize("offline", [True, False])
def test_offline_is_what_the_hub_takes_for_it(offline: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "false")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
    assert ("(HF_HUB_OFFLINE is set)" in failures.explanation("org/model", ConnectionError())) == offline


def test_a_folder_that_hides_a_model_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "model" / "logs").mkdir(parents=True)
    assert_one_line("org/model", r"no config.json \(it hides the Hub's model of that name\): expected a Hug")


def test_a_missing_pooler_is_no_error(folder: Path) -> None:
    change_weights(folder, lambda weights: {name: w for name, w in weights.items() if "pooler" not in name})
    assert load_encoder(str(folder)).n_layers == 4


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5"])
def test_no_tokenizer(name: str, checkpoint: Saved, tmp_path: Path) -> None:
    # for many architectures transformers 5 makes an empty one instead
    for file in ("config.json", "model.safetensors"):
        shutil.copy(checkpoint(name) / file, tmp_path / file)
    assert_one_line(
        tmp_path, r"the tokenizer of .*: expected tokenizer\.json or a vocabulary|; expected tokenizer\.json"
    )


@pytest.mark.parametrize("content", ["", '{"model', "{}", "[]", '{"version": "1.0", "model": {"type": "Magic"}}'])
def test_a_damaged_tokenizer(content: str, folder: Path) -> None:
    (folder / "tokenizer.json").write_text(content)
    assert_one_line(folder, r"the tokenizer of .* cannot be loaded: .*; expected tokenizer\.json or a vocabulary file")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not a valid JSON file"),
        ("\x00\xff", "not a valid JSON file"),
        ("{}", "Unrecognized model"),
        ('{"model_type": "magic"}', "model type `magic` but Transformers does not recognize"),
        ('{"model_type": "bert", "hidden_size": "big"}', "'hidden_size' expected int, got str"),
    ],
)
def test_a_damaged_configuration(content: str, message: str, folder: Path) -> None:
    (folder / "config.json").write_text(content)
    assert_one_line(folder, f"cannot be loaded: .*{message}")


@pytest.mark.parametrize("keep", [0, 4, 100, 5000])
def test_truncated_weights(keep: int, folder: Path) -> None:
    file = folder / "model.safetensors"
    assert file.stat().st_size > keep
    file.write_bytes(file.read_bytes()[:keep])
    assert_one_line(folder, "cannot be loaded: ")


class Malicious:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


def test_a_pickle_that_runs_code_is_refused(folder: Path) -> None:
    trace = folder / "it_ran"
    (folder / "model.safetensors").unlink()
    torch.save({"embeddings": Malicious(f"touch {trace}")}, folder / "pytorch_model.bin")
    assert_one_line(folder, "the file contains more than tensors, or is damaged")
    assert not trace.exists()


@pytest.mark.parametrize("keep", [0, 10, 1000])
def test_truncated_bin_weights(keep: int, folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    file = folder / "pytorch_model.bin"
    file.write_bytes(file.read_bytes()[:keep])
    assert_one_line(folder, "not loaded|cannot be loaded")


def test_code_in_a_checkpoint_is_not_run(folder: Path) -> None:
    trace = folder / "it_ran"
    (folder / "code.py").write_text(f"open({str(trace)!r}, 'w').close()\n")
    change_config(folder, model_type="own", auto_map={"AutoConfig": "code.Config", "AutoModel": "code.Model"})
    assert_one_line(folder, "comes with its own code: review it, then allow it with --trust-remote-code")
    assert not trace.exists()


OUTSIDE = [json.dumps([{"type": "x", "path": path}]) for path in ("../other", "/other", "1_Pooling/../../other")]


@pytest.mark.parametrize("modules", ["[]", "{}", "null", "[1]", '[{"type": 1, "path": ""}]', *OUTSIDE])
def test_modules_that_are_no_list_of_modules_are_refused_with_the_remedy(tmp_path: Path, modules: str) -> None:
    save_tiny("bert", tmp_path)
    (tmp_path / "modules.json").write_text(modules)
    with pytest.raises(ModelError, match="modules, each with a type and a path below the model's folder; fix or"):
        resolve(str(tmp_path))


def test_weights_that_changed_after_the_model_was_resolved_are_refused(folder: Path, tmp_path: Path) -> None:
    checkpoint = resolve(Model(str(folder)))
    load_encoder(checkpoint)
    kept = shutil.copytree(folder, tmp_path / "kept")
    tiny_model("bert", seed=1).save_pretrained(folder)
    with pytest.raises(ModelError, match="were changed during use: restart with a copy"):
        load_encoder(checkpoint)
    load_encoder(resolve(Model(str(folder))))
    shutil.copytree(kept, folder, dirs_exist_ok=True)
    load_encoder(checkpoint)


def test_no_message_has_the_user_and_password_of_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    address = "http://me:s3cr%2Fet@127.0.0.1:80"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    with (
        pytest.raises(ModelError, match=r"the answer at http://127\.0\.0\.1:80 does not come from the hub") as caught,
        failures.one_line_errors("org/model"),
    ):
        raise OfflineModeIsEnabled(address) from FileMetadataError()
    of_others = failures.first_sentence(ValueError(f"no answer from {address}"))
    assert of_others.startswith("no answer from http://127.0.0.1:")
    assert "s3cr" not in str(caught.value) + of_others
