"""Graphs of encoders for ONNX Runtime and OpenVINO: writing and compiling their files."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe.encoders.backends.backend import Engine
from layerprobe.encoders.backends.graph import Graph, quiet_export
from layerprobe.encoders.batching import Batch
from layerprobe.errors import ModelError, option


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
        layers: NDArray[np.float32] = request.get_output_tensor(0).data.copy()
        return layers

    return Graph(backend="openvino", run=run)


OPENVINO = Engine(
    name="openvino",
    packages=("openvino",),
    dtypes=("float32", "bfloat16"),
    write=_write_openvino,
    compile=lambda folder, dtype: compile_openvino(folder / "graph.xml", dtype),
)
