"""Graphs with 8-bit products, by the quantisers of ONNX Runtime. Knows a loaded encoder.

They do not match torch, so no command embeds texts with them; their cost and loss can be measured, and their
files written.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from layerprobe.encoders.backends.engines import ONNX, OPENVINO, compile_onnx, compile_openvino
from layerprobe.encoders.backends.graph import TOKENS, Graph, Tokens, exported, quiet_export
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.failures import first_sentence, model_errors
from layerprobe.encoders.model import Pooling
from layerprobe.errors import DataError, MissingPackageError, ModelError
from layerprobe.names import nearest

WEIGHTS, BOTH = "int8 weights", "int8"
"""8-bit weights in blocks of 128; or 8-bit activations as well, rounded by the range of each tensor at run time."""
FILES = {
    "onnx": Path("onnx", "model_qint8_quantized.onnx"),
    "openvino": Path("openvino", "openvino_model_qint8_quantized.xml"),
}
"""Files of graphs with `BOTH`, by backend, at the paths where sentence-transformers looks for them."""
FLOATS = {"openvino": ', "ov_config": {"INFERENCE_PRECISION_HINT": "f32"}'}
"""Further arguments for sentence-transformers, so that everything else is computed in float32."""
_GROUP, _ROUNDS = 64, "DYNAMIC_QUANTIZATION_GROUP_SIZE"
"""Number of activations that OpenVINO rounds together, and its name for that setting."""


def check_int8(backends: str | Sequence[str]) -> tuple[str, ...]:
    """Return the backends for which 8-bit graphs are requested, each once."""
    if not isinstance(backends, Sequence):
        raise DataError(f"expected 8 bits for {' or '.join(FILES)}, got {backends!r}")
    names = tuple(dict.fromkeys([backends] if isinstance(backends, str) else backends))
    for name in names:
        if name not in FILES:
            raise DataError(f"expected 8 bits for {' or '.join(FILES)}, got {name!r}{nearest(name, FILES)}")
        for engine in {ONNX.name: (ONNX,), OPENVINO.name: (ONNX, OPENVINO)}[name]:  # ONNX Runtime quantises for both
            engine.check("cpu", "float32")
    return names


def int8_graphs(encoder: Encoder, pooling: Pooling, *, every: bool = True) -> dict[str, tuple[Graph, int]]:
    """Return an encoder and its pooling as graphs with their sizes in bytes, by backend and `WEIGHTS` or `BOTH`.

    OpenVINO, whose own quantiser is a separate package, reads weights rounded by ONNX Runtime. Without `every`, only
    `BOTH` by ONNX Runtime is returned.
    """
    with _rounded(encoder, pooling) as (weights, both):
        of_weights, of_both = (sum(part.stat().st_size for part in file.parent.iterdir()) for file in (weights, both))
        graphs = {f"{ONNX.name} {BOTH}": (compile_onnx(both), of_both)}
        if not every:
            return graphs
        graphs[f"{ONNX.name} {WEIGHTS}"] = compile_onnx(weights), of_weights
        with contextlib.suppress(MissingPackageError):
            OPENVINO.check("cpu", "float32")
            written = _write_openvino(weights, weights.with_suffix(".xml"))
            for name, group in ((WEIGHTS, 0), (BOTH, _GROUP)):
                graph = compile_openvino(weights, "float32", **{_ROUNDS: group})
                graphs[f"{OPENVINO.name} {name}"] = graph, written
        return graphs


def write_int8(encoder: Encoder, folder: Path, backends: Sequence[str]) -> int:
    """Write an encoder as `BOTH` graphs that output token states; return the number of its 8-bit products."""
    with _rounded(encoder, TOKENS) as (weights, both):
        import onnx

        products = sum(node.op_type == "MatMulInteger" for node in onnx.load(both, load_external_data=False).graph.node)
        if not products:
            raise ModelError(f"{encoder.description.name} has no matrix product with weights to compute in 8 bits")
        for file in (folder / FILES[backend] for backend in backends):
            file.parent.mkdir(exist_ok=True)
            if file.suffix == ".onnx":
                shutil.copyfile(both, file)
            else:
                _write_openvino(weights, file)
        return products


def _write_openvino(weights: Path, file: Path) -> int:
    """Write a `WEIGHTS` graph for OpenVINO that also rounds activations; return its size in bytes."""
    import openvino

    graph = openvino.Core().read_model(weights)
    graph.set_rt_info(str(_GROUP), ["runtime_options", _ROUNDS])  # applies to every reader of the file
    openvino.save_model(graph, file, compress_to_fp16=False)
    return sum(part.stat().st_size for part in (file, file.with_suffix(".bin")))


def read_int8(folder: Path, backend: str) -> Graph:
    """Return the graph written by `write_int8`; it outputs (text, token, feature) states."""
    file = folder / FILES[backend]
    try:
        return compile_onnx(file) if file.suffix == ".onnx" else compile_openvino(file, "float32")
    except Exception as error:  # the libraries raise all kinds of errors
        raise ModelError(f"{FILES[backend]} cannot be run by {backend}: {first_sentence(error)}") from error


@contextlib.contextmanager
def _rounded(encoder: Encoder, pooling: Pooling | Tokens) -> Iterator[tuple[Path, Path]]:
    """Yield the files of an encoder's graph with `WEIGHTS` and with `BOTH`; errors meanwhile become one line."""
    ONNX.check(encoder.device.type, "float32")
    from onnx import load
    from onnxruntime.quantization import quantize_dynamic
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    with tempfile.TemporaryDirectory() as temporary:
        plain, weights, both = (Path(temporary, name, "graph.onnx") for name in ("plain", "weights", "both"))
        for file in (plain, weights, both):
            file.parent.mkdir()
        with model_errors(encoder.description.name, "rounding to 8 bits", but=lambda error: isinstance(error, OSError)):
            try:
                ONNX.write(exported(encoder, pooling), plain.parent)
            except Exception:  # as for T5 with its own attention; other errors are raised again
                ONNX.write(exported(encoder, pooling, plain=True), plain.parent)
            with quiet_export():
                rounded = MatMulNBitsQuantizer(load(plain), bits=8, is_symmetric=True, accuracy_level=1)
                rounded.process()
                rounded.model.save_model_to_file(str(weights), True)
                quantize_dynamic(plain, both, per_channel=True, op_types_to_quantize=["MatMul", "Gemm"])
            yield weights, both
