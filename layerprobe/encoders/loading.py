"""From a located model to a loaded encoder, checked at its first use, here or in workers. Knows no job."""

import contextlib
import copy
import gc
import logging
import re
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from layerprobe.checks import check_extra
from layerprobe.context import report
from layerprobe.encoders.architecture import (
    auto_class,
    count_blocks,
    count_parameters,
    empty_model,
    encoder_of,
    find_stack,
    first_tensor,
    is_read_as_part,
    known_class,
    model_with_blocks,
    pooler_option,
    position_limit,
    refusal,
)
from layerprobe.encoders.batching import (
    Batch,
    ImageReader,
    ModelInputs,
    collate,
    difference,
    prepare_images,
    probe_images,
    read_by_model,
)
from layerprobe.encoders.device import DTYPES, LIBRARIES, computed_on, dtype_name, resolve_device
from layerprobe.encoders.encoder import (
    PROBE_TEXTS,
    Encoder,
    TruncatedEncoder,
    float32_attention,
    is_padding_invariant,
    tokenize_for,
)
from layerprobe.encoders.failures import WEIGHT_FILES, first_sentence, model_errors, one_line_errors, quiet_transformers
from layerprobe.encoders.identity import MERGE, ModelLike, Resolved, adapted_revision, folder_digest, resolve
from layerprobe.encoders.in_memory import content_digest, rebuild
from layerprobe.encoders.model import DEFAULTS, Model, ModelDescription
from layerprobe.encoders.vocabulary import keep_tokens
from layerprobe.errors import DataError, ModelError, StoreError, WorkerError, option
from layerprobe.files.atomic import known_sha256, readable_size
from layerprobe.files.images import Readable
from layerprobe.files.serialisation import digest
from layerprobe.jobs.crew import HERE, Executor, Share, Workers
from layerprobe.process import MAKING_MODELS, silence_if
from layerprobe.rng import drawing, plain_torch, without_autocast
from layerprobe.store.store import Store
from layerprobe.versions import FIRST_USE_VERSION

# A tokenizer without a limit has a number of 20 digits or more instead.
NO_LIMIT = 10**9


