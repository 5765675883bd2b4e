"""ONNX Runtime and OpenVINO: writing and compiling their graphs of encoders, also with 8-bit products.

Graphs with 8-bit products do not match torch, so no command embeds texts with them; their cost and loss can be
measured, and their files written.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe.encoders.backends import Engine
from layerprobe.encoders.batching import Batch
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.failures import first_sentence, model_errors
from layerprobe.encoders.graphs import TOKENS, Graph, Tokens, exported, quiet_export
from layerprobe.encoders.model import Pooling
from layerprobe.errors import DataError, MissingPackageError, ModelError, option
from layerprobe.names import nearest


def _write_onnx(program: torch.export.ExportedProgram, folder: Path) -> None:
    with quiet_export():
        # for optimum, in graphs of token states; unused here
        made: Any = torch.onnx.export(program, dynamo=True, verbose=False, output_names=["last_hidden_state"])
        made.save(folder / "graph.onnx", external_data=True)  # a single ONNX file is limited to 2 GB


def compile_onnx(file: Path) -> Graph:
    """Compile the graph of a file with ONNX Runtime, with torch's number of threads."""
    import onnxruntime

    onnxruntime.disable_telemetry_events()  # on by default on Windows
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3  # errors only: removed nodes need no warning
    settings.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(file, settings, providers=["CPUExecutionProvider"])
    names = [graph_input.name for graph_input in session.get_inputs()]

    def run(batch: Batch) -> NDArray[np.float32]:
        (layers,) = session.run(None, {name: batch[name].numpy() for name in names})
        return np.asarray(layers)

    return Graph(backend="onnx", run=run)


ONNX = Engine(
    name="onnx",
    packages=("onnxruntime", "onnx", "onnxscript"),
    dtypes=("float32",),
    write=_write_onnx,
    compile=lambda folder, dtype: compile_onnx(folder / "graph.onnx"),
)


def _write_openvino(program: torch.export.ExportedProgram, folder: Path) -> None:
    import openvino
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.fx_decoder import TorchFXPythonDecoder

    # openvino.convert_model does the same, but sends telemetry
    frontend = FrontEndManager().load_by_framework("pytorch")
    with quiet_export():
        decoder = TorchFXPythonDecoder.from_exported_program(program)  # must live until the end of the conversion
        try:
            graph = frontend.convert(frontend.load(decoder))
        except Exception as error:  # a report of many lines; the last one has the reason
            raise ModelError(str(error).strip().splitlines()[-1].strip("- ")) from None
    openvino.save_model(graph, folder / "graph.xml", compress_to_fp16=False)


def compile_openvino(file: Path, dtype: str, **further: object) -> Graph:
    """Compile the graph of a file, OpenVINO's own or ONNX's, with OpenVINO and further settings."""
    import openvino

    core = openvino.Core()
    if dtype == "bfloat16" and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        raise ModelError(f"this processor does not compute in bfloat16: use {option('dtype', 'float32')}")
    settings = {
        # its default is bfloat16 if the processor supports it
        "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[dtype],
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # other processes may use the same cores
        **further,
    }
    compiled = core.compile_model(file, "CPU", settings)
    request = compiled.create_infer_request()
    names = [graph_input.any_name for graph_input in compiled.inputs]

    def run(batch: Batch) -> NDArray[np.float32]:
        request.infer({name: batch[name].numpy() for name in names}, share_inputs=True)
        return request.get_output_tensor(0).data.copy()

    return Graph(backend="openvino", run=run)


OPENVINO = Engine(
    name="openvino",
    packages=("openvino",),
    dtypes=("float32", "bfloat16"),
    write=_write_openvino,
    compile=lambda folder, dtype: compile_openvino(folder / "graph.xml", dtype),
)
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
            written = _write_int8_openvino(weights, weights.with_suffix(".xml"))
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
                _write_int8_openvino(weights, file)
        return products


def _write_int8_openvino(weights: Path, file: Path) -> int:
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
