"""From texts to token ids and masked batches of an epoch, and objectives with their losses.

Knows lengths, seeds and heads that fill in masked tokens; knows no optimiser and no schedule.
"""

from __future__ import annotations

import copy
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import MODEL_FOR_MASKED_LM_MAPPING, AutoModelForMaskedLM, PreTrainedConfig, PreTrainedModel

from layerprobe.context import report
from layerprobe.encoders.batching import Batch, ModelInputs, TokenizedTexts, on_device
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.failures import model_errors, one_line_errors
from layerprobe.encoders.identity import Resolved
from layerprobe.encoders.loading import load_weights
from layerprobe.errors import DataError, ModelError
from layerprobe.process import MAKING_MODELS
from layerprobe.rng import drawing

# Texts between two reports of progress.
CHUNK = 20_000
# Number of batches whose texts are sorted by length together.
WINDOW = 50


def tokenize_corpus(tokenize: Callable[[list[str]], ModelInputs], texts: Sequence[str]) -> TokenizedTexts:
    """Return `texts` as token ids without types; errors of `tokenize` propagate."""
    parts: list[TokenizedTexts] = []
    for start in range(0, max(1, len(texts)), CHUNK):
        tokenized = tokenize(list(texts[start : start + CHUNK]))
        assert isinstance(tokenized, TokenizedTexts)
        parts.append(replace(tokenized, types=None))
        report("tokenizing", min(start + CHUNK, len(texts)), len(texts))
    return replace(
        parts[0],
        ids=np.concatenate([part.ids for part in parts]),
        ends=np.cumsum([0, *itertools.chain.from_iterable(part.lengths for part in parts)], dtype=np.int64),
        n_truncated=sum(part.n_truncated for part in parts),
    )


def pack(corpus: TokenizedTexts, *, max_length: int, n_leading: int) -> TokenizedTexts:
    """Return the texts of `corpus` joined to sequences of at most `max_length` tokens, in order.

    [CLS] a [SEP], [CLS] b [SEP] become [CLS] a [SEP] b [SEP]: no text is split, and a text that does not fit
    starts the next sequence.

    The texts must have at most `max_length` tokens each. Their `n_leading` special tokens at the start are kept only
    for the first text of a sequence.
    """
    parts: list[NDArray[np.int32]] = []
    lengths: list[int] = []
    for start, end in itertools.pairwise(corpus.ends.tolist()):
        if not lengths or lengths[-1] + end - start - n_leading > max_length:
            lengths.append(0)
        parts.append(corpus.ids[start + (n_leading if lengths[-1] else 0) : end])
        lengths[-1] += len(parts[-1])
    ends = np.cumsum([0, *lengths], dtype=np.int64)
    return replace(corpus, ids=np.concatenate(parts or [corpus.ids]), ends=ends)


