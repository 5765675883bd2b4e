"""A model's default pooling, length and prompts: from its configuration, or by whether it is causal.

Knows configurations, tokenizers and the folders of sentence-transformers; loads no weights.
"""

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, normalizers
from tokenizers.models import BPE
from transformers import PreTrainedConfig, PreTrainedModel

from layerprobe.encoders.architecture import cache_text, count_blocks, empty_model, is_read_as_part, truncated_configs
from layerprobe.encoders.failures import first_sentence
from layerprobe.encoders.model import Pooling
from layerprobe.encoders.vocabulary import special_ids
from layerprobe.errors import DataError, ModelError
from layerprobe.rng import SharedWeights, drawing

MODULES = "modules.json"
SETTINGS = "config_sentence_transformers.json"
INPUT = "sentence_bert_config.json"
POOLING = "1_Pooling/config.json"
MODES: dict[Pooling, str] = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "last": "pooling_mode_lasttoken",
}
"""Keys of sentence-transformers up to 5; version 6 has `pooling_mode`, and still reads these."""
_NEW_MODES: dict[str, Pooling] = {"cls": "cls", "mean": "mean", "max": "max", "lasttoken": "last"}
_OTHER_SIMILARITIES = {"dot": "dot products", "euclidean": "Euclidean distances", "manhattan": "Manhattan distances"}
_CHANGES_NOTHING = ("Transformer", "Pooling", "Normalize", "Dropout")
"""Modules that cosines between embeddings do not need, or that layerprobe applies itself."""
_LOOKED_AT = 64
"""Number of token ids that candidates for testing the reading direction are taken from."""
_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SentenceModel:
    """The settings of a sentence-transformers folder besides its encoder."""

    find: Callable[[str], Path | None]
    """Returns the path of a file in the folder, None if there is no such file."""
    rows: tuple[dict[str, str], ...]
    """Its modules, the encoder first."""
    pooling: dict[str, Any]
    """Settings of the pooling."""
    settings: dict[str, Any]
    """Prompts and similarity."""
    reading: dict[str, Any]
    """Maximum length and lower case."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Class names of its modules."""
        return tuple(row["type"].rpartition(".")[2] for row in self.rows)

    @property
    def pooled(self) -> str:
        """Its pooling: layerprobe's name, or that of sentence-transformers."""
        modes = _modes(self.pooling) or ["mean"]
        return _NEW_MODES.get(modes[0], modes[0]) if len(modes) == 1 else " and ".join(modes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A model's default way to turn texts into embeddings."""

    pooling: Pooling = "mean"
    """Pooling of token states."""
    max_length: int | None = None
    """Length at which texts are truncated, in tokens."""
    prompt: str = ""
    """Prefix of every text."""
    prompts: dict[str, str] = field(default_factory=dict)
    """All prompts of the configuration, by name: query and document are used for retrieval."""
    configured: bool = False
    """Whether a configuration of sentence-transformers sets this."""
    dim: int | None = None
    """Number of leading features to keep; None: all."""
    include_prompt: bool = True
    """Whether the tokens of a prompt are pooled as well."""
    left_out: tuple[str, ...] = ()
    """Further settings of the configuration that layerprobe does not apply."""
    causal: bool = False
    """Whether a token's state depends on no later token, as in decoders."""
    untried: str = ""
    """Why the reading direction could not be tested; the model is then read as an encoder."""
    end_token: str = ""
    """Token appended to every text because the tokenizer does not append it."""
    lacking: tuple[str, ...] = ()
    """Which of begin and end tokens tokenizer_config.json promises and the tokenizer does not add."""
    kinds: tuple[str, ...] = ()
    """Class names of the configuration's modules."""
    source: Any = field(default=None, compare=False, repr=False)
    """Origin: a `SentenceModel` or a loaded `SentenceTransformer`."""

    @property
    def retrieval_prompts(self) -> tuple[str, str] | None:
        """Prompts of queries and of documents, possibly empty; None if no configuration sets them."""
        if not self.configured:
            return None
        # sentence-transformers adds an empty "document", so that it never uses "passage" and "corpus"
        return self.prompts.get("query", ""), self.prompts.get("document", "")

    def notes(self, pooling: Pooling, prompt: str) -> list[str]:
        """Return the settings in use that differ from other models', as ends of a sentence that names the model."""
        taken = [f"{pooling} pooling"] if pooling == self.pooling != "mean" else []
        taken += [f"the prompt {prompt!r}"] if prompt in (self.prompt, *self.prompts.values()) and prompt else []
        taken += ["no pooling of the prompt's tokens"] if prompt and not self.include_prompt else []
        taken += [f"the first {self.dim} features"] if self.dim else []
        end = [f"the end token {self.end_token!r} after every text"] if self.end_token else []
        if self.configured:
            notes = [f"{' and '.join(taken)}, from its sentence-transformers configuration"] if taken else []
            return [*notes, *end, *self.left_out]
        why = ", because it reads from left to right" if self.causal else ""
        notes = [f"{' and '.join(taken + end)}{why}"] if taken + end else []
        if self.untried and pooling == self.pooling:
            notes.append(f"{pooling} pooling, because the test of its reading direction failed ({self.untried})")
        return notes


def configured_recipe(find: Callable[[str], Path | None], name: str) -> Recipe | None:
    """Return the recipe of a sentence-transformers configuration; None without one.

    `find` returns the path of a file beside the model, or None if there is no such file.
    """
    try:
        source = sentence_model(find)
        if source is None:
            return None
        recipe = _recipe(source.kinds, source.pooling, source.settings)
        return replace(recipe, source=source, max_length=int(source.reading.get("max_seq_length") or 0) or None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"the sentence-transformers configuration of {name} cannot be read: "
            f"{type(error).__name__}: {error}; fix or remove {MODULES}"
        ) from error


def sentence_model(find: Callable[[str], Path | None]) -> SentenceModel | None:
    """Return the settings of a sentence-transformers folder; None for other folders."""
    path = find(MODULES)
    if path is None:
        return None

    def read_settings(file: str) -> dict[str, Any]:
        path = find(file)
        return {} if path is None else dict(_read(path))

    rows = _read(path)
    if not isinstance(rows, list) or not rows or not all(map(_is_module, rows)):
        raise DataError("expected a list of modules, each with a type and a path below the model's folder")
    folder = next((row["path"] for row in rows if row["type"].endswith(".Pooling")), None)
    return SentenceModel(
        find=find,
        rows=tuple(rows),
        pooling={} if folder is None else read_settings(f"{folder}/config.json"),
        settings=read_settings(SETTINGS),
        reading=read_settings(f"{rows[0]['path']}/{INPUT}".lstrip("/")),
    )


def _is_module(row: Any) -> bool:
    typed = isinstance(row, dict) and isinstance(row.get("type"), str) and isinstance(row.get("path"), str)
    return typed and ".." not in Path(row["path"]).parts and not Path(row["path"]).is_absolute()


def encoder_folder(folder: Path) -> Path:
    """Return the folder of a local model's encoder, such as `0_Transformer` in old sentence-transformers folders."""
    if (folder / "config.json").is_file():
        return folder
    sentences = sentence_model(lambda file: path if (path := folder / file).is_file() else None)
    if sentences is None:
        return folder
    if sentences.kinds[0] != "Transformer":
        raise ModelError(f"{folder} begins with a {', a '.join(sentences.kinds)}: expected a Transformer with blocks")
    return folder / sentences.rows[0]["path"]


def loaded_recipe(model: Any) -> Recipe:
    """Return the recipe of a loaded `SentenceTransformer`."""
    kinds = [type(module).__name__ for module in model]
    pooling = next((module for module in model if type(module).__name__ == "Pooling"), None)
    names = ("prompts", "default_prompt_name", "truncate_dim", "similarity_fn_name")
    settings = {name: getattr(model, name, None) for name in names}
    return replace(_recipe(kinds, {} if pooling is None else pooling.get_config_dict(), settings), source=model)


def _recipe(kinds: Sequence[str], pooling: dict[str, Any], settings: dict[str, Any]) -> Recipe:
    modes = _modes(pooling)
    prompts = {key: text for key, text in (settings.get("prompts") or {}).items() if text}
    supported = len(modes) == 1 and modes[0] in _NEW_MODES
    left_out = [f"no module {kind}, which its configuration has" for kind in kinds if kind not in _CHANGES_NOTHING]
    if not supported:
        left_out.append(f"mean pooling, but its configuration has {' and '.join(modes) or 'none'}")
    if "document" not in prompts and (name := next(filter(prompts.get, ("passage", "corpus")), None)):
        left_out.append(f"no prompt before documents: sentence-transformers does not use its {name!r} prompt for them")
    dim = settings.get("truncate_dim")
    if dim and not {*kinds} <= {*_CHANGES_NOTHING}:  # the features come out of these modules
        left_out.append(f"all features, but its configuration has the first {dim}")
        dim = None
    if theirs := other_similarity(settings, kinds):
        left_out.append(f"cosines, but its configuration has {theirs}")
    return Recipe(
        pooling=_NEW_MODES[modes[0]] if supported else "mean",
        prompt=prompts.get(settings.get("default_prompt_name") or "", ""),
        prompts=prompts,
        configured=True,
        dim=dim or None,
        include_prompt=pooling.get("include_prompt") is not False,
        left_out=tuple(left_out),
        kinds=tuple(kinds),
    )


def other_similarity(settings: dict[str, Any], kinds: Sequence[str]) -> str | None:
    """Return a configuration's similarity if it ranks embeddings differently from cosines.

    Dot products and Euclidean distances of embeddings of length 1 rank like their cosines.
    """
    similarity = settings.get("similarity_fn_name")
    alike = similarity != "manhattan" and "Normalize" in kinds
    return None if alike else _OTHER_SIMILARITIES.get(similarity or "")


def _modes(config: dict[str, Any]) -> list[str]:
    mode = config.get("pooling_mode")
    if mode is not None:
        return [mode] if isinstance(mode, str) else list(mode)
    prefix = "pooling_mode_"
    names = {old: next(new for new, ours in _NEW_MODES.items() if ours == pooling) for pooling, old in MODES.items()}
    return [names.get(key, key.removeprefix(prefix)) for key, on in config.items() if key.startswith(prefix) and on]


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def use_lower_case(tokenizer: Any) -> None:
    """Make a tokenizer convert texts to lower case, as sentence-transformers does."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    normalizer = "" if backend is None else json.dumps(json.loads(backend.to_str())["normalizer"])
    if backend is not None and '"Lowercase"' not in normalizer and '"lowercase": true' not in normalizer:
        steps = [] if backend.normalizer is None else [backend.normalizer]
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *steps])


# ---- decoders --------------------------------------------------------------------------------------------


@cache_text
def default_recipe(config: PreTrainedConfig, *, trust_remote_code: bool = False) -> Recipe:
    """Return the default recipe of a model without a configuration, by whether it reads from left to right.

    The direction is tested on a model of its first blocks, one of each kind, with random weights: attention
    between tokens does not depend on weights.
    """
    if count_blocks(config) == 0 or is_read_as_part(config):
        return Recipe()

    def small_model(n_blocks: int) -> PreTrainedModel:
        small = next(truncated_configs(config, n_blocks))
        small._attn_implementation = small._experts_implementation = "eager"  # others may need a GPU
        small.use_cache = False
        for name in {"num_local_experts", "num_experts"} & vars(small).keys():  # some models copy all weights
            setattr(small, name, max(2, getattr(small, "num_experts_per_tok", None) or 0))
        with drawing(0), SharedWeights():
            model = empty_model(small, trust_remote_code=trust_remote_code).train(False)
            for weight in model.parameters():
                if weight.ndim > 1:  # some initial weights are 0, or so large that attention has one token
                    weight.data.mul_(0.1).add_(torch.randn(weight.shape), alpha=0.02)
        return model

    kinds, whole = _blocks_of_all_kinds(config), count_blocks(config)
    sizes = dict.fromkeys((kinds, min(kinds + 1, whole), whole))  # some models need more blocks
    failed = []
    for n_blocks in sizes:
        recipe = tried_recipe(partial(small_model, n_blocks))
        if not recipe.untried:
            return recipe
        failed.append(recipe)
    return failed[0]


def tried_recipe(make: Callable[[], PreTrainedModel]) -> Recipe:
    """Return the default recipe of a model without a configuration, by a test on the model from `make`."""
    try:
        causal = is_causal(make())
    except Exception as error:  # models raise all kinds of errors
        return Recipe(untried=first_sentence(error))
    return Recipe(pooling="last" if causal else "mean", causal=causal)


def _blocks_of_all_kinds(config: PreTrainedConfig) -> int:
    """Return the number of first blocks that contain each kind in a configuration's list of kinds."""
    n_blocks = count_blocks(config)
    lists = (value for value in config.to_dict().values() if isinstance(value, list) and len(value) == n_blocks)
    kinds = (value for value in lists if all(isinstance(kind, str) for kind in value))
    return max((1 + max(map(value.index, value)) for value in kinds if value), default=1)


@torch.inference_mode()
def is_causal(model: PreTrainedModel) -> bool:
    """Return whether changing the last token changes no earlier state, and changing the first one changes later states.

    Raises:
        ModelError: If no token influences another one's state.
    """
    plain = plain_tokens(model.config)[-5:]
    text = [plain[place % len(plain)] for place in range(6)]
    ids = torch.tensor([text[:5], [*text[:4], text[5]], [text[1], *text[1:5]]], device=model.device)
    states = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state.float()
    before, behind = (states[0] - states[1])[:-1].abs().max(), (states[0] - states[2])[1:].abs().max()
    if not max(before, behind) > 0:
        raise ModelError("no token's state depends on another token")
    return bool(behind > 0 and before <= _TOLERANCE * behind)


def plain_tokens(config: PreTrainedConfig) -> list[int]:
    """Return some token ids of a model, without special tokens if at least two others remain."""
    n_known = getattr(config, "vocab_size", None)
    ids = range(min(n_known, _LOOKED_AT) if isinstance(n_known, int) else _LOOKED_AT)
    special = special_ids(config)
    plain = [token for token in ids if token not in special]
    return plain if len(plain) > 1 else list(ids)


def with_end_token(tokenizer: Any) -> tuple[Any, str]:
    """Return a tokenizer that appends its end token to every text, and that token.

    Tokenizers that already append a special token, or have no end token, are returned unchanged, with an empty text.
    """
    end, around = tokenizer.eos_token, _tokens_around(tokenizer)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if end is None or backend is None or around is None or around[1]:
        return tokenizer, ""
    ended = copy.deepcopy(tokenizer)
    ended.backend_tokenizer.post_processor = _appending(backend.post_processor, str(end), tokenizer.eos_token_id)
    appended = _tokens_around(ended) == (around[0], [tokenizer.eos_token_id])
    return (ended, str(end)) if appended else (tokenizer, "")


def lacking_tokens(tokenizer: Any, settings: dict[str, Any]) -> tuple[str, ...]:
    """Return which of begin and end tokens a tokenizer or its settings promise, but the tokenizer does not add."""
    keys = {"begin": "add_bos_token", "end": "add_eos_token"}
    promised = [name for name, key in keys.items() if True in (settings.get(key), getattr(tokenizer, key, None))]
    around = _tokens_around(tokenizer) if promised else None
    return tuple(name for name, ids in zip(keys, around or (), strict=False) if name in promised and not ids)


def _tokens_around(tokenizer: Any) -> tuple[list[int], list[int]] | None:
    """Return the ids that a tokenizer adds before and after a text; None if unknown."""
    ids, bare = (tokenizer("a", add_special_tokens=special)["input_ids"] for special in (True, False))
    at = next((i for i in range(len(ids) - len(bare) + 1) if ids[i : i + len(bare)] == bare), None)
    return None if at is None else (ids[:at], ids[at + len(bare) :])


def _appending(rules: Any, end: str, number: int) -> Any:
    """Return a tokenizer's final step extended by a token at the end of texts and of pairs."""
    bare = Tokenizer(BPE())
    if rules is not None:
        bare.post_processor = rules
    whole = json.loads(bare.to_str())
    processor = whole["post_processor"]
    steps = [] if processor is None else processor["processors"] if processor["type"] == "Sequence" else [processor]
    template = next((step for step in steps if step["type"] == "TemplateProcessing"), None)
    if template is None:
        first, second = ({"Sequence": {"id": text, "type_id": i}} for i, text in enumerate("AB"))
        template = {"type": "TemplateProcessing", "single": [first], "pair": [first, second], "special_tokens": {}}
        steps = [*steps, template]
    for part in (template["single"], template["pair"]):
        (last,) = part[-1].values()
        part.append({"SpecialToken": {"id": end, "type_id": last["type_id"]}})
    template["special_tokens"][end] = {"id": end, "ids": [number], "tokens": [end]}
    whole["post_processor"] = {"type": "Sequence", "processors": steps} if len(steps) > 1 else template
    return Tokenizer.from_str(json.dumps(whole)).post_processor
