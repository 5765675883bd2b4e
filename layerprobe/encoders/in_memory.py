"""Models loaded by the caller: their parts, digests and copies. Knows no files."""

import contextlib
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from layerprobe.encoders.architecture import empty_model, encoder_of, has_encoder_alone, known_class, place_like
from layerprobe.encoders.batching import Batch, difference, is_image_processor, probe_images
from layerprobe.encoders.encoder import PROBE_TEXTS, reads_token_types
from layerprobe.encoders.failures import first_sentence, model_errors
from layerprobe.encoders.recipe import plain_tokens
from layerprobe.errors import ModelError
from layerprobe.rng import Undrawn, drawing, without_autocast

COPY_TOLERANCE = 1e-5
"""Largest difference between a loaded model and its copy that counts as rounding, as a share of the largest state."""

_MANY_TOKENS = 160
"""Tokens of the longest text for comparing a loaded model: more than most attention windows."""
_UNSAID = ("_name_or_path", "transformers_version", "dtype", "architectures")
"""Settings of a configuration that no number depends on."""


LoadedModel = tuple[PreTrainedModel, Any] | torch.nn.Sequential
"""A loaded model and its tokenizer or image processor, or a `SentenceTransformer`: modules, the first of which is a
model of transformers."""


def is_loaded(model: object) -> TypeGuard[LoadedModel]:
    """Return whether this is a loaded model with its tokenizer."""
    if isinstance(model, tuple):
        if len(model) != 2 or not isinstance(unwrapped(model[0]), PreTrainedModel):
            return False
        return hasattr(model[1], "get_vocab") or is_image_processor(model[1])
    return isinstance(_first_model(model), PreTrainedModel) and hasattr(model, "tokenizer")


def model_and_tokenizer(model: LoadedModel) -> tuple[PreTrainedModel, Any]:
    """Return a loaded model's bare encoder, without any head, and its tokenizer."""
    wrapped, tokenizer = model if isinstance(model, tuple) else (_first_model(model), model.tokenizer)
    whole: Any = unwrapped(wrapped)
    # DINOv3's base model attribute is its list of blocks
    bare = whole if type(whole) is known_class(whole.config) else whole.base_model
    return encoder_of(bare if isinstance(bare, PreTrainedModel) else whole), tokenizer


def _first_model(model: object) -> Any:
    """Return the model in the first module of a `SentenceTransformer`; None for anything else."""
    if isinstance(model, torch.nn.Sequential) and len(model):
        return unwrapped(getattr(model[0], "auto_model", None))
    return None


def content_digest(encoder: PreTrainedModel) -> str:
    """Return a sha256 of the configuration and the weights of a bare encoder."""
    config = {name: value for name, value in encoder.config.to_dict().items() if name not in _UNSAID}
    total = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, weight in sorted(encoder.state_dict().items()):
        if weight.is_meta:
            raise ModelError(f"the weights {name} are not in memory: load the model without a device map")
        total.update(f"{name} {weight.dtype} {tuple(weight.shape)}\n".encode())
        numbers = weight.detach().cpu().contiguous().reshape(-1)
        total.update(memoryview(numbers.view(torch.uint8).numpy()))
    return f"sha256:{total.hexdigest()[:32]}"


def rebuild(model: PreTrainedModel, config: PreTrainedConfig, *, name: str, trust_remote_code: bool) -> PreTrainedModel:
    """Return the bare encoder of `config`, in evaluation mode, sharing the weights of a loaded model."""
    with model_errors(name, "making a copy"), Undrawn():
        fresh = empty_model(config, trust_remote_code=trust_remote_code)
    try:
        missing = fresh.load_state_dict(model.state_dict(), strict=False, assign=True).missing_keys
    except RuntimeError as error:
        raise ModelError(f"the weights of {name} do not match its configuration: {first_sentence(error)}") from error
    lacking = sorted(key for key in missing if "pooler" not in key.split("."))
    if lacking:
        raise ModelError(
            f"the loaded model {name} lacks {len(lacking)} of its weights (such as {', '.join(lacking[:3])}): expected "
            "a complete encoder without parametrizations, adapters or quantised modules; reload it, or save it with "
            "its tokenizer by save_pretrained(folder) and pass the folder"
        )
    fresh.tie_weights()
    return fresh.train(False)


