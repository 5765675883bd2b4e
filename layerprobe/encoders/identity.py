"""What a model is: from its name, folder or loaded parts to a commit, a configuration, a tokenizer and digests.

Knows the hub and local folders; loads no weights.
"""

import contextlib
import copy
import hashlib
import itertools
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import transformers
from huggingface_hub import hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel

from layerprobe.encoders.architecture import (
    blocks_first,
    check_blocks,
    check_supported,
    count_blocks,
    known_class,
    known_positions,
    modality,
    position_limit,
    refuse_kernels,
    tower_configs,
    truncated_configs,
)
from layerprobe.encoders.batching import is_image_processor
from layerprobe.encoders.device import computed_on, dtype_name, resolve_device
from layerprobe.encoders.encoder import DEFAULT_MAX_LENGTH
from layerprobe.encoders.failures import (
    NO_NETWORK,
    class_names,
    explanation,
    first_sentence,
    one_line_errors,
    quiet_transformers,
)
from layerprobe.encoders.in_memory import (
    LoadedModel,
    batches_for,
    check_copy,
    content_digest,
    ids_digest,
    is_loaded,
    model_and_tokenizer,
    rebuild,
)
from layerprobe.encoders.model import DEFAULTS, TOWERS, Model, Pooling, split_name
from layerprobe.encoders.recipe import (
    Recipe,
    SentenceModel,
    configured_recipe,
    default_recipe,
    encoder_folder,
    lacking_tokens,
    loaded_recipe,
    tried_recipe,
    use_lower_case,
    with_end_token,
)
from layerprobe.encoders.vocabulary import (
    config_with_tokens,
    is_far_smaller,
    read_whole,
    tokenizer_digest,
    usable,
    with_tokens,
)
from layerprobe.errors import DataError, ModelError, option, unreliable
from layerprobe.files.atomic import SUMS, folder_problems, known_sha256
from layerprobe.files.images import Modality, Readable, pillow
from layerprobe.files.inputs import is_path
from layerprobe.names import is_generic, short_name
from layerprobe.process import silence_if, use_one_thread_if_forked

logger = logging.getLogger(__name__)

