"""All text architectures of the installed transformers version that build with a tiny configuration, one after another.

Each is saved with random weights, extracted, examined and exported, and held against an oracle that knows nothing of
layerprobe: the model with its later blocks replaced by modules that pass on what they read. What comes out is one of

* survived: every layer that was extracted and exported is the oracle's;
* read: its blocks cannot be removed, so the export was refused; every layer that was extracted is what a block reads in
  the whole model, and the last one what the model outputs;
* refused: one line of a LayerProbeError said why not;
* silent: another state than the oracle's came out, and nothing was said;
* traceback: any other exception.

    python benchmarks/attacks/architectures.py [--only NAME ...] [--csv FILE]
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import copy
import csv
import os
import pickle
import re
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", HF_HUB_DISABLE_TELEMETRY="1")

import torch  # noqa: E402
import transformers  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding, AutoTokenizer, PreTrainedConfig  # noqa: E402
from transformers.models.auto import modeling_auto  # noqa: E402

from layerprobe.encoders.architecture import check_supported, is_read_as_part  # noqa: E402
from layerprobe.encoders.identity import resolve  # noqa: E402
from layerprobe.encoders.loading import as_read, first_use, load_encoder, look  # noqa: E402
from layerprobe.encoders.model import Model  # noqa: E402
from layerprobe.errors import LayerProbeError, UnsupportedArchitectureError  # noqa: E402
from layerprobe.export.run import export_model  # noqa: E402
from layerprobe.extraction.check import examine  # noqa: E402
from layerprobe.extraction.embeddings import extract  # noqa: E402
from tests.models import VOCABULARY, given, tiny_tokenizer  # noqa: E402

N_BLOCKS, EXPORTED = 4, 2
SECONDS, PARAMETERS = 60, 3_000_000
TOLERANCE = 1e-3
TEXTS = ("a", "layers of a model", "the quick brown fox, and all of the others.", "it is short.")
TEXT_HEADS = (
    "CAUSAL_LM",
    "MASKED_LM",
    "TEXT_ENCODING",
    "SEQUENCE_CLASSIFICATION",
    "TOKEN_CLASSIFICATION",
    "QUESTION_ANSWERING",
    "SEQ_TO_SEQ_CAUSAL_LM",
    "IMAGE_TEXT_TO_TEXT",
)

# What configurations call their sizes: the first pattern that the whole name of an integer matches gives its value.
SIZES: tuple[tuple[str, int], ...] = (
    (r"(.*_)?vocab_size(_per_layer_input)?", len(VOCABULARY)),
    (
        r"hidden_size|d_model|n_embd|embedding_size|emb_dim|dim_model|linear_attn_dim|lru_width|attention_hidden_size",
        32,
    ),
    (r"num_(hidden|encoder)_layers|num_layers|n_layers?|n_head_layers", N_BLOCKS),
    (r".*key_value_heads|num_kv_heads|n_kv_heads", 2),
    (r"num_attention_heads|n_heads?|num_heads|(en|de)coder_attention_heads|swa_num_attention_heads|index_n_heads", 4),
    (r".*(intermediate_size|ffn_dim|ffn_hidden_size|dim_ff|d_ff|dff|n_inner|ffn_size|inner_size)", 24),
    (r".*(head_dim|d_kv|kv_channels|head_size|dim_head)|rotary_dim", 8),
    (r".*lora_rank", 8),
    (r"(n|num|moe_num|zero)_(routed_|local_)?experts?(_num)?|num_experts", 4),
    (r".*(experts_per_tok|moe_k|moe_topk|top_k_experts|num_experts_per_token)", 2),
    (r"n_group|topk_group|n_groups|o_groups|mamba_n_groups", 1),
    (r"(ssm_)?state_size|mamba_d_state", 8),
    (r".*(mamba_n_heads|mamba_num_heads|n_mamba_heads)", 8),
    (r"hidden_size_per_layer_input|altup_num_inputs|num_kv_shared_layers", 2),
    (r".*(max_position_embeddings|n_positions|n_ctx|max_sequence_length|position_embedding_size|max_seq_len)", 128),
    (r"attention_window", 8),
    (r"image_size", 16),
    (r"patch_size", 8),
    (r"pad_token_id", 0),
    (r"bos_token_id|sep_token_id|cls_token_id", 2),
    (r"eos_token_id|mask_token_id", 3),
)
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
# What is tried on top of them, one after another, until a model is built, is small and runs.
TRIES: tuple[dict[str, Any], ...] = (
    {},
    {"num_key_value_heads": 4},
    {"head_dim": 16, "global_head_dim": 16, "num_key_value_heads": 4},
    {"num_key_value_heads": 4, "mamba_n_heads": 8, "mamba_d_head": 8, "num_heads": 8, "head_dim": 8, "expand": 2},
    {"intermediate_size": 64, "num_experts": 4, "num_key_value_heads": 4},
    {"attention_types": [[["global", "local"], N_BLOCKS // 2]]},
    {"num_kv_shared_layers": 0},
    {"axial_pos_shape": [8, 16], "axial_pos_embds_dim": [16, 16], "attn_layers": ["local", "lsh"] * (N_BLOCKS // 2)},
    {"hidden_size": 48},
    {"layer_types": ["conv", "full_attention"] * (N_BLOCKS // 2), "num_dense_layers": 1},
    {"layers_block_type": ["mamba", "hybrid"] * (N_BLOCKS // 2), "num_key_value_heads": 4},
    {"layers_block_type": ["mamba", "mamba", "hybrid", "hybrid"], "num_key_value_heads": 4, "mamba_headdim": 8},
    {"rope_parameters": {**ROPE, "mrope_section": [1, 1, 2]}},
    {"rope_parameters": {**ROPE, "mrope_section": [1, 1, 0], "partial_rotary_factor": 0.5}},
    {"num_experts_per_tok": 1},
    {"default_language": "en_XX"},
    {"block_sizes": [2, 2]},
    {"rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE}},
)
# What is tried first, where an architecture needs settings of its own.
OWN: dict[str, dict[str, Any]] = {
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8},
        "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 24},
    },
    "deepseek_v2": {"num_key_value_heads": 4, "num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "glm5_next_text": {
        "qk_rope_head_dim": 0,
        "head_dim": 0,
        "num_key_value_heads": 4,
        "index_kpool": 4,
        "index_topk": 8,
    },
    "hunyuan_vl_text": {
        "head_dim": 8,
        "num_key_value_heads": 4,
        "rope_parameters": {**ROPE, "mrope_section": [1, 1, 1, 1]},
    },
    "layoutlmv3": {"coordinate_size": 6, "shape_size": 4},
    "longcat_flash": {"qk_head_dim": 16, "num_key_value_heads": 4},
    "muse_spark_text": {"moe_hidden_size": 32},
    "qwen4_exp_text": {
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 8,
        "indexer_compress_ratio": 2,
        "ngram_vocab_size_base": 64,
    },
}
Result = Literal["survived", "read", "refused", "silent", "traceback"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one architecture."""

    result: Result | Literal["not built"]
    detail: str
    """Why it was refused, what was wrong, or which layers were compared."""
    seconds: float


