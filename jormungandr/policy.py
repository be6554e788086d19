"""`PolicySnapshot`: one immutable, numbered policy, with its own NumPy forward pass.

A snapshot is all that ever flows back from a learner: weights, support, and the observation moments
as latched at its version. Acting never needs torch. B observations, A actions, N atoms, D elements.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from jormungandr.errors import BodyTooLarge, InvalidValue
from jormungandr.forward import Forward
from jormungandr.numerics.risk import lower_tail_mean, mean
from jormungandr.numerics.support import Bounds
from jormungandr.policy_file import check_features, decoded, encoded, read
from jormungandr.prediction import Predictor
from jormungandr.protocol import InferenceReply
from jormungandr.questions import Question, best, choose_one
from jormungandr.row_forward import Floats, RowForward
from jormungandr.spaces import Box
from jormungandr.spec import ModelSpec
from jormungandr.streams import streams
from jormungandr.weights import with_noise

__all__ = ["PolicySnapshot"]

#: Numbers (observations × actions × atoms) of one forward pass; more observations take several.
FORWARD_NUMBERS = 1 << 24
#: Numbers of values, or of distributions, in one reply: some 80 MB of JSON.
REPLY_NUMBERS = 1 << 22

_FLOAT32 = np.dtype(np.float32)


@lru_cache(maxsize=256)
def _support(low: float, high: float, count: int) -> NDArray[np.float64]:
    """Return a support, (N,); policies share it, so nobody may write to it."""
    found = np.linspace(low, high, count)
    found.setflags(write=False)
    return found


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
        return _support(*given, self.spec.c51.atoms)

    @cached_property
    def _atoms(self) -> Floats:
        """The support as values are computed with it, (N,) float32."""
        return self.support.astype(np.float32)

    @cached_property
    def _forward(self) -> Forward:
        """The network, as it acts."""
        return Forward(self.spec, self.weights, self.mean, self.var)

    @cached_property
    def _row(self) -> RowForward | None:
        """The pass of one vector, where there is one."""
        return self._forward.row

    @cached_property
    def _plain_shape(self) -> tuple[int, ...] | None:
        """The shape of one observation that is stored as it is shown; None if none is."""
        o = self.spec.observation
        return o.stored_shape if isinstance(o.space, Box) and self._row is not None else None

    def logits(self, observation: NDArray[Any]) -> tuple[Floats, Floats | None]:
        """Return categorical logits (B, A, N), and auxiliary logits (B, classes) or None.

        Args:
            observation: (B, *stored_shape), raw.
        """
        return self._forward.logits(observation)

    def with_noise(self, rng: np.random.Generator) -> PolicySnapshot:
        """Return this policy of a noisy network with noise from a stream in its weights.

        What a snapshot computes by itself is without noise. Layer by layer in the order of the
        network, the noise of the inputs is drawn and then that of the outputs.
        """
        return replace(self, weights=with_noise(self.weights, self.spec, rng))

    def without_noise(self) -> PolicySnapshot:
        """Return this policy as one of a network that is not noisy: the same one, if it is not."""
        if not self.spec.c51.noisy:
            return self
        c51 = msgspec.structs.replace(self.spec.c51, noisy=False)
        weights = {n: w for n, w in self.weights.items() if not n.endswith("_sigma")}
        return replace(self, spec=msgspec.structs.replace(self.spec, c51=c51), weights=weights)

    def distribution(self, observation: NDArray[Any]) -> Floats:
        """Return the return distribution of every action, (B, A, N)."""
        return self._forward.distribution(observation)

    def values(self, observation: NDArray[Any]) -> Floats:
        """Return the expected return of every action, (B, A)."""
        return np.asarray(mean(self._atoms, self.distribution(observation)), dtype=np.float32)

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
        if (
            type(observation) is np.ndarray
            and observation.shape == self._plain_shape
            and observation.dtype == _FLOAT32
            and type(deterministic) is bool
            and type(epsilon) is float
            and 0 <= epsilon <= 1
            and action_masks is None
            and distribution is False
        ):
            reply = self._answer_one(observation, deterministic, epsilon, rng)
            if reply is not None:
                return reply
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
        first = questions[0]
        x = first.observations
        if len(questions) == 1 and len(x) == 1 and not first.distribution and self._row is not None:
            reply = self._answer_one(x[0], first.deterministic, first.epsilon, rng)
            if reply is not None:
                return [reply]
        acting = self._acting(first.deterministic, rng)
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

    def _answer_one(
        self, x: NDArray[Any], deterministic: bool, epsilon: float, rng: np.random.Generator
    ) -> InferenceReply | None:
        """Answer one plain question of one vector, (D,) float32, as `answer` does.

        None, before anything is drawn, if it takes another way: noise, or a vector not finite.
        """
        row, spec = self._row, self.spec
        if row is None or (spec.c51.noisy and not deterministic):
            return None
        probs = row(x)
        if probs is None:
            return None
        values, scores = self._scored(probs)
        index, probability = choose_one(scores, epsilon, deterministic, rng)
        return InferenceReply(
            policy_version=self.version,
            generation=self.generation,
            actions=[spec.action_choices[index]],
            expected_values=[values.tolist()],
            behavior_prob=[probability],
        )

    def _acting(self, deterministic: bool, rng: np.random.Generator) -> PolicySnapshot:
        """Return what acts: this policy, or with noise where there is some."""
        noisy = self.spec.c51.noisy and not deterministic
        return self.with_noise(rng) if noisy else self

    def _scored(self, probs: Floats) -> tuple[Floats, Floats]:
        """Return expected returns (B, A), and what actions are chosen by; the same for the mean.

        Of one observation's (A, N) both are (A,).
        """
        support = self._atoms
        # The bits of `@`, which asks more questions first.
        values: Any = probs.dot(support) if probs.ndim == 2 else mean(support, probs)
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
        return encoded(self)

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
        snapshot = cls.from_bytes(read(path))
        if features is not None:
            check_features(snapshot.spec, features)
        return snapshot

    @classmethod
    def from_bytes(cls, data: bytes) -> PolicySnapshot:
        """Rebuild a snapshot, checking names, shapes and finiteness against its own spec.

        Raises:
            CheckpointError: the bytes are not a policy of ours.
        """
        return cls(**decoded(data))