TOKENIZER_SETTINGS = "tokenizer_config.json"
ADAPTER_SETTINGS = "adapter_config.json"
MERGE = "merge it into the weights, with peft's merge_and_unload(), and save that model"
_HUB = ("token", "local_files_only")
"""Options of every request to the hub."""
LOADED_SOURCE = "(in memory)"
"""Source of a loaded model; no folder or hub id has this name."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Resolved:
    """A located model, not loaded: enough to identify everything that numbers depend on."""

    asked: Model
    """The request: name, display name, and how the model is loaded and run."""
    source: str
    """Hub id or folder, without the revision."""
    revision: str
    """Resolved commit, or the content digest of a local folder."""
    config: PreTrainedConfig
    tokenizer: Any
    """Tokenizer or image processor."""
    tokenizer_digest: str
    """sha256 of everything that determines the model's input."""
    pinned: dict[str, Any]
    """Arguments of every from_pretrained call: the commit, and whether the model's own code runs."""
    loaded: PreTrainedModel | None = None
    """The encoder of a loaded model; None: weights are read from the source."""
    modality: Modality = "text"
    """Kind of input: texts or images."""
    towers: tuple[Modality, ...] = ()
    """Kinds of input of the model's towers, including this one; empty for a model with one tower."""
    adapter: Path | None = None
    """Folder of an adapter to merge into the weights."""
    whole: PreTrainedConfig | None = None
    """Configuration with all blocks and tokens, if some are removed."""
    n_tokens: int | None = None
    """Size of the full vocabulary, if tokens are removed."""
    recipe: Recipe = field(default_factory=Recipe)
    """Default way to turn texts into embeddings."""

    @property
    def name(self) -> str:
        """Hub id, id@revision or folder, as requested."""
        return str(self.asked.name)

    @property
    def label(self) -> str:
        """Display name: as requested, or the name, with the seed of random weights."""
        return self.asked.label

    @property
    def pooling(self) -> Pooling:
        """Pooling of token states: as requested, or from the model's own configuration."""
        return self.asked.pooling or self.recipe.pooling

    @property
    def max_length(self) -> int | None:
        """Length at which texts are truncated: as requested, or the model's own if below the usual default."""
        length = self.recipe.max_length
        if self.asked.max_length is None and length is not None and length < DEFAULT_MAX_LENGTH:
            return length
        return self.asked.max_length

    @property
    def limit(self) -> int:
        """Length at which texts are truncated, equal to `Encoder.limit` of the loaded model."""
        positions = known_positions(self.config, trust_remote_code=self.pinned["trust_remote_code"])
        lengths = self.max_length or DEFAULT_MAX_LENGTH, self.tokenizer.model_max_length, positions
        return int(min(length for length in lengths if length is not None))

    @property
    def prompt(self) -> str:
        """Prefix of every text."""
        return self.recipe.prompt if self.asked.prompt is None else self.asked.prompt

    @property
    def retrieval_prompts(self) -> tuple[str, str]:
        """Prefixes of queries and of documents instead, if their task has no prompts."""
        configured = self.recipe.retrieval_prompts if self.asked.prompt is None else None
        return configured or (self.prompt, self.prompt)

    @property
    def dtype(self) -> str:
        """Precision of the forward pass, with `auto` resolved."""
        return dtype_name(self.asked.dtype, resolve_device(self.asked.device))

    @property
    def computed_on(self) -> str:
        """Kind of device and precision, on which results of training depend besides the model."""
        return computed_on(self.asked.device, self.asked.dtype)

    @property
    def settled(self) -> Model:
        """Options as requested, completed by the resolved ways of reading texts."""
        usual = DEFAULTS.like(self.asked)
        return replace(usual, pooling=self.pooling, max_length=self.max_length, prompt=self.prompt)

    def with_options(self, **changes: Any) -> "Resolved":
        """Return the same model with other options."""
        return replace(self, asked=replace(self.asked, **changes))

    @property
    def naming(self) -> dict[str, Any]:
        """Display name, source if it differs from the name, and blocks if some were removed.

        These are fields of a `ModelDescription`.
        """
        source = None if self.asked.display_name is None and self.asked.tokens is None else self.name
        vocabulary = None if self.asked.tokens is None else (len(self.asked.tokens), self.n_tokens)
        return {"name": self.label, "source": source, "blocks": self.asked.blocks, "vocabulary": vocabulary}

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that the model's numbers depend on, as plain values under the names of `StoreKey`'s fields."""
        kwargs = self.asked.model_kwargs
        return {
            "revision": self.revision,
            "tokenizer": self.tokenizer_digest,
            "random_init": self.asked.random_init,
            **({"model_kwargs": json.dumps(kwargs, sort_keys=True, default=str)} if kwargs else {}),
            # a checkpoint's own code can differ from transformers' code
            "trust_remote_code": self.pinned["trust_remote_code"],
            **({} if self.asked.blocks is None else {"blocks": self.asked.blocks}),
        }

    @property
    def store_identity(self) -> dict[str, Any]:
        """`identity` with the hub id, which names stored data; a folder is identified by its content only."""
        return {"model": "" if self.revision.startswith("sha256:") else self.source, **self.identity}

    @property
    def tokenizer_cautions(self) -> tuple[str, ...]:
        """Problems of the tokenizer with any text; none for images."""
        if self.modality == "image":
            return ()
        name, tokenizer, recipe = short_name(self.label), self.tokenizer, self.recipe
        cautions = []
        if is_far_smaller(tokenizer, self.config):
            sizes = f"it has {len(tokenizer):,} tokens, and the model {self.config.vocab_size:,}"
            cautions.append(unreliable(f"the tokenizer of {name} seems to belong to another model: {sizes}"))
        tokens = " ".join(map(str, tokenizer.convert_ids_to_tokens(tokenizer("a")["input_ids"])))
        promise = f"token around texts that its tokenizer_config.json promises ('a' is read as {tokens})"
        if "begin" in recipe.lacking and (recipe.causal or self.pooling == "cls"):
            cautions.append(f"{name} has no begin {promise}: fix the post_processor of its tokenizer.json")
        if "end" in recipe.lacking and self.pooling == "last":
            can = self.loaded is None and tokenizer.eos_token is not None
            advice = f"append one with {option('end_token', True)}" if can else "use a tokenizer that appends one"
            cautions.append(f"{name} pools the last word, because it has no end {promise}: {advice}")
        return tuple(cautions)

    def with_blocks(self, blocks: tuple[int, ...] | None) -> "Resolved":
        """Return the model with only some of its blocks; ModelError if it lacks one of them."""
        whole = self.whole or self.config
        if blocks is not None:
            check_blocks(whole, blocks, name=self.name)
        fewer = None if blocks is None or len(blocks) == count_blocks(whole) else tuple(blocks)
        return self._cut(whole, replace(self.asked, blocks=fewer))

    def with_tokens(self, tokens: tuple[int, ...]) -> "Resolved":
        """Return the model with only some of its tokens; ModelError if its vocabulary cannot be reduced."""
        if self.asked.tokens is not None:
            raise ModelError(f"expected a model with all of its tokens, got {self.label}")
        if self.modality != "text":
            raise ModelError(f"expected a text model to remove tokens from, got {self.label}, which reads images")
        cut, n_tokens = with_tokens(self.tokenizer, tokens, name=self.name), len(self.tokenizer.get_vocab())
        digest = hashlib.sha256(f"{tokenizer_digest(cut)} of {self.tokenizer_digest}".encode()).hexdigest()
        read_otherwise = replace(self, tokenizer=cut, tokenizer_digest=digest, n_tokens=n_tokens)
        return read_otherwise._cut(self.whole or self.config, replace(self.asked, tokens=tuple(tokens)))

    def _cut(self, whole: PreTrainedConfig, asked: Model) -> "Resolved":
        config = whole if asked.tokens is None else config_with_tokens(whole, asked.tokens)
        if asked.blocks is not None:
            config = next(truncated_configs(blocks_first(config, asked.blocks), len(asked.blocks)))
        return replace(self, config=config, asked=asked, whole=None if config is whole else whole)


ModelLike = str | os.PathLike[str] | Model | Resolved | LoadedModel
"""A model argument: a name, a folder, a `Model`, a resolved checkpoint, or a loaded model:
`(model, tokenizer)` of transformers, or a `SentenceTransformer`, whose model and tokenizer are used."""


def resolve(model: ModelLike, *, items: Readable | None = None, like: Model = DEFAULTS) -> Resolved:
    """Return a model's configuration and tokenizer, without its weights, at a fixed commit.

    Code from the checkpoint runs if the options allow it. A resolved model is returned unchanged. A loaded
    model is identified by its content, so that its stored results are found again; it is never changed. A name or
    folder alone uses the options of `like`.

    Of a model with two towers, such as CLIP, the image tower is used for images and the text tower for texts and for
    unspecified `items`; a name ending in `:image` or `:text` selects one.
    """
    use_one_thread_if_forked()
    reads: Modality | None = "image" if items == "captioned" else items
    if not isinstance(model, Resolved):
        resolved = _resolved(Model.of(model, like), reads)
    elif reads != model.modality and reads in model.towers:
        resolved = _resolved(model.asked, reads)
    else:
        resolved = model
    if reads not in (None, resolved.modality) and items != "captioned":
        other = "an image encoder, such as ViT, DINOv2 or CLIP" if reads == "image" else "a text encoder, such as BERT"
        raise DataError(
            f"{resolved.label} reads {resolved.modality}s, got {items}s: give {resolved.modality}s, or {other}"
        )
    return resolved


def resolve_all(models: Sequence[ModelLike], *, items: Readable | None = None) -> list[Resolved]:
    """Resolve several models; those given by name alone use the options of the first."""
    first = resolve(models[0], items=items)
    others = [
        Model(os.fspath(model), end_token=first.asked.end_token).like(first.asked)
        if isinstance(model, str | os.PathLike)
        else model
        for model in models[1:]
    ]
    return [first, *(resolve(model, items=items, like=first.asked) for model in others)]


def check_different(checkpoints: Sequence[Resolved]) -> None:
    """Raise DataError if there is no model, or two models or their names are the same."""
    if not checkpoints:
        raise DataError("expected at least one model, got none")
    for one, other in itertools.combinations(checkpoints, 2):
        if (one.identity, one.settled, one.modality) == (other.identity, other.settled, other.modality):
            raise DataError(f"expected different models, got {one.label} and {other.label}, which are the same")
        if one.label == other.label:
            raise DataError(f"expected models with different names, got two named {one.label}: give a display_name")


def _resolved(model: Model, reads: Modality | None) -> Resolved:
    if is_loaded(model.name):
        resolved = _resolved_in_memory(model)
    elif isinstance(model.name, str):
        resolved = _resolved_by_name(model, reads)
    else:
        raise ModelError(
            "expected the name of a model, a folder, a Model, (model, tokenizer) or a SentenceTransformer whose first "
            f"module is a model of transformers, got {_named_types(model.name)}"
        )
    resolved = resolved if model.tokens is None else resolved.with_tokens(model.tokens)
    return resolved if model.blocks is None else resolved.with_blocks(model.blocks)


def _named_types(value: object) -> str:
    """Describe the type of an invalid model; for adapters around a model, advise to merge them."""
    if not isinstance(value, tuple):
        return f"a {type(value).__name__}"
    adapted = any(hasattr(part, "merge_and_unload") for part in value)
    advice = ": pass (model.merge_and_unload(), tokenizer)" if adapted else ""
    return f"a tuple of {' and '.join(type(part).__name__ for part in value) or 'nothing'}{advice}"


def _resolved_by_name(model: Model, read_as: Modality | None) -> Resolved:
    name, trust_remote_code = model.full_name, model.trust_remote_code
    tower = next((tower for ending, tower in TOWERS.items() if name.endswith(ending)), None)
    source, revision = split_name(name)
    root, is_folder = source, Path(source).is_dir()
    if not is_folder and is_path(source):
        raise ModelError(explanation(name, FileNotFoundError()))
    with one_line_errors(name), quiet_transformers(), silence_if(trust_remote_code):
        # transformers 5.23 does not store the commit in configurations; the hub's cache has a folder per commit
        if is_folder:
            for problem in folder_problems(Path(source)):
                advice = f"recreate the folder, or remove its {SUMS} if you changed the model yourself"
                raise ModelError(f"{problem}: {advice}")
            source = str(encoder_folder(Path(source)))
            if adapted := adapted_name(Path(source)):
                return _with_adapter(model, root, Path(source), adapted)
        hub = {name: value for name in _HUB if (value := getattr(model, name))}
        config_file = source if is_folder else hf_hub_download(source, "config.json", revision=revision, **hub)
        folder = Path(source) if is_folder else Path(config_file).parent
        commit = None if is_folder else folder.name
        # configuration, tokenizer and weights all come from this commit
        pinned = {"revision": commit, "trust_remote_code": trust_remote_code, **hub}
        config = AutoConfig.from_pretrained(source, **pinned)
        if not trust_remote_code:
            refuse_kernels(config, name)
        towers = tower_configs(config)
        if tower and tower not in towers:
            raise ModelError(f"{source} has no separate {tower} tower: use its name without {name[-len(tower) - 1 :]}")
        if towers:
            chosen = tower or read_as
            config = towers[chosen if chosen in towers else min(towers, key="image".__eq__)]
        check_supported(config)
        reads, recipe = modality(config), Recipe()
        if reads == "image":
            try:
                pillow()
            except DataError as error:
                raise ModelError(str(error)) from error
            how = {"backend": "pil"} | pinned | model.processor_kwargs
            tokenizer = _from_pretrained(transformers.AutoImageProcessor, name, source, how, "preprocessor_config.json")
        else:
            default = default_recipe(config, trust_remote_code=trust_remote_code)
            tokenizer, recipe = _text_reader(model, source, root, pinned, default)
    if getattr(config, "vision_use_head", False):
        config.vision_use_head = False  # a pooler under another name
    return Resolved(
        asked=_named(model, root),
        source=source,
        revision=commit or folder_digest(Path(source)),
        config=config,
        tokenizer=tokenizer,
        tokenizer_digest=tokenizer_digest(tokenizer),
        pinned=pinned,
        modality=reads,
        towers=() if tower else tuple(towers),
        recipe=recipe,
    )


def _with_adapter(model: Model, root: str, folder: Path, adapted: tuple[str, str | None]) -> Resolved:
    """Return the base model of a folder's adapter, read as the folder's configuration says, if it does."""
    name, revision = adapted
    try:
        bare = _resolved_by_name(replace(model, name=name, revision=revision, display_name=None), "text")
    except ModelError as error:
        raise ModelError(f"{folder} has an adapter for {name}: {error}") from error
    tokenizer, recipe = bare.tokenizer, bare.recipe
    if (folder / TOKENIZER_SETTINGS).is_file():
        pinned = {**bare.pinned, "revision": None}
        default = default_recipe(bare.config, trust_remote_code=model.trust_remote_code)
        tokenizer, recipe = _text_reader(model, str(folder), root, pinned, default)
    return replace(
        bare,
        asked=_named(model, root),
        revision=adapted_revision(bare.revision, folder),
        tokenizer=tokenizer,
        tokenizer_digest=tokenizer_digest(tokenizer),
        recipe=recipe,
        adapter=folder,
    )


def _named(model: Model, root: str) -> Model:
    """Return the requested model with its full name, and all of its blocks."""
    folder, called = Path(root), model.display_name or None
    # `model` or `.` do not identify the folder
    if not called and folder.is_dir() and len(folder.parts) <= 1:
        bare = folder.name in ("", "..") or is_generic(folder.name)
        called = short_name(str(folder.resolve())) if bare else None
    return replace(model, name=model.full_name, revision=None, display_name=called, blocks=None, tokens=None)


def _text_reader(model: Model, source: str, root: str, pinned: dict[str, Any], default: Recipe) -> tuple[Any, Recipe]:
    """Return the tokenizer in a folder or a repository, and the recipe of the configuration beside it."""
    name = model.full_name
    files, how = "tokenizer.json or a vocabulary file", pinned | model.processor_kwargs
    tokenizer = usable(name, _from_pretrained(AutoTokenizer, name, source, how, files))
    read_whole(tokenizer, partial(_beside, source, pinned))
    configured = configured_recipe(partial(_beside, root, pinned), name)
    settings = _beside(source, pinned, TOKENIZER_SETTINGS)
    tokenizer, recipe = _apply_recipe(tokenizer, configured, default, settings, end_token=model.end_token)
    if model.end_token and not recipe.end_token:
        last, bare = (tokenizer("a", add_special_tokens=special)["input_ids"][-1:] for special in (True, False))
        if last == bare:
            raise ModelError(
                f"the tokenizer of {name} cannot append an end token: expected a fast tokenizer with such "
                f"a token, or no {option('end_token', True)}"
            )
    return tokenizer, recipe


def _from_pretrained(auto: Any, name: str, source: str, options: dict[str, Any], files: str) -> Any:
    """Return a model's tokenizer or image processor; ModelError if its files cannot be loaded."""
    try:
        return auto.from_pretrained(source, **options)
    except Exception as error:  # transformers raises all kinds of errors, from OSError to TypeError
        if class_names(error) & NO_NETWORK:
            raise
        what = "tokenizer" if auto is AutoTokenizer else "image processor"
        raise ModelError(
            f"the {what} of {name} cannot be loaded: {first_sentence(error)}; expected {files} next to the model"
        ) from error


