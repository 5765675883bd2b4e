"""Graphs of encoders by ONNX Runtime: how its files are made, and compiled."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe.encoders.backends.backend import Engine
from layerprobe.encoders.backends.graph import Graph, quiet_export
from layerprobe.encoders.batching import Batch


def _write_graph(program: torch.export.ExportedProgram, folder: Path) -> None:
    with quiet_export():
        # what optimum looks for in a graph of token states; nothing here goes by it
        made: Any = torch.onnx.export(program, dynamo=True, verbose=False, output_names=["last_hidden_state"])
        made.save(folder / "graph.onnx", external_data=True)  # a file of ONNX alone holds 2 GB


def _compile_graph(folder: Path, dtype: str) -> Graph:
    return compile_onnx(folder / "graph.onnx")


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
    write=_write_graph,
    compile=_compile_graph,
)