@without_autocast()
@torch.no_grad()  # not in inference mode: the model may keep tensors of the pass
def check_copy(loaded: LoadedModel, fresh: PreTrainedModel, batches: Sequence[Batch], *, name: str) -> str:
    """Return a digest of a loaded model's states on the last of some batches; the model stays unchanged.

    The digest has few digits, so that rounding seldom changes it. It distinguishes models with equal configuration
    and weights whose code was changed in a way that the copy shares.

    Raises:
        ModelError: If a copy with the same configuration and weights computes other states.
    """
    model, _ = model_and_tokenizer(loaded)
    whole: Any = unwrapped(loaded[0])
    alone = has_encoder_alone(model.config) and type(model) is not type(fresh)
    encoder: Any = cast(Any, model).get_encoder() if alone else model

    def run_given(part: Batch) -> Any:
        with contextlib.suppress(Exception):  # heads may need more inputs, and are not used here
            return whole(**part) if isinstance(loaded, tuple) else whole(dict(part))["token_embeddings"]

    place_like(fresh, model)
    # without compiling, which takes minutes
    stance = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else contextlib.nullcontext()
    with model_errors(name, "a forward pass"), _restored(whole), stance:
        whole.train(False)
        for part in batches:
            # sentence-transformers calls the model's method, bypassing hooks
            states: Any = _output(encoder, partial(run_given, part)) if isinstance(loaded, tuple) else run_given(part)
            if states is None:
                states = _output(encoder, partial(encoder, **part))
            expected: Any = _output(fresh, partial(fresh, **part))
            error = _difference(states, expected)
            if error > max(COPY_TOLERANCE, torch.finfo(expected.dtype).eps):
                raise ModelError(
                    f"the loaded model {name} does not match its configuration and weights (difference "
                    f"{error:.1g} of the largest state): remove custom hooks, patches or modules, because truncated "
                    "models use configuration and weights only; or save your class with its code and pass "
                    "the folder with trust_remote_code=True"
                )
    return _rough_digest(expected, part.get("attention_mask"))


def ids_digest(value: Any, tokenizer: Any, *, name: str) -> str:
    """Return a digest of a tokenizer's output for some texts: its class may do more than its rules."""
    with model_errors(name, "tokenizing"):
        cut = {"truncation": True, "max_length": getattr(value, "max_seq_length", None)}
        ids = [list(tokenizer(text, **cut)["input_ids"]) for text in PROBE_TEXTS]
    return hashlib.sha256(repr(ids).encode()).hexdigest()[:8]


def _output(module: nn.Module, run: Callable[[], object]) -> Tensor | None:
    """Return the first states output by a module during a run; None if there are none."""
    outputs: list[Tensor] = []

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) else getattr(output, "last_hidden_state", output)
        if isinstance(first, Tensor) and first.is_floating_point():
            outputs.append(first)

    with module.register_forward_hook(leave), drawing(0):
        run()
    return outputs[0] if outputs else None


def _difference(computed: Tensor, expected: Tensor) -> float:
    """Return the difference of two tensors; values that are not finite in the same places are equal."""
    return difference(computed.to(expected.device).double().nan_to_num(), expected.double().nan_to_num())


def _rough_digest(states: Tensor, mask: Tensor | None) -> str:
    """Return 8 digits of a hash of a projection of each row, rounded to 3 digits."""
    values = states.double().nan_to_num()
    if mask is not None:
        values = values * mask.unsqueeze(-1)
    rows = nn.functional.normalize(values.flatten(1), dim=1)
    numbers = rows @ torch.arange(rows.shape[1], device=rows.device).double().cos()
    return hashlib.sha256(repr([round(1000 * number) for number in numbers.tolist()]).encode()).hexdigest()[:8]


@contextlib.contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    """Restore the attributes of modules: a pass changes some for good, and the mode."""
    before = []
    for module in model.modules():
        tables = {name: {**vars(module)[name]} for name in ("_modules", "_buffers") if name in vars(module)}
        before.append((module, vars(module) | tables))
    try:
        yield
    finally:
        for module, attributes in before:
            vars(module).clear()
            vars(module).update(attributes)


def batches_for(model: PreTrainedModel, tokenizer: Any, *, positions: int | None) -> list[Batch]:
    """Return a long text and several shorter ones, of different known tokens; or an image; on the model's device.

    The first batch has no padding, because attention may then take another code path.
    """
    if is_image_processor(tokenizer):
        pixels = tokenizer(images=[probe_images()[0].read()], return_tensors="pt")["pixel_values"]
        return [{"pixel_values": pixels.to(model.device, model.dtype)}]
    plain, right = plain_tokens(model.config), tokenizer.padding_side == "right"
    width = max(8, min(_MANY_TOKENS, tokenizer.model_max_length, positions or _MANY_TOKENS))
    ids = torch.tensor([[plain[(7 * row + place) % len(plain)] for place in range(width)] for row in range(5)])
    lengths, places = torch.tensor([[width], [8], [5], [3], [2]]), torch.arange(width)
    mask = places < lengths if right else places >= width - lengths
    rows = {"input_ids": ids.where(mask, tokenizer.pad_token_id or 0), "attention_mask": mask.long()}
    if reads_token_types(model):
        rows["token_type_ids"] = torch.zeros_like(ids)
    parts = ((slice(1), slice(None)), (slice(1, None), slice(8) if right else slice(-8, None)))
    return [{name: values[part].to(model.device) for name, values in rows.items()} for part in parts]


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