def _beside(source: str, pinned: dict[str, Any], file: str) -> Path | None:
    """Return the path of a file beside a model; None if there is none."""
    commit = pinned["revision"]
    if commit is None:
        path = Path(source, file)
        return path if path.is_file() else None
    # every call would request a missing file again
    if not isinstance(try_to_load_from_cache(source, file, revision=commit), str | None):
        return None
    try:
        hub = {name: pinned[name] for name in _HUB if name in pinned}
        return Path(hf_hub_download(source, file, revision=commit, **hub))
    except LocalEntryNotFoundError:
        logger.warning(
            "%s of %s is not in the local hub cache, and the hub cannot be reached: it is treated as missing; "
            "connect once, or set %s and %s",
            file,
            source,
            option("pooling"),
            option("prompt"),
        )
    except EntryNotFoundError:
        pass
    return None


def _apply_recipe(
    tokenizer: Any, configured: Recipe | None, default: Recipe, settings: Path | None, *, end_token: bool | None
) -> tuple[Any, Recipe]:
    """Return the tokenizer as the model uses it, and the default way to turn states into embeddings."""
    causal, end = default.causal, ""
    recipe = replace(configured or default, causal=causal)
    if causal and tokenizer.padding_side != "right":
        # padding on the right changes nothing; on the left it would shift positions
        tokenizer.padding_side = "right"
    if isinstance(recipe.source, SentenceModel) and recipe.source.reading.get("do_lower_case"):
        use_lower_case(tokenizer)
    if recipe.max_length is not None and recipe.max_length > tokenizer.model_max_length:
        tokenizer.model_max_length = recipe.max_length  # as sentence-transformers does
    if end_token or (end_token is None and causal and configured is None):
        tokenizer, end = with_end_token(tokenizer)
    promises: dict[str, Any] = {}
    with contextlib.suppress(FileNotFoundError, ValueError):  # loading reports a garbled file
        promises = {} if settings is None else json.loads(settings.read_bytes())
    return tokenizer, replace(recipe, end_token=end, lacking=lacking_tokens(tokenizer, promises))


