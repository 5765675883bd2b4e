"""Matrix products, the larger part of all work. Knows what makes them fast; knows no layers."""

import torch
from torch import Tensor


def inner_products(left: Tensor, right: Tensor) -> Tensor:
    """Return the (m, n) inner products of the rows of (m, k) and (n, k), in their dtype, on their device.

    In float32 on a CPU they are oneDNN's: the library behind `torch.mm` leaves AVX-512 alone on processors that are not
    Intel's, where this is 2.2 times as fast, and it is slow for few rows and large k.
    """
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if has_onednn and left.dtype == torch.float32 and left.device.type == "cpu":
        products: Tensor = torch.nn.functional.linear(left.to_mkldnn(), right).to_dense()
        return products
    return left @ right.T
