"""Tokenizers: what identifies one, and one with only some tokens, with a model that has only their embeddings.

Knows the rules of fast tokenizers (WordPiece, Unigram, BPE) and embedding tables; callers choose the tokens to
keep. Ids are renumbered in order. A text whose tokens are all kept is tokenised as before: WordPiece takes the
longest token and Unigram the likeliest path, which still exist, and BPE merges the same pairs in the same order if
all intermediate tokens are kept, see `Rules.paths`. A removed token is spelt with shorter ones.
"""

import copy
import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedConfig, PreTrainedModel

from layerprobe.encoders.batching import Batch, difference, is_image_processor, read_by_model
from layerprobe.errors import ModelError, UnsupportedArchitectureError
from layerprobe.files.atomic import file_sha256
from layerprobe.names import counted

# Without files, transformers 5 makes a tokenizer of special tokens and at most two others.
FEWEST_WORDS = 3
WHOLE = "whole_tokenizer"
"""A tokenizer's setting for the file of its original vocabulary, which shows how many tokens texts are missing.

It is a key of tokenizer_config.json and, with .json, the file beside it."""
_SPLITS = ("WordPiece", "Unigram", "BPE")
_FIRST = 16
"""Ids of padding up to which all earlier ids are kept: RoBERTa and similar models count positions from that id."""
FEW_MISSING = 0.05
"""Share of the tokens of texts that may be missing without a warning."""
_LOOKED_AT = 1000
"""Most texts that `missing_share` examines."""
_TOLERANCE = 1e-5
_LEAST_KNOWN = 0.75
"""Smallest share of a model's tokens in its own tokenizer: vocabularies are padded by up to a fifth."""


@dataclass(frozen=True, slots=True, eq=False)
class Rules:
    """The rules of a fast tokenizer."""

    rules: dict[str, Any]
    """Content of tokenizer.json."""

    @property
    def model(self) -> dict[str, Any]:
        """Rules for splitting words, with the vocabulary."""
        return self.rules["model"]

    @property
    def ids(self) -> dict[str, int]:
        """Id of every token, including added ones."""
        vocabulary: dict[str, int] = self.model["vocab"]
        if self.model["type"] == "Unigram":
            vocabulary = {token: number for number, (token, _) in enumerate(self.model["vocab"])}
        return vocabulary | {added["content"]: added["id"] for added in self.rules["added_tokens"]}

    def always(self, tokenizer: Any, config: PreTrainedConfig) -> set[int]:
        """Return the ids of tokens that are always kept: special ones and single letters."""
        ids, model = self.ids, self.model
        special = {added["id"] for added in self.rules["added_tokens"]} | {*tokenizer.all_special_ids}
        special |= special_ids(config) & {*ids.values()}
        prefix, suffix = model.get("continuing_subword_prefix") or "", model.get("end_of_word_suffix") or ""
        letters = {token for token in ids if len(token.removeprefix(prefix).removesuffix(suffix)) <= 1}
        letters |= {f"<0x{byte:02X}>" for byte in range(256)} if model.get("byte_fallback") else set()
        letters |= {model.get("unk_token") or ""}
        special |= {ids[token] for token in letters if token in ids}
        if model["type"] == "Unigram":
            scores = [score for _, score in model["vocab"]]
            special |= {scores.index(min(scores))}  # an unknown letter scores a step below that
            special |= set() if model["unk_id"] is None else {model["unk_id"]}
        padding = tokenizer.pad_token_id
        return special | ({*range(padding)} & {*ids.values()} if padding is not None and padding <= _FIRST else set())

    def paths(self) -> Callable[[int], set[int]]:
        """Return a function from a token to the ids it needs: itself, and for BPE the tokens it is merged from."""
        if self.model["type"] != "BPE":
            return lambda number: {number}
        ids, words = self.ids, {number: token for token, number in self.ids.items()}
        ranks = {pair: rank for rank, pair in enumerate(self.pairs)}

        def path(number: int) -> set[int]:
            parts, made = self._letters(words[number]), {words[number]}
            while len(parts) > 1:
                made |= {*parts}
                pairs = [*itertools.pairwise(parts)]
                first = min(pairs, key=lambda pair: ranks.get(pair, len(ranks)))
                if first not in ranks:
                    break
                at = pairs.index(first)
                parts[at : at + 2] = [self._joined(*first)]
            return {ids[token] for token in made if token in ids}

        return path

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Merges of BPE, in order."""
        pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in self.model["merges"])
        return [(first, second) for first, second in pairs]

    def _letters(self, token: str) -> list[str]:
        prefix, suffix = (self.model.get(name) or "" for name in ("continuing_subword_prefix", "end_of_word_suffix"))
        bare = token.removesuffix(suffix) if suffix else token
        rest = bare.removeprefix(prefix) if prefix else bare
        letters = [letter if i == 0 and rest == bare else prefix + letter for i, letter in enumerate(rest)]
        return [*letters[:-1], letters[-1] + suffix] if letters and bare != token else letters

    def _joined(self, first: str, second: str) -> str:
        return first + second.removeprefix(self.model.get("continuing_subword_prefix") or "")

    def of(self, tokens: Sequence[int]) -> dict[str, Any]:
        """Return the rules of a tokenizer with only these tokens, ascending ids, which are renumbered."""
        numbers = {old: new for new, old in enumerate(tokens)}
        rules, model = dict(self.rules), dict(self.model)
        if model["type"] == "Unigram":
            model["vocab"] = [model["vocab"][i] for i in tokens if i < len(model["vocab"])]
            model["unk_id"] = None if model["unk_id"] is None else numbers[model["unk_id"]]
        else:
            model["vocab"] = {token: numbers[i] for token, i in model["vocab"].items() if i in numbers}
        if model["type"] == "BPE":
            left = model["vocab"]
            model["merges"] = [[*pair] for pair in self.pairs if all(t in left for t in (*pair, self._joined(*pair)))]
        added = [token | {"id": numbers[token["id"]]} for token in rules["added_tokens"]]
        post = _renumbered(rules["post_processor"], numbers)
        return rules | {
            "model": model,
            "added_tokens": added,
            "post_processor": post,
            "padding": None,
            "truncation": None,
        }


def tokenizer_rules(tokenizer: Any, *, name: str) -> Rules:
    """Return the rules of a tokenizer; ModelError if its vocabulary cannot be reduced."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = None if backend is None else json.loads(backend.to_str())
    if rules is None or rules["model"]["type"] not in _SPLITS:
        kind = "a tokenizer in Python" if rules is None else f"a tokenizer of {rules['model']['type']}"
        raise ModelError(
            f"{name} has {kind}, whose vocabulary cannot be reduced: expected a fast tokenizer of {', '.join(_SPLITS)}"
        )
    return Rules(rules)