def _resolved_in_memory(asked: Model) -> Resolved:
    model, tokenizer = model_and_tokenizer(asked.name)
    name = str(getattr(model.config, "_name_or_path", "") or type(model).__name__)
    # its code, if any, is already running
    trusted = type(model.config).__module__.startswith("transformers_modules")
    check_supported(model.config)
    if known_class(model.config) is None and not trusted:
        config, of_model = type(model.config).__name__, type(model).__name__
        raise ModelError(
            f"transformers has no model for the {config} of {name}: register yours first with "
            f"AutoModel.register({config}, {of_model}), so that it can be truncated"
        )
    tokenizer, reads = copy.deepcopy(tokenizer), modality(model.config)
    if is_image_processor(tokenizer) != (reads == "image"):
        needed = "an image processor" if reads == "image" else "a tokenizer"
        raise ModelError(f"{name} reads {reads}s: expected {needed} with it, got a {type(tokenizer).__name__}")
    tokenizer = tokenizer if reads == "image" else usable(name, tokenizer)
    fresh = rebuild(model, copy.deepcopy(model.config), name=name, trust_remote_code=trusted)
    content = content_digest(fresh)
    batches = batches_for(model, tokenizer, positions=position_limit(model))
    behaviour, recipe = check_copy(asked.name, fresh, batches, name=name), Recipe()
    if reads == "text":
        configured = None if isinstance(asked.name, tuple) else loaded_recipe(asked.name)
        behaviour += ids_digest(asked.name, tokenizer, name=name)
        default = tried_recipe(lambda: fresh)
        place = tokenizer.name_or_path
        settings = _beside(place, {"revision": None}, TOKENIZER_SETTINGS) if place else None
        tokenizer, recipe = _apply_recipe(tokenizer, configured, default, settings, end_token=None)
    return Resolved(
        asked=replace(asked, name=name, blocks=None, tokens=None),
        source=LOADED_SOURCE,
        revision=f"{content}-{behaviour}",
        config=copy.deepcopy(model.config),
        tokenizer=tokenizer,
        tokenizer_digest=tokenizer_digest(tokenizer),
        pinned={"revision": None, "trust_remote_code": trusted},
        loaded=model,
        modality=reads,
        recipe=recipe,
    )


def folder_digest(folder: Path) -> str:
    """Return a sha256 of a local model's configuration, weights under any name, and code.

    Two checkpoints of the same shape have equal headers and sizes, so the bytes themselves are hashed.
    """
    total = hashlib.sha256()
    for pattern in ("config.json", "*.safetensors", "*.bin", "*.py"):
        for file in sorted(folder.glob(pattern)):
            total.update(bytes.fromhex(known_sha256(file)))
    return f"sha256:{total.hexdigest()[:32]}"


def adapted_name(folder: Path) -> tuple[str, str | None] | None:
    """Return the name and revision of the base model of a folder's adapter; None for a folder without an adapter.

    Raises:
        ModelError: If the folder also has a model, so that the base model is ambiguous, or no base model is named.
    """
    file = folder / ADAPTER_SETTINGS
    if not file.is_file():
        return None
    if (folder / "config.json").is_file():
        raise ModelError(
            f"the folder {folder} has an adapter beside a model: {MERGE}, or move {ADAPTER_SETTINGS} elsewhere"
        )
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
