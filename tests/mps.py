"""Tensors that behave as on MPS, on machines without it."""

from typing import Any

import torch
from torch import Tensor


class OnMPS(Tensor):
    """A float32 tensor on a device without float64; moved to the CPU it is an ordinary one."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse float64."""
        result = super().__torch_function__(func, types, args, kwargs or {})
        if func is Tensor.cpu or (func is Tensor.to and args[1] == torch.device("cpu")):
            return result.as_subclass(Tensor)
        if isinstance(result, OnMPS) and result.dtype == torch.float64:
            raise TypeError("cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64")
        return result


def on_mps(values: Tensor) -> OnMPS:
    """Return a tensor as one on MPS."""
    return values.as_subclass(OnMPS)
