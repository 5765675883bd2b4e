"""An adapted encoder as a folder: an ordinary checkpoint, its tokenizer, a card and the numbers."""

from pathlib import Path

from layerprobe.encoders.encoder import Encoder, save_checkpoint
from layerprobe.encoders.loading import quiet_transformers
from layerprobe.files.serialisation import to_dict
from layerprobe.lab.adaptation.values import Adaptation
from layerprobe.names import short_name
from layerprobe.training.folder import ModelFolder, as_block, model_card
from layerprobe.versions import __version__


def card(adaptation: Adaptation) -> str:
    """Return the model card."""
    model = adaptation.model
    on_hub = not model.revision.startswith("sha256:") and model.random_init is None
    name = short_name(model.name)
    about = {
        "model": f"{model.name if on_hub else name} ({model.architecture}), revision {model.revision}",
        "texts": f"{adaptation.n_texts:,} to train on, {adaptation.n_held_out:,} held out",
        "steps": f"{adaptation.steps:,} on {adaptation.computed_on}",
        "head": f"{adaptation.head}; not in this folder, which holds the encoder alone",
        "seed": str(adaptation.seed),
        **{key.replace("_", " "): str(value) for key, value in to_dict(adaptation.protocol).items()},
    }
    return model_card(
        ("masked-language-modelling", "domain-adaptation"),
        "# An encoder adapted to a domain",
        "The model below after continued masked-language-model pretraining on other texts; loaded as that model is.",
        as_block(f"{key:<17} {value}" for key, value in about.items()),
        "Masked tokens of texts that were held out, before, during and after:",
        as_block(adaptation.table.text().splitlines()),
        f"Written by layerprobe {__version__}.",
        # a local folder is no model that anyone else could look up
        base_model=model.name.partition("@")[0] if on_hub else None,
    )


def save_encoder(encoder: Encoder, folder: Path) -> None:
    """Write configuration, weights and tokenizer to an existing folder."""
    with quiet_transformers():
        save_checkpoint(encoder.model, encoder.tokenizer_to_save(), folder, name=encoder.description.name)


FOLDER = ModelFolder(
    kind=Adaptation,
    record="adaptation.json",
    card=card,
    what="adapted model",
    suffix=".adapting",
    doing="adapts a model",
    differs="was adapted from another one, to other texts or with other settings",
)