# ---- tiny models -----------------------------------------------------------------------------------------


def architectures() -> list[str]:
    """Return the model types of all bare models of transformers that read texts."""
    bare = set(modeling_auto.MODEL_MAPPING_NAMES) | set(modeling_auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES)
    heads = {name for head in TEXT_HEADS for name in getattr(modeling_auto, f"MODEL_FOR_{head}_MAPPING_NAMES")}
    return sorted(name for name in bare if name in heads or "text" in name)


def tiny(kind: str) -> Any:
    """Return a tiny model of an architecture that runs, or the first that is built if none runs on texts alone.

    None where none of the tries gives one.
    """
    built = None
    for changes in (OWN.get(kind, {}), *TRIES):
        with contextlib.suppress(Exception):
            config = tiny_config(kind, changes)
            config.use_cache = False
            with torch.device("meta"):
                if sum(p.numel() for p in factory(config).from_config(config).parameters()) > PARAMETERS:
                    continue
            torch.manual_seed(0)
            model = factory(config).from_config(config).float().eval()
            built = built or model
            with torch.no_grad():
                for parameter in model.parameters():  # so large that every block, bias and norm shows
                    parameter.add_(0.1 * torch.randn(parameter.shape))
                ids = torch.tensor([[2, *range(5, 14), 3]])
                if torch.isfinite(model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state).all():
                    return model
    return built


