"""Training low-rank adapters instead of all weights. Knows modules and the library peft; knows no task.

A linear module of a block with weights W gives W x + (alpha / rank) B A x, where A, (rank, in), and B, (out, rank), are
trained and W is not. B starts at 0, so that the model starts unchanged.

Source: Hu et al. 2021, LoRA (arXiv 2106.09685).
"""

import logging
from typing import Any

from torch import nn

from layerprobe.checks import check_extra
from layerprobe.encoders.encoder import TruncatedEncoder
from layerprobe.encoders.failures import model_errors
from layerprobe.errors import ModelError
from layerprobe.finetuning.values import Protocol
from layerprobe.names import some

logger = logging.getLogger(__name__)

LINEAR = ("Linear", "Conv1D")
"""Classes of modules that multiply by a matrix; GPT-2 uses the latter."""


def prepare_model(model: TruncatedEncoder, protocol: Protocol) -> None:
    """Add adapters and gradient checkpointing to a model, if the protocol asks for them.

    Adapters go into the linear modules of the blocks, or into those whose names end in one of `lora_modules`; in a
    model without a block, into its embedding tables. All other weights are frozen.
    """
    if protocol.gradient_checkpointing:
        _checkpoint(model)
    if protocol.lora:
        _add_adapters(model, protocol)


def merge_adapters(model: nn.Module) -> None:
    """Merge adapters into the weights beside them; do nothing if there are none."""
    for path, module in list(model.named_modules()):
        if hasattr(module, "merge") and hasattr(module, "get_base_layer"):
            module.merge()
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, module.get_base_layer())


def _add_adapters(model: TruncatedEncoder, protocol: Protocol) -> None:
    check_extra("lora", needed_by="training adapters")
    from peft import LoraConfig, inject_adapter_in_model

    targets = _targets(model, protocol.lora_modules)
    rank, alpha = protocol.lora, protocol.lora_alpha or 2 * protocol.lora
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules=targets)
    with model_errors(model.name, "adding adapters to it"):
        inject_adapter_in_model(config, model.model)
    trained, weights = (
        sum(p.numel() for p in model.model.parameters() if p.requires_grad or not only) for only in (True, False)
    )
    logger.info(
        "adapters of rank %d in %d modules: %s weights trained, %s frozen",
        rank,
        len(targets),
        f"{trained:,}",
        f"{weights - trained:,}",
    )


def _targets(model: TruncatedEncoder, targets: tuple[str, ...]) -> list[str]:
    """Return the full names of the modules that get adapters."""
    within = "" if model.stack.blocks is None else f"{model.stack.blocks}."
    linear = [
        path
        for path, module in model.model.named_modules()
        if path.startswith(within) and type(module).__name__ in LINEAR
    ]
    if model.layer == 0:
        linear = []  # a block kept in the stack is not run
    if not linear:
        return [path for path, module in model.model.named_modules() if type(module) is nn.Embedding]
    if targets:
        names = sorted({path.rpartition(".")[2] for path in linear})
        if missing := [name for name in targets if not any(_ends_as(path, name) for path in linear)]:
            raise ModelError(
                f"no linear module of {model.name} is named {', '.join(missing)}: choose from "
                f"{some(names, 12)}, or give the end of a path"
            )
        return [path for path in linear if any(_ends_as(path, name) for name in targets)]
    return linear


def _ends_as(path: str, name: str) -> bool:
    return path == name or path.endswith(f".{name}")


def _checkpoint(model: TruncatedEncoder) -> None:
    inner: Any = model.model
    if not getattr(inner, "supports_gradient_checkpointing", False):
        raise ModelError(f"{model.name} does not support gradient checkpointing: turn it off")
    with model_errors(model.name, "turning on gradient checkpointing"):
        # its name in transformers 5.23, and in earlier versions
        enable = getattr(inner, "activation_checkpointing_enable", None) or inner.gradient_checkpointing_enable
        enable({"use_reentrant": False})
