"""A protocol and a seed -> fresh models under their objective. Knows architectures; knows no data and no training.

Every encoder is an ELECTRA model whose embeddings are as wide as its layers: BERT without a pooler. The class is the
same for all objectives, so nothing but the objective differs.
"""

from pathlib import Path
from typing import Any

import numpy as np
from torch import nn
from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining, ElectraModel

from layerprobe.encoders.loading import quiet_transformers
from layerprobe.lab.pretraining.objectives.registry import OBJECTIVES
from layerprobe.lab.pretraining.values import EncoderSize, PretrainingProtocol
from layerprobe.process import MAKING_MODELS
from layerprobe.rng import drawing
from layerprobe.training.corpus import Masking
from layerprobe.training.objective import MaskedLanguageModel, Objective

GENERATOR = "generator"


def build_encoder(protocol: PretrainingProtocol, *, vocab_size: int, pad_id: int, seed: int) -> ElectraModel:
    """Return a fresh encoder; its weights depend on size, vocabulary and seed alone, on no objective."""
    config = _config(protocol.size, protocol, vocab_size=vocab_size, pad_id=pad_id)
    with drawing(seed), MAKING_MODELS:
        return ElectraModel(config)


def build_objective(encoder: ElectraModel, protocol: PretrainingProtocol, masking: Masking, *, seed: int) -> Objective:
    """Return the objective of the protocol with `encoder` as its model; heads and generator are fresh."""
    # not the seed itself: a generator would begin with the encoder's numbers. Torch reads 32 bits of a seed.
    with drawing(int(np.random.SeedSequence([seed, 1]).generate_state(1)[0])), MAKING_MODELS:
        return OBJECTIVES[protocol.objective].build(encoder, protocol, masking)


def masking_of(protocol: PretrainingProtocol, tokenizer: Any) -> Masking:
    """Return which tokens are selected: the same ones for every objective.

    As in the code of BERT and ELECTRA, only [CLS], [SEP] and padding never are, and a [MASK] that a text has, as in
    ELECTRA's. An unknown word is a word: [UNK] is selected like any other.
    """
    special_ids = [number for number in tokenizer.all_special_ids if number != tokenizer.unk_token_id]
    return Masking.of(protocol, tokenizer, vocab_size=len(tokenizer), special_ids=special_ids)


def save_models(objective: Objective | None, encoder: ElectraModel, tokenizer: Any, folder: Path) -> None:
    """Write the encoder under its head to a folder that is there, and a generator to `generator/` within it."""
    with quiet_transformers():
        model: Any = encoder if objective is None else objective.model
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        generator: Any = getattr(objective, "generator", None)
        if generator is not None:
            generator.save_pretrained(folder / GENERATOR)
            tokenizer.save_pretrained(folder / GENERATOR)


def count(module: nn.Module) -> int:
    """Return the parameters, shared ones once."""
    return sum(parameter.numel() for parameter in module.parameters())


def _config(size: EncoderSize, protocol: PretrainingProtocol, *, vocab_size: int, pad_id: int) -> ElectraConfig:
    return ElectraConfig(
        vocab_size=vocab_size,
        embedding_size=protocol.size.hidden_size,
        hidden_size=size.hidden_size,
        num_hidden_layers=size.n_blocks,
        num_attention_heads=size.heads,
        intermediate_size=size.intermediate_size,
        max_position_embeddings=protocol.max_length,
        hidden_dropout_prob=protocol.dropout,
        attention_probs_dropout_prob=protocol.dropout,
        pad_token_id=pad_id,
    )


def generator_config(encoder: ElectraModel, protocol: PretrainingProtocol) -> ElectraConfig:
    """Return the shape of a generator for an encoder."""
    config: Any = encoder.config
    size = protocol.size.scaled(protocol.generator_size)
    return _config(size, protocol, vocab_size=config.vocab_size, pad_id=config.pad_token_id)


def build_generator(encoder: ElectraModel, protocol: PretrainingProtocol) -> MaskedLanguageModel:
    """Return a fresh generator for an encoder."""
    return MaskedLanguageModel(model=ElectraForMaskedLM(generator_config(encoder, protocol)), fresh=())


def with_token_head(encoder: ElectraModel) -> MaskedLanguageModel:
    """Return the encoder under a fresh head for masked language modelling, tied to its embeddings."""
    model: Any = ElectraForMaskedLM(encoder.config)
    model.electra = encoder
    model.tie_weights()
    return MaskedLanguageModel(model=model, fresh=())


def with_detection_head(encoder: ElectraModel) -> Any:
    """Return the encoder under a fresh head with one logit a token."""
    model: Any = ElectraForPreTraining(encoder.config)
    model.electra = encoder
    return model
