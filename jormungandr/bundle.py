"""Bundles: a policy as a folder that any language can read, written and checked without torch.

``policy.safetensors`` holds the numbers and ``bundle.json`` says in words and figures what to do
with them. `jormungandr.learner.export` makes the other formats, with the same description.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from jormungandr.errors import CheckpointError, InvalidValue, shown
from jormungandr.inputs import RAW_BOUND, VARIANCE_FLOOR
from jormungandr.manifest import PLAIN_NAME, seal, unseal, write_folder
from jormungandr.policy import PolicySnapshot
from jormungandr.policy_file import BUNDLE_FILE, BUNDLE_FORMAT, POLICY_FILE
from jormungandr.spaces import Box
from jormungandr.spec import ModelSpec
from jormungandr.version import __version__
from jormungandr.weights import CONVOLUTIONS, layer_shapes

if TYPE_CHECKING:
    import gymnasium
    from gymnasium.envs.registration import EnvSpec

    Environment: TypeAlias = gymnasium.Env[Any, Any] | EnvSpec

__all__ = [
    "EXPORT_FILE",
    "EXPORT_FORMAT",
    "FORMATS",
    "MANIFESTS",
    "bundle_files",
    "check_format",
    "describe",
    "from_zip",
    "open_bundle",
    "to_zip",
    "write_bundle",
]

#: What a policy can be exported as; all but the first need torch.
FORMATS = ("bundle", "torchscript", "onnx", "pt2", "sb3")
#: The manifest of the other formats, and what it says it is.
EXPORT_FILE, EXPORT_FORMAT = "export.json", "jormungandr-export-1"
#: What marks a folder as an export of ours: one that another may take the place of.
MANIFESTS = {BUNDLE_FILE: BUNDLE_FORMAT, EXPORT_FILE: EXPORT_FORMAT}

#: What `zipfile` raises of a damaged archive, besides built-in errors of several kinds.
_NO_ZIP = (zipfile.BadZipFile, EOFError, struct.error)

_VECTOR = "its elements in C order, as float32"
_FLAT = (
    "as gymnasium.spaces.flatten makes it a vector, in float32: a box is its elements in C order;"
    " a discrete one, and each part of a multi_discrete one, is one-hot, counted from its start;"
    " multi_binary is its bits; a dict is its parts one after another, in the order of their keys"
)
_STACKED = (
    "; of the newest {0} observations, the oldest first, {1}; before an episode's first one comes"
    " that first one itself"
)
_LAYERS = (
    "each layer takes what the one before it gives; the first linear one flattens an image in C"
    " order; the layers without an activation all take what the last one with an activation gives"
)
_DECISION = (
    "softmax over the atoms of each action"
    " gives the distribution of its return; the expected value is the sum of support *"
    " probability; the action is the first of those with the highest expected value"
)
_PLAIN = "reshape the value layer's output to (actions, atoms); "
_DUELING = (
    "reshape the advantage layer's output to (actions, atoms), subtract from each atom its mean"
    " over the actions, and add the value layer's output (atoms) to each action; "
)
_NOISE = (
    "NAME.weight_sigma and NAME.bias_sigma are the deviations of weights that explore by noise;"
    " without noise they have no part"
)
_RISK = (
    "softmax over the atoms of each action gives the distribution of its return; of its worst {0:g}"
    " of probability, taken from the lowest atom on, the mean is the score; the action is the first"
    " of those with the highest score"
)
_MASKED = ", among those that the mask allows (true)"


def check_format(name: object, where: str = "format") -> str:
    """Return the name of a format.

    Raises:
        InvalidValue: there is none of that name.
    """
    if name not in FORMATS:
        raise InvalidValue(where, f"one of {list(FORMATS)}", shown(name))
    return str(name)


def describe(snapshot: PolicySnapshot, env: Environment | None = None) -> dict[str, Any]:
    """Return what a reader must know to use a policy, as JSON-able builtins.

    Args:
        snapshot: the policy.
        env: an environment or its `gymnasium.envs.registration.EnvSpec`, to be named in it.

    Raises:
        InvalidValue: `env` has no specification that JSON can carry.
    """
    spec, o = snapshot.spec, snapshot.spec.observation
    auxiliary = spec.auxiliary
    return {
        "written_by": f"jormungandr-rl {__version__}",
        "algorithm": spec.algorithm,
        "policy_version": snapshot.version,
        "generation": snapshot.generation,
        "update_count": snapshot.update_count,
        "transitions": snapshot.transitions,
        "policy_digest": snapshot.digest(),
        "observation": {
            "features": None if o.features is None else list(o.features),
            "space": msgspec.to_builtins(o.described),
            "frame_stack": o.frame_stack,
            "shape": list(o.stored_shape),
            "dtype": str(o.stored_dtype),
            "encoding": _encoding(spec),
        },
        "normalization": _normalization(snapshot),
        "network": {
            "tensors": f"NAME.weight and NAME.bias in {POLICY_FILE}, float32",
            "order": _LAYERS,
            "layers": _layers(spec),
            "decision": (_DUELING if spec.c51.dueling else _PLAIN)
            + (_DECISION if spec.risk.kind == "mean" else _RISK.format(spec.risk.level))
            + (_MASKED if spec.action_masks else ""),
            **({"noise": _NOISE} if spec.c51.noisy else {}),
        },
        "support": snapshot.support.tolist(),
        "actions": [
            {"index": i, "label": action.label, "value": action.value}
            for i, action in enumerate(spec.action_set)
        ],
        "action_masks": spec.action_masks,
        "action_repeat": spec.action_repeat,
        "auxiliary_classes": None if auxiliary is None else list(auxiliary.classes),
        "spec": spec.to_dict(),
        "env_spec": None if env is None else _env_spec(env),
    }


def bundle_files(snapshot: PolicySnapshot, env: Environment | None = None) -> dict[str, bytes]:
    """Return the files of a bundle by name; the same policy, the same bytes.

    Args:
        snapshot: the policy.
        env: an environment or its `EnvSpec`, to be named in it.

    Raises:
        InvalidValue: `env` has no specification that JSON can carry.
    """
    files = {POLICY_FILE: snapshot.to_bytes()}
    entries = {"format": BUNDLE_FORMAT, **describe(snapshot, env)}
    return {**files, BUNDLE_FILE: seal(entries, files)}


def write_bundle(
    path: str | Path, snapshot: PolicySnapshot, env: Environment | None = None
) -> None:
    """Write a bundle folder whole, replacing an earlier export of ours.

    Args:
        path: the folder.
        snapshot: the policy.
        env: an environment or its `EnvSpec`, to be named in it.

    Raises:
        InvalidValue: something else is at `path`, or `env` has no specification of its own.
    """
    write_folder(Path(path), bundle_files(snapshot, env), MANIFESTS)


def open_bundle(path: str | Path, features: Sequence[str] | None = None) -> PolicySnapshot:
    """Return the policy of a bundle folder whose digests verify.

    Args:
        path: the folder.
        features: the names of the observation's elements as the caller will give them.

    Raises:
        CheckpointError: it is no bundle, or damaged.
        InvalidValue: the policy's features are others, or in another order.
    """
    if not (Path(path) / BUNDLE_FILE).is_file():
        raise CheckpointError(str(path), f"a folder with {BUNDLE_FILE}", "none")
    return PolicySnapshot.open(path, features=features)


def to_zip(files: Mapping[str, bytes]) -> bytes:
    """Return files as a zip archive without compression; the same files, the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in sorted(files.items()):
            entry = zipfile.ZipInfo(name)  # dated 1980
            entry.create_system, entry.external_attr = 3, 0o644 << 16
            archive.writestr(entry, data)
    return buffer.getvalue()


