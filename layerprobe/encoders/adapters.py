"""Adapters saved by the library peft in a folder: their base model, and that model with the adapter merged.

Knows files and modules; loads no model.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from layerprobe.checks import check_extra
from layerprobe.errors import ModelError
from layerprobe.files.atomic import known_sha256

SETTINGS = "adapter_config.json"
MERGE = "merge it into the weights, with peft's merge_and_unload(), and save that model"


def adapted_name(folder: Path) -> tuple[str, str | None] | None:
    """Return the name and revision of the base model of a folder's adapter; None for a folder without an adapter.

    Raises:
        ModelError: If the folder also has a model, so that the base model is ambiguous, or no base model is named.
    """
    file = folder / SETTINGS
    if not file.is_file():
        return None
    if (folder / "config.json").is_file():
        raise ModelError(f"the folder {folder} has an adapter beside a model: {MERGE}, or move {SETTINGS} elsewhere")
    settings = json.loads(file.read_text(encoding="utf-8"))
    if not settings.get("base_model_name_or_path"):
        raise ModelError(f"the adapter in {folder} does not name its base model: {MERGE}")
    return settings["base_model_name_or_path"], settings.get("revision")


def adapted_revision(revision: str, folder: Path) -> str:
    """Return a sha256 of a model's revision and of the adapter in a folder."""
    total = hashlib.sha256(revision.encode())
    for file in sorted(folder.glob("adapter_*")):
        total.update(bytes.fromhex(known_sha256(file)))
    return f"sha256:{total.hexdigest()[:32]}"


def with_adapter(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Merge the adapter in a folder into the weights of a model, and return the model with its original modules.

    Raises:
        MissingPackageError: If peft is not installed.
        ModelError: If weights are missing, or this kind of adapter cannot be merged.
    """
    check_extra("lora", needed_by=f"the adapter in {folder}")
    from peft.tuners.tuners_utils import BaseTunerLayer

    before: Any = {name: type(module) for name, module in model.named_modules()}
    report = model.load_adapter(str(folder))
    if report.missing_keys:
        missing = sorted(report.missing_keys)
        raise ModelError(f"the adapter in {folder} lacks {len(missing)} of its weights (such as {missing[0]})")
    for name, layer in [*model.named_modules()]:
        if isinstance(layer, BaseTunerLayer):
            layer.merge()
            model.set_submodule(name, layer.get_base_layer())
    if {name: type(module) for name, module in model.named_modules()} != before:
        raise ModelError(f"the adapter in {folder} cannot be merged by layerprobe: {MERGE}")
    model._hf_peft_config_loaded = False
    del model.peft_config
    return model.requires_grad_(True)


def unwrapped(model: object) -> object:
    """Return the model inside `torch.compile` and wrappers for several devices."""
    while isinstance(model, nn.Module):
        inner = getattr(model, "_orig_mod", None)
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        if inner is None:
            break
        model = inner
    return model
