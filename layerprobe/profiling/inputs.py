"""Token ids to serve. Knows vocabularies and limits, no texts."""

from collections.abc import Sequence

import torch

from layerprobe.encoders.batching import Batch
from layerprobe.encoders.encoder import Encoder, reads_token_types
from layerprobe.errors import DataError


def random_batch(encoder: Encoder, *, length: int, batch_size: int, seed: int) -> Batch:
    """Return random words of the model's vocabulary, `length` tokens each: no padding, no special tokens.

    What a pass costs depends on the shape, not on the words. The same arguments give the same batch.
    """
    n_known = getattr(encoder.model.config, "vocab_size", None)
    known = set(encoder.tokenizer.get_vocab().values()) - set(encoder.tokenizer.all_special_ids)
    words = torch.tensor(sorted(word for word in known if n_known is None or word < n_known))
    drawn = torch.randint(len(words), (batch_size, length), generator=torch.Generator().manual_seed(seed))
    batch = {"input_ids": words[drawn], "attention_mask": torch.ones(batch_size, length, dtype=torch.long)}
    if reads_token_types(encoder.model) and "token_type_ids" in encoder.tokenizer.model_input_names:
        batch["token_type_ids"] = torch.zeros(batch_size, length, dtype=torch.long)
    return {name: values.to(encoder.device) for name, values in batch.items()}


def check_lengths(encoder: Encoder, lengths: Sequence[int]) -> None:
    """Raise DataError if the model cannot read texts of one of the lengths."""
    limit = encoder.max_length
    wrong = [str(length) for length in lengths if limit is not None and length > limit]
    if wrong:
        raise DataError(
            f"expected lengths up to {limit} tokens, the limit of {encoder.description.name}, got {', '.join(wrong)}"
        )