def from_zip(data: bytes) -> dict[str, bytes]:
    """Return the files of an exported folder's archive, checked against their digests.

    Raises:
        CheckpointError: it is no such archive, or something in it is damaged; nothing of it is to
            be used.
    """
    files: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for entry in archive.infolist():
                name = entry.filename
                if PLAIN_NAME.fullmatch(name) is None or name in files:
                    raise CheckpointError("archive", "different, plain file names", repr(name))
                if entry.compress_type != zipfile.ZIP_STORED:  # it could unpack to any size
                    raise CheckpointError("archive", "no compression", f"that of {name!r}")
                files[name] = archive.read(entry)
    except (*_NO_ZIP, ValueError, NotImplementedError, RuntimeError, OSError) as error:
        raise CheckpointError("archive", "a zip archive", repr(error)) from None
    found = [name for name in MANIFESTS if name in files]
    if len(found) != 1:
        raise CheckpointError("archive", f"one of {list(MANIFESTS)}", str(found))
    rest = {name: content for name, content in files.items() if name != found[0]}
    unseal(found[0], files[found[0]], rest, MANIFESTS[found[0]])
    return files


def _encoding(spec: ModelSpec) -> str:
    """Return in words how an observation becomes the array that the policy takes."""
    o = spec.observation
    rule = _VECTOR if isinstance(o.space, Box) else _FLAT
    if o.is_image:
        rule = "the image as it is, uint8"
    if o.frame_stack > 1:
        rule += _STACKED.format(o.frame_stack, "stacked" if o.is_image else "one after another")
    return rule


