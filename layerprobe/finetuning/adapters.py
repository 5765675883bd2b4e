"""Low-rank adapters in the place of all weights. Knows modules and the library peft; knows no task.

A linear module of a block with weights W gives W x + (alpha / rank) B A x, where A, (rank, in), and B, (out, rank), are
trained and W is not. B begins at 0, so that the model begins as it was.

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
"""Classes of modules that multiply by a matrix; GPT-2 has the latter."""


def prepare_model(model: TruncatedEncoder, protocol: Protocol) -> None:
    """Put adapters into a model, and let it compute activations again in the backward pass, where the protocol says so.

    Adapters stand in the linear modules of the blocks, or in those whose names end as `lora_modules` says; a model
    without a block has them in its embedding tables. All other weights are frozen.
    """
    if protocol.gradient_checkpointing:
        _checkpoint(model)
    if protocol.lora:
        _add_adapters(model, protocol)


def merge_adapters(model: nn.Module) -> None:
    """Add what adapters compute to the weights they stand next to, and remove them; nothing where there are none."""
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
    with model_errors(model.name, "putting adapters into it"):
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
        linear = []  # a block that is kept there is not run
    if not linear:
        return [path for path, module in model.model.named_modules() if type(module) is nn.Embedding]
    if targets:
        names = sorted({path.rpartition(".")[2] for path in linear})
        if missing := [name for name in targets if not any(_ends_as(path, name) for path in linear)]:
            raise ModelError(
                f"no linear module of {model.name} is named {', '.join(missing)}: expected some of "
                f"{some(names, 12)}, or the end of a path"
            )
        return [path for path in linear if any(_ends_as(path, name) for name in targets)]
    return linear


def _ends_as(path: str, name: str) -> bool:
    return path == name or path.endswith(f".{name}")


def _checkpoint(model: TruncatedEncoder) -> None:
    inner: Any = model.model
    if not getattr(inner, "supports_gradient_checkpointing", False):
        raise ModelError(
            f"{model.name} cannot compute activations again in the backward pass: go without gradient checkpointing"
        )
    with model_errors(model.name, "turning on gradient checkpointing"):
        # its name in transformers 5.23, and before
        enable = getattr(inner, "activation_checkpointing_enable", None) or inner.gradient_checkpointing_enable
        enable({"use_reentrant": False})
