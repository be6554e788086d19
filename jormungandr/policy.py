"""`PolicySnapshot`: one immutable, numbered policy, with its own NumPy forward pass.

A snapshot is all that ever flows back from a learner: weights, support, and the observation moments
as latched at its version. Acting never needs torch. B observations, A actions, N atoms, D elements.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from jormungandr.columns import is_number, observations
from jormungandr.errors import CheckpointError, InvalidValue, JormungandrError, shown
from jormungandr.protocol import ActionChoice, InferenceReply
from jormungandr.spec import ModelSpec

__all__ = ["PolicySnapshot", "layer_shapes", "normalize", "prepared", "streams"]

FORMAT = "jormungandr-policy-1"
#: Name of the policy's file in a checkpoint folder.
POLICY_FILE = "policy.safetensors"
#: Added to the variance under the root, so that a constant feature does not divide by zero.
VARIANCE_FLOOR = 1e-8

#: Largest magnitude of an element that is not normalised.
RAW_BOUND = np.float32(1e6)

Floats = NDArray[np.float32]


def normalize(
    observation: NDArray[Any], mean: NDArray[np.float64], var: NDArray[np.float64], clip: float
) -> Floats:
    """Return ``clip((observation - mean) / sqrt(var + 1e-8), -clip, clip)`` as float32, (B, D).

    The one form that sampling, evaluation, acting and export share. The difference is taken in
    float64, so that a large common offset does not eat the digits.
    """
    scaled = (observation - mean) / np.sqrt(var + VARIANCE_FLOOR)
    return np.clip(scaled, -clip, clip).astype(np.float32)


def prepared(
    observation: NDArray[np.float32],
    spec: ModelSpec,
    mean: NDArray[np.float64],
    var: NDArray[np.float64],
) -> Floats:
    """Return what the network sees of raw observations, (B, D).

    Raw ones are bounded too: 3e38 is a fair float32, and the sum of two of them is none.
    """
    if spec.observation.normalize:
        return normalize(observation, mean, var, spec.observation.clip)
    return np.clip(observation, -RAW_BOUND, RAW_BOUND)


def streams(
    seed: int,
) -> tuple[np.random.Generator, np.random.Generator, np.random.Generator]:
    """Return the independent random streams of a model: initialisation, sampling, acting.

    Drawing more from one never shifts another. The acting stream is all that a gateway needs; with
    it a service that is waited for acts as a learner in process does, draw for draw.
    """
    children = np.random.SeedSequence(seed).spawn(3)
    initialisation, sampling, acting = (np.random.default_rng(child) for child in children)
    return initialisation, sampling, acting


def layer_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every weight of a model's network, in order."""
    sizes = (*spec.observation.shape, *spec.c51.layers)
    shapes: dict[str, tuple[int, ...]] = {}
    for i, (inputs, outputs) in enumerate(pairwise(sizes)):
        shapes[f"hidden.{i}.weight"] = (outputs, inputs)
        shapes[f"hidden.{i}.bias"] = (outputs,)
    heads = {"value": len(spec.action_set) * spec.c51.atoms}
    if spec.auxiliary is not None:
        heads["auxiliary"] = len(spec.auxiliary.classes)
    for name, outputs in heads.items():
        shapes[f"{name}.weight"] = (outputs, sizes[-1])
        shapes[f"{name}.bias"] = (outputs,)
    return shapes


Count = Annotated[int, msgspec.Meta(ge=0)]


class _Header(msgspec.Struct):
    """The JSON header of a policy's bytes."""

    format: str
    spec: dict[str, Any]
    version: Count
    update_count: Count
    transitions: Count
    generation: Count


