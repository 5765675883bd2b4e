"""Embeddings from memory and from every kind of file are the same layers; what is no embedding is one line."""

import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

import layerprobe as lp
from layerprobe.comparison.arrays import as_layers
from layerprobe.comparison.compare import compare
from layerprobe.errors import DataError, MisalignedSamplesError
from layerprobe.similarity.maps import layer_similarity
from layerprobe.similarity.measures import Procrustes
from layerprobe.similarity.values import MEASURES

RNG = np.random.default_rng(0)
E = RNG.standard_normal((23, 12, 5)).astype(np.float32)


def test_numbers_of_layers_are_kept(tmp_path: Path) -> None:
    named = {f"layer_{number}": E[:, number] for number in (0, 6, 11)}
    np.savez(tmp_path / "e.npz", y=np.arange(23), **dict(reversed(named.items())))
    (tmp_path / "folder").mkdir()
    for name, values in named.items():
        np.save(tmp_path / "folder" / f"{name}.npy", values)
    for given in (named, *(tmp_path / name for name in ("e.npz", "folder"))):
        layers = as_layers(given)
        assert [(layer.name, layer.number) for layer in layers] == [(f"layer {n}", n) for n in (0, 6, 11)]
        np.testing.assert_array_equal(layers[2].rows(slice(None)), E[:, 11])
    assert [layer.name for layer in as_layers({"late": E[:, 9], "early": E[:, 0]})] == ["late", "early"]


def test_arrays_are_compared_samples_first() -> None:
    values = compare(E, E, measure=Procrustes()).values
    assert np.shape(values) == (12, 12)
    assert (
        values
        == compare([E[:, i] for i in range(12)], {f"l{i}": E[:, i] for i in range(12)}, measure=Procrustes()).values
    )
    turned = np.swapaxes(E, 0, 1)
    with pytest.raises(DataError, match=r"expected \(samples, layers, features\), got .* pass list\(array\)"):
        compare(turned, E)
    assert compare(list(turned), E, measure=Procrustes()).values == values


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MEASURES)
def test_every_measure_takes_tensors_of_any_precision_with_gradients(name: str, dtype: torch.dtype) -> None:
    tensor = torch.tensor(E[:, :2], dtype=dtype, requires_grad=True)
    measure = MEASURES[name]()
    rounded = tensor.detach().float().numpy()
    expected = compare(rounded, rounded, measure=measure, intervals=False).values
    assert compare(tensor, tensor, measure=measure, intervals=False).values == expected
    assert np.isfinite(layer_similarity(tensor[:, 0], tensor[:, 1], measure)) if name != "cka" else True


def test_frames_are_rows(tmp_path: Path) -> None:
    """`frame[rows]` would be columns."""
    rows = np.array([3, 0, 7])
    for given in (pd.DataFrame(E[:, 0]), [pd.DataFrame(E[:, 0])]):
        (layer,) = as_layers(given)
        np.testing.assert_array_equal(layer.rows(rows), E[rows, 0])


def test_a_file_that_was_written_again_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "e.npz"
    for values in (E[:, 0], E[:, 1]):
        np.savez(path, layer=values)
        (layer,) = as_layers(path)
        np.testing.assert_array_equal(layer.rows(slice(0, 23)), values)


def test_bfloat16_is_read(tmp_path: Path) -> None:
    save_torch({"e": torch.tensor(E[:, 0]).bfloat16()}, tmp_path / "e.safetensors")
    (layer,) = as_layers(tmp_path / "e.safetensors")
    np.testing.assert_allclose(layer.rows(slice(0, 23)), E[:, 0], rtol=2**-8)


def write(folder: Path, kind: str) -> Path:
    each = {f"layer_{number}": E[:, number].copy() for number in range(E.shape[1])}
    path = folder / f"embeddings.{kind.partition(' ')[0]}"
    if kind == "npy":
        np.save(path, E)
    elif kind == "npz":
        np.savez(path, embeddings=E)
    elif kind == "npz by layer":
        np.savez(path, allow_pickle=True, **each)
    elif kind == "safetensors":
        save_file({"embeddings": E}, path)
    elif kind == "safetensors by layer":
        save_file(each, path)
    else:
        for name, values in each.items():
            np.save(folder / f"{name}.npy", values)
        return folder
    return path


