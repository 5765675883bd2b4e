"""What loading gives: weights, precision, lengths and names; see test_loading_errors for what goes wrong."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, ByT5Tokenizer

from layerprobe.encoders import loading, vocabulary
from layerprobe.encoders.batching import collate
from layerprobe.encoders.device import autocast_dtype, resolve_device
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.identity import folder_digest, resolve
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import ATTENTION, Model, split_name
from layerprobe.errors import ModelError
from layerprobe.extraction.embeddings import extract
from layerprobe.files.serialisation import to_json
from tests.models import TEXTS, save_tiny, tiny_model, tiny_tokenizer

Saved = Callable[[str], Path]


def weights_of(encoder: Encoder) -> dict[str, torch.Tensor]:
    return encoder.model.state_dict()


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    assert first.keys() == second.keys()
    return all(torch.equal(first[name], second[name]) for name in first)


# ---- weights ---------------------------------------------------------------------------------------------


def test_half_precision_checkpoints_are_loaded_in_float32(tmp_path: Path) -> None:
    tiny_model("bert").half().save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    encoder = load_encoder(str(tmp_path))
    assert {p.dtype for p in encoder.model.parameters()} == {torch.float32}
    assert encoder.description.dtype == "float32"


def test_a_bin_checkpoint_loads(checkpoint: Saved, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    shutil.copytree(checkpoint("electra"), folder)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert same(weights_of(load_encoder(str(folder))), weights_of(load_encoder(str(checkpoint("electra")))))
    assert folder_digest(folder) != folder_digest(checkpoint("electra"))
    assert not (folder / "model.safetensors").exists(), "expected no conversion behind the user's back"


@pytest.mark.parametrize("before", [None, "0", "1"])
def test_the_environment_is_left_as_it_was(
    before: str | None, checkpoint: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "DISABLE_SAFETENSORS_CONVERSION"
    monkeypatch.delenv(name, raising=False)
    if before is not None:
        monkeypatch.setenv(name, before)
    during: list[str | None] = []
    from_pretrained = AutoModel.from_pretrained

    def noting(*args: object, **options: object) -> object:
        during.append(os.environ.get(name))
        return from_pretrained(*args, **options)

    monkeypatch.setattr(AutoModel, "from_pretrained", noting)
    load_encoder(str(checkpoint("bert")))
    assert during == ["1"]
    assert os.environ.get(name) == before


def test_random_weights_depend_on_the_seed_only(checkpoint: Saved) -> None:
    state = torch.random.get_rng_state()
    models = {}
    for run, seed in enumerate((0, 0, 1)):
        torch.manual_seed(run)
        before = torch.random.get_rng_state()
        models[run] = load_encoder(resolve(Model(str(checkpoint("bert")), random_init=seed)))
        assert torch.equal(torch.random.get_rng_state(), before), "expected the global generator to be left alone"
    torch.random.set_rng_state(state)
    assert same(weights_of(models[0]), weights_of(models[1]))
    assert not same(weights_of(models[0]), weights_of(models[2]))
    assert not same(weights_of(models[0]), weights_of(load_encoder(str(checkpoint("bert")))))
    assert models[2].description.name == f"{checkpoint('bert')} (random init 1)"


def test_random_weights_need_no_trained_ones_and_do_not_depend_on_their_precision(tmp_path: Path) -> None:
    folders = [save_tiny("bert", tmp_path / dtype, dtype=dtype) for dtype in ("float16", "float32")]
    for folder in folders:
        (folder / "model.safetensors").unlink()
    first, second = (load_encoder(resolve(Model(str(folder), random_init=3))) for folder in folders)
    assert same(weights_of(first), weights_of(second))


# ---- precision and device --------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "expected"), [("bfloat16", torch.bfloat16), ("float16", torch.float16)])
def test_reduced_precision_is_autocast_over_float32_weights(
    dtype: str, expected: torch.dtype, checkpoint: Saved
) -> None:
    encoder = load_encoder(Model(str(checkpoint("bert")), dtype=dtype))
    assert encoder.autocast == expected
    assert encoder.description.dtype == dtype
    assert {p.dtype for p in encoder.model.parameters()} == {torch.float32}
    with encoder.precision():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == expected


@pytest.mark.parametrize(
    ("machine", "supported", "amx", "taken"),
    [
        ("x86_64", False, True, False),
        ("x86_64", True, False, False),  # emulated
        ("x86_64", True, True, True),
        ("aarch64", True, False, True),
        ("aarch64", False, False, False),
    ],
)
def test_auto_takes_bfloat16_where_the_processor_has_it(
    monkeypatch: pytest.MonkeyPatch, machine: str, supported: bool, amx: bool, taken: bool
) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: supported)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    assert autocast_dtype("auto", cpu) == (torch.bfloat16 if taken else None)
    assert autocast_dtype("float32", cpu) is None


@pytest.mark.parametrize(
    "options",
    [
        *({"attn": attn} for attn in ("fast", "", "a/b/c", "org/", "org/ker nel")),
        {"dtype": "int8"},
        {"norm": "none"},
        {"device": "gpu"},
    ],
    ids=str,
)
def test_unknown_options_are_refused_before_the_model_is_sought(options: dict[str, str]) -> None:
    with pytest.raises(
        ModelError, match=r"^expected (attn auto, eager, .* or a kernel|dtype auto|norm final|a device)"
    ):
        load_encoder(Model("./nowhere", **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("attn", ["auto", *ATTENTION, "kernels-community/flash-attn2", "org/kernel@v1:function"])
def test_attention_implementations_that_transformers_knows(attn: str) -> None:
    assert Model(attn=attn).attn == attn


@pytest.mark.parametrize("device", ["gpu", "", "cuda:x", "meta", "cuda:99"])
def test_devices_that_do_not_exist(device: str) -> None:
    message = f"expected (a device such as auto, cpu, cuda or cuda:1|an available device), got '{device}': "
    with pytest.raises(ModelError, match=message) as raised:
        resolve_device(device)
    assert "\n" not in str(raised.value)


def test_auto_device_is_the_best_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for cuda, mps, expected in [(True, False, "cuda"), (False, True, "mps"), (False, False, "cpu")]:
        monkeypatch.setattr(torch.cuda, "is_available", lambda found=cuda: found)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda found=mps: found)
        assert resolve_device("auto").type == expected


# ---- lengths and tokenizers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes", "tokenizer_limit", "expected"),
    [
        ("bert", {}, 64, 64),
        ("bert", {}, 10**30, 96),
        ("roberta", {}, 10**30, 95),  # positions start after padding, here index 0
        ("xlm-roberta", {"max_position_embeddings": 514, "pad_token_id": 1}, 10**30, 512),
        ("xlm-roberta", {"max_position_embeddings": 40, "pad_token_id": 1}, 10**30, 38),
        ("mpnet", {"pad_token_id": 1}, 10**30, 94),
        ("gpt2", {}, 10**30, 96),
        ("t5", {}, 10**30, None),  # relative positions: any length
        ("t5", {}, 100, 100),
        ("llama", {"max_position_embeddings": 4096}, 10**30, 4096),
        ("llama", {"max_position_embeddings": 4096}, 700, 700),
    ],
)
@torch.inference_mode()
def test_maximum_length(
    name: str, changes: dict[str, Any], tokenizer_limit: int, expected: int | None, tmp_path: Path
) -> None:
    tokenizer = tiny_tokenizer(model_max_length=tokenizer_limit)
    if changes.get("pad_token_id") == 1:
        tokenizer = tiny_tokenizer(model_max_length=tokenizer_limit, pad_token="[UNK]", unk_token="[PAD]")
    encoder = load_encoder(str(save_tiny(name, tmp_path, tokenizer=tokenizer, **changes)))
    assert encoder.max_length == expected
    for wanted in (None, 40, 600, 5000):
        limit = min(512 if wanted is None else wanted, expected or 10_000)
        assert encoder.limit(wanted) == limit
        tokens = encoder.tokenize(["a " * 900], max_length=wanted)
        assert tokens.lengths == [min(limit, 902)]
        assert tokens.n_truncated == (limit < 902)
        for states in encoder.layer_states(collate(tokens, [0])):  # and the model can read that much
            assert states.shape[1] == min(limit, 902)


def test_a_tokenizer_without_padding_token_pads_all_the_same(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(eos_token="[SEP]")
    tokenizer.pad_token = None
    encoder = load_encoder(str(save_tiny("gpt2", tmp_path, tokenizer=tokenizer)))
    tokens = encoder.tokenize(TEXTS)
    assert tokens.pad_id == 3
    assert encoder.padding_invariant


# ---- what identifies a checkpoint ------------------------------------------------------------------------


def test_folder_digest_sees_a_single_weight_and_the_configuration(checkpoint: Saved, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(checkpoint("bert"), folder)
    original = folder_digest(folder)
    assert original == folder_digest(checkpoint("bert")), "expected a digest of the content, not of the place"
    assert original == resolve(str(folder)).revision == load_encoder(str(folder)).description.revision

    weights = load_file(folder / "model.safetensors")
    weights["encoder.layer.1.output.dense.bias"][3] += 1e-6
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    changed = folder_digest(folder)
    assert changed != original

    config = folder / "config.json"
    config.write_text(config.read_text().replace('"layer_norm_eps": 1e-12', '"layer_norm_eps": 1e-05'))
    assert folder_digest(folder) not in (original, changed)


def test_folder_digest_sees_weights_that_only_an_index_names(checkpoint: Saved, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(checkpoint("bert"), folder)
    plain = folder_digest(folder)
    weights = load_file(folder / "model.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(weights, "model.safetensors")}))
    assert folder_digest(folder) == plain, "expected the digest of an ordinary folder to stay"

    index.write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(weights, "part-1.safetensors")}))
    (folder / "model.safetensors").rename(folder / "part-1.safetensors")
    before = load_encoder(str(folder)).description.revision
    weights["encoder.layer.1.output.dense.bias"][3] += 1e-6
    save_file(weights, folder / "part-1.safetensors", metadata={"format": "pt"})
    assert load_encoder(str(folder)).description.revision != before


@pytest.mark.parametrize("place", ["models--a--b/blobs", "disk/other"])
def test_shards_that_are_links_of_the_hub_or_the_user_are_followed(
    checkpoint: Saved, tmp_path: Path, place: str
) -> None:
    folder, blobs = tmp_path / "models--a--b" / "snapshots" / "c0", tmp_path / place
    shutil.copytree(checkpoint("bert"), folder)
    blobs.mkdir(parents=True)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(blobs / "0")
    (folder / "part.safetensors").symlink_to(blobs / "0")
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "part.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert same(weights_of(load_encoder(str(folder))), weights_of(load_encoder(str(checkpoint("bert")))))


def test_tokenizer_digest_is_that_of_the_token_ids(checkpoint: Saved, tmp_path: Path) -> None:
    first = resolve(str(checkpoint("bert")))
    first.tokenizer(["a b c"], truncation=True, max_length=4, padding=True)
    assert resolve(str(checkpoint("electra"))).tokenizer_digest == first.tokenizer_digest
    other = tiny_tokenizer()
    other.backend_tokenizer.normalizer = None
    shutil.copytree(checkpoint("bert"), tmp_path / "other")
    other.save_pretrained(tmp_path / "other")
    assert resolve(str(tmp_path / "other")).tokenizer_digest != first.tokenizer_digest


@pytest.mark.parametrize(
    "change",
    [
        {"model_max_length": 32},
        {"truncation_side": "left"},
        {"padding_side": "left"},
        {"model_input_names": ["input_ids", "attention_mask"]},
    ],
)
def test_tokenizer_digest_sees_settings(change: dict[str, Any], checkpoint: Saved, tmp_path: Path) -> None:
    shutil.copytree(checkpoint("bert"), tmp_path / "other")
    tiny_tokenizer(**change).save_pretrained(tmp_path / "other")
    digests = [resolve(str(folder)).tokenizer_digest for folder in (checkpoint("bert"), tmp_path / "other")]
    assert digests[0] != digests[1]


def test_tokenizer_digest_of_a_tokenizer_in_python(tmp_path: Path) -> None:
    def digest_of(name: str, **changes: Any) -> str:
        tokenizer = ByT5Tokenizer(**{"model_max_length": 64, "mode": "a", **changes})
        tokenizer.save_pretrained(tmp_path / name)
        (tmp_path / name / "vocab.txt").write_text(changes.get("mode", "a"))
        found = ByT5Tokenizer.from_pretrained(tmp_path / name)
        found.init_kwargs["vocab_file"] = str(tmp_path / name / "vocab.txt")
        return vocabulary.tokenizer_digest(found)

    assert digest_of("here") == digest_of("there"), "expected a digest of the content, not of the place"
    digests = {digest_of("here"), digest_of("b", mode="b"), digest_of("c", model_max_length=32)}
    assert len(digests) == 3


def test_identity_is_everything_that_names_the_numbers(checkpoint: Saved) -> None:
    plain = resolve(str(checkpoint("bert"))).identity
    assert plain["revision"] == folder_digest(checkpoint("bert"))
    assert len(plain["tokenizer"]) == 64
    assert (plain["random_init"], plain["trust_remote_code"]) == (None, False)
    assert resolve(Model(str(checkpoint("bert")), random_init=3)).identity == {**plain, "random_init": 3}
    trusting = resolve(str(checkpoint("bert")), like=Model(trust_remote_code=True))
    assert trusting.identity == {**plain, "trust_remote_code": True}


def test_home_is_found(checkpoint: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(checkpoint("bert"), tmp_path / "model")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert split_name("~/model") == (str(tmp_path / "model"), None)
    assert split_name("~nobody-of-this-name/model") == ("~nobody-of-this-name/model", None)
    encoder = load_encoder("~/model")
    assert (encoder.description.name, encoder.n_layers) == ("~/model", 4)
    assert encoder.description.revision == folder_digest(checkpoint("bert"))


def test_a_model_is_called_as_was_asked_for(checkpoint: Saved) -> None:
    folder = str(checkpoint("bert"))
    described = load_encoder(Model(folder, random_init=3, display_name="our BERT")).description
    assert (described.name, described.source) == ("our BERT", folder)
    plain = load_encoder(folder).description
    assert (plain.name, plain.source) == (folder, None)
    with pytest.raises(ModelError, match="expected a display name for bert, got ' '"):
        Model("bert", display_name=" ")


@pytest.mark.parametrize("given", [".", "model", "./model"])
def test_a_folder_whose_name_says_nothing_has_that_of_its_parent(
    given: str, checkpoint: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "electra" / "model"
    shutil.copytree(checkpoint("bert"), folder)
    monkeypatch.chdir(folder if given == "." else folder.parent)
    found = resolve(given)
    assert (found.label, found.name) == ("electra/model", given)
    assert found.identity == resolve(folder).identity


def test_names_with_a_revision(tmp_path: Path) -> None:
    assert split_name("org/model") == ("org/model", None)
    assert split_name("org/model@v1.0") == ("org/model", "v1.0")
    folder = tmp_path / "model@home"
    folder.mkdir()
    assert split_name(str(folder)) == (str(folder), None)


def test_a_model_that_does_not_fit_is_named_before_it_is_loaded(
    checkpoint: Saved, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    load_encoder(str(checkpoint("bert")))
    assert "of memory in float32" not in caplog.text
    monkeypatch.setattr(loading, "_available_memory", lambda: 30_000)
    load_encoder(str(checkpoint("bert")))
    assert "of memory in float32, but 29.3 KiB are free: use a machine with more memory" in caplog.text


def test_keywords_reach_from_pretrained_and_name_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = save_tiny("bert", tmp_path / "model"), list[dict[str, Any]]()
    whole = loading.load_weights
    monkeypatch.setattr(loading, "load_weights", lambda *a, **kw: (given.append(kw), whole(*a, **kw))[1])
    plain = Model(str(model), cache_dir=tmp_path / "store")
    other = Model(
        str(model),
        cache_dir=tmp_path / "store",
        model_kwargs={"use_safetensors": True},
        processor_kwargs={"padding_side": "left", "model_max_length": 9},
        token="hf_secret",
        local_files_only=True,
    )
    resolved = resolve(other)
    assert (resolved.tokenizer.padding_side, resolved.tokenizer.model_max_length) == ("left", 9)
    assert (resolved.pinned["token"], resolved.pinned["local_files_only"]) == ("hf_secret", True)
    assert load_encoder(resolved).max_length == 9
    assert given[-1]["use_safetensors"] is True
    embedded = [extract(of, TEXTS) for of in (plain, other)]
    assert embedded[0].fingerprint != embedded[1].fingerprint
    with_keywords = extract(
        Model(str(model), cache_dir=tmp_path / "store", model_kwargs={"use_safetensors": True}), TEXTS
    )
    assert with_keywords.fingerprint not in {embeddings.fingerprint for embeddings in embedded}


def test_the_token_is_kept_nowhere(tmp_path: Path) -> None:
    model = Model(str(save_tiny("bert", tmp_path / "model")), cache_dir=tmp_path / "store", token="hf_secret")
    embeddings = extract(model, TEXTS)
    files = [path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()]
    for text in (
        repr(model),
        to_json(embeddings.model),
        to_json(replace(model, cache_dir=None)),
        str(embeddings.settings),
    ):
        assert "hf_secret" not in text
    assert files
    assert not any(b"hf_secret" in content for content in files)


@pytest.mark.parametrize(
    ("keywords", "line"),
    [
        ({"model_kwargs": {"torch_dtype": "auto"}}, "expected no torch_dtype in model_kwargs: dtype sets that"),
        ({"model_kwargs": {"revision": "x"}}, "expected no revision in model_kwargs: revision sets that"),
        ({"model_kwargs": {"config": 1}}, "expected no config in model_kwargs: layerprobe sets that"),
        ({"processor_kwargs": {"token": "x"}}, "expected no token in processor_kwargs: token sets that"),
    ],
)
def test_keywords_that_are_fields_are_refused(keywords: Any, line: str) -> None:
    with pytest.raises(ModelError, match=line):
        Model("a", **keywords)


def test_keywords_that_the_model_does_not_know_are_one_line(tmp_path: Path) -> None:
    model = Model(str(save_tiny("bert", tmp_path / "model")), model_kwargs={"no_such_keyword": 1})
    with pytest.raises(ModelError, match="no_such_keyword"):
        load_encoder(model)
