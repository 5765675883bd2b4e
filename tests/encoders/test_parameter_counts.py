"""Parameters of truncated models from configurations alone, against those that the paper prints.

Source: table 2 of Rep, Dukic and Snajder 2024 (arXiv 2402.13130), in millions without the pooler.
"""

import copy
from typing import Any

import pytest
import torch
from transformers import BertConfig, ElectraConfig, PreTrainedConfig

from layerprobe.encoders.architecture import count_parameters


def bert(n_blocks: int, hidden: int, heads: int, *, vocabulary: int = 30522) -> PreTrainedConfig:
    sizes = {"num_hidden_layers": n_blocks, "hidden_size": hidden, "num_attention_heads": heads}
    return BertConfig(vocab_size=vocabulary, intermediate_size=4 * hidden, **sizes)


def electra(n_blocks: int, hidden: int, heads: int, *, embedding: int) -> PreTrainedConfig:
    sizes = {"num_hidden_layers": n_blocks, "hidden_size": hidden, "num_attention_heads": heads}
    return ElectraConfig(vocab_size=30522, embedding_size=embedding, intermediate_size=4 * hidden, **sizes)


# The configurations are those of the hub ids; a vocabulary is 28,996 for the cased models and 30,522 for the others.
SMALL = electra(12, 256, 4, embedding=128)  # discriminator and generator are of one size
BASE = electra(12, 768, 12, embedding=768)
LARGE = electra(24, 1024, 16, embedding=1024)
TABLE_2 = [
    ("google/bert_uncased_L-2_H-128_A-2", bert(2, 128, 2), 2, 4.37),
    ("google/bert_uncased_L-4_H-256_A-4", bert(4, 256, 4), 4, 11.1),
    ("google/bert_uncased_L-4_H-512_A-8", bert(4, 512, 8), 4, 28.5),
    ("google/bert_uncased_L-8_H-512_A-8", bert(8, 512, 8), 8, 41.11),
    ("google-bert/bert-base-cased", bert(12, 768, 12, vocabulary=28996), 12, 107.72),
    ("google-bert/bert-large-cased", bert(24, 1024, 16, vocabulary=28996), 24, 332.53),
    ("google/electra-small-discriminator", SMALL, 1, 4.76),
    ("google/electra-small-discriminator", SMALL, 12, 13.45),
    ("google/electra-base-discriminator", BASE, 3, 45.1),
    ("google/electra-base-discriminator", BASE, 12, 108.89),
    ("google/electra-large-discriminator", LARGE, 12, 182.94),
    ("google/electra-large-discriminator", LARGE, 24, 334.09),
    ("google/electra-small-generator", SMALL, 12, 13.45),
    ("google/electra-base-generator", electra(12, 256, 4, embedding=768), 12, 33.31),
    ("google/electra-large-generator", electra(24, 256, 4, embedding=1024), 24, 50.74),
]


def projection(config: Any) -> int:
    """Parameters of ELECTRA's map from embedding to hidden size, which the paper leaves out."""
    embedding = getattr(config, "embedding_size", config.hidden_size)
    return 0 if embedding == config.hidden_size else (embedding + 1) * config.hidden_size


@pytest.mark.parametrize(
    ("config", "layer", "millions"), [row[1:] for row in TABLE_2], ids=[f"{row[0]} {row[2]}" for row in TABLE_2]
)
def test_counts_of_the_paper(config: Any, layer: int, millions: float) -> None:
    counts = count_parameters(config)
    assert len(counts) == config.num_hidden_layers + 1
    assert round((counts[layer] - projection(config)) / 1e6, 2) == millions


def test_projection_counts() -> None:
    assert projection(SMALL) == 33_024
    embeddings = (30522 + 512 + 2) * 128 + 2 * 128
    assert count_parameters(SMALL)[0] == embeddings + 33_024


def test_counting_allocates_nothing_and_leaves_the_configuration_alone() -> None:
    huge = bert(12, 12288, 96)
    before, state = huge.to_dict(), torch.random.get_rng_state()
    assert count_parameters(huge)[12] > 21e9
    assert huge.to_dict() == before
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_configuration_is_looked_at_once_and_so_is_one_of_another_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    config = bert(3, 24, 2, vocabulary=99)
    counts, moved = count_parameters(config), copy.deepcopy(config)
    moved._name_or_path = "elsewhere"
    monkeypatch.setattr("layerprobe.encoders.architecture.empty_model", pytest.fail)
    assert count_parameters(copy.deepcopy(config)) == count_parameters(moved) == counts