@dataclass(frozen=True, eq=False)
class PolicySnapshot:
    """Policy number `version` of one model.

    Args:
        spec: the model's resolved specification.
        version: 0 for the initial network, then one more for each completed update.
        update_count: updates completed.
        transitions: training transitions applied; the exploration schedule runs on it.
        weights: name to float32 array, as `layer_shapes` lists them.
        mean, var: (D,) float64 observation moments latched at this version.
        generation: of the model.
    """

    spec: ModelSpec
    version: int
    update_count: int
    transitions: int
    weights: dict[str, Floats]
    mean: NDArray[np.float64]
    var: NDArray[np.float64]
    generation: int = 1

    @cached_property
    def support(self) -> NDArray[np.float64]:
        """The returns the distributions are over, (N,)."""
        low, high = self.spec.c51.support
        return np.linspace(low, high, self.spec.c51.atoms)

    @cached_property
    def _forward(self) -> tuple[list[tuple[Floats, Floats]], Floats]:
        """Weights as the forward pass wants them: transposed, and the support in float32."""
        # In the order of the network: a checkpoint brings weights back in the order of their names.
        names = [n.removesuffix(".weight") for n in layer_shapes(self.spec) if n.endswith("weight")]
        layers = [
            (np.ascontiguousarray(self.weights[f"{n}.weight"].T), self.weights[f"{n}.bias"])
            for n in names
        ]
        return layers, self.support.astype(np.float32)

    def logits(self, observation: NDArray[Any]) -> tuple[Floats, Floats | None]:
        """Return categorical logits (B, A, N), and auxiliary logits (B, classes) or None.

        Args:
            observation: (B, D) raw observations.
        """
        layers, _ = self._forward
        x = np.asarray(observation, dtype=np.float32)
        x = prepared(x, self.spec, self.mean, self.var)
        depth = len(self.spec.c51.layers)
        for weight, bias in layers[:depth]:
            x = np.maximum(x @ weight + bias, np.float32(0))
        weight, bias = layers[depth]
        shape = (len(x), len(self.spec.action_set), self.spec.c51.atoms)
        values = (x @ weight + bias).reshape(shape)
        if self.spec.auxiliary is None:
            return values, None
        weight, bias = layers[depth + 1]
        return values, x @ weight + bias

    def distribution(self, observation: NDArray[Any]) -> Floats:
        """Return the return distribution of every action, (B, A, N)."""
        logits, _ = self.logits(observation)
        e = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return np.asarray(e / e.sum(axis=-1, keepdims=True), dtype=np.float32)

    def values(self, observation: NDArray[Any]) -> Floats:
        """Return the expected return of every action, (B, A)."""
        return np.asarray(self.distribution(observation) @ self._forward[1], dtype=np.float32)

    def greedy(self, observation: NDArray[Any]) -> NDArray[np.int64]:
        """Return the best action by expected return, (B,); the first one on a tie."""
        return np.asarray(self.values(observation).argmax(axis=-1), dtype=np.int64)

    def classify(self, observation: NDArray[Any]) -> NDArray[np.int64]:
        """Return the most likely auxiliary class, (B,).

        Raises:
            InvalidValue: the model has no auxiliary head.
        """
        _, auxiliary = self.logits(observation)
        if auxiliary is None:
            raise InvalidValue("auxiliary", "a model with an auxiliary head", "none")
        return np.asarray(auxiliary.argmax(axis=-1), dtype=np.int64)

    def act(
        self,
        observation: ArrayLike,
        rng: np.random.Generator,
        *,
        deterministic: bool = False,
        epsilon: float | None = None,
        distribution: bool = False,
    ) -> InferenceReply:
        """Choose actions for observations (B, D), or for a single one as a batch of one.

        Args:
            observation: raw observations.
            rng: draws the explored actions; nothing the learner's state depends on.
            deterministic: take the best action always; wins over `epsilon`.
            epsilon: probability of a uniformly random action; None is the model's schedule.
            distribution: also return the return distribution of every action.

        Raises:
            InvalidInput: (one of its classes) for a bad observation or epsilon.
        """
        x = observations(observation, self.spec)
        if epsilon is None:
            epsilon = self.spec.exploration.epsilon(self.transitions)
        if not is_number(epsilon) or not 0 <= epsilon <= 1:
            raise InvalidValue("epsilon", "a number in 0..1", shown(epsilon))
        epsilon = float(epsilon)
        probs = self.distribution(x)
        values = probs @ self._forward[1]
        chosen = values.argmax(axis=-1)
        count, actions = values.shape
        probability = np.ones(count)
        if not deterministic and epsilon > 0:
            best = chosen
            random = rng.random(count) < epsilon
            chosen = np.where(random, rng.integers(actions, size=count), best)
            probability = epsilon / actions + (1 - epsilon) * (chosen == best)
        choices = self._choices
        return InferenceReply(
            policy_version=self.version,
            generation=self.generation,
            actions=[choices[i] for i in chosen],
            expected_values=values.tolist(),
            behavior_prob=probability.tolist(),
            distribution=probs.tolist() if distribution else None,
            support=self.support.tolist() if distribution else None,
        )

    @cached_property
    def _choices(self) -> list[ActionChoice]:
        return [
            ActionChoice(index=i, label=a.label, value=a.value)
            for i, a in enumerate(self.spec.action_set)
        ]

    def to_bytes(self) -> bytes:
        """Return the snapshot as safetensors with a JSON header; the same one, the same bytes."""
        from safetensors.numpy import save

        header = {
            "format": FORMAT,
            "spec": self.spec.to_dict(),
            "version": self.version,
            "update_count": self.update_count,
            "transitions": self.transitions,
            "generation": self.generation,
        }
        tensors: dict[str, NDArray[Any]] = {
            **{name: np.ascontiguousarray(array) for name, array in self.weights.items()},
            "moments.mean": np.ascontiguousarray(self.mean),
            "moments.var": np.ascontiguousarray(self.var),
        }
        return bytes(save(tensors, metadata={"policy": json.dumps(header, sort_keys=True)}))

    def digest(self) -> str:
        """Return the SHA-256 of what the policy is: its weights, moments and support.

        Generation and the transition count are left out: a rebuilt policy has the same digest.
        """
        h = sha256(json.dumps([self.version, self.update_count, self.spec.to_dict()]).encode())
        for name in sorted(self.weights):
            h.update(np.ascontiguousarray(self.weights[name]).tobytes())
        h.update(self.mean.tobytes() + self.var.tobytes())
        return h.hexdigest()

    @classmethod
    def open(cls, path: str | Path) -> PolicySnapshot:
        """Read a policy: a safetensors file, a checkpoint folder, or a model's of a service.

        Raises:
            CheckpointError: there is none, or it is not a policy of ours.
        """
        path = Path(path)
        served = sorted((path / "policies").glob("*.safetensors"))
        file = served[-1] if served else path / POLICY_FILE if path.is_dir() else path
        try:
            return cls.from_bytes(file.read_bytes())
        except OSError as error:
            raise CheckpointError(str(file), "a policy's file", error) from None

    @classmethod
    def from_bytes(cls, data: bytes) -> PolicySnapshot:
        """Rebuild a snapshot, checking names, shapes and finiteness against its own spec.

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
        moments = {f"moments.{m}": spec.observation.shape for m in ("mean", "var")}
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
        return cls(
            spec=spec,
            version=header.version,
            update_count=header.update_count,
            transitions=header.transitions,
            weights={name: tensors[name] for name in shapes},
            mean=tensors["moments.mean"],
            var=tensors["moments.var"],
            generation=header.generation,
        )