def _normalization(snapshot: PolicySnapshot) -> dict[str, Any]:
    """Return what the network is given of an observation x."""
    o = snapshot.spec.observation
    if o.is_image:
        return {
            "kind": "pixels",
            "formula": "float32(x) / 255, as (channels, height, width); the channels of stacked"
            " images one after another, the oldest image first",
        }
    if not o.normalize:
        bound = float(RAW_BOUND)
        return {"kind": "bound", "bound": bound, "formula": "clip(x, -bound, bound)"}
    return {
        "kind": "standardize",
        "mean": snapshot.mean.tolist(),
        "var": snapshot.var.tolist(),
        "clip": o.clip,
        "epsilon": VARIANCE_FLOOR,
        "formula": "float32(clip((x - mean) / sqrt(var + epsilon), -clip, clip)), computed in"
        " float64 from the float32 x",
    }


def _layers(spec: ModelSpec) -> list[dict[str, Any]]:
    """Return the layers in order, with the names of their tensors in ``policy.safetensors``."""
    layers = []
    for tensor, shape in layer_shapes(spec).items():
        name, _, part = tensor.rpartition(".")
        if part != "weight":
            continue
        layer: dict[str, Any] = {
            "name": name,
            "kind": "linear",
            "formula": "y = weight @ x + bias",
            "weight": list(shape),
            "bias": [shape[0]],
            "activation": None if name in ("value", "advantage", "auxiliary") else "relu",
        }
        if name.startswith("conv."):
            _, _, stride = CONVOLUTIONS[int(name.removeprefix("conv."))]
            formula = "cross-correlation of (channels, height, width), no padding"
            layer |= {"kind": "conv2d", "formula": formula, "stride": stride}
        layers.append(layer)
    return layers


def _env_spec(env: Environment) -> dict[str, Any]:
    """Return the JSON form of an environment's specification; `EnvSpec.from_json` reads it."""
    from gymnasium.envs.registration import EnvSpec

    spec = env if isinstance(env, EnvSpec) else getattr(env, "spec", None)
    if not isinstance(spec, EnvSpec):
        raise InvalidValue("env", "an environment made by gymnasium.make, or an EnvSpec", env)
    try:
        found = json.loads(spec.to_json())
        json.dumps(found, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise InvalidValue("env", "a specification that JSON can carry", error) from None
    return dict(found)
