"""The libraries that run a graph on a CPU: how each makes its files of one, and compiles them. Knows no encoders."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe.encoders.backends.graph import Graph, quiet_export
from layerprobe.encoders.batching import Batch
from layerprobe.errors import ModelError

Write = Callable[[torch.export.ExportedProgram, Path], None]
Compile = Callable[[Path, str], Graph]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A library that runs graphs."""

    name: str
    """openvino or onnx: of the backend, and of the extra that brings it."""
    packages: tuple[str, ...]
    """What has to be installed."""
    dtypes: tuple[str, ...]
    """What it can compute in, on a processor that can."""
    write: Write
    """Make its files of a graph, in a folder."""
    compile: Compile
    """Make it run the graph of a folder, in float32 or bfloat16, on as many threads as torch has."""

    def versions(self) -> dict[str, str]:
        """Return the versions of its packages."""
        return {package: metadata.version(package) for package in self.packages}

    def check(self, device: str, dtype: str) -> None:
        """Check that it is installed, and for a device and a precision.

        Raises:
            ModelError: If it is not.
        """
        if any(importlib.util.find_spec(package) is None for package in self.packages):
            raise ModelError(f"the backend {self.name} is not installed: pip install 'layerprobe[{self.name}]'")
        if device != "cpu":
            raise ModelError(
                f"expected a CPU for the backend {self.name}, got {device}: take --device cpu, or --backend torch"
            )
        if dtype not in self.dtypes:
            raise ModelError(
                f"expected {' or '.join(self.dtypes)} for the backend {self.name}, got {dtype}: "
                "take another --dtype, or --backend torch"
            )


# ---- OpenVINO --------------------------------------------------------------------------------------------


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


def _compile_openvino(folder: Path, dtype: str) -> Graph:
    import openvino

    core = openvino.Core()
    if dtype == "bfloat16" and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        raise ModelError("expected a processor that computes in bfloat16, got one that does not: take --dtype float32")
    settings = {
        # what it takes by itself is bfloat16 where the processor has it
        "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[dtype],
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # other processes may have the same cores
    }
    compiled = core.compile_model(folder / "graph.xml", "CPU", settings)
    request = compiled.create_infer_request()
    names = [each.any_name for each in compiled.inputs]

    def run(batch: Batch) -> NDArray[np.float32]:
        request.infer({name: batch[name].numpy() for name in names}, share_inputs=True)
        layers: NDArray[np.float32] = request.get_output_tensor(0).data.copy()
        return layers

    return Graph(backend="openvino", run=run)


# ---- ONNX ------------------------------------------------------------------------------------------------


def _write_onnx(program: torch.export.ExportedProgram, folder: Path) -> None:
    with quiet_export():
        made: Any = torch.onnx.export(program, dynamo=True, verbose=False)
        made.save(folder / "graph.onnx", external_data=True)  # a file of ONNX alone holds 2 GB


def _compile_onnx(folder: Path, dtype: str) -> Graph:
    import onnxruntime

    onnxruntime.disable_telemetry_events()  # on by default on Windows
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3  # errors: what it optimises away is nothing to warn of
    settings.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(folder / "graph.onnx", settings, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def run(batch: Batch) -> NDArray[np.float32]:
        (layers,) = session.run(None, {name: batch[name].numpy() for name in names})
        return np.asarray(layers)

    return Graph(backend="onnx", run=run)


ENGINES = {
    engine.name: engine
    for engine in (
        Engine(
            name="openvino",
            packages=("openvino",),
            dtypes=("float32", "bfloat16"),
            write=_write_openvino,
            compile=_compile_openvino,
        ),
        Engine(
            name="onnx",
            packages=("onnxruntime", "onnx", "onnxscript"),
            dtypes=("float32",),
            write=_write_onnx,
            compile=_compile_onnx,
        ),
    )
}
"""By the name of the backend."""
