"""Graphs whose products are of 8 bits, by the quantisers of ONNX Runtime. Knows a loaded encoder; keeps no files.

They do not equal torch, so that no command embeds texts by them; what they cost and lose can be measured.
"""

import contextlib
import tempfile
from pathlib import Path

from layerprobe.encoders.backends.graph import Graph, exported, quiet_export
from layerprobe.encoders.backends.onnx import ONNX
from layerprobe.encoders.backends.openvino import OPENVINO, compile_graph
from layerprobe.encoders.encoder import Encoder
from layerprobe.encoders.failures import first_sentence
from layerprobe.encoders.values import Pooling
from layerprobe.errors import MissingPackageError, ModelError

WEIGHTS, BOTH = "int8 weights", "int8"
"""Weights alone are of 8 bits, in blocks of 128; or activations as well, rounded by the range of each as it comes."""


def int8_graphs(encoder: Encoder, pooling: Pooling) -> dict[str, Graph]:
    """Return an encoder and its pooling as graphs by the names of a backend and of `WEIGHTS` or `BOTH`.

    OpenVINO, whose own quantiser is another package, reads the weights that ONNX Runtime has rounded.

    Raises:
        ModelError: If ONNX Runtime is not installed, the encoder is not on a CPU, or it cannot be quantised.
    """
    ONNX.check(encoder.device.type, "float32")
    from onnx import load
    from onnxruntime.quantization import quantize_dynamic
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    with tempfile.TemporaryDirectory() as temporary:
        plain, weights, both = (Path(temporary, name) for name in ("plain", "weights", "both"))
        for folder in (plain, weights, both):
            folder.mkdir()
        try:
            ONNX.write(exported(encoder, pooling), plain)
            with quiet_export():
                rounded = MatMulNBitsQuantizer(load(plain / "graph.onnx"), bits=8, is_symmetric=True, accuracy_level=1)
                rounded.process()
                rounded.model.save_model_to_file(str(weights / "graph.onnx"), True)
                quantize_dynamic(
                    plain / "graph.onnx", both / "graph.onnx", per_channel=True, op_types_to_quantize=["MatMul", "Gemm"]
                )
            made = ((WEIGHTS, weights), (BOTH, both))
            graphs = {f"onnx {name}": ONNX.compile(folder, "float32") for name, folder in made}
            with contextlib.suppress(MissingPackageError):
                OPENVINO.check("cpu", "float32")
                for name, group in ((WEIGHTS, 0), (BOTH, 64)):
                    size = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": group}
                    graphs[f"openvino {name}"] = compile_graph(weights / "graph.onnx", "float32", **size)
        except Exception as error:  # exporters and quantisers raise anything
            name = encoder.description.name
            raise ModelError(f"{name} cannot be computed in 8 bits: {first_sentence(error)}") from error
        return graphs
