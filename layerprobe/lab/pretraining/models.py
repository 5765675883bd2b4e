"""From a protocol and a seed to new models with their objective, and their tokenizers. Knows no training and no data.

Every encoder is an ELECTRA model with embeddings as wide as its layers: BERT without a pooler. The class is the
same for all objectives, so only the objective differs. Tokenizers have one token per word of the synthetic language,
and WordPiece for texts.

The objectives are those of the ELECTRA paper, including masked language modelling. All of them draw the same masks:
15 % of the ordinary tokens of each batch are selected, the generator reads [MASK] instead and is trained to fill
them in, and the encoder reads its samples. They differ in the encoder's target
for that corrupted text; masked language modelling has no generator.

Two choices: the paper gives the generator [MASK] at all selected positions, and so do we; its published code
does so at 85 % of them. As in that code, the discriminator's loss counts all tokens except padding, including the
first and last token of a sequence, which are never replaced.

Source: Clark et al. 2020 (arXiv 2003.10555), sections 2, 3.2 and 3.5; masked language modelling: Devlin et al. 2019
(arXiv 1810.04805), section 3.1.
"""

import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining, ElectraModel, PreTrainedTokenizerFast

from layerprobe.embedded import Language
from layerprobe.encoders.failures import quiet_transformers
from layerprobe.files.serialisation import digest
from layerprobe.lab.pretraining.masking import (
    MaskedBatch,
    MaskedLanguageModelling,
    Masking,
    Objective,
    Sums,
    logits_at,
    replaced_sums,
    token_sums,
)
from layerprobe.lab.pretraining.values import OBJECTIVES, EncoderSize, PretrainingProtocol
from layerprobe.process import MAKING_MODELS
from layerprobe.rng import drawing

GENERATOR = "generator"


def build_encoder(protocol: PretrainingProtocol, *, vocab_size: int, pad_id: int, seed: int) -> ElectraModel:
    """Return a new encoder; its weights depend only on size, vocabulary and seed, not on the objective."""
    config = _config(protocol.size, protocol, vocab_size=vocab_size, pad_id=pad_id)
    with drawing(seed), MAKING_MODELS:
        return ElectraModel(config)


def build_objective(encoder: ElectraModel, protocol: PretrainingProtocol, masking: Masking, *, seed: int) -> Objective:
    """Return the objective of the protocol with `encoder` as its model; heads and generator are new."""
    # not the seed itself: a generator would draw the encoder's numbers. Torch uses 32 bits of a seed.
    with drawing(int(np.random.SeedSequence([seed, 1]).generate_state(1)[0])), MAKING_MODELS:
        return OBJECTIVES[protocol.objective].build(encoder, protocol, masking)


def make_masking(protocol: PretrainingProtocol, tokenizer: Any) -> Masking:
    """Return the selection of tokens, the same for every objective.

    As in the code of BERT and ELECTRA, only [CLS], [SEP] and padding are never selected, nor a [MASK] in a text, as in
    ELECTRA's. An unknown word is a word: [UNK] is selected like any other.
    """
    special_ids = [number for number in tokenizer.all_special_ids if number != tokenizer.unk_token_id]
    return Masking.of(protocol, tokenizer, vocab_size=len(tokenizer), special_ids=special_ids)


def save_models(objective: Objective | None, encoder: ElectraModel, tokenizer: Any, folder: Path) -> None:
    """Write the encoder with its head to an existing folder, and a generator to `generator/` in it."""
    with quiet_transformers():
        model: Any = encoder if objective is None else objective.model
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        generator: Any = getattr(objective, "generator", None)
        if generator is not None:
            generator.save_pretrained(folder / GENERATOR)
            tokenizer.save_pretrained(folder / GENERATOR)


def count(module: nn.Module) -> int:
    """Return the number of parameters, counting shared ones once."""
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
    """Return the configuration of a generator for an encoder."""
    config: Any = encoder.config
    size = protocol.size.scaled(protocol.generator_size)
    return _config(size, protocol, vocab_size=config.vocab_size, pad_id=config.pad_token_id)


def with_token_head(encoder: ElectraModel) -> Any:
    """Return the encoder with a new head for masked language modelling, tied to its embeddings."""
    model: Any = ElectraForMaskedLM(encoder.config)
    model.electra = encoder
    model.tie_weights()
    return model


def with_detection_head(encoder: ElectraModel) -> Any:
    """Return the encoder with a new head of one logit per token."""
    model: Any = ElectraForPreTraining(encoder.config)
    model.electra = encoder
    return model


_, UNK, CLS, SEP, _ = SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
NORMALIZER = normalizers.BertNormalizer(lowercase=True)
# Only the most frequent letters are known: texts from the web have thousands that occur once.
MOST_LETTERS = 1000
# Number of texts processed together.
CHUNK = 10_000