@pytest.mark.parametrize("kind", ["npy", "npz", "npz by layer", "safetensors", "safetensors by layer", "folder"])
def test_every_file_gives_the_same_layers(tmp_path: Path, kind: str) -> None:
    layers = as_layers(write(tmp_path, kind))
    assert [layer.name for layer in layers] == [f"layer {number}" for number in range(12)]
    chosen = np.array([22, 3, 3, 8])
    for number, layer in enumerate(layers):
        assert layer.shape == (23, 5)
        np.testing.assert_array_equal(layer.rows(slice(5, 16)), E[5:16, number])
        np.testing.assert_array_equal(layer.rows(chosen), E[chosen, number])
        np.testing.assert_array_equal(np.concatenate([block for _, block in layer.blocks()]), E[:, number])


def test_a_file_is_mapped_and_not_read(tmp_path: Path) -> None:
    layers = as_layers(write(tmp_path, "npy"))
    base = layers[0].read(slice(0, 3))
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base  # type: ignore[assignment]
    assert isinstance(base, np.memmap)


def test_lists_may_have_layers_of_several_widths() -> None:
    layers = as_layers([E[:, 0], torch.from_numpy(E[:, 1, :3].copy()), E[:, 2].astype(np.float16)])
    assert [layer.shape for layer in layers] == [(23, 5), (23, 3), (23, 5)]
    np.testing.assert_array_equal(layers[1].rows(slice(None)), E[:, 1, :3])
    assert layers[2].rows(slice(0, 2)).dtype == np.float32


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "at least one layer, got none"),
        ([E[:, 0], E[:9, 1]], "layer 1 has 9 rows, expected the 23 of layer 0"),
        (E[:0], "at least one sample, got no rows"),
        (np.zeros((2, 2, 2, 2)), r"has shape \(2, 2, 2, 2\), expected \(samples, layers, features\)"),
        (3, "expected embeddings as an array, a list of arrays or a file, got a int"),
        ([E], r"layer 0 has shape \(23, 12, 5\), expected \(samples, features\)"),
        ("none.npy", "cannot read none.npy: No such file"),
        ("none.txt", "a file that ends in .npy, .npz, .safetensors, got none.txt"),
        ("none.parquet", "a file that ends in .npy, .npz, .safetensors, got none.parquet"),
    ],
)
def test_what_is_no_embedding_is_one_line(given: object, said: str) -> None:
    with pytest.raises(DataError, match=said):
        as_layers(given)
    if isinstance(given, list) and len(given) == 2:
        with pytest.raises(MisalignedSamplesError, match=said):
            as_layers(given)


@pytest.mark.parametrize("ending", ["npy", "npz", "safetensors"])
@pytest.mark.parametrize(("content", "said"), [(b"", "is empty"), (b"not what it is called", "is not a complete")])
def test_a_file_that_is_empty_or_damaged_is_one_line(tmp_path: Path, ending: str, content: bytes, said: str) -> None:
    path = tmp_path / f"embeddings.{ending}"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{ending} {said}"):
        as_layers(path)


def test_a_folder_has_one_layer_a_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"one file per layer in .*, got none"):
        as_layers(tmp_path)
    np.save(tmp_path / "all.npy", E)
    with pytest.raises(DataError, match="one layer per file in a folder, got 12"):
        as_layers(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(DataError, match="is the folder of a model: expected a task for it"):
        as_layers(tmp_path)


def test_text_is_no_embedding(tmp_path: Path) -> None:
    layer = as_layers([np.array([["a", "b"]])])[0]
    with pytest.raises(DataError, match="expected real numbers"):
        layer.rows(slice(None))
    np.save(tmp_path / "objects.npy", np.array([{}, {}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="is not a complete array of numbers"):
        as_layers(tmp_path / "objects.npy")


@pytest.mark.parametrize("member", [b"", b"no array", b"\x93NUMPY\x01\x00"])
@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_archives_that_hold_no_arrays_are_refused(tmp_path: Path, member: bytes, suffix: str) -> None:
    path = tmp_path / f"layers.{suffix}"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("layer_0.npy", member)
    for read in (lambda: lp.probe(path, [0.0] * 9), lambda: lp.probe(np.zeros((9, 2, 3)), path)):
        with pytest.raises(DataError):
            read()
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(DataError, match="is not a complete array"):
        lp.probe(path, [0.0] * 9)
