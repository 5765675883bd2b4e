"""Graphs of encoders by ONNX Runtime and by OpenVINO: how their files are made, and compiled."""

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
        # what optimum looks for in a graph of token states; nothing here goes by it
        made: Any = torch.onnx.export(program, dynamo=True, verbose=False, output_names=["last_hidden_state"])
        made.save(folder / "graph.onnx", external_data=True)  # a file of ONNX alone holds 2 GB


def compile_onnx(file: Path) -> Graph:
    """Make ONNX Runtime run the graph of a file, on as many threads as torch has."""
    import onnxruntime

    onnxruntime.disable_telemetry_events()  # on by default on Windows
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3  # errors: what it optimises away is nothing to warn of
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

    # openvino.convert_model does this, and sends word of it to its makers
    frontend = FrontEndManager().load_by_framework("pytorch")
    with quiet_export():
        decoder = TorchFXPythonDecoder.from_exported_program(program)  # read until the end of the conversion
        try:
            graph = frontend.convert(frontend.load(decoder))
        except Exception as error:  # a report of many lines; the last one says for what
            raise ModelError(str(error).strip().splitlines()[-1].strip("- ")) from None
    openvino.save_model(graph, folder / "graph.xml", compress_to_fp16=False)


def compile_openvino(file: Path, dtype: str, **further: object) -> Graph:
    """Make OpenVINO run the graph of a file, its own or one of ONNX, with further settings of its own."""
    import openvino

    core = openvino.Core()
    if dtype == "bfloat16" and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        raise ModelError(
            f"expected a processor that computes in bfloat16, got one that does not: take {option('dtype', 'float32')}"
        )
    settings = {
        # what it takes by itself is bfloat16 where the processor has it
        "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[dtype],
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # other processes may have the same cores
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
