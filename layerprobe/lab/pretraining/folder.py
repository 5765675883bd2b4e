"""A pretrained encoder as a folder: a checkpoint, its tokenizer, its generator, a card and the numbers."""

from layerprobe.files.serialisation import to_dict
from layerprobe.lab.pretraining.models import GENERATOR
from layerprobe.lab.pretraining.objectives.registry import OBJECTIVES
from layerprobe.lab.pretraining.values import Pretraining
from layerprobe.training.folder import ModelFolder, as_block, model_card
from layerprobe.versions import __version__

RECORD = "pretraining.json"


def card(pretraining: Pretraining) -> str:
    """Return the model card."""
    protocol, objective = pretraining.protocol, OBJECTIVES[pretraining.protocol.objective]
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
        "# A small encoder for experiments",
        f"It was {objective.about}. `AutoModel` loads it, and layerprobe takes it as a model or a reference.",
        as_block(f"{key:<21} {value}" for key, value in about.items()),
    ]
    if objective.has_generator and objective.generator_kept:
        parts.append(f"`{GENERATOR}/` holds the generator; its embeddings are those of the encoder.")
    if pretraining.metrics:
        parts += ["Measured on sequences that were held out:", as_block(pretraining.table.text().splitlines())]
    parts.append(f"Written by layerprobe {__version__}; all numbers are in `{RECORD}`.")
    return model_card([protocol.objective], *parts)


FOLDER = ModelFolder(
    kind=Pretraining,
    record=RECORD,
    card=card,
    what="pretrained model",
    suffix=".pretraining",
    doing="pretrains a model",
    differs="was pretrained on other texts or with other settings",
)