def word_tokenizer(language: Language, *, max_length: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per word of `language`."""
    vocabulary = {word: i for i, word in enumerate([*SPECIAL_TOKENS, *language.vocabulary])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _finished(tokenizer, max_length=max_length)


def train_tokenizer(texts: Sequence[str], *, vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
    """Return a lower-case WordPiece tokenizer, like BERT's, trained on `texts`, which alone determine its content.

    The trainer of `tokenizers` 0.23 numbers the pieces of one letter (##a) in the order of a hash map and breaks ties
    by these numbers, so the same texts give another vocabulary in every process (its issue 1794). Here a first pass
    finds these pieces, and the second pass gets them in alphabetical order.

    `vocab_size` is the largest number of words, special tokens and letters included; texts can have fewer or more.
    """
    letters = _letters(texts)
    pieces = [word for word in _trained(texts, letters, SPECIAL_TOKENS, vocab_size=0) if word.startswith("##")]
    vocabulary = _trained(texts, letters, (*SPECIAL_TOKENS, *sorted(pieces)), vocab_size=vocab_size)
    # a separate tokenizer: for the trained one the pieces are special tokens
    return _finished(_word_piece(vocabulary), max_length=max_length)


def _letters(texts: Sequence[str]) -> list[str]:
    """Return the most frequent letters of lower-case texts."""
    counts: Counter[str] = Counter()
    for start in range(0, len(texts), CHUNK):
        counts.update(NORMALIZER.normalize_str(" ".join(texts[start : start + CHUNK])))
    ordered = sorted(counts, key=lambda letter: (-counts[letter], letter))
    return [letter for letter in ordered if not letter.isspace()][:MOST_LETTERS]


def _trained(texts: Sequence[str], letters: Sequence[str], first: Sequence[str], *, vocab_size: int) -> dict[str, int]:
    """Return the words found by training with their numbers, those of `first` before all others."""
    tokenizer = _word_piece({})
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=list(first),
        initial_alphabet=list(letters),
        limit_alphabet=len(letters),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.get_vocab()


def _word_piece(vocabulary: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=UNK))
    tokenizer.normalizer = NORMALIZER
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def content_digest(tokenizer: PreTrainedTokenizerFast) -> str:
    """Return a sha256 of everything that determines a text's tokens."""
    return digest(json.loads(tokenizer.backend_tokenizer.to_str()))


def _finished(tokenizer: Tokenizer, *, max_length: int) -> PreTrainedTokenizerFast:
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A {SEP}",
        pair=f"{CLS} $A {SEP} $B:1 {SEP}:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (CLS, SEP)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=max_length,
        **{f"{token.strip('[]').lower()}_token": token for token in SPECIAL_TOKENS},
        model_input_names=["input_ids", "attention_mask"],
    )


def masked_language_modelling(
    encoder: ElectraModel, protocol: PretrainingProtocol, masking: Masking
) -> MaskedLanguageModelling:
    """Return masked language modelling, BERT's objective, with `encoder` as its model."""
    return MaskedLanguageModelling(with_token_head(encoder), masking)


class GeneratorObjective(Objective):
    """A small generator fills masked positions; subclasses define the encoder's head, `model`, and its output.

    No gradient flows through the sampling. The generator shares the encoder's embeddings (token, position, token type
    and their norm, as in the paper's published code).
    """

    weights: Mapping[str, float] = {"generator": 1.0, "mlm": 1.0}

    def __init__(self, encoder: ElectraModel, protocol: PretrainingProtocol, masking: Masking) -> None:
        super().__init__(masking)
        self.generator: Any = ElectraForMaskedLM(generator_config(encoder, protocol))
        self.generator.base_model.embeddings = encoder.embeddings
        self.generator.tie_weights()

    def forward(self, batch: MaskedBatch, rng: torch.Generator) -> dict[str, Sums]:
        """Return the sums of the generator, and those of the encoder for the corrupted batch."""
        only_masks = {
            "input_ids": batch.ids.masked_fill(batch.selected, self.masking.mask_id),
            "attention_mask": batch.attention_mask,
        }
        logits = logits_at(self.generator, only_masks, batch.selected).float()
        corrupted = batch.ids.clone()
        corrupted[batch.selected] = sample(logits.detach(), rng)
        return {"generator": token_sums(logits, batch.targets), **self.encoder_sums(corrupted, batch)}

    @abstractmethod
    def encoder_sums(self, corrupted: Tensor, batch: MaskedBatch) -> dict[str, Sums]:
        """Return the encoder's sums for a corrupted batch, (text, token) ids."""


@torch.no_grad()
def sample(logits: Tensor, rng: torch.Generator) -> Tensor:
    """Return one token per row of (position, vocabulary), drawn from the softmax: the maximum with Gumbel noise."""
    return (logits - torch.empty_like(logits).exponential_(generator=rng).log()).argmax(dim=-1)


class ReplacedTokenDetection(GeneratorObjective):
    """The encoder classifies every token as original or replaced.

    loss = generator's cross entropy + 50 x binary cross entropy over all tokens except padding

    A sample that equals the original counts as original. With `masked_alone` the discriminator's loss is the mean over
    the masked positions only.
    """

    def __init__(
        self, encoder: ElectraModel, protocol: PretrainingProtocol, masking: Masking, *, masked_alone: bool = False
    ) -> None:
        super().__init__(encoder, protocol, masking)
        self.masked_alone = masked_alone
        self.model = with_detection_head(encoder)
        self.weights = {"generator": 1.0, "discriminator": protocol.discriminator_weight}

    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        """Return the numbers of masked positions and of positions in the discriminator's loss."""
        return {"generator": len(batch.targets), "discriminator": int(self.positions(batch).sum())}

    def positions(self, batch: MaskedBatch) -> Tensor:
        """Return the positions in the discriminator's loss, (text, token) bool."""
        return batch.selected if self.masked_alone else batch.attention_mask.bool()

    def encoder_sums(self, corrupted: Tensor, batch: MaskedBatch) -> dict[str, Sums]:
        """Return the discriminator's sums."""
        logits = self.model(input_ids=corrupted, attention_mask=batch.attention_mask).logits.float()
        positions = self.positions(batch)
        return {"discriminator": replaced_sums(logits[positions], (corrupted != batch.ids)[positions])}


masked_token_detection = partial(ReplacedTokenDetection, masked_alone=True)
"""ELECTRA 15 %."""


class ReplaceMLM(GeneratorObjective):
    """The encoder fills in the masked tokens of the corrupted text.

    loss = generator's cross entropy + cross entropy of the original tokens at the masked positions
    """

    def __init__(self, encoder: ElectraModel, protocol: PretrainingProtocol, masking: Masking) -> None:
        super().__init__(encoder, protocol, masking)
        self.model = with_token_head(encoder)

    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        """Return the number of masked positions, twice."""
        return dict.fromkeys(("generator", "mlm"), len(batch.targets))

    def encoder_sums(self, corrupted: Tensor, batch: MaskedBatch) -> dict[str, Sums]:
        """Return the cross entropy of all tokens at the masked positions."""
        inputs = {"input_ids": corrupted, "attention_mask": batch.attention_mask}
        return {"mlm": token_sums(logits_at(self.model, inputs, batch.selected).float(), batch.targets)}


class AllTokensMLM(GeneratorObjective):
    """Every token except padding is predicted, with a copy mechanism.

    p(x | t) = D(t) x 1[x is the token read at t] + (1 - D(t)) x softmax(t)[x]
    loss     = generator's cross entropy + mean over all tokens of -log p(original | t)

    D(t) is a sigmoid of the last layer's state. The paper gives no weight for the second term, so it has 1 here.
    """

    def __init__(self, encoder: ElectraModel, protocol: PretrainingProtocol, masking: Masking) -> None:
        super().__init__(encoder, protocol, masking)
        self.model = with_token_head(encoder)
        self.copy = nn.Linear(protocol.size.hidden_size, 1)

    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        """Return the numbers of masked positions and of all tokens."""
        return {"generator": len(batch.targets), "mlm": batch.n_tokens}

    def encoder_sums(self, corrupted: Tensor, batch: MaskedBatch) -> dict[str, Sums]:
        """Return the sums of all tokens of the vocabulary at every token."""
        real = batch.attention_mask.bool()
        inputs = {"input_ids": corrupted, "attention_mask": batch.attention_mask}
        states = self.model.base_model(**inputs).last_hidden_state[real]
        logits = self.model.generator_lm_head(self.model.generator_predictions(states)).float()
        copy, original = self.copy(states).squeeze(1).float(), batch.ids[real]
        return {"mlm": copy_sums(copy, logits, read=corrupted[real], targets=original, masked=batch.selected[real])}


def copy_sums(copy: Tensor, logits: Tensor, *, read: Tensor, targets: Tensor, masked: Tensor) -> Sums:
    """Return the negative log likelihood of tokens by a softmax mixed with a copy of the token read.

    Args:
        copy: (position,): its sigmoid is the weight of the copy.
        logits: (position, vocabulary).
        read: (position,): the tokens of the corrupted text.
        targets: (position,): the original tokens.
        masked: (position,) bool: positions with a sample of the generator.

    Returns:
        The loss, and the positions and hits over all tokens and over the masked ones.
    """
    predicted = F.logsigmoid(-copy) - F.cross_entropy(logits, targets, reduction="none")
    log_likelihood = torch.where(read == targets, torch.logaddexp(F.logsigmoid(copy), predicted), predicted)
    sums = {"loss": -log_likelihood.sum()}
    if not torch.is_grad_enabled():
        shares = copy.sigmoid().unsqueeze(1)
        mixed = ((1 - shares) * logits.softmax(dim=1)).scatter_add_(1, read.unsqueeze(1), shares)
        hits = mixed.argmax(dim=1) == targets
        sums |= {"n": torch.tensor(len(targets)), "hits": hits.sum()}
        sums |= {"masked": masked.sum(), "masked_hits": (hits & masked).sum()}
    return sums
