"""Embeddings by other libraries than torch: equal at every layer, kept and made again, refused in one line."""

import dataclasses
import importlib.util
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock

from layerprobe.encoders import graphs as choice
from layerprobe.encoders import graphs as graph
from layerprobe.encoders.backends import BACKENDS
from layerprobe.encoders.batching import Batch
from layerprobe.encoders.device import LIBRARIES
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.graphs import BackendSurvey, Graph, PooledLayers, backend_graph, differences, survey
from layerprobe.encoders.identity import Resolved, resolve
from layerprobe.encoders.loading import load_encoder
from layerprobe.encoders.model import Model, Pooling
from layerprobe.encoders.timing import Speedup, speedup
from layerprobe.errors import DataError, ModelError
from layerprobe.extraction.embed import embed_layers
from layerprobe.extraction.embeddings import extract
from tests.few import few
from tests.models import ARCHITECTURES, TEXTS, given, save_tiny

ENGINES = BACKENDS.usable()


def needs(name: str) -> pytest.MarkDecorator:
    """Skip where a backend is not installed."""
    missing = any(importlib.util.find_spec(package) is None for package in ENGINES[name].packages)
    return pytest.mark.skipif(missing, reason=f"{name} is not installed")


NAMES = [pytest.param(name, marks=needs(name)) for name in ENGINES]
Loaded = Callable[[str], tuple[Resolved, Encoder]]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """A tiny checkpoint and its encoder by the architecture; read them, do not change them."""

    def load(name: str) -> tuple[Resolved, Encoder]:
        checkpoint = resolve(save_tiny(name, tmp_path_factory.mktemp(name)))
        return checkpoint, load_encoder(checkpoint, device="cpu")

    return cache(load)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that the tests share, since graphs are slow to make."""
    return tmp_path_factory.mktemp("store")


def options_of(store: Path, backend: str, **settings: object) -> Model:
    return dataclasses.replace(Model(device="cpu", cache_dir=store), backend=backend, **settings)


def graphs(store: Path) -> list[Path]:
    return sorted((store / "results" / "graphs").glob("*"))


# ---- equal to torch --------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", few(["right", "left"], lambda side: side == "left"))
@pytest.mark.parametrize(
    ("backend", "pooling"),
    [
        pytest.param("openvino", "mean", marks=needs("openvino")),
        pytest.param("onnx", "last", marks=(needs("onnx"), pytest.mark.slow)),
        *(pytest.param("openvino", how, marks=(needs("openvino"), pytest.mark.slow)) for how in ("cls", "max", "last")),
        pytest.param("onnx", "mean", marks=(needs("onnx"), pytest.mark.slow)),
    ],
)
def test_every_layer_is_that_of_torch(tiny: Loaded, store: Path, backend: str, pooling: Pooling, side: str) -> None:
    checkpoint, encoder = tiny("bert")
    graph = backend_graph(encoder, given(checkpoint, options_of(store, backend, pooling=pooling)))
    assert graph is not None
    assert graph.backend == backend
    tokens = dataclasses.replace(encoder.tokenize(TEXTS), padding_side=side)
    # padding on the left moves a text's positions in this model, so both have the same batches
    expected, found = (
        embed_layers(encoder, tokens, pooling=pooling, batch_tokens=40, graph=each) for each in (None, graph)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@needs("openvino")
def test_the_final_norm_is_left_out_where_torch_leaves_it_out(tiny: Loaded, store: Path) -> None:
    checkpoint, _ = tiny("llama")
    encoder = load_encoder(Model(checkpoint, device="cpu", norm="raw"))
    graph = backend_graph(encoder, given(checkpoint, options_of(store, "openvino", norm="raw")))
    tokens = encoder.tokenize(TEXTS)
    np.testing.assert_allclose(
        embed_layers(encoder, tokens, graph=graph), embed_layers(encoder, tokens), rtol=1e-4, atol=1e-5
    )


@pytest.mark.slow
@needs("openvino")
def test_padding_that_has_nothing_to_look_at_is_no_nan(tiny: Loaded, store: Path) -> None:
    # a window that holds padding alone: OpenVINO's fused attention gives NaN there
    checkpoint, encoder = tiny("modernbert")
    attention = encoder.model.config._attn_implementation
    graph = backend_graph(encoder, given(checkpoint, options_of(store, "openvino")))
    tokens = encoder.tokenize(["a", "a b c d e f g h i j k l m n o p q r s t u v w x y z " * 2])
    np.testing.assert_allclose(
        embed_layers(encoder, tokens, graph=graph), embed_layers(encoder, tokens), rtol=1e-4, atol=1e-5
    )
    assert encoder.model.config._attn_implementation == attention


@pytest.mark.slow
@pytest.mark.parametrize("backend", NAMES)
@pytest.mark.parametrize("name", sorted(set(ARCHITECTURES) - {"bert", "modernbert"}))
def test_architectures(tiny: Loaded, tmp_path: Path, name: str, backend: str) -> None:
    checkpoint, encoder = tiny(name)
    if (name, backend) in {("xlm", "openvino"), ("fnet", "openvino")}:
        with pytest.raises(ModelError, match=r"cannot be converted to openvino: .*aten\..*; take --backend torch"):
            backend_graph(encoder, given(checkpoint, options_of(tmp_path, backend)))
        return
    graph = backend_graph(encoder, given(checkpoint, options_of(tmp_path, backend)))
    assert graph is not None
    assert max(differences(graph, encoder, "mean")) < 1e-4


@pytest.mark.parametrize("backend", NAMES)
def test_embeddings_are_one_entry_of_the_store(tiny: Loaded, store: Path, tmp_path: Path, backend: str) -> None:
    checkpoint, _ = tiny("bert")
    by_torch = extract(given(checkpoint, Model(device="cpu", cache_dir=tmp_path / "torch")), TEXTS)
    found = extract(given(checkpoint, options_of(store, backend)), TEXTS)
    assert found.fingerprint == by_torch.fingerprint
    for layer in range(found.n_layers):
        np.testing.assert_allclose(found.layer(layer), by_torch.layer(layer), rtol=1e-4, atol=1e-5)
    backends = [each.stored.manifest.description["backend"] for each in (by_torch, found)]
    assert backends[0] == "torch"
    assert backends[1] in ENGINES  # of whichever backend wrote the entry


def test_one_graph_module_is_torch_itself(tiny: Loaded) -> None:
    _, encoder = tiny("bert")
    graph = Graph(backend="torch", run=lambda batch: PooledLayers(encoder, "mean")(**batch).detach().numpy())
    assert differences(graph, encoder, "mean") == (0.0,) * encoder.n_layers


# ---- kept ------------------------------------------------------------------------------------------------


@pytest.fixture
def made(tiny: Loaded, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders in which graphs are made, from here on by a toy that has torch compute."""
    folders: list[Path] = []
    _, encoder = tiny("bert")

    def write(program: object, folder: Path) -> None:
        folders.append(folder)
        (folder / "graph.toy").write_bytes(b"a graph")

    def compile_graph(folder: Path, dtype: str) -> Graph:
        assert (folder / "graph.toy").read_bytes() == b"a graph"
        return Graph(backend="onnx", run=lambda batch: PooledLayers(encoder, "mean")(**batch).detach().numpy())

    toy = dataclasses.replace(ENGINES["onnx"], packages=("numpy",), write=write, compile=compile_graph)
    monkeypatch.setitem(BACKENDS._loaded, "onnx", toy)
    monkeypatch.setattr(graph, "exported", lambda *args, **kwargs: None)
    return folders


