"""`PolicySnapshot`: one immutable, numbered policy, with its own NumPy forward pass.

A snapshot is all that ever flows back from a learner: weights, support, and the observation moments
as latched at its version. Acting never needs torch. B observations, A actions, N atoms, D elements.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from hashlib import sha256
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from jormungandr.errors import (
    BodyTooLarge,
    CheckpointError,
    InvalidType,
    InvalidValue,
    JormungandrError,
    shown,
)
from jormungandr.manifest import read_folder
from jormungandr.numerics.risk import lower_tail_mean
from jormungandr.numerics.support import Bounds
from jormungandr.prediction import Predictor
from jormungandr.protocol import InferenceReply
from jormungandr.questions import Question, best
from jormungandr.spaces import pixels_first
from jormungandr.spec import ModelSpec

__all__ = [
    "CONVOLUTIONS",
    "PolicySnapshot",
    "factors",
    "is_noisy",
    "layer_shapes",
    "network_noise",
    "normalize",
    "prepared",
    "streams",
]

FORMAT = "jormungandr-policy-1"
#: Name of the policy's file in a checkpoint folder.
POLICY_FILE = "policy.safetensors"
#: The manifest of a bundle, a folder that describes such a file, and what it says it is.
BUNDLE_FILE, BUNDLE_FORMAT = "bundle.json", "jormungandr-bundle-1"
#: Added to the variance under the root, so that a constant feature does not divide by zero.
VARIANCE_FLOOR = 1e-8

#: Filters, kernel and stride of the convolutions of an image (Mnih et al. 2015).
CONVOLUTIONS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))

#: Numbers (observations × actions × atoms) of one forward pass; more observations take several.
FORWARD_NUMBERS = 1 << 24
#: Numbers of values, or of distributions, in one reply: some 80 MB of JSON.
REPLY_NUMBERS = 1 << 22

#: Largest magnitude of an element that is not normalised.
RAW_BOUND = np.float32(1e6)

Floats = NDArray[np.float32]
#: A linear layer: the weight (inputs, outputs), and the bias (outputs,).
_Layer: TypeAlias = tuple[Floats, Floats]
_ZERO = np.float32(0)


def normalize(
    observation: NDArray[Any], mean: NDArray[np.float64], var: NDArray[np.float64], clip: float
) -> Floats:
    """Return ``clip((observation - mean) / sqrt(var + 1e-8), -clip, clip)`` as float32, (B, D).

    The one form that sampling, evaluation, acting and export share. The difference is taken in
    float64, so that a large common offset does not eat the digits.
    """
    return _scaled(observation, mean, np.sqrt(var + VARIANCE_FLOOR), clip)


def _scaled(
    observation: NDArray[Any], mean: NDArray[np.float64], root: NDArray[np.float64], clip: float
) -> Floats:
    """Return what `normalize` does, given the root that it divides by."""
    scaled = observation - mean
    scaled /= root
    return np.asarray(scaled.clip(-clip, clip), dtype=np.float32)


def prepared(
    observation: NDArray[Any],
    spec: ModelSpec,
    mean: NDArray[np.float64],
    var: NDArray[np.float64],
) -> Floats:
    """Return what the network sees of stored observations: (B, D), or (B, C, H, W) of images.

    Raw ones are bounded too: 3e38 is a fair float32, and the sum of two of them is none.
    """
    o = spec.observation
    if o.is_image:
        pixels = pixels_first(observation, o.shape).astype(np.float32)
        return np.asarray(pixels / np.float32(255), dtype=np.float32)
    if o.normalize:
        return normalize(observation, mean, var, o.clip)
    return np.asarray(np.clip(observation, -RAW_BOUND, RAW_BOUND), dtype=np.float32)


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


def network_noise(seed: int) -> np.random.Generator:
    """Return the stream of the noise in a model's updates: the child after those of `streams`."""
    return np.random.default_rng(np.random.SeedSequence(seed).spawn(4)[3])


def factors(count: int, rng: np.random.Generator) -> Floats:
    """Draw f(ε) of one side of a noisy layer, (count,), where f(x) = sign(x)·√|x|.

    Fortunato et al. (2018), equations 10 and 11: the noise of a weight is the product of those of
    its output and its input, that of a bias the one of its output.
    """
    drawn = rng.standard_normal(count).astype(np.float32)
    return np.asarray(np.sign(drawn) * np.sqrt(np.abs(drawn)), dtype=np.float32)