@plain_torch()
def load_encoder(source: ModelLike, *, device: str | None = None, share: bool = False) -> Encoder:
    """Load an encoder with its tokenizer, on the device of its options or another one.

    In reduced precision weights stay float32, under autocast. With `share` a loaded model is used
    directly, in evaluation mode, instead of a copy.
    """
    # raises before the model is loaded
    asked = source.asked if isinstance(source, Resolved) else source
    options = asked if isinstance(asked, Model) else DEFAULTS
    options = options if device is None else replace(options, device=device)
    norm, attn, place = options.norm, options.attn, resolve_device(options.device)
    autocast = DTYPES[dtype_name(options.dtype, place)]
    flash = "flash" in attn
    if flash and autocast is None:
        raise ModelError(
            f"expected dtype bfloat16 or float16 with attn {attn}, which does not support float32, got {options.dtype}"
        )
    checkpoint = source if isinstance(source, Resolved) else resolve(source)
    config, tokenizer = copy.deepcopy(checkpoint.whole or checkpoint.config), checkpoint.tokenizer
    with one_line_errors(checkpoint.name):
        parameters = count_parameters(config, trust_remote_code=checkpoint.pinned["trust_remote_code"])
        _say_if_it_does_not_fit(checkpoint, parameters[-1])
        if attn != "auto":
            config._attn_implementation = "eager" if flash else attn  # flash attention needs reduced precision
        share = share and checkpoint.asked.tokens is None  # removing tokens would change the user's model
        if checkpoint.loaded is not None:
            model = checkpoint.loaded if share else _copy_loaded(checkpoint, config)
        elif checkpoint.asked.random_init is None:
            model = _load_encoder_weights(checkpoint, config)
        else:
            with drawing(checkpoint.asked.random_init):
                model = empty_model(config, trust_remote_code=checkpoint.pinned["trust_remote_code"])
    nn.Module.to(model, place).train(False)
    reader, max_length = None, None
    if checkpoint.modality == "image":
        reader = _image_reader(model, tokenizer, name=checkpoint.label)
        probe: ModelInputs = prepare_images(reader, probe_images())
    else:
        model.config.use_cache = share and getattr(model.config, "use_cache", False)
        limits = [tokenizer.model_max_length, position_limit(model)]
        max_length = min((int(limit) for limit in limits if limit is not None and limit < NO_LIMIT), default=None)
        with model_errors(checkpoint.label, "tokenizing"):
            probe = tokenize_for(model, tokenizer, PROBE_TEXTS, max_length=min(64, max_length or 64))
    together = collate(probe, range(len(probe)), place)
    whole: tuple[int, ...] = ()
    if checkpoint.asked.tokens is not None:
        with model_errors(checkpoint.label, "removing tokens"):
            keep_tokens(model, checkpoint.asked.tokens, together, name=checkpoint.name)
    if checkpoint.asked.blocks is not None:
        with model_errors(checkpoint.label, "removing blocks"):
            model = model_with_blocks(model, checkpoint.asked.blocks, together, name=checkpoint.name)
    if checkpoint.whole is not None:
        config, whole = model.config, parameters
        parameters = count_parameters(config, trust_remote_code=checkpoint.pinned["trust_remote_code"])
    alone = [collate(probe, [row], place) for row in range(len(probe))]
    with model_errors(checkpoint.label, "a forward pass"), torch.inference_mode():
        model(**read_by_model(alone[0]))  # a short text changes the attention of BigBird for good
    stack = find_stack(model, together, n_blocks=count_blocks(config), name=checkpoint.label)
    with model_errors(checkpoint.label, "a forward pass"):
        last = lambda batch: [model(**read_by_model(batch)).last_hidden_state]  # noqa: E731
        padding_invariant = is_padding_invariant(last, alone, together)
    with torch.inference_mode():
        states = stack.states(model, collate(probe, [0], place), name=checkpoint.label, raw=norm == "raw")
        width = next(states).shape[-1]
    if flash:
        with one_line_errors(checkpoint.name):
            model.set_attn_implementation(attn)
        if "flash" not in model.config._attn_implementation:
            raise ModelError(f"the attention of {checkpoint.label} cannot be changed to {attn}: use attn auto")
    return Encoder(
        model=model,
        tokenizer=tokenizer,
        description=ModelDescription(
            **checkpoint.naming,
            random_init=checkpoint.asked.random_init,
            revision=checkpoint.revision,
            architecture=config.model_type,
            n_blocks=count_blocks(config),
            hidden_size=width,
            norm="none" if not stack.tail else "raw" if norm == "raw" else "final",
            dtype=str(autocast or torch.float32).removeprefix("torch."),
            parameters=parameters,
            whole_parameters=whole,
        ),
        max_length=max_length,
        device=place,
        autocast=autocast,
        stack=stack,
        padding_invariant=padding_invariant,
        reader=reader,
    )


