"""The embedded pair: how it is made, and the task that comes with it."""

import dataclasses
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from benchmarks.embedded_pair import RECIPE, make
from layerprobe import embedded
from layerprobe.embedded import Language
from layerprobe.lab.pretraining.models import SPECIAL_TOKENS, word_tokenizer
from layerprobe.lab.pretraining.values import EncoderSize

N_BLOCKS, HIDDEN = 2, 16


@pytest.fixture(scope="module")
def language() -> Language:
    return Language(seed=embedded.LANGUAGE_SEED)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both models, made with three steps on 100 sentences."""
    directory = tmp_path_factory.mktemp("weights")
    size = EncoderSize(n_blocks=N_BLOCKS, hidden_size=HIDDEN, heads=2, intermediate_size=32)
    for name in ("mlm", "rtd"):
        make(name, directory, dataclasses.replace(RECIPE, size=size, steps=3, batch_size=16), corpus_size=100)
    return directory


@pytest.mark.parametrize("name", ["mlm", "rtd"])
def test_a_checkpoint_loads_and_embeds(checkpoints: Path, name: str, language: Language) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoints / name)
    model = AutoModel.from_pretrained(checkpoints / name, dtype=torch.float32)
    assert (model.config.num_hidden_layers, model.config.hidden_size) == (N_BLOCKS, HIDDEN)
    texts = list(language.sentences(4, seed=9))
    with torch.inference_mode():
        output = model(**tokenizer(texts, padding=True, return_tensors="pt"), output_hidden_states=True)
    assert len(output.hidden_states) == N_BLOCKS + 1
    assert torch.isfinite(output.last_hidden_state).all()


def test_every_word_is_one_known_token(language: Language) -> None:
    tokenizer = word_tokenizer(language, max_length=RECIPE.max_length)
    assert len(tokenizer) == len(language.vocabulary) + len(SPECIAL_TOKENS)
    for text in language.sentences(200, seed=9):
        ids = tokenizer(text)["input_ids"]
        assert len(ids) == len(text.split()) + 2
        assert (ids[0], ids[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
        assert len(ids) <= RECIPE.max_length
    assert tokenizer("no-such-word")["input_ids"][1] == tokenizer.unk_token_id