def is_noisy(layer: str, spec: ModelSpec) -> bool:
    """Whether a layer, by its name, has weights of noise: each that leads to the values, linear."""
    return spec.c51.noisy and not layer.startswith("conv.") and layer != "auxiliary"


def layer_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every weight of a model's network, in order."""
    shapes: dict[str, tuple[int, ...]] = {}
    inputs = spec.observation.stored_shape[0]
    if spec.observation.is_image:
        blank = np.zeros((1, *spec.observation.stored_shape), dtype=np.uint8)
        _, inputs, *sides = pixels_first(blank, spec.observation.shape).shape
        for i, (filters, kernel, stride) in enumerate(CONVOLUTIONS):
            shapes[f"conv.{i}.weight"] = (filters, inputs, kernel, kernel)
            shapes[f"conv.{i}.bias"] = (filters,)
            inputs, sides = filters, [(side - kernel) // stride + 1 for side in sides]
        inputs *= sides[0] * sides[1]
    for i, (before, after) in enumerate(pairwise((inputs, *spec.c51.layers))):
        shapes[f"hidden.{i}.weight"] = (after, before)
        shapes[f"hidden.{i}.bias"] = (after,)
    heads = {"value": len(spec.action_set) * spec.c51.atoms}
    if spec.c51.dueling:
        heads = {"value": spec.c51.atoms, "advantage": heads["value"]}
    if spec.auxiliary is not None:
        heads["auxiliary"] = len(spec.auxiliary.classes)
    for name, outputs in heads.items():
        shapes[f"{name}.weight"] = (outputs, spec.c51.layers[-1])
        shapes[f"{name}.bias"] = (outputs,)
    for name, shape in list(shapes.items()):
        if is_noisy(name.rpartition(".")[0], spec):
            shapes[f"{name}_sigma"] = shape
    return shapes


def convolved(x: Floats, weight: Floats, bias: Floats, stride: int) -> Floats:
    """Return the rectified convolution of (B, C, H, W) with (F, C, k, k), (B, F, H', W')."""
    filters, _, kernel, _ = weight.shape
    windows = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), axis=(2, 3))
    windows = windows[:, :, ::stride, ::stride].transpose(0, 2, 3, 1, 4, 5)  # B, H', W', C, k, k
    count, height, width = windows.shape[:3]
    flat = (
        windows.reshape(count * height * width, weight[0].size) @ weight.reshape(filters, -1).T
        + bias
    )
    rows = np.maximum(flat, np.float32(0)).reshape(count, height, width, filters)
    return np.ascontiguousarray(rows.transpose(0, 3, 1, 2))


@lru_cache(maxsize=256)
def _atoms(low: float, high: float, count: int) -> NDArray[np.float64]:
    """Return a support, (N,); policies share it, so nobody may write to it."""
    found = np.linspace(low, high, count)
    found.setflags(write=False)
    return found


def _linear(x: Floats, layer: _Layer) -> Floats:
    """Return what a layer makes of (B, inputs), (B, outputs)."""
    weight, bias = layer
    found: Floats = x.dot(weight)  # the bits of `@`, which asks more questions first
    found += bias
    return found


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


