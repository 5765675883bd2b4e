"""Token ids and pixels to serve. Knows vocabularies and limits, no texts and no images."""

from collections.abc import Sequence

import torch

from layerprobe.encoders.batching import Batch
from layerprobe.encoders.encoder import Encoder, reads_token_types
from layerprobe.encoders.vision import prepare_images, probe_images
from layerprobe.errors import DataError
from layerprobe.profiling.values import LENGTHS


def random_batch(encoder: Encoder, *, length: int, batch_size: int, seed: int) -> Batch:
    """Return random words of the model's vocabulary, `length` tokens each: no padding, no special tokens; or pixels.

    What a pass costs depends on the shape, not on the words. The same arguments give the same batch.
    """
    generator = torch.Generator().manual_seed(seed)
    if encoder.reader is not None:
        (like,) = prepare_images(encoder.reader, probe_images()[:1]).collate([0])["pixel_values"]
        pixels = torch.randn(batch_size, *like.shape, generator=generator)
        mask = encoder.reader.mask(batch_size)
        return {"pixel_values": pixels.to(encoder.device), "attention_mask": mask.to(encoder.device)}
    n_known = getattr(encoder.model.config, "vocab_size", None)
    usable = set(encoder.tokenizer.get_vocab().values()) - set(encoder.tokenizer.all_special_ids)
    words = torch.tensor(sorted(word for word in usable if n_known is None or word < n_known))
    drawn = torch.randint(len(words), (batch_size, length), generator=generator)
    batch = {"input_ids": words[drawn], "attention_mask": torch.ones(batch_size, length, dtype=torch.long)}
    if reads_token_types(encoder.model) and "token_type_ids" in encoder.tokenizer.model_input_names:
        batch["token_type_ids"] = torch.zeros(batch_size, length, dtype=torch.long)
    return {name: values.to(encoder.device) for name, values in batch.items()}


def lengths_of(encoder: Encoder, lengths: Sequence[int] | None) -> tuple[int, ...]:
    """Return the lengths to measure, each once, ascending: see `ProfileSettings.lengths`."""
    limit, name = encoder.max_length, encoder.description.name
    if encoder.reader is not None:
        if lengths is not None and set(lengths) != {encoder.reader.n_tokens}:
            raise DataError(
                f"expected no lengths for {name}, which makes {encoder.reader.n_tokens} tokens of every image, got "
                f"{', '.join(map(str, lengths))}"
            )
        return (encoder.reader.n_tokens,)
    if lengths is None:
        return tuple(sorted({length if limit is None else min(length, limit) for length in LENGTHS}))
    if wrong := [str(length) for length in lengths if limit is not None and length > limit]:
        raise DataError(f"expected lengths up to {limit} tokens, the limit of {name}, got {', '.join(wrong)}")
    return tuple(sorted(set(lengths)))
