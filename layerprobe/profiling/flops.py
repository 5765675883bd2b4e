"""How much a truncated model computes for a text. Counts what runs; knows no architectures."""

import contextlib
from collections.abc import Iterator

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from layerprobe.encoders.batching import Batch
from layerprobe.encoders.encoder import TruncatedEncoder


def count_flops(model: TruncatedEncoder, batch: Batch) -> int:
    """Return the floating-point operations of one forward pass, counted by torch's `FlopCounterMode`.

    It counts matrix products and convolutions, a multiplication with its addition as two; norms, activations,
    softmax and look-ups, a few percent of a model of usual width, are left out. Attention is counted as the two
    products QK' and AV over all pairs of tokens, whatever kernel serves it: the counter of torch 2.13 has no formula
    for the CPU's fused attention, so the pass that is counted takes the plain one.
    """
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), _plain_attention(model), sdpa_kernel(SDPBackend.MATH), counter:
        model(batch)
    return int(counter.get_total_flops())


@contextlib.contextmanager
def _plain_attention(model: TruncatedEncoder) -> Iterator[None]:
    """Let the model attend by torch's own operations: kernels of other packages are not counted."""
    kind = model.model.config._attn_implementation
    if kind in ("eager", "sdpa"):
        yield
        return
    model.model.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        model.model.set_attn_implementation(kind)
