"""Load models by their options; compare their layers with truncated models at first use.

The only place that knows whether a model was checked before: the result is stored.
"""

import logging

import torch
from torch import Tensor

from layerprobe.context import report
from layerprobe.encoders.architecture import refusal
from layerprobe.encoders.batching import Batch, collate, difference
from layerprobe.encoders.device import LIBRARIES, resolve_device
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder, float32_attention
from layerprobe.encoders.loading import Resolved, load_encoder
from layerprobe.errors import StoreError
from layerprobe.files.serialisation import digest
from layerprobe.rng import without_autocast
from layerprobe.store.store import Store
from layerprobe.versions import FIRST_USE_VERSION

TRUNCATION_TOLERANCE = 1e-4
"""Largest difference, as a share of the layer's largest feature."""


def probe_batch(encoder: Encoder, *, n_texts: int | None = None, max_length: int | None = None) -> Batch:
    """Return texts of unequal lengths, or images, for checking a model."""
    probes = encoder.probes[:n_texts]
    return collate(encoder.tokenize(probes, max_length=max_length), range(len(probes)), encoder.device)


@without_autocast()
@torch.inference_mode()
def look(encoder: Encoder) -> str:
    """Return why the layers of one pass differ from the outputs of truncated models; empty if they match.

    They are compared on a short batch in float32.
    States that are not finite count as equal here: they are reported where they are used.
    """
    batch = probe_batch(encoder, n_texts=2, max_length=16)
    with float32_attention(encoder.model):
        states = list(encoder.stack.states(encoder.model, batch, name=encoder.description.name))
        errors = truncation_errors(encoder, states, batch)
    wrong = [layer for layer, error in errors.items() if error > TRUNCATION_TOLERANCE]
    listed = f"layer{'s' if len(wrong) > 1 else ''} {', '.join(map(str, wrong))}"
    if len(wrong) == len(errors) > 1:
        listed = "all layers"  # blocks that run several times have other layer numbers
    return f"its layers differ from the outputs of truncated models ({listed})" if wrong else ""


@torch.inference_mode()
def truncation_errors(encoder: Encoder, states: list[Tensor], batch: Batch) -> dict[int, float]:
    """Return the difference of truncated models' states, by layer, as a share of the largest feature.

    NaN if states are not finite.
    """
    mask, errors = batch["attention_mask"].bool(), {}
    report("checking layers", 0, 1)  # a brief part of the current task
    for layer, expected in enumerate(states):
        errors[layer] = difference(TruncatedEncoder(encoder, layer, share=True)(batch), expected, mask)
    return errors


logger = logging.getLogger(__name__)


def load(checkpoint: Resolved) -> Encoder:
    """Load the weights of a checkpoint; at its first use, compare its layers with truncated models."""
    return first_use(checkpoint) or load_encoder(checkpoint)


def first_use(model: Resolved) -> Encoder | None:
    """Refuse a model whose layers differ from its truncations; return the encoder if it was loaded for the check.

    The result is stored by everything it depends on: the model, the attention, the kind of device, and the libraries'
    versions.
    """
    store, encoder = Store(model.asked.cache_dir), None
    key = digest(
        {
            **model.store_identity,
            "attn": model.asked.attn,
            "device": resolve_device(model.asked.device).type,
            "version": FIRST_USE_VERSION,
            **LIBRARIES,
        }
    )
    reason = store.load_result("first-use", key, str)
    if reason is None:
        encoder = load_encoder(model)
        reason = look(encoder)
        try:
            store.save_result("first-use", key, reason)
        except StoreError as error:
            logger.warning("could not save the check of %s; it will run again each time: %s", model.label, error)
    if reason:
        raise refusal(model.label, reason)
    return encoder