@torch.inference_mode()
def _image_reader(model: PreTrainedModel, processor: Any, *, name: str) -> ImageReader:
    """Run one image to count its tokens."""
    reader = ImageReader(processor=processor, name=name, n_tokens=0, n_extra=0)
    with model_errors(name, "preprocessing an image"):
        batch = processor(images=[probe_images()[0].read()], return_tensors="pt")
    if others := sorted(set(batch) - {"pixel_values"}):
        raise refusal(name, f"it also reads {', '.join(others)}, so images have different numbers of tokens")
    pixels = batch["pixel_values"][:1].float().to(model.device)
    with model_errors(name, "a forward pass"):
        states, again = (model(pixel_values=pixels).last_hidden_state for _ in range(2))
    if not states.isfinite().all():
        raise ModelError(f"{name} returns NaN or infinity for an image: check its weights")
    if not torch.equal(states, again):
        raise refusal(name, "two passes over one image differ, perhaps because patches are masked at random")
    if states.ndim != 3:
        raise refusal(name, f"its states for an image form a grid of {'x'.join(map(str, states.shape[1:]))} numbers")
    reader.n_tokens = states.shape[1]
    size = getattr(model.config, "patch_size", None)
    height, width = (size, size) if isinstance(size, int) else size if isinstance(size, list | tuple) else (0, 0)
    if height and width:
        n_patches = (pixels.shape[-2] // height) * (pixels.shape[-1] // width)
        reader.n_extra = max(0, reader.n_tokens - n_patches)
    return reader


def load_weights(
    auto: Any, checkpoint: Resolved, config: PreTrainedConfig, **options: Any
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Load a model with an auto class of transformers in float32; also return missing and mismatched weights."""
    trusted, on_hub = checkpoint.pinned["trust_remote_code"], checkpoint.pinned["revision"] is not None
    try:
        with quiet_transformers(), silence_if(trusted), MAKING_MODELS:
            model, info = auto.from_pretrained(
                checkpoint.source,
                config=config,
                dtype=torch.float32,
                weights_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # the report lists them
                **options,
                **checkpoint.pinned,
            )
    finally:
        if on_hub:  # report the damaged download instead
            _check_downloaded(checkpoint.name, checkpoint.source, checkpoint.pinned["revision"])
    return model, info


def _load_encoder_weights(checkpoint: Resolved, config: PreTrainedConfig) -> PreTrainedModel:
    """Load trained weights; raise if the checkpoint lacks any."""
    options = {**pooler_option(known_class(config)), **checkpoint.asked.model_kwargs}
    model, info = load_weights(auto_class(config), checkpoint, config, **options)
    revision, adapter = checkpoint.pinned["revision"] or folder_digest(Path(checkpoint.source)), checkpoint.adapter
    if checkpoint.revision != (revision if adapter is None else adapted_revision(revision, adapter)):
        raise ModelError(f"the files of {checkpoint.name} were changed during use: restart with a copy")
    if getattr(model, "_hf_peft_config_loaded", False):
        raise ModelError(f"{checkpoint.name} has an adapter beside a model: {MERGE}")
    missing = sorted(key for key in info["missing_keys"] if "pooler" not in key.split("."))
    mismatched = sorted(key for key, *_ in info["mismatched_keys"] if "pooler" not in key.split("."))
    if missing or mismatched:
        count = f"{len(missing or mismatched)} of its weights"
        kinds = f"lacks {count}" if missing else f"has {count} in another shape"
        examples = ", ".join((missing or mismatched)[:3])
        raise ModelError(
            f"the checkpoint of {checkpoint.name} {kinds} (such as {examples}): expected a complete encoder; "
            f"use another checkpoint, or request random weights with {option('random_init')}"
        )
    return encoder_of(model if adapter is None else with_adapter(model, adapter))


def _say_if_it_does_not_fit(checkpoint: Resolved, n_parameters: int) -> None:
    needed, free = 4 * n_parameters, _available_memory()
    if checkpoint.loaded is None and free is not None and needed > free:
        logger.warning(
            "the weights of %s need %s of memory in float32, but %s are free: use a machine with more memory",
            checkpoint.label,
            readable_size(needed),
            readable_size(free),
        )


def _available_memory() -> int | None:
    """Return the bytes of memory available without swapping, on Linux; None elsewhere."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return None


def _copy_loaded(checkpoint: Resolved, config: PreTrainedConfig) -> PreTrainedModel:
    """Copy the weights of a loaded model; raise if it was changed since."""
    assert checkpoint.loaded is not None
    trusted = checkpoint.pinned["trust_remote_code"]
    shared = rebuild(checkpoint.loaded, config, name=checkpoint.name, trust_remote_code=trusted)
    if not checkpoint.revision.startswith(content_digest(shared)):
        raise ModelError(f"the loaded model {checkpoint.name} was changed after it was resolved: resolve it again")
    return copy.deepcopy(shared).requires_grad_(True).float()


def _check_downloaded(name: str, source: str, revision: str | None) -> None:
    """Raise ModelError if weights in the hub's cache do not match the sha256 in their file name."""
    config = try_to_load_from_cache(source, "config.json", revision=revision)
    for pattern in WEIGHT_FILES if isinstance(config, str) else ():
        for file in Path(str(config)).parent.glob(pattern):
            blob = file.resolve()
            if re.fullmatch("[0-9a-f]{64}", blob.name) and known_sha256(blob) != blob.name:
                raise ModelError(
                    f"{file.name} of {name} differs from the hub's file, whose checksum is {blob.name}: "
                    f"remove {blob} to download it again"
                )


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


READABLE = "extract, score, probe and compare read its layers"
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
    if is_read_as_part(encoder.model.config):
        return "it is an encoder-decoder whose encoder transformers cannot load alone (AutoModelForTextEncoding)"
    batch = probe_batch(encoder, n_texts=2, max_length=16)
    with float32_attention(encoder.model):
        states = list(encoder.stack.states(encoder.model, batch, name=encoder.description.name))
        try:
            errors = truncation_errors(encoder, states, batch)
        except ModelError as error:
            return f"its first blocks are no model of their own ({first_sentence(error.__cause__ or error)})"
    wrong = [layer for layer, error in errors.items() if error > TRUNCATION_TOLERANCE]
    listed = f"layer{'s' if len(wrong) > 1 else ''} {', '.join(map(str, wrong))}"
    if len(wrong) == len(errors) > 1:
        listed = "all layers"  # blocks that run several times have other layer numbers
    return f"its layers differ from the outputs of truncated models ({listed})" if wrong else ""


@without_autocast()
@torch.inference_mode()
def look_inside(encoder: Encoder) -> str:
    """Return why the layers of a model cannot be read in one pass, see `as_read`; empty if they can.

    Each block must hand its output to the next one, layers must have one shape, and a text the same states alone as
    beside another one or, if padding changes them, beside itself.
    """
    passed: list[tuple[Any, Any]] = []

    def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        passed.append((first_tensor(args, kwargs), first_tensor(outputs, {})))

    rows, texts = [0, int(encoder.padding_invariant)], encoder.tokenize(encoder.probes[:2], max_length=16)
    batch, *alone = (collate(texts, chosen, encoder.device) for chosen in (rows, *([row] for row in rows)))
    with float32_attention(encoder.model), contextlib.ExitStack() as hooks:
        alike = is_padding_invariant(encoder.layer_states, alone, batch)
        for block in set(encoder.model.get_submodule(encoder.stack.blocks or "").children()):
            hooks.enter_context(block.register_forward_hook(leave, with_kwargs=True))
        layers = [*encoder.layer_states(batch)]
    if any(out is None or not torch.equal(out, state) for (_, out), (state, _) in pairwise(passed)):
        return "its blocks do not hand their outputs on"
    if len({layer.shape for layer in layers}) > 1:
        return "its layers have unequal shapes"
    return "" if alike else "a text has other states in a batch than alone"


def as_read(encoder: Encoder, reason: str) -> Encoder:
    """Return an encoder whose layers are read, because its blocks cannot be removed for a reason; without one the same.

    Layers are then the states between blocks, without the final norm, and the last one is what the model outputs. A
    projection to another width remains at every layer, after the norm.
    """
    if not reason:
        return encoder
    stack, model = encoder.stack, encoder.description
    weights = (weight for path in stack.tail for weight in encoder.model.get_submodule(path).parameters())
    if model.norm == "final" and all(weight.ndim == 1 for weight in weights):
        stack, model = replace(stack, tail=()), replace(model, norm="last")
    whole = (model.parameters[-1],) * model.n_layers
    return replace(encoder, stack=stack, description=replace(model, read=reason, parameters=whole))


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


def load(checkpoint: Resolved, *, cut: bool = True) -> Encoder:
    """Load the weights of a checkpoint, after `first_use`."""
    encoder, reason = first_use(checkpoint, cut=cut)
    return encoder or as_read(load_encoder(checkpoint), reason)


def first_use(model: Resolved, *, cut: bool = True) -> tuple[Encoder | None, str]:
    """Compare the layers of a model with truncated models at its first use, and refuse it if they differ.

    Unless it is to be `cut`, they may also be read, see `as_read`. The result is the encoder, if the check loaded it,
    and why its blocks cannot be removed. The check is stored by everything that it depends on: the model, the
    attention, the kind of device, and the libraries' versions.
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
    reasons: tuple[str, str] | None = store.load_result("first-use", key, tuple[str, str])
    if reasons is None:
        encoder = load_encoder(model)
        reason = look(encoder)
        encoder = as_read(encoder, reason)
        reasons = reason, look_inside(encoder) if reason else ""
        try:
            store.save_result("first-use", key, reasons)
        except StoreError as error:
            logger.warning("could not save the check of %s; it will run again each time: %s", model.label, error)
    reason, unread = reasons
    if unread:
        raise refusal(model.label, f"{reason}, and {unread}")
    if reason and cut:
        raise refusal(model.label, reason, advice=READABLE)
    return encoder, reason


def choose_workers(
    options: Model, *folders: Path, count: int | None = None, ray: str | None = None, local: Executor = "here"
) -> Workers:
    """Return the workers for jobs with these options in these folders: `local` ones, or a Ray cluster if given."""
    if ray is None and local == "here":
        return Workers(count=count)
    device = resolve_device(options.device)
    gpus = torch.cuda.device_count() if str(device) == "cuda" else 0
    return Workers(
        executor=local if ray is None else "ray",
        count=count,
        devices=tuple(f"cuda:{i}" for i in range(gpus)) or (str(device),),
        address=ray,
        folders=folders,
    )


def leave_gpus() -> None:
    """Free GPU memory of models that this process no longer uses, before workers load theirs."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        gc.collect()
        torch.cuda.empty_cache()


def taken_over(options: Model, computes: str, share: Share) -> Model:
    """Return the options of a worker, on its share of a machine; in the process that planned they are what they are.

    `computes` is what `computed_on` says where the work was begun.
    """
    if share.device is None or share.threads is None:
        return options
    options = replace(options, device=share.device)
    try:
        here = computed_on(options.device, options.dtype)
    except ModelError as error:
        raise WorkerError(str(error)) from error
    if here != computes:
        raise WorkerError(
            f"expected to compute on {computes}, got {here}: give {option('device')} and {option('dtype')}"
        )
    # two processes that both use all cores wait for each other at every step
    torch.set_num_threads(min(share.threads, torch.get_num_threads()))
    return options


class SharedModel:
    """A model that workers load, each of them once; another process resolves it again: some have code of their own."""

    def __init__(self, checkpoint: Resolved, *, items: Readable | None = None, workers: Workers = HERE) -> None:
        if checkpoint.loaded is not None and workers.executor != "here":
            raise DataError(
                f"expected the name or the folder of a model for a Ray cluster, got {checkpoint.label} loaded"
            )
        # `auto` is resolved here, for all machines of a cluster
        self.checkpoint, self.items = checkpoint, items
        self.asked = replace(checkpoint.asked, dtype=checkpoint.dtype)
        self._loaded_as = checkpoint.identity, checkpoint.pooling, checkpoint.prompt
        self.computes = checkpoint.computed_on

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("checkpoint", "encoder")}

    def take_over(self, share: Share) -> None:
        """Load the model on a worker's share of a machine; WorkerError if its results would differ there."""
        self.asked = taken_over(self.asked, self.computes, share)

    @cached_property
    def checkpoint(self) -> Resolved:
        """The resolved checkpoint; WorkerError if it cannot be resolved here or differs from the planner's."""
        try:
            checkpoint = resolve(self.asked, items=self.items)
        except ModelError as error:
            raise WorkerError(str(error)) from error
        if (checkpoint.identity, checkpoint.pooling, checkpoint.prompt) != self._loaded_as:
            raise WorkerError(f"{checkpoint.label} is not the model that the work started with: start again")
        return checkpoint

    @cached_property
    def encoder(self) -> Encoder:
        """The loaded encoder."""
        return load(self.checkpoint)

    def forget(self) -> None:
        """Free the loaded model."""
        self.__dict__.pop("encoder", None)
