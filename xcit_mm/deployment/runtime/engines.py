"""The libraries that run an ONNX file: onnxruntime and OpenVINO, behind one interface."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from .images import one_line

DEVICES = dict(
    cpu=("CPUExecutionProvider",),
    cuda=("CUDAExecutionProvider", "CPUExecutionProvider"),
)
"""Execution providers of onnxruntime for each device."""


class OnnxRuntime:
    """An ONNX file in onnxruntime.

    Attributes:
        metadata: Metadata of the file.
        inputs: Names of the inputs.
        options: Names of the optional inputs.

    Raises:
        ModuleNotFoundError: If onnxruntime is missing.
        ValueError: If it cannot run the file, or lacks a provider.
    """

    def __init__(self, path: Path, threads: int | None, device: str, providers: Sequence[Any] | None) -> None:
        import onnxruntime

        chosen = DEVICES[device] if providers is None else providers
        names = [provider if isinstance(provider, str) else provider[0] for provider in chosen]  # (name, options)
        missing = set(names).difference(onnxruntime.get_available_providers())
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or 0
        options.log_severity_level = 3  # else it warns of optional inputs
        if not missing:
            try:
                self._session = onnxruntime.InferenceSession(path, options, providers=list(chosen))
            except Exception as error:  # onnxruntime's classes share no base but Exception
                raise ValueError(f"{path} is not an ONNX file that can be run: {one_line(error)}") from None
            # Where a provider cannot be loaded, onnxruntime takes the next one.
            missing = set(names).difference(self._session.get_providers())
        if missing:
            raise ValueError(f"onnxruntime cannot use {', '.join(sorted(missing))}: install onnxruntime-gpu and CUDA")
        self.metadata: dict[str, str] = self._session.get_modelmeta().custom_metadata_map
        self.inputs = [value.name for value in self._session.get_inputs()]
        self.options = {value.name for value in self._session.get_overridable_initializers()}
        self._outputs = [value.name for value in self._session.get_outputs()]

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs by name."""
        return dict(zip(self._outputs, self._session.run(self._outputs, inputs), strict=True))


class OpenVino:
    """An ONNX file in OpenVINO, in float32; see `OnnxRuntime`."""

    def __init__(self, path: Path, threads: int | None, device: str, providers: Sequence[Any] | None) -> None:
        if device != "cpu" or providers is not None:
            raise ValueError(f"{device=}, {providers=} with OpenVINO: it runs on the CPU, choose runtime='onnxruntime'")
        try:
            openvino: Any = import_module("openvino")  # optional, so not a requirement of the package
        except ModuleNotFoundError:
            raise ModuleNotFoundError("openvino is not installed: pip install openvino") from None
        # By default processors with AMX compute in bfloat16, which changes results.
        config: dict[str, Any] = dict(INFERENCE_PRECISION_HINT="f32", PERFORMANCE_HINT="LATENCY")
        if threads:
            config["INFERENCE_NUM_THREADS"] = threads
        try:
            core = openvino.Core()
            model = core.read_model(path)
            self._model = core.compile_model(model, "CPU", config)
        except RuntimeError as error:
            raise ValueError(f"{path} is not an ONNX file that can be run: {one_line(error)}") from None
        where = ["framework"]  # OpenVINO's place for the metadata of a file
        self.metadata: dict[str, str] = model.get_rt_info(where).value if model.has_rt_info(where) else {}
        self.inputs = [value.any_name for value in model.inputs]
        self.options: set[str] = set()  # OpenVINO makes them constants
        self._outputs = [value.any_name for value in model.outputs]

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs by name."""
        return dict(zip(self._outputs, self._model(inputs, share_outputs=False).to_tuple(), strict=True))


ENGINES: dict[str, Any] = dict(onnxruntime=OnnxRuntime, openvino=OpenVino)
"""Libraries by the name of their Python package."""