def test_a_graph_is_made_once_and_again_when_damaged(
    tiny: Loaded, tmp_path: Path, made: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint, encoder = tiny("bert")
    options = options_of(tmp_path, "onnx")
    for _ in range(2):
        backend_graph(encoder, given(checkpoint, options))
    assert len(made) == 1
    (folder,) = graphs(tmp_path)
    (folder / "graph.toy").write_bytes(b"a grapf")
    backend_graph(encoder, given(checkpoint, options))
    assert "graph.toy: its checksum does not match the recorded one: rebuilding the graph" in caplog.text
    (folder / "graph.toy").unlink()
    backend_graph(encoder, given(checkpoint, options))
    assert "graph.toy: the file is missing: rebuilding the graph" in caplog.text
    (folder / "SHA256SUMS").unlink()
    backend_graph(encoder, given(checkpoint, options))
    assert len(made) == 4
    assert graphs(tmp_path) == [folder]


def test_graphs_are_named_by_what_they_depend_on(
    tiny: Loaded, tmp_path: Path, made: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, encoder = tiny("bert")
    options = options_of(tmp_path, "onnx")
    raw = dataclasses.replace(encoder, description=dataclasses.replace(encoder.description, norm="raw"))
    backend_graph(encoder, given(checkpoint, options))
    backend_graph(encoder, given(dataclasses.replace(checkpoint, tokenizer_digest="another"), options))
    assert len(made) == 1
    backend_graph(encoder, given(dataclasses.replace(checkpoint, revision="another"), options))
    backend_graph(raw, given(checkpoint, options))
    backend_graph(encoder, given(checkpoint, dataclasses.replace(options, attn="eager")))
    monkeypatch.setitem(LIBRARIES, "layerprobe", "another")
    backend_graph(encoder, given(checkpoint, options))
    assert len(made) == len(graphs(tmp_path)) == 5


def test_another_process_that_makes_the_same_graph_is_waited_for(
    tiny: Loaded, tmp_path: Path, made: list[Path]
) -> None:
    checkpoint, encoder = tiny("bert")
    backend_graph(encoder, given(checkpoint, options_of(tmp_path, "onnx")))
    (folder,) = graphs(tmp_path)
    shutil.move(folder, tmp_path / "kept")
    with ThreadPoolExecutor(1) as thread:
        with FileLock(tmp_path / "locks" / f"{folder.name}.lock"):
            waiting = thread.submit(backend_graph, encoder, given(checkpoint, options_of(tmp_path, "onnx")))
            assert wait([waiting], timeout=0.2).not_done
            shutil.move(tmp_path / "kept", folder)
        assert waiting.result() is not None
    assert len(made) == 1


# ---- refused ---------------------------------------------------------------------------------------------


def test_a_backend_that_is_not_installed_is_named_with_its_extra(
    tiny: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, encoder = tiny("bert")
    for package in ("openvino", "onnxruntime"):
        monkeypatch.setitem(sys.modules, package, None)
    for name in ("openvino", "onnx"):
        with pytest.raises(ModelError, match=rf"the backend {name} needs .*: pip install 'layerprobe\[{name}\]'"):
            backend_graph(encoder, given(checkpoint, options_of(tmp_path, name)))
    assert backend_graph(encoder, given(checkpoint, options_of(tmp_path, "auto"))) is None
    found = survey(encoder, given(checkpoint, options_of(tmp_path, "auto")))
    assert found.chosen == "torch"
    assert found.reason == "no other backend can be used"
    assert list(found.problems) == ["openvino", "onnx"]
    assert all("not installed" in problem for problem in found.problems.values())


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(DataError, match="expected a backend, one of auto, torch, openvino, onnx, got 'tensorrt'"):
        Model(backend="tensorrt")


@needs("onnx")
def test_backends_say_what_they_are_for(tiny: Loaded, tmp_path: Path) -> None:
    checkpoint, encoder = tiny("bert")
    with pytest.raises(ModelError, match="expected float32 for the backend onnx, got bfloat16: use another --dtype"):
        backend_graph(encoder, given(checkpoint, options_of(tmp_path, "onnx", dtype="bfloat16")))
    elsewhere = dataclasses.replace(encoder, device=torch.device("cuda"))
    with pytest.raises(ModelError, match="expected a CPU for the backend onnx, got cuda: use --device cpu"):
        backend_graph(elsewhere, given(checkpoint, options_of(tmp_path, "onnx")))
    assert backend_graph(elsewhere, given(checkpoint, options_of(tmp_path, "auto"))) is None


@needs("openvino")
def test_a_model_that_does_not_export_is_refused_with_the_reason(tiny: Loaded, tmp_path: Path) -> None:
    checkpoint, encoder = tiny("fnet")
    with pytest.raises(ModelError, match=r"cannot be converted to openvino: .*aten.*; use --backend torch"):
        backend_graph(encoder, given(checkpoint, options_of(tmp_path, "openvino")))
    assert graphs(tmp_path) == []


def test_a_graph_that_computes_something_else_is_refused(
    tiny: Loaded, tmp_path: Path, made: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, encoder = tiny("bert")
    compile_graph = BACKENDS["onnx"].compile

    def shifted(folder: Path, dtype: str) -> Graph:
        graph = compile_graph(folder, dtype)

        def run(batch: Batch) -> np.ndarray:
            layers = graph.run(batch)
            layers[2] *= 1.01
            return layers

        return dataclasses.replace(graph, run=run)

    toy = dataclasses.replace(BACKENDS["onnx"], compile=shifted)
    monkeypatch.setitem(BACKENDS._loaded, "onnx", toy)
    with pytest.raises(ModelError, match=r"onnx does not match torch for .* layer 2 differs by 1\.0e-02"):
        backend_graph(encoder, given(checkpoint, options_of(tmp_path, "onnx")))
    assert len(made) == 2  # the second of the plain attention
    assert graphs(tmp_path) == []


# ---- chosen ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@needs("openvino")
@needs("onnx")
def test_auto_takes_the_fastest_and_remembers(tiny: Loaded, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, encoder = tiny("bert")
    surveys = []

    seconds = {"torch": [3.0] * 7, "openvino": [1.0] * 7, "onnx": [2.0] * 7}

    def slow_torch(encoder: Encoder, graphs: dict[str, Graph], options: Model, texts: object) -> object:
        surveys.append(texts)
        return [100], dict(seconds)

    monkeypatch.setattr(choice, "timed_rounds", slow_torch)
    for _ in range(2):
        graph = backend_graph(encoder, given(checkpoint, options_of(store, "auto")))
        assert graph is not None
        assert graph.backend == "openvino"
    assert surveys == [choice.USUAL_TEXTS]
    # a later survey on other texts, as check makes it, is what auto then takes
    seconds["openvino"] = [2.0, 4.0] * 4
    seconds["torch"] = seconds["onnx"] = [3.0] * 8
    found = survey(encoder, given(checkpoint, options_of(store, "auto")), TEXTS)
    assert surveys[1:] == [TEXTS]
    assert (found.chosen, found.threads) == ("torch", torch.get_num_threads())
    assert backend_graph(encoder, given(checkpoint, options_of(store, "auto"))) is None


def test_speeds_are_measured_in_turns_on_the_texts_that_are_given(
    tiny: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, encoder = tiny("bert")
    taken, batches = list[str](), list[Batch]()
    graphs = {
        name: Graph(backend=name, run=lambda batch, name=name: (taken.append(name), batches.append(batch)))
        for name in ("openvino", "onnx")
    }
    monkeypatch.setattr(choice, "SECONDS", 0.0)  # the least number of rounds
    options = options_of(tmp_path, "auto", batch_tokens=4096)
    tokens, seconds = choice.timed_rounds(encoder, graphs, given(checkpoint, options), ["a b c d e f", "a"])
    least = choice.ROUNDS[0]
    assert taken == (["openvino", "onnx", "onnx", "openvino"] * (1 + least))[: 2 * (1 + least)]
    assert {name: len(each) for name, each in seconds.items()} == dict.fromkeys(("torch", "openvino", "onnx"), least)
    lengths = set(batches[0]["attention_mask"].sum(dim=1).tolist())
    assert lengths == set(encoder.tokenize(["a b c d e f", "a"]).lengths)
    assert choice.MEASURED_TOKENS <= sum(tokens) < choice.MEASURED_TOKENS + max(lengths)
    assert sum(int(batch["attention_mask"].sum()) for batch in batches) == sum(tokens) * len(taken)


def test_a_speed_has_the_interval_of_its_median() -> None:
    assert speedup([2.0] * 7, [1.0, 1.0, 2.0, 1.0, 4.0, 1.0, 0.5]) == (2.0, 0.5, 4.0)
    rng = np.random.default_rng(0)
    held = []
    for n in [7] * 300 + [12] * 300:
        _, low, high = speedup(np.exp(rng.standard_normal(n)).tolist(), [1.0] * n)
        held.append(low <= 1 <= high)
    assert 0.94 < np.mean(held) < 1


@pytest.mark.parametrize(
    ("speedups", "chosen", "reason"),
    [
        (
            {"onnx": (1.2, 1.1, 1.6), "other": (1.4, 0.9, 2.6)},
            "onnx",
            "1.20 times as fast as torch with 1 thread, 95 % interval 1.10 to 1.60",
        ),
        (
            {"onnx": (1.04, 0.97, 1.6)},
            "torch",
            "onnx is not faster (1.04 times as fast as torch with 1 thread, 95 % interval 0.97 to 1.60)",
        ),
        (
            {"onnx": (0.5, 0.4, 0.6)},
            "torch",
            "onnx is slower (0.50 times as fast as torch with 1 thread, 95 % interval 0.40 to 0.60)",
        ),
        ({}, "torch", "no other backend can be used"),
    ],
)
def test_what_is_faster_beyond_its_interval_is_chosen(speedups: dict[str, Speedup], chosen: str, reason: str) -> None:
    result = BackendSurvey(speedups=speedups, problems={"openvino": "differs"})
    assert (result.chosen, result.reason) == (chosen, reason)


@needs("openvino")
def test_bfloat16_is_close(tiny: Loaded, store: Path) -> None:
    import openvino

    if "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        pytest.skip("the processor does not compute in bfloat16")
    checkpoint, encoder = tiny("bert")
    graph = backend_graph(encoder, given(checkpoint, options_of(store, "openvino", dtype="bfloat16")))
    assert graph is not None
    assert 1e-5 < max(differences(graph, encoder, "mean")) < 5e-2
