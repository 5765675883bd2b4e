"""Models that the caller has loaded: their parts, digests and copies. Knows no files."""

import copy
import hashlib
import json
from typing import Any, TypeGuard

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from layerprobe.encoders.adapters import unwrapped
from layerprobe.encoders.architecture import empty_model, known_class
from layerprobe.encoders.vision import is_image_processor
from layerprobe.errors import ModelError
from layerprobe.rng import drawing

_UNSAID = ("_name_or_path", "transformers_version", "dtype", "architectures")
"""Of a configuration, what no number depends on."""


LoadedModel = tuple[PreTrainedModel, Any] | torch.nn.Sequential
"""A loaded model and its tokenizer or image processor, or a `SentenceTransformer`: modules, of which the first holds a
model of transformers."""


def is_loaded(model: object) -> TypeGuard[LoadedModel]:
    """Return whether this is a model that is loaded, with its tokenizer."""
    if isinstance(model, tuple):
        if len(model) != 2 or not isinstance(unwrapped(model[0]), PreTrainedModel):
            return False
        return hasattr(model[1], "get_vocab") or is_image_processor(model[1])
    return isinstance(_first_model(model), PreTrainedModel) and hasattr(model, "tokenizer")


def parts_of(model: LoadedModel) -> tuple[PreTrainedModel, Any]:
    """Return a loaded model without what is on top of its encoder, and its tokenizer."""
    given, tokenizer = model if isinstance(model, tuple) else (_first_model(model), model.tokenizer)
    whole: Any = unwrapped(given)
    # what DINOv3 calls its base model is its list of blocks
    bare = whole if type(whole) is known_class(whole.config) else whole.base_model
    return bare if isinstance(bare, PreTrainedModel) else whole, tokenizer


def _first_model(model: object) -> Any:
    """Return the model in the first module of a `SentenceTransformer`; None of anything else."""
    if isinstance(model, torch.nn.Sequential) and len(model):
        return unwrapped(getattr(model[0], "auto_model", None))
    return None


def content_digest(model: PreTrainedModel) -> str:
    """Return a sha256 of a loaded model's configuration and of the weights of its encoder, heads and decoders aside."""
    config = {name: value for name, value in model.config.to_dict().items() if name not in _UNSAID}
    total = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    with torch.device("meta"):
        its_own = has_own_code(model.config)
        used = empty_model(copy.deepcopy(model.config), trust_remote_code=its_own).state_dict().keys()
    for name, weight in sorted(model.state_dict().items()):
        if name not in used:
            continue
        if weight.is_meta:
            raise ModelError(f"the weights {name} are not in memory: load the model without a device map")
        total.update(f"{name} {weight.dtype} {tuple(weight.shape)}\n".encode())
        numbers = weight.detach().cpu().contiguous().reshape(-1)
        total.update(memoryview(numbers.view(torch.uint8).numpy()))
    return f"sha256:{total.hexdigest()[:32]}"


def has_own_code(config: PreTrainedConfig) -> bool:
    """Return whether a configuration came with code, which runs already where a model of it is loaded."""
    return type(config).__module__.startswith("transformers_modules")


def copy_of(model: PreTrainedModel, config: PreTrainedConfig, *, name: str, trust_remote_code: bool) -> PreTrainedModel:
    """Return the bare encoder of `config` in float32 with the weights of a loaded model, which stays as it is.

    What hooks of the loaded model do to its states is not done.
    """
    with drawing():  # weights that are drawn, and then replaced
        fresh = empty_model(config, trust_remote_code=trust_remote_code)
    try:
        missing = fresh.load_state_dict(model.state_dict(), strict=False).missing_keys
    except RuntimeError as error:
        raise ModelError(f"the weights of {name} are not those of its configuration: {_line(error)}") from error
    if getattr(model, "_hf_peft_config_loaded", False):
        raise ModelError(
            f"the loaded model {name} has adapters: expected one without; save it, with its tokenizer, by "
            "save_pretrained(folder), and give the folder"
        )
    if lacking := sorted(key for key in missing if "pooler" not in key.split(".")):
        raise ModelError(
            f"the loaded model {name} lacks {len(lacking)} of its weights (such as {', '.join(lacking[:3])}): expected "
            "a whole encoder; save it and give the folder"
        )
    types = {path: type(module).__name__ for path, module in model.named_modules()}
    for path, module in fresh.named_modules():
        if path and types.get(path, type(module).__name__) != type(module).__name__:
            raise ModelError(
                f"the loaded model {name} has a {types[path]} as {path}, expected the {type(module).__name__} that its "
                "configuration says: change the configuration, not the module"
            )
    return fresh


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
