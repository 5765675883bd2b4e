"""A pretrained encoder as a folder: a checkpoint, its tokenizer, its generator, a card and the numbers.

Knows folders and models; knows nothing of how they were trained.
"""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import ModelCardData

from layerprobe.folders import folder_errors, new_folder
from layerprobe.pretraining.models import GENERATOR, save_models
from layerprobe.pretraining.training import Run
from layerprobe.pretraining.values import Pretraining
from layerprobe.serialisation import to_bytes, to_dict
from layerprobe.training.folder import as_block
from layerprobe.training.folder import check_target as check_folder
from layerprobe.training.values import Measured
from layerprobe.training.workplace import Workplace
from layerprobe.versions import __version__

RESULT = "pretraining.json"
WHAT = "pretrained model"

ABOUT = {
    "mlm": "It was trained to fill in masked tokens (BERT).",
    "rtd": "It was trained to tell which tokens are not the original but samples of a small generator (ELECTRA).",
    "electra-15": "It was trained as ELECTRA, with the discriminator's loss at the masked positions alone.",
    "replace-mlm": "It was trained to fill in masked tokens in whose place it read samples of a small generator.",
    "all-tokens-mlm": "It was trained to predict every token, with a copy mechanism, from a text in which masked "
    "tokens are samples of a small generator.",
    "random": "It was not trained: its weights are random.",
}


def check_target(out: Path, *, overwrite: bool) -> tuple[Path, Pretraining | None]:
    """Return the real path of a folder that may be written, and what was pretrained there.

    Raises:
        DataError: If there is something else, or a file.
    """
    return check_folder(out, Pretraining, record=RESULT, what=WHAT, overwrite=overwrite)


def workplace_for(target: Path) -> Workplace:
    """Return where a run that will become the folder is kept until it is finished."""
    return Workplace(target, suffix=".pretraining", doing="pretrains a model")


def write_pretrained(run: Run, target: Path, pretraining: Pretraining, *, overwrite: bool) -> None:
    """Write the models with their tokenizer, a card and the numbers: whole or not at all.

    Raises:
        StoreError: If the folder cannot be written.
    """
    advice = f"choose another place for the {WHAT}"
    with folder_errors(target, advice=advice), new_folder(target, replace=overwrite) as folder:
        save_models(run.objective, run.encoder, run.tokenizer, folder)
        (folder / RESULT).write_bytes(to_bytes(pretraining))
        (folder / "README.md").write_bytes(card(pretraining).encode("utf-8", "backslashreplace"))


def card(pretraining: Pretraining) -> str:
    """Return the model card: YAML front matter and Markdown."""
    protocol = pretraining.protocol
    data = ModelCardData(library_name="transformers", tags=["feature-extraction", "layerprobe", protocol.objective])
    settings = {key: value for key, value in to_dict(protocol).items() if key not in ("size", "objective")}
    about = {
        "objective": protocol.objective,
        **{key.replace("_", " "): str(value) for key, value in to_dict(protocol.size).items()},
        "parameters": f"{pretraining.encoder_parameters:,} of the encoder",
        "texts": f"{pretraining.corpus}: {pretraining.n_texts:,} sequences, {pretraining.n_held_out:,} held out",
        "tokens seen": f"{pretraining.n_tokens:,}",
        "words": f"{pretraining.vocab_size:,}",
        "computed on": pretraining.computed_on,
        "seed": str(pretraining.seed),
        **{key.replace("_", " "): str(value) for key, value in settings.items()},
    }
    parts = [
        f"---\n{data.to_yaml()}\n---",
        "# A small encoder for experiments",
        f"{ABOUT[protocol.objective]} `AutoModel` loads it, and layerprobe takes it as a model or a reference.",
        as_block(f"{key:<21} {value}" for key, value in about.items()),
    ]
    if protocol.has_generator:
        parts.append(f"`{GENERATOR}/` holds the generator; its embeddings are those of the encoder.")
    if pretraining.metrics:
        parts += ["Measured on sequences that were held out:", as_block(_aligned(measured_table(pretraining.metrics)))]
    parts.append(f"Written by layerprobe {__version__}; all numbers are in `{RESULT}`.")
    return "\n\n".join(parts) + "\n"


def measured_table(metrics: tuple[Measured, ...]) -> list[list[str]]:
    """Return what was measured as cells: the names, then a row a measurement; nothing where a rate counts nothing."""
    names = list(metrics[-1].held_out)
    rows = [[str(each.step), *(_shown(each.held_out.get(name)) for name in names)] for each in metrics]
    return [["step", *(name.replace("_", " ") for name in names)], *rows]


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