def hold_out(n_texts: int, share: float, *, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of the training and of the held-out texts, ascending; DataError with fewer than two texts."""
    if n_texts < 2:
        raise DataError(f"expected at least two distinct texts, one of them to hold out, got {n_texts}")
    n_held_out = min(max(1, round(share * n_texts)), n_texts - 1)
    order = np.random.default_rng([seed, 0]).permutation(n_texts)
    return np.sort(order[n_held_out:]), np.sort(order[:n_held_out])


def epoch_batches(
    rows: NDArray[np.int64], lengths: NDArray[np.int64], *, batch_size: int, seed: int, epoch: int
) -> list[NDArray[np.int64]]:
    """Return the batches of an epoch: texts of similar length, in a random order, every text once.

    The texts are shuffled; within each window of 50 batches they are sorted by length and split into batches, and
    the batches of the window are shuffled. Only the arguments decide, so an interrupted epoch continues unchanged.

    `rows` are numbers of texts, `lengths` the number of tokens of all texts, including others.
    """
    rng = np.random.default_rng([seed, 1, epoch])
    order = rng.permutation(rows)
    mixed: list[NDArray[np.int64]] = []
    for start in range(0, len(order), batch_size * WINDOW):
        window = order[start : start + batch_size * WINDOW]
        window = window[np.argsort(lengths[window], kind="stable")]
        batches = [window[i : i + batch_size] for i in range(0, len(window), batch_size)]
        mixed += [batches[i] for i in rng.permutation(len(batches))]
    return mixed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MaskedBatch:
    """A batch with the positions that the model must fill in."""

    ids: Tensor
    """(text, token): original ids."""
    attention_mask: Tensor
    """(text, token): 1 for tokens, 0 for padding."""
    input_ids: Tensor
    """(text, token): ids with the selected tokens masked, replaced or kept."""
    selected: Tensor
    """(text, token) bool: selected positions."""
    targets: Tensor
    """(selected,): original ids at these positions."""

    @property
    def n_tokens(self) -> int:
        """Number of tokens without padding."""
        return int(self.attention_mask.sum())

    def to(self, device: torch.device) -> MaskedBatch:
        """Return the batch on a device."""
        return MaskedBatch(**{f.name: on_device(getattr(self, f.name), device) for f in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Masking:
    """Selection of tokens, and what the model reads instead: by default the shares of BERT.

    If both shares are 0 every selected token becomes the mask, as for ELECTRA's generator.

    Source: Devlin et al. 2019 (arXiv 1810.04805), section 3.1; Clark et al. 2020 (arXiv 2003.10555).
    """

    mask_id: int
    vocab_size: int
    """Random tokens are drawn below this id."""
    special_ids: tuple[int, ...]
    """Ids that are never selected."""
    rate: float = 0.15
    """Probability of selecting a token."""
    random_share: float = 0.1
    """Share of the selected tokens that are replaced by a random token."""
    kept_share: float = 0.1
    """Share of the selected tokens that stay unchanged; the rest is replaced by the mask."""

    @classmethod
    def of(cls, protocol: Any, tokenizer: Any, *, vocab_size: int, special_ids: Iterable[int]) -> Masking:
        """Return the masking of a protocol of adaptation or pretraining, which has the same field names."""
        return cls(
            mask_id=tokenizer.mask_token_id,
            vocab_size=vocab_size,
            special_ids=tuple(special_ids),
            rate=protocol.masking_rate,
            random_share=protocol.random_share,
            kept_share=protocol.kept_share,
        )

    def mask(self, ids: Tensor, attention_mask: Tensor, rng: torch.Generator) -> MaskedBatch:
        """Return (text, token) ids with some of them masked, on the CPU; padding and special tokens never are."""
        special = torch.isin(ids, torch.tensor(self.special_ids, dtype=ids.dtype)) | (attention_mask == 0)
        selected = (torch.rand(ids.shape, generator=rng) < self.rate) & ~special
        masked = ids.masked_fill(selected, self.mask_id)
        if self.random_share or self.kept_share:
            draw = torch.rand(ids.shape, generator=rng)
            random = torch.randint(self.vocab_size, ids.shape, generator=rng)
            masked = torch.where(selected & (draw < self.random_share + self.kept_share), ids, masked)
            masked = torch.where(selected & (draw < self.random_share), random, masked)
        return MaskedBatch(
            ids=ids, attention_mask=attention_mask, input_ids=masked, selected=selected, targets=ids[selected]
        )


def logits_at(model: PreTrainedModel, batch: Batch, selected: Tensor) -> Tensor:
    """Return an encoder's logits at some positions, by a head that fills in masked tokens: (selected, vocabulary).

    The head dominates the cost for large vocabularies, so it never sees the other positions.

    Args:
        model: Encoder with its head.
        batch: Inputs of the encoder.
        selected: (text, token) bool.
    """

    def keep_selected(module: Any, inputs: Any, output: Any) -> Any:
        output.last_hidden_state = output.last_hidden_state[selected].unsqueeze(0)
        return output

    hook = model.base_model.register_forward_hook(keep_selected)
    try:
        with model_errors(model.config.model_type, "a forward pass under a head"):
            logits: Tensor = model(**batch, return_dict=True).logits
    finally:
        hook.remove()
    return logits.squeeze(0)


def check_masked_lm(checkpoint: Resolved) -> None:
    """Raise ModelError for models that cannot fill in masked tokens."""
    config, tokenizer = checkpoint.config, checkpoint.tokenizer
    reason = None
    if checkpoint.loaded is not None:
        reason = "it was passed loaded, without its head; save it and pass the folder"
    elif checkpoint.asked.blocks is not None or checkpoint.asked.tokens is not None:
        taken = "blocks" if checkpoint.asked.blocks is not None else "tokens"
        reason = f"some of its {taken} were removed; export it and pass the folder"
    elif type(config).__module__.startswith("transformers_modules"):
        reason = "it needs its own code, which the written folder does not contain"
    elif type(config) not in MODEL_FOR_MASKED_LM_MAPPING:
        reason = f"transformers has no head of that kind for {config.model_type}"
    elif tokenizer.mask_token_id is None:
        reason = "its tokenizer has no mask token"
    elif tokenizer.mask_token_id >= getattr(config, "vocab_size", 0):
        reason = f"it knows {config.vocab_size} tokens, but the mask is number {tokenizer.mask_token_id}"
    if reason is not None:
        raise ModelError(
            f"{checkpoint.label} cannot be trained by masked language modelling: {reason}; expected an encoder with "
            "a mask token, such as BERT, ELECTRA or ModernBERT"
        )


def with_masked_lm_head(
    checkpoint: Resolved, encoder: Encoder, *, seed: int
) -> tuple[PreTrainedModel, tuple[str, ...]]:
    """Put the checkpoint's head for masked language modelling on a loaded encoder.

    Weights of the head that the checkpoint lacks are drawn from `seed`; if the architecture ties the head to the
    input embeddings, it is tied to those of `encoder`.

    Returns:
        The model whose encoder is the module in `encoder`, and the names of the head's weights
        that the checkpoint lacks.
    """
    check_masked_lm(checkpoint)
    config = copy.deepcopy(checkpoint.config)
    config._attn_implementation = encoder.model.config._attn_implementation
    with drawing(seed), one_line_errors(checkpoint.name):
        model, fresh = (
            _random_head(config) if checkpoint.asked.random_init is not None else _load_head(checkpoint, config)
        )
    setattr(model, model.base_model_prefix, encoder.model)
    model.tie_weights()
    return model.to(encoder.device).train(False), fresh


def _random_head(config: PreTrainedConfig) -> tuple[PreTrainedModel, tuple[str, ...]]:
    auto_class: Any = AutoModelForMaskedLM
    with MAKING_MODELS:
        model: PreTrainedModel = auto_class.from_config(config, dtype=torch.float32)
    return model, _names_of_head(model, [name for name, _ in model.named_parameters()])


def _load_head(checkpoint: Resolved, config: PreTrainedConfig) -> tuple[PreTrainedModel, tuple[str, ...]]:
    model, info = load_weights(AutoModelForMaskedLM, checkpoint, config)
    if getattr(config, "legacy", False) and any(key.startswith("lm_predictions.") for key in info["unexpected_keys"]):
        # Microsoft's heads for DeBERTa need `legacy=False`, which their configurations lack
        config.legacy = False
        model, info = load_weights(AutoModelForMaskedLM, checkpoint, config)
    fresh = _names_of_head(model, [*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])])
    if fresh:
        # from_pretrained of transformers 5.23 leaves a bias of FNet's head uninitialised
        drawn = dict(_random_head(config)[0].named_parameters(remove_duplicate=False))
        with torch.no_grad():
            for name, weight in model.named_parameters(remove_duplicate=False):
                if name in fresh:
                    weight.copy_(drawn[name])
    return model, fresh


def _names_of_head(model: PreTrainedModel, names: list[str]) -> tuple[str, ...]:
    """Return the names of weights outside of the encoder."""
    return tuple(sorted(name for name in names if not name.startswith(f"{model.base_model_prefix}.")))


Sums = dict[str, Tensor]
"""Sums for one part of an objective: its `loss`, summed over its positions, and without gradients
the counts for rates, including `n`, the number of positions."""


def token_sums(logits: Tensor, targets: Tensor) -> Sums:
    """Return the cross entropy of tokens, and the hits: positions whose most likely token is the original one.

    Args:
        logits: (position, vocabulary), float32.
        targets: (position,): original ids.
    """
    sums = {"loss": F.cross_entropy(logits, targets, reduction="sum")}
    if not torch.is_grad_enabled():
        sums |= {"n": torch.tensor(len(targets)), "hits": (logits.argmax(dim=1) == targets).sum()}
    return sums


def replaced_sums(logits: Tensor, replaced: Tensor) -> Sums:
    """Return the binary cross entropy of detecting replaced tokens, and the numbers flagged, replaced, and both.

    Args:
        logits: (position,), float32: above 0 means replaced.
        replaced: (position,) bool.
    """
    sums = {"loss": F.binary_cross_entropy_with_logits(logits, replaced.float(), reduction="sum")}
    if not torch.is_grad_enabled():
        flagged = logits > 0
        sums |= {"n": torch.tensor(len(replaced)), "hits": (flagged == replaced).sum(), "flagged": flagged.sum()}
        sums |= {"replaced": replaced.sum(), "caught": (flagged & replaced).sum()}
    return sums


# rate of the held-out set -> its two tallies
RATES = {
    "accuracy": ("hits", "n"),
    "masked_accuracy": ("masked_hits", "masked"),
    "precision": ("caught", "flagged"),
    "recall": ("caught", "replaced"),
    "replaced": ("replaced", "n"),
}


def tally_rates(tallies: Mapping[str, float]) -> dict[str, float | None]:
    """Return the rates, 0 .. 1, from the tallies of a part; None for a rate without counts.

    Examples:
        >>> tally_rates({"n": 8, "hits": 6})
        {'accuracy': 0.75}
    """
    return {
        name: tallies[part] / tallies[whole] if tallies[whole] else None
        for name, (part, whole) in RATES.items()
        if {part, whole} <= tallies.keys()
    }


class Objective(nn.Module, ABC):
    """Models with their training objective: a weighted sum of parts, each the mean over its positions.

    loss = sum over parts of weight x (summed loss of the part / number of its positions)
    """

    weights: Mapping[str, float]
    """Weight of every part."""
    model: Any
    """The encoder with its head, as in transformers; a `generator` beside it is saved as well."""

    def __init__(self, masking: Masking) -> None:
        super().__init__()
        self.masking = masking

    @abstractmethod
    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        """Return the number of positions in the loss of the batch, by part."""

    @abstractmethod
    def forward(self, batch: MaskedBatch, rng: torch.Generator) -> dict[str, Sums]:
        """Return the sums of every part; the batch, and `rng` for a generator's samples, are on the models' device."""


class MaskedLanguageModelling(Objective):
    """Fill in the masked tokens: the loss is the cross entropy of the original tokens at the selected positions.

    Source: Devlin et al. 2019 (arXiv 1810.04805), section 3.1.
    """

    weights: Mapping[str, float] = {"mlm": 1.0}

    def __init__(self, model: PreTrainedModel, masking: Masking) -> None:
        super().__init__(masking)
        self.model = model

    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        """Return the number of selected positions."""
        return {"mlm": len(batch.targets)}

    def forward(self, batch: MaskedBatch, rng: torch.Generator) -> dict[str, Sums]:
        """Return the cross entropy of all tokens at the selected positions."""
        inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
        return {"mlm": token_sums(logits_at(self.model, inputs, batch.selected).float(), batch.targets)}