def _renumbered(rule: Any, numbers: dict[int, int]) -> Any:
    """Return the tokens that a tokenizer adds around texts, with new ids."""
    if isinstance(rule, list):
        if len(rule) == 2 and isinstance(rule[0], str) and isinstance(rule[1], int):
            return [rule[0], numbers[rule[1]]]
        return [_renumbered(part, numbers) for part in rule]
    if not isinstance(rule, dict):
        return rule
    return {
        key: [numbers[i] for i in value] if key == "ids" else _renumbered(value, numbers) for key, value in rule.items()
    }


def with_tokens(tokenizer: Any, tokens: Sequence[int], *, name: str) -> Any:
    """Return a tokenizer with only some tokens, ascending ids, which are renumbered."""
    rules = tokenizer_rules(tokenizer, name=name)
    words = {number: token for token, number in rules.ids.items()}
    if unknown := [number for number in tokens if number not in words]:
        raise ModelError(f"expected token ids of {name} to keep, got {unknown[0]}, which it does not have")
    made = Tokenizer.from_str(json.dumps(rules.of(tokens)))
    if made.get_vocab(with_added_tokens=True) != {words[old]: new for new, old in enumerate(tokens)}:
        raise ModelError(f"the tokenizer of {name} cannot be reduced to {counted(len(tokens), 'token')}")
    cut = copy.copy(tokenizer)
    cut.init_kwargs = {key: value for key, value in tokenizer.init_kwargs.items() if key not in _OF_THE_WHOLE}
    cut.init_kwargs[WHOLE] = f"{WHOLE}.json"
    whole = getattr(tokenizer, "whole", None) or Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    whole.no_truncation(), whole.no_padding()
    cut._tokenizer, cut.whole = made, whole
    return cut


_OF_THE_WHOLE = ("vocab", "merges", "vocab_file", "merges_file", "tokenizer_file", "added_tokens_decoder")
"""Arguments of a tokenizer that no longer apply; it is saved with its rules."""


