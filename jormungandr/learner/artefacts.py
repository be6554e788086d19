"""The kinds of file a policy can be exported as: how each is made, and read back."""

from __future__ import annotations

import contextlib
import io
import logging
import pkgutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import unflatten
from numpy.typing import NDArray
from torch import Tensor
from torch.export import Dim, ExportedProgram

from jormungandr.learner.exported import ExportedPolicy, example, signature
from jormungandr.learner.parity import Arrays, Run
from jormungandr.policy import PolicySnapshot
from jormungandr.settings import Observation
from jormungandr.spaces import Box, DictSpace, as_gymnasium

__all__ = ["ARTEFACTS", "Artefact"]

#: Where the description is inside an artefact: a further file, or an entry of the metadata.
DESCRIPTION = "jormungandr.json"


@dataclass(frozen=True)
class Artefact:
    """One kind of file.

    Args:
        file: its name in the folder.
        is_code: whether reading it may run what is in it.
        make: returns its bytes from a policy and the description to put inside, as JSON.
        load: returns what those bytes compute.
        packages: what it needs beside torch.
        extra: of ours, which brings those.
        as_shown: whether it takes observations as the environment shows them, and not encoded.
        without: outputs that it does not have.
    """

    file: str
    is_code: bool
    make: Callable[[PolicySnapshot, str], bytes]
    load: Callable[[PolicySnapshot, bytes], Run]
    packages: tuple[str, ...] = ()
    extra: str = "learner"
    as_shown: bool = False
    without: tuple[str, ...] = ()


def _called(snapshot: PolicySnapshot, module: Callable[..., tuple[Tensor, ...]]) -> Run:
    """Return a torch module, which takes tensors in order, as a function of arrays by name."""
    inputs, outputs = signature(snapshot.spec)

    def run(arrays: Arrays) -> Arrays:
        given = [torch.from_numpy(arrays[entry["name"]]) for entry in inputs]
        with torch.no_grad():
            got = module(*given)
        return {e["name"]: tensor.numpy() for e, tensor in zip(outputs, got, strict=True)}

    return run


# -- TorchScript ----------------------------------------------------------------------------------


@contextlib.contextmanager
def _torchscript() -> Iterator[None]:
    """Silence that TorchScript is deprecated, which each of its functions says, and only that."""
    with warnings.catch_warnings():
        pattern = r"`torch\.jit\.\w+` is deprecated"
        warnings.filterwarnings("ignore", pattern, DeprecationWarning)
        yield


def _make_torchscript(snapshot: PolicySnapshot, description: str) -> bytes:
    buffer = io.BytesIO()
    with _torchscript():
        module, inputs = ExportedPolicy(snapshot), example(snapshot.spec)
        traced = torch.jit.trace(module, inputs)  # type: ignore[no-untyped-call]
        torch.jit.save(traced, buffer, _extra_files={DESCRIPTION: description})
    return buffer.getvalue()


def _load_torchscript(snapshot: PolicySnapshot, data: bytes) -> Run:
    with _torchscript():
        module = torch.jit.load(io.BytesIO(data))  # type: ignore[no-untyped-call]
    return _called(snapshot, module)


# -- torch.export ---------------------------------------------------------------------------------


def _program(snapshot: PolicySnapshot) -> ExportedProgram:
    """Return a policy traced for batches of any size."""
    inputs = example(snapshot.spec)
    batch = Dim("batch", min=1)
    program = torch.export.export(
        ExportedPolicy(snapshot), inputs, dynamic_shapes=tuple({0: batch} for _ in inputs)
    )
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of the machine it was made on
    return program


def _make_pt2(snapshot: PolicySnapshot, description: str) -> bytes:
    buffer = io.BytesIO()
    torch.export.save(_program(snapshot), buffer, extra_files={DESCRIPTION: description})
    return buffer.getvalue()


def _load_pt2(snapshot: PolicySnapshot, data: bytes) -> Run:
    return _called(snapshot, torch.export.load(io.BytesIO(data)).module())


# -- ONNX -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep to itself what the exporter says about its own insides, in warnings and in its log."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def _make_onnx(snapshot: PolicySnapshot, description: str) -> bytes:
    inputs, outputs = signature(snapshot.spec)
    with _quiet():
        program = torch.onnx.export(
            _program(snapshot),
            dynamo=True,
            input_names=[entry["name"] for entry in inputs],
            output_names=[entry["name"] for entry in outputs],
            verbose=False,
        )
    assert program is not None  # since no file was given
    program.model.metadata_props[DESCRIPTION] = description
    return bytes(program.model_proto.SerializeToString())


def _load_onnx(snapshot: PolicySnapshot, data: bytes) -> Run:
    _, outputs = signature(snapshot.spec)
    names = [entry["name"] for entry in outputs]
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ModuleNotFoundError:  # slower, and exact
        import onnx
        from onnx.reference import ReferenceEvaluator

        session = ReferenceEvaluator(onnx.load_from_string(data))
    else:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return lambda arrays: dict(zip(names, session.run(names, arrays), strict=True))


# -- Stable-Baselines3 ----------------------------------------------------------------------------


def _make_sb3(snapshot: PolicySnapshot, description: str) -> bytes:
    buffer = io.BytesIO()
    _c51_policy().from_snapshot(snapshot, "cpu").save(buffer)
    return buffer.getvalue()


def _load_sb3(snapshot: PolicySnapshot, data: bytes) -> Run:
    policy = _c51_policy().load(io.BytesIO(data), device="cpu")

    def run(arrays: Arrays) -> Arrays:
        shown = _shown(arrays["observation"], snapshot.spec.observation)
        tensor, _ = policy.obs_to_tensor(shown)
        with torch.no_grad():
            return {
                "action": policy.predict(shown, action_masks=arrays.get("action_mask"))[0],
                "expected_values": policy.q_net(tensor).numpy(),
                "distribution": policy.q_net.distribution(tensor).numpy(),
            }

    return run


def _shown(observation: NDArray[Any], o: Observation) -> Any:
    """Return encoded observations as the environment shows them, batched as in SB3."""
    if isinstance(o.described, Box):
        return observation.reshape(len(observation), *o.shown_shape)
    space = as_gymnasium(o.described)
    rows = [unflatten(space, row) for row in observation]
    if isinstance(o.described, DictSpace):
        return {key: np.stack([row[key] for row in rows]) for key in o.described.spaces}
    return np.stack(rows)


def _c51_policy() -> Any:
    """Return `C51Policy`, by name: it is one of the formats, and no part of the learner."""
    return pkgutil.resolve_name("jormungandr.sb3.policies:C51Policy")


ARTEFACTS = {
    "torchscript": Artefact("policy.ts", True, _make_torchscript, _load_torchscript),
    "onnx": Artefact(
        "policy.onnx", False, _make_onnx, _load_onnx, ("onnx", "onnxscript"), "export"
    ),
    "pt2": Artefact("policy.pt2", True, _make_pt2, _load_pt2),
    "sb3": Artefact(
        "policy_sb3.zip",
        True,
        _make_sb3,
        _load_sb3,
        ("stable_baselines3",),
        "sb3",
        as_shown=True,
        without=("auxiliary_logits",),
    ),
}
