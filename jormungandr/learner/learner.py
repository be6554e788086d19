"""`Learner`: the endpoint in one process — admission and the state machine behind one face."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec
from numpy.typing import ArrayLike

from jormungandr.actors import Actors
from jormungandr.admission import Admission, check_labels
from jormungandr.columns import columns
from jormungandr.errors import CheckpointError, InvalidValue, PolicyVersionStale
from jormungandr.held_steps import HeldOutSteps
from jormungandr.learner.core import Core
from jormungandr.ledger import Draft, MemoryStore
from jormungandr.off_policy import OffPolicyReport, evaluate_off_policy
from jormungandr.policy import PolicySnapshot
from jormungandr.protocol import InferenceReply, LabelReceipt, LabelsLike, Receipt, TransitionsLike
from jormungandr.recorder import Episodic
from jormungandr.spec import ModelSpec

if TYPE_CHECKING:
    from jormungandr.bundle import Environment

__all__ = ["Learner"]


class Learner(Core, Episodic):
    """Learn in this process: no service, no thread, no clock.

    Satisfies `Endpoint`, so that code written for it runs against a service by handing it a
    `RemoteLearner` instead. Two learners that are given the same transitions in the same order are
    bitwise equal, however the transitions were batched (unless a staleness rule drops some: what
    is stale depends on when it is sent).

    Args:
        spec: a `ModelSpec`, or its JSON form.
        generation: of the model id; 1 outside a service.
        first_version: number of the initial policy.

    Example:
        >>> learner = Learner({"observation": {"shape": [4]}, "actions": 2})
        >>> learner.policy_version
        0
    """

    def __init__(
        self,
        spec: ModelSpec | Mapping[str, Any],
        *,
        generation: int = 1,
        first_version: int = 0,
    ) -> None:
        resolved = spec if isinstance(spec, ModelSpec) else ModelSpec.from_dict(spec)
        super().__init__(resolved, generation=generation, first_version=first_version)
        self._admission = Admission(resolved, generation)
        self._ledger = MemoryStore()
        self._actors = Actors(resolved.replay.capacity)

    def add(self, transitions: TransitionsLike) -> Receipt:
        """Admit transitions and apply them, with the updates that become due.

        Args:
            transitions: structs, dicts of the same fields, or `Columns`.

        Raises:
            InvalidInput: (one of its classes) bad content; nothing was kept.
            Conflict: (one of its classes) it contradicts what is known; nothing was kept.
        """
        draft, checked = Draft(self._ledger), columns(transitions, self.spec)
        try:
            receipt, rows = self._admission.transitions(
                checked, draft, served=self.served_version, published=self.policy_version
            )
        except PolicyVersionStale:
            self._actors.refused(checked)
            raise
        self._actors.note(draft.arrival)
        self._ledger.apply(draft)
        for row in rows:
            self.apply(row)
        return receipt

    def label(self, labels: LabelsLike) -> LabelReceipt:
        """Join labels to their transitions, whichever came first.

        Raises:
            InvalidInput: (one of its classes) bad content; nothing was kept.
            LabelConflict: an identity has another label; nothing was kept.
        """
        draft = Draft(self._ledger)
        receipt, rows = self._admission.labels(check_labels(labels, self.spec), draft)
        self._ledger.apply(draft)
        for row in rows:
            self.apply(row)
        return receipt

    def act(
        self,
        observations: ArrayLike,
        deterministic: bool = False,
        epsilon: float | None = None,
        *,
        action_masks: ArrayLike | None = None,
        distribution: bool = False,
    ) -> InferenceReply:
        """Choose actions for a batch of observations, or for a single one as a batch of one.

        Args:
            observations: as the environment shows them; they are normalised with the moments
                latched in the policy.
            deterministic: take the best action always; wins over `epsilon`.
            epsilon: probability of a random action; None is the model's exploration schedule.
            action_masks: (B, A) which actions are allowed; of a model with action masks.
            distribution: also return the return distribution of every action.
        """
        if epsilon is None:
            epsilon = self.spec.exploration.epsilon(self.pacing.transitions)
        return self.snapshot().act(
            observations,
            self._acting,
            deterministic=deterministic,
            epsilon=epsilon,
            action_masks=action_masks,
            distribution=distribution,
        )

    def wait(self, lsn: int) -> dict[str, Any]:
        """Return `info()`: here everything admitted is applied already.

        Raises:
            InvalidValue: `lsn` is of no receipt.
        """
        if lsn > self._ledger.counters.data_lsn:
            newest = self._ledger.counters.data_lsn
            raise InvalidValue("lsn", f"one of a receipt, at most {newest}", lsn)
        return self.info()

    def warnings(self) -> list[str]:
        """Return what the operator should know, each with its remedy."""
        found = [*super().warnings(), *self._ledger.counters.warnings(), *self._actors.warnings()]
        if self.spec.promotion.gated:
            found.append(
                "not_gated: promotion.serve is 'champion', and a Learner in this process acts with"
                " its newest policy; the gate is a service's (jormungandr serve)"
            )
        return found

    def close(self) -> None:
        """Do nothing: a remote endpoint has a connection to close, this one has none."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def info(self) -> dict[str, Any]:
        """Return the model's figures, as `GET /v1/models/{id}` shows them."""
        counters = self._ledger.counters
        return {
            **super().info(),
            "spec": self.spec.to_dict(),
            "journal_lsn": counters.data_lsn,
            "labels": {"pending": counters.pending, "expired": counters.pending_expired},
            "mixed_episodes": counters.mixed_episodes,
            "unversioned": counters.unversioned,
            "lag": self._actors.summary(),
        }

    def metrics(self) -> dict[str, Any]:
        """Return the last update's figures, the evaluations so far, and what each actor sends."""
        return {
            "update": super().metrics(),
            "evaluations": [msgspec.to_builtins(evaluation) for evaluation in self.evaluations],
            "returns": self.returns.figures(),
            "actors": self._actors.figures(self._ledger.roll, self._ledger.counters),
        }

    def off_policy_value(
        self,
        policy: PolicySnapshot | None = None,
        *,
        gamma: float | None = None,
        horizon: int | None = None,
        seed: int = 0,
    ) -> OffPolicyReport:
        """Estimate what a policy earns in an episode, from the held-out transitions that are kept.

        It changes nothing. See docs/evaluation.md for what it can and cannot say.

        Args:
            policy: which, acting greedily; None is the one served.
            gamma: discount; None is the model's.
            horizon: steps that an episode has at most; None is no limit, or, with a discount of 1,
                the longest episode held.
            seed: of the random features.

        Raises:
            InvalidValue: an argument is out of range; the model sees images or has action masks;
                fewer than two episodes are held from their first step on.
        """
        held = HeldOutSteps.of_arrays(self.validation.in_order())
        policy = self.snapshot() if policy is None else policy
        return evaluate_off_policy(
            policy, held, gamma=gamma, horizon=horizon, seed=seed, logged=self.spec
        )

    def save(self, path: str | Path) -> None:
        """Write the whole state to a checkpoint folder: `load` goes on bit for bit."""
        self._save(Path(path), {"ledger.msgpack": self._ledger.to_bytes()})

    def export(
        self,
        path: str | Path,
        format: str = "bundle",  # noqa: A002 - the word of the command line and of the route
        *,
        env: Environment | None = None,
    ) -> None:
        """Write the policy alone, for others to act with, as a folder that describes itself.

        Args:
            path: the folder; an earlier export there is replaced.
            format: ``bundle`` (data, for any language), ``onnx``, ``torchscript``, ``pt2`` or
                ``sb3``; see docs/export.md.
            env: an environment or its `EnvSpec`, to be named in the description.

        Raises:
            InvalidValue: no such format, or something else at `path`.
            PackageMissing: the format needs a package that is not installed.
            ExportError: what was made computes something else than the policy; nothing is written.
        """
        from jormungandr.learner.export import export_policy

        export_policy(self.snapshot(), path, format, env)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Rebuild what `save` wrote, in this or another process.

        Raises:
            CheckpointError: the folder is incomplete, damaged, or of another format.
        """
        learner, files = cls._load(Path(path))
        learner._admission = Admission(learner.spec, learner.generation)
        try:
            learner._ledger = MemoryStore.from_bytes(files["ledger.msgpack"])
        except (KeyError, ValueError, TypeError, msgspec.MsgspecError) as error:
            raise CheckpointError(str(path), "a ledger", repr(error)) from None
        lsn = learner._ledger.counters.data_lsn
        learner._actors = Actors(learner.spec.replay.capacity, lsn)
        return learner