@dataclass(frozen=True, eq=False)
class PolicySnapshot(Predictor):
    """Policy number `version` of one model.

    Args:
        spec: the model's resolved specification.
        version: 0 for the initial network, then one more for each completed update.
        update_count: updates completed.
        transitions: training transitions applied; the exploration schedule runs on it.
        weights: name to float32 array, as `layer_shapes` lists them.
        mean, var: (D,) float64 observation moments latched at this version; (0,) of images.
        generation: of the model.
        bounds: lowest and highest atom of a support that fits itself; else the specification's.
    """

    spec: ModelSpec
    version: int
    update_count: int
    transitions: int
    weights: dict[str, Floats]
    mean: NDArray[np.float64]
    var: NDArray[np.float64]
    generation: int = 1
    bounds: Bounds | None = None

    @cached_property
    def support(self) -> NDArray[np.float64]:
        """The returns the distributions are over, (N,)."""
        given = self.spec.c51.support
        if given == "auto":
            assert self.bounds is not None  # whoever made it gave them
            given = self.bounds
        return _atoms(*given, self.spec.c51.atoms)

    @cached_property
    def _forward(self) -> tuple[list[_Layer], dict[str, _Layer], Floats]:
        """What the forward pass wants: hidden layers, heads by name, the support in float32."""
        c51 = self.spec.c51
        heads = ["value", *["advantage"][: c51.dueling]]
        if self.spec.auxiliary is not None:
            heads.append("auxiliary")
        hidden = [self._layer(f"hidden.{i}") for i in range(len(c51.layers))]
        return hidden, {name: self._layer(name) for name in heads}, self.support.astype(np.float32)

    def _layer(self, name: str) -> _Layer:
        """Return a linear layer's weight, transposed, and its bias."""
        weight = np.ascontiguousarray(self.weights[f"{name}.weight"].T)
        return weight, self.weights[f"{name}.bias"]

    @cached_property
    def _root(self) -> NDArray[np.float64]:
        """What normalised elements are divided by, (D,)."""
        return np.asarray(np.sqrt(self.var + VARIANCE_FLOOR))

    def _prepared(self, observation: NDArray[Any]) -> Floats:
        """Return what the network sees, as `prepared` does."""
        o = self.spec.observation
        x = np.asarray(observation, dtype=o.stored_dtype)
        if o.normalize and not o.is_image:
            return _scaled(x, self.mean, self._root, o.clip)
        return prepared(x, self.spec, self.mean, self.var)

    def logits(self, observation: NDArray[Any]) -> tuple[Floats, Floats | None]:
        """Return categorical logits (B, A, N), and auxiliary logits (B, classes) or None.

        Args:
            observation: (B, *stored_shape), raw.
        """
        hidden, heads, _ = self._forward
        x = self._prepared(observation)
        if self.spec.observation.is_image:
            for i, (_, _, stride) in enumerate(CONVOLUTIONS):
                weight, bias = (self.weights[f"conv.{i}.{part}"] for part in ("weight", "bias"))
                x = convolved(x, weight, bias, stride)
            x = x.reshape(len(x), math.prod(x.shape[1:]))
        for layer in hidden:
            x = _linear(x, layer)
            np.maximum(x, _ZERO, out=x)
        shape = (len(x), len(self.spec.action_set), self.spec.c51.atoms)
        values = _linear(x, heads["value"])
        if self.spec.c51.dueling:
            advantage = _linear(x, heads["advantage"]).reshape(shape)
            values = values[:, None, :] + (advantage - advantage.mean(axis=1, keepdims=True))
        values = values.reshape(shape)
        if self.spec.auxiliary is None:
            return values, None
        return values, _linear(x, heads["auxiliary"])

    def with_noise(self, rng: np.random.Generator) -> PolicySnapshot:
        """Return this policy of a noisy network with noise from a stream in its weights.

        What a snapshot computes by itself is without noise. Layer by layer in the order of the
        network, the noise of the inputs is drawn and then that of the outputs.
        """
        weights = dict(self.weights)
        for name in layer_shapes(self.spec):
            layer, _, part = name.rpartition(".")
            if part == "weight" and is_noisy(layer, self.spec):
                outputs, inputs = weights[name].shape
                of_inputs, of_outputs = factors(inputs, rng), factors(outputs, rng)
                noise = {"weight": np.outer(of_outputs, of_inputs), "bias": of_outputs}
                for kind, drawn in noise.items():
                    sigma = weights[f"{layer}.{kind}_sigma"]
                    weights[f"{layer}.{kind}"] = weights[f"{layer}.{kind}"] + sigma * drawn
        return replace(self, weights=weights)

    def without_noise(self) -> PolicySnapshot:
        """Return this policy as one of a network that is not noisy: the same one, if it is not."""
        if not self.spec.c51.noisy:
            return self
        c51 = msgspec.structs.replace(self.spec.c51, noisy=False)
        weights = {n: w for n, w in self.weights.items() if not n.endswith("_sigma")}
        return replace(self, spec=msgspec.structs.replace(self.spec, c51=c51), weights=weights)

    def distribution(self, observation: NDArray[Any]) -> Floats:
        """Return the return distribution of every action, (B, A, N)."""
        e, _ = self.logits(observation)
        e -= np.maximum.reduce(e, axis=-1, keepdims=True)
        np.exp(e, e)
        e /= np.add.reduce(e, axis=-1, keepdims=True)
        return e

    def values(self, observation: NDArray[Any]) -> Floats:
        """Return the expected return of every action, (B, A)."""
        return np.asarray(self.distribution(observation) @ self._forward[2], dtype=np.float32)

    def greedy(
        self, observation: NDArray[Any], mask: NDArray[np.bool_] | None = None
    ) -> NDArray[np.int64]:
        """Return the best action by `spec.risk`, (B,); the first one on a tie.

        Args:
            observation: (B, *stored_shape), raw.
            mask: (B, A) which actions are allowed; None allows all.
        """
        return best(self._scored(self.distribution(observation))[1], mask)

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
        action_masks: ArrayLike | None = None,
        distribution: bool = False,
    ) -> InferenceReply:
        """Choose actions for a batch of observations, or for a single one as a batch of one.

        Args:
            observation: as the environment shows them; of stacked frames, the stacks.
            rng: draws what is explored; nothing the learner's state depends on.
            deterministic: take the best action always; wins over `epsilon`. Otherwise a noisy
                network draws its noise, one for all observations.
            epsilon: probability of a uniformly random action; None is the model's schedule.
            action_masks: (B, A) which actions are allowed; of a model with action masks.
            distribution: also return the return distribution of every action.

        Raises:
            InvalidInput: (one of its classes) for a bad observation, mask or option.
            BodyTooLarge: the reply would have more than `REPLY_NUMBERS` values or probabilities.
        """
        if epsilon is None:
            epsilon = self.spec.exploration.epsilon(self.transitions)
        question = Question.checked(
            self.spec,
            observation,
            deterministic=deterministic,
            epsilon=epsilon,
            action_masks=action_masks,
            distribution=distribution,
        )
        return self.answer([question], rng)[0]

    def answer(
        self, questions: Sequence[Question], rng: np.random.Generator
    ) -> list[InferenceReply]:
        """Answer several requests from one forward pass, as if they had come one after another.

        Of a noisy network each has a pass of its own, with noise of its own unless it is asked to
        be deterministic. The values, and the probability of an action, are then those under that
        noise.

        Args:
            questions: checked against this policy's specification.
            rng: draws the noise and the explored actions, in the order of the questions.

        Raises:
            BodyTooLarge: the replies would have more than `REPLY_NUMBERS` values or probabilities.
        """
        if self.spec.c51.noisy and len(questions) > 1:
            return [reply for one in questions for reply in self.answer([one], rng)]
        acting = self._acting(questions[0].deterministic, rng)
        x = questions[0].observations
        if len(questions) > 1:
            x = np.concatenate([question.observations for question in questions])
        values, scores, probs = acting._evaluated(x, any(q.distribution for q in questions))
        replies, begin, choices = [], 0, self.spec.action_choices
        for question in questions:
            rows = slice(begin, begin := begin + len(question))
            chosen, probability = question.choose(scores[rows], rng)
            asked = None if probs is None or not question.distribution else probs[rows]
            replies.append(
                InferenceReply(
                    policy_version=self.version,
                    generation=self.generation,
                    actions=[choices[i] for i in chosen.tolist()],
                    expected_values=values[rows].tolist(),
                    behavior_prob=probability.tolist(),
                    distribution=None if asked is None else asked.tolist(),
                    support=None if asked is None else self.support.tolist(),
                )
            )
        return replies

    def _acting(self, deterministic: bool, rng: np.random.Generator) -> PolicySnapshot:
        """Return what acts: this policy, or with noise where there is some."""
        noisy = self.spec.c51.noisy and not deterministic
        return self.with_noise(rng) if noisy else self

    def _scored(self, probs: Floats) -> tuple[Floats, Floats]:
        """Return expected returns (B, A), and what actions are chosen by; the same for the mean."""
        support = self._forward[2]
        values: Floats = probs @ support
        if self.spec.risk.kind == "mean":
            return values, values
        scores = lower_tail_mean(support, probs, self.spec.risk.level)
        return values, np.asarray(scores, dtype=np.float32)

    def _evaluated(self, x: NDArray[Any], keep: bool) -> tuple[Floats, Floats, Floats | None]:
        """Return values and scores (B, A), and distributions (B, A, N) if they are to be kept.

        Raises:
            BodyTooLarge: that would be too many numbers to reply.
        """
        actions, atoms = len(self.spec.action_set), self.spec.c51.atoms
        numbers = len(x) * actions * (atoms if keep else 1)
        if numbers > REPLY_NUMBERS:
            what = "observations x actions" + (" x atoms" if keep else "")
            expected = f"at most {REPLY_NUMBERS} numbers ({what}) in a reply"
            raise BodyTooLarge("observations", expected, numbers, "send fewer at a time")
        if keep:
            probs = self.distribution(x)
            return (*self._scored(probs), probs)
        rows = max(1, FORWARD_NUMBERS // (actions * atoms))
        if len(x) <= rows:
            return (*self._scored(self.distribution(x)), None)
        parts = [self._scored(self.distribution(x[i : i + rows])) for i in range(0, len(x), rows)]
        values, scores = (np.concatenate(part) for part in zip(*parts, strict=True))
        return values, scores, None

    def _specification(self) -> ModelSpec:
        return self.spec

    def _choose(self, observations: Any, deterministic: bool, masks: Any) -> NDArray[np.int64]:
        question = Question.checked(
            self.spec,
            observations,
            deterministic=deterministic,
            epsilon=self.spec.exploration.epsilon(self.transitions),
            action_masks=masks,
            distribution=False,
        )
        acting, rng = self._acting(question.deterministic, self._predicting), self._predicting
        _, scores, _ = acting._evaluated(question.observations, keep=False)
        return question.choose(scores, rng)[0]

    @cached_property
    def _predicting(self) -> np.random.Generator:
        """What `predict` explores with: the model's acting stream from its beginning."""
        return streams(self.spec.seed)[2]

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
            **({} if self.bounds is None else {"support": self.bounds}),
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
        if self.bounds is not None:
            h.update(np.array(self.bounds).tobytes())
        return h.hexdigest()

    @classmethod
    def open(cls, path: str | Path, *, features: Sequence[str] | None = None) -> PolicySnapshot:
        """Read a policy: a safetensors file, a bundle, a checkpoint folder, or a service's model.

        Args:
            path: the file or folder; a bundle's digests are verified.
            features: the names of the observation's elements as the caller will give them.

        Raises:
            CheckpointError: there is none, or it is damaged, or not a policy of ours.
            InvalidType: no path.
            InvalidValue: the policy's features are others, or in another order.
        """
        try:
            path = Path(path)
        except TypeError:
            raise InvalidType("path", "a path", type(path).__name__) from None
        file = path
        try:
            served = sorted((path / "policies").glob("*.safetensors"))
            file = served[-1] if served else path / POLICY_FILE if path.is_dir() else path
            if (path / BUNDLE_FILE).is_file():
                data = read_folder(path, BUNDLE_FILE, BUNDLE_FORMAT)[1][POLICY_FILE]
            else:
                data = file.read_bytes()
        except (OSError, ValueError, KeyError) as error:  # of a NUL in the path, a ValueError
            remedy = _inside(path)
            raise CheckpointError(shown(file, str), "a policy's file", error, remedy) from None
        snapshot = cls.from_bytes(data)
        if features is not None:
            _check_features(snapshot.spec, features)
        return snapshot

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
        return cls(
            spec=spec,
            version=header.version,
            update_count=header.update_count,
            transitions=header.transitions,
            weights={name: tensors[name] for name in shapes},
            mean=tensors["moments.mean"],
            var=tensors["moments.var"],
            generation=header.generation,
            bounds=header.support,
        )


def _inside(path: Path) -> str:
    """Return what to open instead of a folder that `jormungandr train` wrote; "" of any other."""
    found: list[Path] = []
    with contextlib.suppress(OSError, ValueError):  # of a NUL in the path
        found = sorted(p for at in ("best", "*/best") for p in path.glob(at) if p.is_dir())
    return f"this folder is a training's: name {found[0]}, or the latest beside it" if found else ""


def _increasing(bounds: Bounds) -> bool:
    return math.isfinite(bounds[0]) and math.isfinite(bounds[1]) and bounds[0] < bounds[1]


def _check_features(spec: ModelSpec, given: Sequence[str]) -> None:
    """Refuse features that are not a model's own, in its order."""
    own = spec.observation.features
    if own is None:
        raise InvalidValue("features", "none: the policy's have no names", list(given))
    for i, (name, other) in enumerate(zip_longest(own, given)):
        if name != other:
            expected, got = ("none" if n is None else repr(n) for n in (name, other))
            raise InvalidValue(f"features[{i}]", expected, got, f"the policy's are {list(own)}")
