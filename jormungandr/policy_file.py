"""A policy as bytes and on disk: safetensors with a header, alone or in a folder."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from jormungandr.errors import CheckpointError, InvalidType, InvalidValue, JormungandrError, shown
from jormungandr.manifest import read_folder
from jormungandr.numerics.support import Bounds
from jormungandr.spec import ModelSpec
from jormungandr.weights import layer_shapes

if TYPE_CHECKING:
    from jormungandr.policy import PolicySnapshot

__all__ = [
    "BUNDLE_FILE",
    "BUNDLE_FORMAT",
    "POLICY_FILE",
    "check_features",
    "decoded",
    "encoded",
    "read",
]

FORMAT = "jormungandr-policy-1"
#: Name of the policy's file in a checkpoint folder.
POLICY_FILE = "policy.safetensors"
#: The manifest of a bundle, a folder that describes such a file, and what it says it is.
BUNDLE_FILE, BUNDLE_FORMAT = "bundle.json", "jormungandr-bundle-1"

Count = Annotated[int, msgspec.Meta(ge=0)]


class _Header(msgspec.Struct):
    """The JSON header of a policy's bytes."""

    format: str
    spec: dict[str, Any]
    version: Count
    update_count: Count
    transitions: Count
    generation: Count
    support: tuple[float, float] | None = None


def encoded(policy: PolicySnapshot) -> bytes:
    """Return a policy as safetensors with a JSON header; the same one, the same bytes."""
    from safetensors.numpy import save

    header = {
        "format": FORMAT,
        "spec": policy.spec.to_dict(),
        "version": policy.version,
        "update_count": policy.update_count,
        "transitions": policy.transitions,
        "generation": policy.generation,
        **({} if policy.bounds is None else {"support": policy.bounds}),
    }
    tensors: dict[str, NDArray[Any]] = {
        **{name: np.ascontiguousarray(array) for name, array in policy.weights.items()},
        "moments.mean": np.ascontiguousarray(policy.mean),
        "moments.var": np.ascontiguousarray(policy.var),
    }
    return bytes(save(tensors, metadata={"policy": json.dumps(header, sort_keys=True)}))


def decoded(data: bytes) -> dict[str, Any]:
    """Return the fields of a snapshot; names, shapes and numbers are checked against its spec.

    Raises:
        CheckpointError: the bytes are not a policy of ours.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        size = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + size])["__metadata__"]
        header = msgspec.json.decode(metadata["policy"], type=_Header)
        spec = ModelSpec.from_dict(header.spec)
        tensors: dict[str, NDArray[Any]] = load(data)
    except (
        SafetensorError,
        KeyError,
        ValueError,
        TypeError,
        RecursionError,
        JormungandrError,
    ) as error:
        raise CheckpointError("policy", "safetensors of a policy", repr(error)) from None
    if header.format != FORMAT:
        raise CheckpointError("policy.format", FORMAT, header.format)
    shapes: dict[str, tuple[int, ...]] = layer_shapes(spec)
    moments = {f"moments.{m}": spec.observation.moments_shape for m in ("mean", "var")}
    for name, shape in {**shapes, **moments}.items():
        dtype = np.dtype(np.float32 if name in shapes else np.float64)
        array = tensors.get(name)
        if array is None or array.shape != shape or array.dtype != dtype:
            got = "nothing" if array is None else f"{array.dtype} {array.shape}"
            raise CheckpointError(f"policy.{name}", f"{dtype} {shape}", got)
        if not np.isfinite(array).all():
            raise CheckpointError(f"policy.{name}", "finite numbers", "NaN or infinity")
    if (tensors["moments.var"] < 0).any():
        raise CheckpointError("policy.moments.var", "numbers >= 0", "a negative one")
    fitted = spec.c51.support == "auto"
    if (header.support is not None) != fitted:
        expected = "bounds" if fitted else "none: the specification has it"
        raise CheckpointError("policy.support", expected, header.support)
    if header.support is not None and not _increasing(header.support):
        raise CheckpointError("policy.support", "[lowest, highest], finite", header.support)
    return {
        "spec": spec,
        "version": header.version,
        "update_count": header.update_count,
        "transitions": header.transitions,
        "weights": {name: tensors[name] for name in shapes},
        "mean": tensors["moments.mean"],
        "var": tensors["moments.var"],
        "generation": header.generation,
        "bounds": header.support,
    }


def read(path: str | Path) -> bytes:
    """Return the bytes of a policy; see `PolicySnapshot.open`."""
    try:
        path = Path(path)
    except TypeError:
        raise InvalidType("path", "a path", type(path).__name__) from None
    file = path
    try:
        served = sorted((path / "policies").glob("*.safetensors"))
        file = served[-1] if served else path / POLICY_FILE if path.is_dir() else path
        if (path / BUNDLE_FILE).is_file():
            return read_folder(path, BUNDLE_FILE, BUNDLE_FORMAT)[1][POLICY_FILE]
        return file.read_bytes()
    except (OSError, ValueError, KeyError) as error:  # of a NUL in the path, a ValueError
        remedy = _inside(path)
        raise CheckpointError(shown(file, str), "a policy's file", error, remedy) from None


def check_features(spec: ModelSpec, given: Sequence[str]) -> None:
    """Refuse features that are not a model's own, in its order."""
    own = spec.observation.features
    if own is None:
        raise InvalidValue("features", "none: the policy's have no names", list(given))
    for i, (name, other) in enumerate(zip_longest(own, given)):
        if name != other:
            expected, got = ("none" if n is None else repr(n) for n in (name, other))
            raise InvalidValue(f"features[{i}]", expected, got, f"the policy's are {list(own)}")


def _inside(path: Path) -> str:
    """Return what to open instead of a folder that `jormungandr train` wrote; "" of any other."""
    found: list[Path] = []
    with contextlib.suppress(OSError, ValueError):  # of a NUL in the path
        found = sorted(p for at in ("best", "*/best") for p in path.glob(at) if p.is_dir())
    return f"this folder is a training's: name {found[0]}, or the latest beside it" if found else ""


def _increasing(bounds: Bounds) -> bool:
    return math.isfinite(bounds[0]) and math.isfinite(bounds[1]) and bounds[0] < bounds[1]
