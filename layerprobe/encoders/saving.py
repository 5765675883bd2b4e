"""A loaded encoder -> the files of a checkpoint. Knows what transformers writes, not where the folder is to be."""

from pathlib import Path

from layerprobe.encoders.encoder import Encoder, save_checkpoint
from layerprobe.encoders.loading import quiet_transformers


def save_encoder(encoder: Encoder, folder: Path) -> None:
    """Write configuration, weights and tokenizer to a folder that is there.

    Raises:
        ModelError: If the code of the model or of its tokenizer fails.
        OSError: If they cannot be written; the libraries in Rust have exceptions of their own.
    """
    with quiet_transformers():
        save_checkpoint(encoder.model, encoder.tokenizer_to_save(), folder, name=encoder.description.name)
