"""The embedded pair: two small encoders of one architecture that differ in what they were pretrained for.

`mlm` was pretrained by masked language modelling, `rtd` as an ELECTRA discriminator by replaced token
detection, both on the synthetic language, with the same sentences, order and number of steps. Their weights
ship with the package. To make them again (about half an hour of processor time):

    python -m layerprobe.pretraining.embedded DIRECTORY
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForMaskedLM,
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    PreTrainedTokenizerFast,
)

from layerprobe.pretraining.language import Language
from layerprobe.pretraining.objectives import MaskedLanguageModelling, ReplacedTokenDetection
from layerprobe.pretraining.training import PretrainingConfig, pretrain
from layerprobe.results import Examples, Protocol, Task

LANGUAGE_SEED = 0
CORPUS_SIZE = 150_000
CORPUS_SEED = 1
# training, validation and test pairs of the demo's task
TASK_SIZES = (1500, 500, 1000)
TASK_SEED = 10
# The paper's protocol but for a higher learning rate and fewer epochs: models this small need it to converge.
DEMO_PROTOCOL = Protocol(learning_rate=3e-4, epochs=6)
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
N_BLOCKS = 8
ENCODER: dict[str, Any] = {
    "hidden_size": 96,
    "num_hidden_layers": N_BLOCKS,
    "num_attention_heads": 4,
    "intermediate_size": 384,
    "max_position_embeddings": 64,
    # small models on endless data underfit: dropout would cost both of them
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
GENERATOR_HIDDEN_SIZE = 48


def embedded_model(objective: str) -> Path:
    """Return the folder of the shipped encoder that was pretrained by `objective`: mlm or rtd."""
    return Path(__file__).parent / "weights" / objective


def embedded_task(*, train: int = TASK_SIZES[0], validation: int = TASK_SIZES[1], test: int = TASK_SIZES[2]) -> Task:
    """Return sentence pairs of the synthetic language whose gold similarity is that of the scenes told."""
    language = Language(seed=LANGUAGE_SEED)

    def split(n: int, seed: int) -> Examples:
        first, second, scores = zip(*language.pairs(n, seed=seed), strict=True)
        return Examples(first=first, second=second, targets=tuple(score / 5 for score in scores))

    return Task(
        name="embedded",
        kind="sts",
        train=split(train, TASK_SEED),
        validation=split(validation, TASK_SEED + 1),
        test=split(test, TASK_SEED + 2),
        score_range=(0.0, 5.0),
        notes=("sentence pairs of the synthetic language; gold similarity is that of the scenes they tell",),
    )


def word_tokenizer(language: Language) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token a word of `language`."""
    vocabulary = {word: i for i, word in enumerate([*SPECIAL_TOKENS, *language.vocabulary])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ends = [(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        model_max_length=ENCODER["max_position_embeddings"],
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "attention_mask"],
    )


def objective_for(
    name: str, *, vocab_size: int, mask_id: int, seed: int
) -> MaskedLanguageModelling | ReplacedTokenDetection:
    """Return a fresh model with its pretraining objective: mlm or rtd."""
    torch.manual_seed(seed)
    if name == "mlm":
        model = BertForMaskedLM(BertConfig(**ENCODER, vocab_size=vocab_size))
        return MaskedLanguageModelling(model, mask_id=mask_id)
    electra = {**ENCODER, "vocab_size": vocab_size, "embedding_size": ENCODER["hidden_size"]}
    small: dict[str, Any] = {
        "hidden_size": GENERATOR_HIDDEN_SIZE,
        "intermediate_size": 4 * GENERATOR_HIDDEN_SIZE,
        "num_attention_heads": 2,
    }
    return ReplacedTokenDetection(
        ElectraForMaskedLM(ElectraConfig(**{**electra, **small})),
        ElectraForPreTraining(ElectraConfig(**electra)),
        mask_id=mask_id,
    )


def make(name: str, directory: Path, config: PretrainingConfig, *, corpus_size: int = CORPUS_SIZE) -> None:
    """Pretrain one model of the pair and save it as a Hugging Face checkpoint in float16."""
    language = Language(seed=LANGUAGE_SEED)
    tokenizer = word_tokenizer(language)
    sentences = tokenizer(list(language.sentences(corpus_size, seed=CORPUS_SEED)))["input_ids"]
    objective = objective_for(name, vocab_size=len(tokenizer), mask_id=tokenizer.mask_token_id, seed=config.seed)
    pretrain(objective, sentences, config, pad_id=tokenizer.pad_token_id, special_ids=tokenizer.all_special_ids)
    encoder: Any = objective.encoder
    encoder.half().save_pretrained(directory / name)
    tokenizer.save_pretrained(directory / name)


def _make_in_process(name: str, directory: Path) -> None:
    logging.basicConfig(level=logging.INFO, format=f"{name}: %(message)s")
    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))
    make(name, directory, PretrainingConfig())


def main() -> None:
    """Pretrain both models side by side."""
    parser = argparse.ArgumentParser(prog="python -m layerprobe.pretraining.embedded", description=main.__doc__)
    parser.add_argument("directory", type=Path, help="where the checkpoints mlm and rtd are written")
    directory = parser.parse_args().directory
    context = multiprocessing.get_context("spawn")
    jobs = [context.Process(target=_make_in_process, args=(name, directory)) for name in ("mlm", "rtd")]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    sys.exit(any(job.exitcode for job in jobs))


if __name__ == "__main__":
    main()
