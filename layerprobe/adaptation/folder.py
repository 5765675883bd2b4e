"""An adapted encoder as a folder: an ordinary checkpoint, its tokenizer, a card and the numbers.

Knows folders and encoders; knows nothing of how one was trained.
"""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import ModelCardData

from layerprobe.adaptation.values import Adaptation
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.saving import save_encoder
from layerprobe.folders import folder_errors, new_folder
from layerprobe.names import short_name
from layerprobe.serialisation import to_bytes, to_dict
from layerprobe.training.folder import as_block
from layerprobe.training.folder import check_target as check_folder
from layerprobe.training.workplace import Workplace
from layerprobe.versions import __version__

RESULT = "adaptation.json"
_ADVICE = "choose another place for the adapted model"


def check_target(out: Path, *, overwrite: bool, source: Path | None = None) -> tuple[Path, Adaptation | None]:
    """Return the real path of a folder that may be written, and the adapted model that is there.

    Args:
        out: The folder.
        overwrite: Whether an adapted model there may be replaced; nothing else ever is.
        source: A local model that must not be replaced by what becomes of it.

    Raises:
        DataError: If there is something else, or a file.
    """
    return check_folder(out, Adaptation, record=RESULT, what="adapted model", overwrite=overwrite, source=source)


def workplace_for(target: Path) -> Workplace:
    """Return where a run that will become the folder is kept until it is finished."""
    return Workplace(target, suffix=".adapting", doing="adapts a model")


def write_adapted(encoder: Encoder, target: Path, adaptation: Adaptation, *, overwrite: bool) -> None:
    """Write the encoder with its tokenizer, a card and the numbers: whole or not at all.

    Raises:
        StoreError: If the folder cannot be written.
    """
    with folder_errors(target, advice=_ADVICE), new_folder(target, replace=overwrite) as folder:
        save_encoder(encoder, folder)
        (folder / RESULT).write_bytes(to_bytes(adaptation))
        (folder / "README.md").write_bytes(card(adaptation).encode("utf-8", "backslashreplace"))


def card(adaptation: Adaptation) -> str:
    """Return the model card: YAML front matter and Markdown."""
    model = adaptation.model
    on_hub = not model.revision.startswith("sha256:") and model.random_init is None
    data = ModelCardData(
        library_name="transformers",
        tags=["feature-extraction", "layerprobe", "masked-language-modelling", "domain-adaptation"],
        # a local folder is no model that anyone else could look up
        base_model=model.name.partition("@")[0] if on_hub else None,
    )
    name = short_name(model.name)
    about = {
        "model": f"{model.name if on_hub else name} ({model.architecture}), revision {model.revision}",
        "texts": f"{adaptation.n_texts:,} to train on, {adaptation.n_held_out:,} held out",
        "steps": f"{adaptation.steps:,} on {adaptation.computed_on}",
        "head": f"{adaptation.head}; not in this folder, which holds the encoder alone",
        "seed": str(adaptation.seed),
        **{key.replace("_", " "): str(value) for key, value in to_dict(adaptation.protocol).items()},
    }
    measured = [("step", "held-out loss", "accuracy")] + [
        (str(each.step), f"{each.held_out_loss:.4f}", f"{each.held_out_accuracy:.4f}") for each in adaptation.metrics
    ]
    parts = (
        f"---\n{data.to_yaml()}\n---",
        "# An encoder adapted to a domain",
        "The model below went on with masked language modelling on other texts. It is loaded as the model was.",
        as_block(f"{key:<17} {value}" for key, value in about.items()),
        "Masked tokens of texts that were held out, before, during and after:",
        as_block("  ".join(cell.rjust(13) for cell in line) for line in measured),
        f"Written by layerprobe {__version__}.",
    )
    return "\n\n".join(parts) + "\n"
