"""What a configuration of sentence-transformers says of prompts and features is followed: embeddings equal `encode`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import layerprobe as lp
from tests.export.judges import sentence_transformer
from tests.export.test_sentence_transformers import built, dense, mean, modules
from tests.models import HIDDEN, N_BLOCKS, tiny_tokenizer

TEXTS = ("a", "layers of a model", "it is short.", "a b c d e f g h", "c a b layers", "layers of a model " * 12)
PROMPT = {"query": "a b ", "document": "of c. "}


def left() -> Any:
    return tiny_tokenizer(padding_side="left")


CONFIGURED: dict[str, Any] = {
    "features": lambda path: built(path, mean(), truncate_dim=5),
    "features, normalised": lambda path: built(path, mean(), modules()["Normalize"](), truncate_dim=5),
    "more features than there are": lambda path: built(path, mean(), truncate_dim=500),
    **{
        pooling: lambda path, pooling=pooling: built(
            path, mean(pooling, include_prompt=False), prompts=PROMPT, default_prompt_name="query"
        )
        for pooling in ("mean", "cls", "max")
    },
    "last, padded on the left": lambda path: built(
        path,
        mean("lasttoken", include_prompt=False),
        encoder="llama",
        tokenizer=left(),
        prompts=PROMPT,
        default_prompt_name="query",
    ),
    "both, short": lambda path: built(
        path, mean(include_prompt=False), prompts=PROMPT, default_prompt_name="document", truncate_dim=7, length=12
    ),
}


def cosines(rows: Any) -> Any:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("name", list(CONFIGURED))
def test_embeddings_equal_encode(name: str, tmp_path: Path) -> None:
    folder = CONFIGURED[name](tmp_path)
    model = sentence_transformer(folder)
    expected = model.encode(list(TEXTS))
    for given in (str(folder), model):
        embeddings = lp.extract(lp.Model(given, cache_dir=tmp_path / "store", device="cpu"), TEXTS)
        assert embeddings.shape == (len(TEXTS), N_BLOCKS + 1, expected.shape[1])
        compared = cosines if "normalised" in name else np.asarray
        np.testing.assert_allclose(compared(embeddings.layer(-1)), compared(expected), rtol=0, atol=1e-6)


def test_queries_and_documents_have_their_own_prompts_out_of_the_embedding(tmp_path: Path) -> None:
    folder = built(tmp_path, mean(include_prompt=False), prompts=PROMPT)
    model = sentence_transformer(folder)
    rows = [{"query": text, "positive": TEXTS[i - 1]} for i, text in enumerate(TEXTS)]
    task = lp.load_task(rows, validation=rows, test=rows, kind="retrieval", keep_overlaps=True)
    embeddings = lp.extract(lp.Model(str(folder), cache_dir=tmp_path / "store", device="cpu"), task)
    for name, prompt in PROMPT.items():
        expected = model.encode(list(TEXTS), prompt_name=name)
        places = embeddings.rows([prompt + text for text in TEXTS])
        np.testing.assert_allclose(embeddings.layer(-1)[places], expected, rtol=0, atol=1e-6)


def test_what_is_followed_is_said_and_kept_apart(tmp_path: Path) -> None:
    whole, cut = (built(tmp_path / str(dim), mean(), truncate_dim=dim) for dim in (None, 5))
    both = [lp.extract(lp.Model(str(one), cache_dir=tmp_path / "store"), TEXTS) for one in (whole, cut)]
    assert both[0].fingerprint != both[1].fingerprint
    assert [one.model.hidden_size for one in both] == [HIDDEN, 5]
    assert any("is read with the first 5 features, from its sentence-tr" in warning for warning in both[1].warnings)
    assert not any("but its configuration has" in warning for one in both for warning in one.warnings)
    behind = built(tmp_path / "dense", mean(), dense(), truncate_dim=3)
    embeddings = lp.extract(lp.Model(str(behind), cache_dir=tmp_path / "store"), TEXTS)
    assert embeddings.shape[2] == HIDDEN
    assert any("all features, but its configuration has the first 3" in warning for warning in embeddings.warnings)
