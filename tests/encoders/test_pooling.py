import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from layerprobe.encoders.batching import pool
from layerprobe.encoders.model import Pooling

HOW: tuple[Pooling, ...] = ("mean", "cls", "max", "last")
LENGTHS = st.lists(st.integers(1, 7), min_size=1, max_size=5)


def naive(tokens: Tensor, how: Pooling) -> Tensor:
    """Pool the (token, feature) states of one text without padding, one number at a time."""
    if how == "cls":
        return tokens[0]
    if how == "last":
        return tokens[len(tokens) - 1]
    columns = [[float(row[feature]) for row in tokens] for feature in range(tokens.shape[1])]
    return torch.tensor([max(c) if how == "max" else sum(c) / len(c) for c in columns])


def padded(texts: list[Tensor], side: str, filler: float) -> tuple[Tensor, Tensor]:
    width = max(map(len, texts))
    states = torch.full((len(texts), width, texts[0].shape[1]), filler, dtype=texts[0].dtype)
    mask = torch.zeros(len(texts), width, dtype=torch.long)
    for row, tokens in enumerate(texts):
        inside = slice(width - len(tokens), width) if side == "left" else slice(len(tokens))
        states[row, inside], mask[row, inside] = tokens, 1
    return states, mask


@pytest.mark.parametrize("filler", [0.0, 99.0, float("nan"), float("inf")])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("how", HOW)
@given(lengths=LENGTHS, seed=st.integers(0, 2**32 - 1))
def test_pooling_equals_a_loop_over_the_tokens(
    how: Pooling, side: str, filler: float, lengths: list[int], seed: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    texts = [torch.randn(length, 3, generator=rng) for length in lengths]
    states, mask = padded(texts, side, filler)
    expected = torch.stack([naive(tokens, how) for tokens in texts])
    torch.testing.assert_close(pool(states, mask, how), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("how", HOW)
def test_pooling_is_in_float32(how: Pooling, dtype: torch.dtype) -> None:
    # 4,096 halves are counted one by one: bfloat16 would stop at 256, float16 at 2,048
    states = torch.ones(1, 4096, 2, dtype=dtype)
    states[0, 0, 0] = 1.5
    embedding = pool(states, torch.ones(1, 4096, dtype=torch.long), how)
    assert embedding.dtype == torch.float32
    first = {"mean": 1 + 0.5 / 4096, "cls": 1.5, "max": 1.5, "last": 1.0}[how]
    assert embedding.tolist() == [[first, 1.0]]


def test_a_gradient_flows_through_the_mean() -> None:
    states = torch.randn(2, 3, 4, requires_grad=True)
    mask = torch.tensor([[1, 1, 0], [0, 0, 1]])
    pool(states, mask, "mean").sum().backward()
    assert states.grad is not None
    torch.testing.assert_close(states.grad[:, :, 0], torch.tensor([[0.5, 0.5, 0], [0, 0, 1.0]]))
