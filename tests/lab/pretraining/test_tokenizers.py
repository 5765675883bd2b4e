"""Tokenizers: trained on texts alone, the same in every process."""

import subprocess
import sys
from pathlib import Path

import pytest

from layerprobe.embedded import Language
from layerprobe.lab.pretraining.models import SPECIAL_TOKENS, content_digest, train_tokenizer

TEXTS = tuple(Language(seed=2).sentences(400, seed=0))
PROGRAM = """
from tests.lab.pretraining.test_tokenizers import TEXTS
from layerprobe.lab.pretraining.models import content_digest, train_tokenizer
print(content_digest(train_tokenizer(TEXTS, vocab_size=300, max_length=32)))
"""


@pytest.mark.slow
def test_texts_alone_decide_the_vocabulary() -> None:
    """The trainer of `tokenizers` settles ties by a hash map, another one in every process and every call."""
    expected = content_digest(train_tokenizer(TEXTS, vocab_size=300, max_length=32))
    for _ in range(5):
        assert content_digest(train_tokenizer(TEXTS, vocab_size=300, max_length=32)) == expected
    root = Path(__file__).parents[3]
    elsewhere = subprocess.run([sys.executable, "-c", PROGRAM], cwd=root, capture_output=True, text=True, check=True)
    assert elsewhere.stdout.strip() == expected
    assert content_digest(train_tokenizer(TEXTS[1:], vocab_size=300, max_length=32)) != expected


def test_texts_come_back() -> None:
    tokenizer = train_tokenizer(["The Cat, the dog!", "a dog's cat"] * 3, vocab_size=80, max_length=32)
    ids = tokenizer("the cat, a dog")["input_ids"]
    assert (ids[0], ids[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "the cat, a dog"
    assert tokenizer.unk_token_id not in ids
    assert tokenizer("The CAT")["input_ids"] == tokenizer("the cat")["input_ids"]
    assert tokenizer.unk_token_id in tokenizer("zzz")["input_ids"]


def test_only_the_special_tokens_are_special() -> None:
    tokenizer = train_tokenizer(TEXTS, vocab_size=300, max_length=32)
    assert len(tokenizer) == 300
    assert set(tokenizer.all_special_tokens) == set(SPECIAL_TOKENS)
    assert [tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS] == [0, 1, 2, 3, 4]
    assert set(tokenizer.get_added_vocab()) == set(SPECIAL_TOKENS)