def missing_share(tokenizer: Any, texts: Sequence[str]) -> float:
    """Return the share of the tokens of texts, 0 to 1, that were removed from the vocabulary; 0 for a full one."""
    whole = getattr(tokenizer, "whole", None)
    if whole is None:
        return 0.0
    left, every = tokenizer.get_vocab(), range(0, len(texts), max(1, len(texts) // _LOOKED_AT))
    tokens = [
        token for row in whole.encode_batch([texts[i] for i in every], add_special_tokens=False) for token in row.tokens
    ]
    return sum(token not in left for token in tokens) / max(1, len(tokens))


def write_whole(tokenizer: Any, folder: Path) -> None:
    """Write the original vocabulary of a reduced tokenizer beside it."""
    if (whole := getattr(tokenizer, "whole", None)) is not None:
        whole.save(str(folder / f"{WHOLE}.json"), pretty=False)


def read_whole(tokenizer: Any, find: Callable[[str], Path | None]) -> None:
    """Load the original vocabulary of a reduced tokenizer, if its settings name one."""
    file = find(f"{WHOLE}.json") if tokenizer.init_kwargs.get(WHOLE) else None
    if file is not None:
        tokenizer.whole = Tokenizer.from_file(str(file))


def is_far_smaller(tokenizer: Any, config: PreTrainedConfig) -> bool:
    """Return whether a tokenizer has so few of a model's tokens that it must belong to another model.

    Vocabularies of fewer than 1,000 tokens, such as letters or nucleotides, may be far smaller than the model's.
    """
    n_tokens = max(tokenizer.get_vocab().values(), default=0) + 1
    return 1000 <= n_tokens < _LEAST_KNOWN * (getattr(config, "vocab_size", None) or 0)


# ---- any tokenizer ---------------------------------------------------------------------------------------


def usable(name: str, tokenizer: Any) -> Any:
    """Return a tokenizer that can pad; raise ModelError if it has no words."""
    if not isinstance(tokenizer.model_max_length, int | float):
        raise ModelError(
            f"the tokenizer of {name} has model_max_length {tokenizer.model_max_length!r}: expected a number of tokens"
        )
    words = set(tokenizer.get_vocab()) - set(tokenizer.get_added_vocab()) - set(tokenizer.all_special_tokens)
    if len(words) < FEWEST_WORDS:
        raise ModelError(
            f"the tokenizer of {name} has no words: expected tokenizer.json or a vocabulary file next to the model"
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    return tokenizer


def tokenizer_digest(tokenizer: Any) -> str:
    """Return a sha256 of everything that determines a model's input tokens or pixels."""
    if is_image_processor(tokenizer):
        settings = {name: value for name, value in tokenizer.to_dict().items() if not name.startswith("_")}
        text = json.dumps([type(tokenizer).__name__, settings], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        rules: Any = [sorted(tokenizer.get_vocab().items()), _slow_settings(tokenizer.init_kwargs)]
    else:
        rules = json.loads(backend.to_str())
        rules.pop("truncation", None), rules.pop("padding", None)  # overwritten by every call
    names = ("model_max_length", "truncation_side", "padding_side", "model_input_names")
    settings = {name: getattr(tokenizer, name) for name in names}
    text = json.dumps([rules, tokenizer.special_tokens_map, settings], sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _slow_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a tokenizer in Python; for files the content, not the path."""
    places = ("name_or_path", "is_local", "local_files_only", "trust_remote_code")
    settled = {k: value for k, value in settings.items() if not k.startswith("_") and k not in places}
    files = {k: value for k, value in settled.items() if k.endswith("_file")}
    return settled | {
        k: file_sha256(Path(value)) if value and Path(value).is_file() else None for k, value in files.items()
    }


# ---- models ----------------------------------------------------------------------------------------------


def config_with_tokens(config: PreTrainedConfig, tokens: Sequence[int]) -> PreTrainedConfig:
    """Return the configuration of a model with the embeddings of only some tokens."""
    numbers, config = {old: new for new, old in enumerate(tokens)}, copy.deepcopy(config)
    for key, value in _token_ids(config).items():
        new = [numbers[number] for number in _listed(value) if number in numbers]
        setattr(config, key, new if isinstance(value, list) else new[0] if new else None)
    config.vocab_size = len(tokens)
    return config


def _token_ids(config: PreTrainedConfig) -> dict[str, Any]:
    """Return the token ids in a configuration."""
    special_ids = {key: value for key, value in config.to_dict().items() if key.endswith("_token_id")}
    return {key: value for key, value in special_ids.items() if _listed(value)}


def special_ids(config: PreTrainedConfig) -> set[int]:
    """Return the ids of special tokens in a configuration."""
    return {number for value in _token_ids(config).values() for number in _listed(value)}


def _listed(value: Any) -> list[int]:
    return [number for number in (value if isinstance(value, list) else [value]) if isinstance(number, int)]


@torch.no_grad()
def keep_tokens(model: PreTrainedModel, tokens: Sequence[int], probe: Batch, *, name: str) -> None:
    """Remove the embeddings of all other tokens from a model in place; ModelError if its output changes.

    The model is in evaluation mode, and the kept ids are ascending; the probe has texts in the new ids.
    """
    rows = torch.tensor(tokens, device=model.device)
    expected = model(**read_by_model(probe | {"input_ids": rows[probe["input_ids"]]})).last_hidden_state
    try:
        table: Any = model.get_input_embeddings()
        rows_left, padding = table.weight[rows].clone(), table.padding_idx
    except (NotImplementedError, AttributeError, IndexError) as error:
        raise _refusal(name, "it has no embedding table with one row per token of its tokenizer") from error
    config = config_with_tokens(model.config, tokens)
    model.resize_token_embeddings(len(tokens))
    table = model.get_input_embeddings()
    table.weight.copy_(rows_left)
    table.padding_idx = tokens.index(padding) if padding in tokens else None
    for key in (*_token_ids(config), "vocab_size"):
        setattr(model.config, key, getattr(config, key))
    states = model(**read_by_model(probe)).last_hidden_state
    if not difference(states, expected) <= _TOLERANCE:
        raise _refusal(name, f"with only {counted(len(tokens), 'token')}, texts of these tokens have other states")


def _refusal(name: str, reason: str) -> UnsupportedArchitectureError:
    return UnsupportedArchitectureError(
        f"tokens cannot be removed from {name}: {reason}; expected an encoder with one embedding table, as in BERT"
    )
