"""Keywords of from_pretrained are fields of a model, and its token is kept nowhere."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from layerprobe.encoders import loading
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model
from layerprobe.errors import ModelError
from layerprobe.extraction.embeddings import extract
from layerprobe.files.serialisation import to_json
from tests.models import TEXTS, save_tiny


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