def tiny_config(kind: str, changes: dict[str, Any]) -> PreTrainedConfig:
    """Return the configuration of an architecture with small numbers in place of its own."""
    return AutoConfig.for_model(kind, **small(AutoConfig.for_model(kind), changes))


def small(default: PreTrainedConfig, changes: dict[str, Any]) -> dict[str, Any]:
    """Return what makes a configuration small, and the configurations that it is made of."""
    own = {name: value for name, value in vars(default).items() if type(value) in (int, type(None))}
    own.update({alias: getattr(default, alias, None) for alias in default.attribute_map})
    sizes = {name: size for name in own for pattern, size in SIZES[::-1] if re.fullmatch(pattern, name)}
    settings: dict[str, Any] = {
        name: size for name, size in sizes.items() if own[name] is not None or "token_id" in name or "vocab" in name
    }
    parts = {name: getattr(default, name, None) for name in default.sub_configs}
    # Of another depth: blocks are told from those of parts by how many there are.
    shallow = {"num_hidden_layers": N_BLOCKS - 1}
    settings.update({name: small(part, shallow) for name, part in parts.items() if isinstance(part, PreTrainedConfig)})
    settings.update({name: value for name, value in changes.items() if hasattr(default, name)})
    return settings


def factory(config: PreTrainedConfig) -> Any:
    """Return the auto class of the bare model: of an encoder-decoder, its encoder."""
    encoder = modeling_auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES.get(config.model_type)
    whole = modeling_auto.MODEL_MAPPING_NAMES.get(config.model_type)
    return AutoModelForTextEncoding if encoder not in (None, whole) else AutoModel


# ---- the oracle ------------------------------------------------------------------------------------------


@torch.inference_mode()
def oracle(model: Any, ids: Tensor) -> list[Tensor] | None:
    """Return what the model outputs with only its first 0, 1, .. blocks, (token, feature); None where there is no way.

    The other blocks pass on what they read, in the form in which they gave it before. Where that is not possible, a
    configuration with fewer blocks is loaded with the weights that fit.
    """
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with contextlib.suppress(Exception):
        blocks = blocks_of(model, batch)
        states = []
        for layer in range(N_BLOCKS + 1):
            with skipping(blocks, layer):
                states.append(model(**batch).last_hidden_state[0])
        return states
    with contextlib.suppress(Exception):
        states = []
        for layer in range(N_BLOCKS + 1):
            config = copy.deepcopy(model.config)
            config.num_hidden_layers = layer
            shorter = factory(config).from_config(config).eval()
            shorter.load_state_dict(model.state_dict(), strict=False)
            states.append(shorter(**batch).last_hidden_state[0])
        return states
    return None


@torch.inference_mode()
def hidden(model: Any, ids: Tensor) -> list[Tensor] | None:
    """Return what each block reads in the whole model, and what the model outputs, (token, feature).

    If these differ in width, as with a projection at the end, it is what the model outputs without later blocks.
    """
    batch, states = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, []

    def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        states.append(args[0] if args else kwargs["hidden_states"])

    with contextlib.ExitStack() as hooks:
        for block in set(blocks_of(model, batch)):
            hooks.enter_context(block.register_forward_pre_hook(keep, with_kwargs=True))
        last = model(**batch).last_hidden_state
    rows = [state.squeeze(1 if state.shape[1] == 1 else 0)[: ids.shape[1]] for state in states]
    return oracle(model, ids) if rows[0].shape != last[0].shape else [*rows, last[0]]


def blocks_of(model: nn.Module, batch: dict[str, Tensor]) -> nn.ModuleList:
    """Return the only outermost list of modules that run once for each of the blocks."""
    counts: collections.Counter[str] = collections.Counter()
    lists = {name: m for name, m in model.named_modules() if isinstance(m, nn.ModuleList)}
    with contextlib.ExitStack() as hooks:
        for name, blocks in lists.items():
            for block in set(blocks):
                hooks.enter_context(block.register_forward_hook(lambda *_, name=name: counts.update([name])))
        model(**batch)
    fitting = [name for name, count in counts.items() if count == N_BLOCKS]
    (name,) = (name for name in fitting if not any(name.startswith(f"{other}.") for other in fitting))
    return lists[name]


