"""Image encoders: pixels, tokens, layers and their truncations, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel

from layerprobe.encoders.batching import PreparedImages, collate, pool
from layerprobe.encoders.encoder import TruncatedEncoder
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError, ModelError, UnsupportedArchitectureError
from layerprobe.extraction.check import examine
from layerprobe.files.images import ImageItem
from tests.images import (
    PATCH,
    SIDE,
    SIZES,
    VISION,
    build_vision,
    digit_folder,
    item_of,
    processor,
    save_towers,
    save_vision,
)
from tests.models import N_BLOCKS, TEXTS, save_tiny

N_PATCHES = (SIDE // PATCH) ** 2


def items(folder: Path, n: int = 6) -> tuple[ImageItem, ...]:
    return tuple(map(item_of, sorted(digit_folder(folder, n).rglob("*.png"))))


@pytest.mark.parametrize("name", VISION)
def test_layers_of_an_image_encoder_are_those_of_its_truncations(name: str, tmp_path: Path) -> None:
    encoder = load_encoder((build_vision(name), processor()), device="cpu")
    prepared = encoder.tokenize(items(tmp_path))
    assert isinstance(prepared, PreparedImages)
    assert encoder.reader is not None
    extra = VISION[name][2]
    assert (encoder.reader.n_tokens, encoder.reader.n_extra) == (N_PATCHES + extra, extra)
    assert encoder.padding_invariant
    batch = collate(prepared, [0, 3])
    with torch.inference_mode():
        states = list(encoder.layer_states(batch))
        for layer, state in enumerate(states):
            torch.testing.assert_close(TruncatedEncoder(encoder, layer)(batch), state, rtol=1e-5, atol=1e-5)
        handed = encoder.model(pixel_values=batch["pixel_values"]).last_hidden_state
    torch.testing.assert_close(states[-1], handed)
    assert len(states) == N_BLOCKS + 1
    diagnosis = examine(encoder)
    assert diagnosis.healthy
    assert diagnosis.model.norm == ("none" if name in ("beit", "clip") else "final")


def test_pooling_leaves_what_is_no_patch_out_of_the_mean(tmp_path: Path) -> None:
    encoder = load_encoder((build_vision("deit"), processor()), device="cpu")
    batch = collate(encoder.tokenize(items(tmp_path)), [1, 2, 3])
    with torch.inference_mode():
        states = list(encoder.layer_states(batch))[-1]
    mask = batch["attention_mask"]
    np.testing.assert_allclose(pool(states, mask, "mean"), states[:, 2:].mean(dim=1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(pool(states, mask, "max"), states[:, 2:].amax(dim=1))
    np.testing.assert_allclose(pool(states, mask, "cls"), states[:, 0])
    with pytest.raises(DataError, match="an image has no last token"):
        encoder.check_pooling("last")
    alone = load_encoder((build_vision("siglip"), processor()), device="cpu")
    with pytest.raises(DataError, match=r"pooling by mean or max, got cls: .* has no \[CLS\]"):
        alone.check_pooling("cls")


def test_pixels_are_the_processors_and_kept_from_the_second_time_on(tmp_path: Path) -> None:
    encoder = load_encoder((build_vision("vit"), processor()), device="cpu")
    (item, *_) = items(tmp_path)
    assert encoder.reader is not None
    own = processor()(images=[item.read()], return_tensors="pt")["pixel_values"][0]
    for _ in range(3):
        torch.testing.assert_close(encoder.reader.pixels(item), own)
    assert item.file is not None
    item.file.unlink()
    torch.testing.assert_close(encoder.reader.pixels(item), own)  # from memory


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_a_model_of_two_towers_reads_texts_or_images(kind: str, tmp_path: Path) -> None:
    folder = str(save_towers(kind, tmp_path / kind))
    image = resolve(folder, items="image")
    assert (image.modality, image.config.model_type) == ("image", f"{kind}_vision_model")
    assert load_encoder(image, device="cpu").description.n_blocks == N_BLOCKS
    both = resolve(folder, items="captioned")
    assert both.modality == "image"
    if kind == "siglip":  # transformers has no text tower of it as a model of its own
        assert resolve(folder).modality == "image"
        with pytest.raises(DataError, match="reads images, got texts"):
            resolve(folder, items="text")
        return
    text = resolve(folder)
    assert text.modality == "text"
    assert text.identity != image.identity
    assert load_encoder(text, device="cpu").description.n_blocks == 2
    assert resolve(text, items="image").identity == image.identity
    named = resolve(f"{folder}:text", items="captioned")
    assert (named.modality, named.identity) == ("text", text.identity)
    assert named.label != both.label
    with pytest.raises(DataError, match="reads texts, got images"):
        resolve(named, items="image")


def test_the_image_tower_computes_what_the_whole_model_does(tmp_path: Path) -> None:
    folder = str(save_towers("clip", tmp_path / "clip"))
    encoder = load_encoder(resolve(folder, items="image"), device="cpu")
    batch = collate(encoder.tokenize(items(tmp_path / "digits")), [0, 1])
    whole = AutoModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        expected = whole.vision_model(pixel_values=batch["pixel_values"]).last_hidden_state
        torch.testing.assert_close(list(encoder.layer_states(batch))[-1], expected)


def test_models_and_items_that_do_not_fit(tmp_path: Path) -> None:
    vision, text = save_vision("vit", tmp_path / "vit"), save_tiny("bert", tmp_path / "bert")
    with pytest.raises(DataError, match="reads images, got texts: give images, or a text encoder"):
        resolve(str(vision), items="text")
    with pytest.raises(DataError, match="reads texts, got images: give texts, or an image encoder"):
        resolve(str(text), items="image")
    with pytest.raises(ModelError, match="has no separate image tower: use its name without :image"):
        resolve(f"{text}:image")
    with pytest.raises(DataError, match="reads images, got the text 'a': pass images"):
        load_encoder(str(vision), device="cpu").tokenize(TEXTS)
    with pytest.raises(DataError, match="expected texts, got images without captions"):
        load_encoder(str(text), device="cpu").tokenize(items(tmp_path / "digits"))
    (vision / "preprocessor_config.json").unlink()
    with pytest.raises(
        ModelError, match=r"the image processor of .* cannot be loaded: .* expected preprocessor_config"
    ):
        resolve(str(vision))


def test_weights_that_are_not_finite_are_told(tmp_path: Path) -> None:
    model = build_vision("vit")
    next(model.parameters()).data.fill_(float("nan"))
    with pytest.raises(ModelError, match="returns NaN or infinity for an image: check its weights"):
        load_encoder((model, processor()), device="cpu")


def test_a_model_that_hides_patches_at_random_is_refused() -> None:
    model = AutoModel.from_config(AutoConfig.for_model("vit_mae", **{**SIZES, "image_size": 32}))
    with pytest.raises(UnsupportedArchitectureError, match="two passes over one image differ"):
        load_encoder((model, processor(32)), device="cpu")


@pytest.mark.parametrize(
    ("model_type", "settings"),
    [
        ("swin", {"image_size": 16, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 2}),
        ("convnext", {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}),
    ],
)
def test_models_of_stages_are_refused(model_type: str, settings: dict[str, object], tmp_path: Path) -> None:
    model = AutoModel.from_config(AutoConfig.for_model(model_type, **settings))
    model.save_pretrained(tmp_path)
    processor().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedArchitectureError, match=r"its blocks form stages \(1, 1\) with different grids and"):
        resolve(Model(str(tmp_path)))
