"""Images through extraction, comparison, scores, fine-tuning and export."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoImageProcessor, AutoModel

from layerprobe.comparison.compare import compare
from layerprobe.encoders.model import Model
from layerprobe.export.run import export_model
from layerprobe.extraction.embeddings import extract
from layerprobe.files.images import ImageItem
from layerprobe.finetuning.tuning import finetune
from layerprobe.finetuning.values import Protocol
from layerprobe.similarity.measures import CKA
from layerprobe.tasks.loading import load_task, load_texts
from tests.images import digit_folder, item_of, save_towers, save_vision
from tests.models import N_BLOCKS, given, save_tiny


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_vision("vit", tmp_path_factory.mktemp("vit")))


def options(tmp_path: Path, **settings: object) -> Model:
    return Model(device="cpu", cache_dir=tmp_path / "cache", **settings)


def test_embeddings_are_those_of_the_model_by_hand(vit: str, tmp_path: Path) -> None:
    data = load_texts(digit_folder(tmp_path / "digits", 9))
    embedded = extract(given(vit, options(tmp_path)), data.texts)
    model, processor = AutoModel.from_pretrained(vit).eval(), AutoImageProcessor.from_pretrained(vit, backend="pil")
    images = [item.read() for item in data.texts if isinstance(item, ImageItem)]
    with torch.inference_mode():
        output = model(**processor(images=images, return_tensors="pt"), output_hidden_states=True)
        for layer, state in enumerate(output.hidden_states):
            expected = model.layernorm(state) if layer < N_BLOCKS else output.last_hidden_state
            np.testing.assert_allclose(embedded.layer(layer), expected[:, 1:].mean(dim=1), rtol=1e-4, atol=1e-5)
    again = extract(given(vit, options(tmp_path)), data.texts)
    assert again.fingerprint == embedded.fingerprint
    cls = extract(given(vit, options(tmp_path, pooling="cls")), data.texts)
    assert cls.first_layer == 1  # [CLS] is the same in all images before the first block


def test_an_image_encoder_against_a_text_encoder_on_captioned_images(vit: str, tmp_path: Path) -> None:
    folder = digit_folder(tmp_path / "digits", 20)
    files = sorted(folder.rglob("*.png"))
    rows = [
        f"{file.relative_to(folder)},number {'abcdefghij'[i % 10]} {'x' * (i // 10 + 1)}"
        for i, file in enumerate(files)
    ]
    (folder / "metadata.csv").write_text("\n".join(["file_name,text", *rows]))
    data, bert = load_texts(folder), str(save_tiny("bert", tmp_path / "bert"))
    images, texts = (extract(given(model, options(tmp_path)), data.texts) for model in (vit, bert))
    alone = extract(given(bert, options(tmp_path)), [row.partition(",")[2] for row in rows])
    np.testing.assert_array_equal(texts.layer(1), alone.layer(1))  # of the captions
    pictures = extract(given(vit, options(tmp_path)), [item_of(file) for file in files])
    np.testing.assert_allclose(images.layer(1), pictures.layer(1), rtol=1e-6)
    comparison = compare(images, texts, measure=CKA(), device="cpu")
    assert comparison.map.n_samples == 20
    towers = str(save_towers("clip", tmp_path / "clip"))
    both = [extract(given(f"{towers}{tower}", options(tmp_path)), data.texts) for tower in (":image", ":text", "")]
    assert len({embedded.fingerprint for embedded in both}) == 2
    assert both[0].fingerprint == both[2].fingerprint
    assert compare(both[0], both[1], measure=CKA(), device="cpu").map.n_samples == 20


def test_fine_tuning_and_export(vit: str, tmp_path: Path) -> None:
    task = load_task(str(digit_folder(tmp_path / "digits", 60, classes=(0, 1))))
    protocol = Protocol(epochs=3, learning_rate=3e-3, batch_size=8)
    (run,) = finetune(given(vit, options(tmp_path)), task, [1], seeds=[0], protocol=protocol, save_models=True).runs
    assert run.primary == "accuracy"
    assert run.test["accuracy"] > 80
    result = export_model(vit, tmp_path / "out", layer=1)
    assert result.difference <= 1e-5
    assert (tmp_path / "out" / "preprocessor_config.json").is_file()
    card = (tmp_path / "out" / "README.md").read_text()
    assert "embeddings = states[:, 1:].mean(dim=1)" in card
    assert "sentence" not in card
    export_model(vit, tmp_path / "out", layer=2, overwrite=True)
    shorter = AutoModel.from_pretrained(tmp_path / "out")
    assert shorter.config.num_hidden_layers == 2