@contextlib.contextmanager
def skipping(blocks: nn.ModuleList, layer: int) -> Iterator[None]:
    """Let all calls of the blocks but the first `layer` give what they read."""
    number = 0

    def skip(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        nonlocal number
        number += 1
        if number <= layer:
            return output
        read = args[0] if args else kwargs["hidden_states"]
        if isinstance(output, tuple):
            return (read, *output[1:])
        return read

    hooks = [block.register_forward_hook(skip, with_kwargs=True) for block in set(blocks)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


# ---- one architecture ------------------------------------------------------------------------------------


def attack_one(kind: str) -> tuple[str, str]:
    """Return the outcome for one architecture and its detail."""
    try:
        check_supported(AutoConfig.for_model(kind))
    except UnsupportedArchitectureError as error:  # by its configuration, before anything is built
        return "refused", str(error)
    except ValueError:  # transformers lists a class that it does not have
        return "not built", ""
    model = tiny(kind)
    if model is None:
        return "not built", ""
    tokenizer = tiny_tokenizer()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)  # some architectures have a class of their own
        model = factory(model.config).from_pretrained(folder, dtype=torch.float32).eval()
        if is_read_as_part(model.config):
            model = model.get_encoder()
        ids = [tokenizer(text, return_tensors="pt")["input_ids"] for text in TEXTS]
        expected = [oracle(model, text) for text in ids]
        options = Model(device="cpu", cache_dir=Path(place) / "store", pooling="mean")  # as the oracle's
        os.environ["LAYERPROBE_CACHE"] = str(Path(place) / "store")
        refusals, wrong, read = [], [], ""
        for stage in (check_check, check_extract, check_export):
            try:
                if stage is check_extract and (read := first_use(resolve(given(str(folder), options)), cut=False)[1]):
                    expected = [hidden(model, text) for text in ids]
                wrong += stage(folder, expected, options)
            except LayerProbeError as error:
                refusals.append(f"{stage.__name__.removeprefix('check_')}: {error}")
                if "\n" in str(error):
                    wrong.append(f"an error of several lines: {error!r}")
    if wrong:
        return "silent", "; ".join(wrong)
    if read and len(refusals) == 1 and refusals[0].startswith("export"):
        return "read", refusals[0]
    if refusals:
        return "refused", " | ".join(refusals)
    return "survived", "" if expected[0] else "no oracle"


def check_check(folder: Path, expected: list[list[Tensor] | None], options: Model) -> list[str]:
    """Run the check, without its search for a backend, which takes a minute; a model that fails is refused."""
    encoder = load_encoder(str(folder), device=options.device)
    diagnosis = examine(as_read(encoder, look(encoder)))
    failed = [f"{check.name}: {check.finding}" for check in diagnosis.checks if not check.passed and not check.warning]
    if failed:
        raise LayerProbeError("; ".join(failed))
    return []


def check_extract(folder: Path, expected: list[list[Tensor] | None], options: Model) -> list[str]:
    """Compare the embeddings of all layers with the oracle's."""
    embeddings = extract(given(str(folder), options), TEXTS)
    if expected[0] is not None and embeddings.n_layers != len(expected[0]):
        return [f"{embeddings.n_layers} layers"]
    return [
        f"layer {layer} differs by {error:.1e}"
        for layer in range(embeddings.n_layers)
        if (error := difference(embeddings.layer(layer), layer, expected)) > TOLERANCE
    ]


def check_export(folder: Path, expected: list[list[Tensor] | None], options: Model) -> list[str]:
    """Compare an exported layer, as transformers loads it, with the oracle's."""
    out = folder.parent / "exported"
    export_model(str(folder), out, layer=EXPORTED)
    config = AutoConfig.from_pretrained(out)
    model, tokenizer = (
        factory(config).from_pretrained(out, dtype=torch.float32).eval(),
        AutoTokenizer.from_pretrained(out),
    )
    with torch.inference_mode():
        batches = [tokenizer(text, return_tensors="pt") for text in TEXTS]
        inputs = [{name: batch[name] for name in ("input_ids", "attention_mask")} for batch in batches]
        found = torch.stack([model(**batch).last_hidden_state[0].mean(dim=0) for batch in inputs]).numpy()
    error = difference(found, EXPORTED, expected)
    return [f"exported layer {EXPORTED} differs by {error:.1e}"] if error > TOLERANCE else []


def difference(found: Any, layer: int, expected: list[list[Tensor] | None]) -> float:
    """Return the largest difference of a feature as a share of the largest; 0 where there is no oracle."""
    if expected[0] is None:
        return 0.0
    means = torch.stack([states[layer].mean(dim=0) for states in expected if states is not None]).numpy()
    if means.shape != found.shape:
        return float("inf")
    return float(abs(means - found).max() / max(abs(means).max(), 1.0))


# ---- all of them -----------------------------------------------------------------------------------------


def attack(only: list[str] | None = None) -> Iterator[tuple[str, Outcome]]:
    """Yield every architecture and what became of it; each has a process of its own, with a limit of time."""
    for kind in only or architectures():
        start = time.perf_counter()
        result, detail = in_child(kind)
        yield kind, Outcome(result=result, detail=detail, seconds=time.perf_counter() - start)  # type: ignore[arg-type]


def in_child(kind: str) -> tuple[str, str]:
    """Return what `attack_one` does, from a forked process: libraries are loaded once."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        try:
            found = attack_one(kind)
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            found = (
                "traceback",
                f"{type(error).__name__}: {str(error)[:300]!r} ({Path(where.filename).name}:{where.lineno})",
            )
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(found, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(data) if data else ("traceback", f"ended, or took more than {SECONDS} s")  # noqa: S301


def write_csv(file: Path, outcomes: dict[str, Outcome]) -> None:
    """Write a row for each architecture: right at every layer, refused and why, or not built."""
    with file.open("w", newline="", encoding="utf-8") as out:
        table = csv.writer(out, lineterminator="\n")
        table.writerow(["architecture", "outcome", "reason"])
        for kind, outcome in sorted(outcomes.items()):
            result = {"survived": "right at every layer", "read": "read, not cut"}.get(outcome.result, outcome.result)
            table.writerow([kind, result, reason(outcome) if outcome.result in ("read", "refused") else ""])


def reason(outcome: Outcome) -> str:
    """Return why an architecture was refused, without what is of this model alone."""
    check, _, others = outcome.detail.removeprefix("check: ").partition(" | extract: ")
    text = others.split(" | ")[0] if check.startswith("truncation: ") else check
    text = re.sub(
        r".* cannot be truncated layer by layer: |; (expected an encoder|extract, score|take another),? .*", "", text
    )
    text = re.sub(r"(a forward pass|a model of \d+ blocks) of \S+ ", r"\1 ", text)
    text = re.sub(r"the image processor of \S+ cannot be loaded: .*", "it needs an image processor", text)
    text = re.sub(r" \([^)]*\)|, such as .*|: use one of them alone", "", text)
    return re.sub(r"\d+(x\d+)*", "n", text)


def main() -> int:
    """Print what became of all architectures; return how many were silent or ended in a traceback."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these alone")
    parser.add_argument("--all", action="store_true", help="print every architecture, not only those that are bad")
    parser.add_argument(
        "--csv", type=Path, metavar="FILE", help="write a row for each, as research/data/architectures.csv"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    counts: collections.Counter[str] = collections.Counter()
    start = time.perf_counter()
    outcomes: dict[str, Outcome] = {}
    for kind, outcome in attack(options.only):
        outcomes[kind] = outcome
        counts[outcome.result] += 1
        if options.all or options.only or outcome.result in ("silent", "traceback"):
            print(f"{kind:24} {outcome.result:10} {outcome.seconds:5.1f} s  {outcome.detail}", flush=True)
    if options.csv:
        write_csv(options.csv, outcomes)
    print(f"\ntransformers {transformers.__version__}, {time.perf_counter() - start:.0f} s")
    for result in ("survived", "read", "refused", "silent", "traceback", "not built"):
        print(f"{result:10} {counts[result]:4}")
    return counts["silent"] + counts["traceback"]


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
