"""Digits as image files and tiny vision models, made on the spot."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from transformers import (
    AutoConfig,
    AutoModel,
    CLIPConfig,
    CLIPModel,
    PreTrainedConfig,
    PreTrainedModel,
    SiglipConfig,
    SiglipModel,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from layerprobe.files.images import ImageItem
from tests.models import HIDDEN, N_BLOCKS, VOCABULARY, tiny_tokenizer

SIDE, PATCH = 8, 4
SIZES: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": N_BLOCKS,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": SIDE,
    "patch_size": PATCH,
}
# name -> Hugging Face's model type, its configuration, and the tokens that are no patch
VISION: dict[str, tuple[str, dict[str, Any], int]] = {
    "vit": ("vit", SIZES, 1),
    "deit": ("deit", SIZES, 2),
    "dinov2": ("dinov2", SIZES, 1),
    "dinov2-registers": ("dinov2_with_registers", {**SIZES, "num_register_tokens": 2}, 3),
    "dinov3": ("dinov3_vit", {**SIZES, "num_register_tokens": 2}, 3),
    "beit": ("beit", SIZES, 1),
    "beit-layernorm": ("beit", {**SIZES, "use_mean_pooling": False}, 1),
    "clip": ("clip_vision_model", SIZES, 1),
    "siglip": ("siglip_vision_model", SIZES, 0),
}


def digits(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first `n` digits of scikit-learn, (image, row, column) of 0 .. 255, and what they are."""
    data = load_digits()
    return (data.images[:n] * 255 / 16).round().astype(np.uint8), data.target[:n]


def item_of(file: Path) -> ImageItem:
    """Return the item of an image file."""
    return ImageItem(hashlib.sha256(file.read_bytes()).hexdigest(), place=str(file), file=file)


def digit_folder(folder: Path, n: int = 40, *, classes: Sequence[int] = range(10), first: int = 0) -> Path:
    """Write digits from a first one on as PNG files, in a folder for each class as torchvision's ImageFolder has it."""
    for number, (image, digit) in enumerate(zip(*digits(1797), strict=True)):
        if digit in classes and number >= first and n > 0:
            (folder / str(digit)).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / str(digit) / f"{number:04d}.png")
            n -= 1
    return folder


def processor(side: int = SIDE) -> Any:
    """Return a processor that resizes to `side` pixels."""
    return ViTImageProcessorPil(size={"height": side, "width": side})


def build_vision(name: str, *, seed: int = 0) -> PreTrainedModel:
    """Return a tiny vision model with random weights."""
    model_type, settings, _ = VISION[name]
    config: PreTrainedConfig = AutoConfig.for_model(model_type, **settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModel.from_config(config)
        return _spread(model)  # type: ignore[no-any-return]


def save_vision(name: str, folder: Path, *, seed: int = 0) -> Path:
    """Save a tiny vision model with its processor."""
    build_vision(name, seed=seed).save_pretrained(folder)
    processor().save_pretrained(folder)
    return folder


def save_towers(kind: str, folder: Path, *, seed: int = 0) -> Path:
    """Save a tiny CLIP or SigLIP, both towers, with tokenizer and processor."""
    text = {
        "vocab_size": len(VOCABULARY),
        "hidden_size": HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
    }
    config_class, model_class = {"clip": (CLIPConfig, CLIPModel), "siglip": (SiglipConfig, SiglipModel)}[kind]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _spread(model_class(config_class(text_config=text, vision_config=SIZES)))
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    crop = {"height": SIDE, "width": SIDE}
    CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=crop).save_pretrained(folder)
    return folder


def _spread(model: Any) -> Any:
    """Make weights so large that every block, bias and norm shows."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    return model.eval()
