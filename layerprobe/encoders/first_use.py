"""Checks on first use that a model's layers are those of its truncations; the result is kept in the store.

Knows a loaded encoder and truncated ones; knows no texts but its own.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from layerprobe.encoders.architecture import refusal
from layerprobe.encoders.batching import Batch, collate, read_by_model
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder, float32_attention
from layerprobe.modes import without_autocast

TRUNCATION_TOLERANCE = 1e-4
"""Of the largest feature of a layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstUse:
    """The check of a model's layers when it was first used."""

    reason: str | None
    """Why its layers are not those of its truncations; None where they are."""
    handed_out: bool
    """Whether the hidden states that transformers hands out for it are those of its layers."""

    def check(self, name: str) -> None:
        """Refuse the model if its layers are not those of its truncations."""
        if self.reason is not None:
            raise refusal(name, self.reason)


def probe_batch(encoder: Encoder, *, n_texts: int | None = None, max_length: int | None = None) -> Batch:
    """Return texts of unequal lengths, or images, to check a model on."""
    probes = encoder.probes[:n_texts]
    return collate(encoder.tokenize(probes, max_length=max_length), range(len(probes)), encoder.device)


@without_autocast()
@torch.inference_mode()
def look(encoder: Encoder, *, ask: bool = True) -> FirstUse:
    """Compare the layers of one pass with what models truncated there output, on a short batch and in float32.

    States that are not finite are equal here: what is wrong with them is found where they are used. With `ask`
    transformers is asked for its hidden states, too, which leaves hooks of its own in the model.
    """
    batch = probe_batch(encoder, n_texts=2, max_length=16)
    with float32_attention(encoder.model):
        states = list(encoder.stack.states(encoder.model, batch, name=encoder.description.name))
        errors = truncation_errors(encoder, states, batch)
        wrong = [layer for layer, error in errors.items() if error > TRUNCATION_TOLERANCE]
        listed = f"layer{'s' if len(wrong) > 1 else ''} {', '.join(map(str, wrong))}"
        reason = f"{difference_cause(encoder, wrong, batch)} ({listed})" if wrong else None
        return FirstUse(reason=reason, handed_out=ask and _are_handed_out(encoder, states, batch))


@torch.inference_mode()
def truncation_errors(encoder: Encoder, states: list[Tensor], batch: Batch) -> dict[int, float]:
    """Return by how much the truncated model's states differ at every layer, as a share of the largest feature.

    NaN where states are not finite.
    """
    mask = batch["attention_mask"].bool()
    return {
        layer: difference(TruncatedEncoder(encoder, layer, share=True)(batch), state, mask)
        for layer, state in enumerate(states)
    }


def difference(computed: Tensor, expected: Tensor, mask: Tensor) -> float:
    """Return by how much states differ, as a share of the largest expected feature or of 1; NaN where not finite.

    Args:
        computed: (text, token, feature); infinity where its shape is another.
        expected: (text, token, feature).
        mask: (text, token), whether it is a token.
    """
    if computed.shape != expected.shape:
        return torch.inf
    computed, expected = computed[mask], expected[mask]
    return ((computed - expected).abs().max() / expected.abs().max().clamp(min=1)).item()


def difference_cause(encoder: Encoder, wrong: list[int], batch: Batch) -> str:
    """Return why models truncated at `wrong` layers output something else: their blocks do, or what follows them."""
    name, mask = encoder.description.name, batch["attention_mask"].bool()
    layer = next((layer for layer in wrong if layer), 0)
    truncated = TruncatedEncoder(encoder, layer, share=True)
    if not layer or truncated.reads_input_of_block:
        return "without its blocks it outputs something else than what goes into the first of them"
    inside = encoder.stack.states(encoder.model, batch, name=name, raw=True)
    pairs = zip(encoder.stack.states(truncated.model, batch, name=name, raw=True), inside, strict=False)
    if any(difference(a, b, mask) > TRUNCATION_TOLERANCE for a, b in pairs):
        return "what its blocks compute depends on how many there are, so models with fewer differ"
    return "what follows its last block is not what is known of it, so truncated models differ"


def _are_handed_out(encoder: Encoder, states: list[Tensor], batch: Batch) -> bool:
    """Return whether transformers' own hidden states, with the final norm where there is one, are the layers."""
    mask = batch["attention_mask"].bool()
    tail = [encoder.model.get_submodule(path) for path in encoder.stack.tail]
    try:
        handed = encoder.model(**read_by_model(batch), output_hidden_states=True).hidden_states
        normed = [torch.nn.Sequential(*tail)(state) for state in handed[:-1]]
    except Exception:  # models raise anything; then there are none
        return False
    if len(handed) != len(states):
        return False
    pairs = zip([*normed, handed[-1]], states, strict=True)
    return all(difference(a, b, mask) <= TRUNCATION_TOLERANCE for a, b in pairs)
