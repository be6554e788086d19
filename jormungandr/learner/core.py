"""`Core`: the state machine that reads rows in order and makes numbered policies.

Synchronous and single-threaded: no lock, thread, clock or global. Its state after a row is a
function of the rows up to it, the spec and the seed; how transitions were batched into rows changes
no bit of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from jormungandr.columns import TRAIN, VALIDATION, Columns
from jormungandr.errors import CheckpointError, InvalidValue, JormungandrError
from jormungandr.heldout import HeldOut, kept_episodes
from jormungandr.learner import figures
from jormungandr.learner.batches import Moments, of_sample
from jormungandr.learner.c51 import C51, Losses, Update
from jormungandr.learner.checkpoint import read_checkpoint, write_checkpoint
from jormungandr.learner.closed_form import ClosedFormC51
from jormungandr.learner.episodes import EpisodeReturns
from jormungandr.learner.measuring import CHUNK, measured
from jormungandr.learner.network import numeric_threads
from jormungandr.learner.noisy import NoisyC51
from jormungandr.learner.nstep import NStepWindows
from jormungandr.learner.pacing import Pacing
from jormungandr.learner.progress import Progress
from jormungandr.learner.replay import Replay
from jormungandr.learner.support import Fitting
from jormungandr.learner.validation import ValidationStore
from jormungandr.numerics.moments import RunningMoments
from jormungandr.numerics.support import Bounds
from jormungandr.policy import PolicySnapshot
from jormungandr.policy_file import POLICY_FILE
from jormungandr.protocol import Evaluation
from jormungandr.rows import (
    ACCEPTED,
    ATTACHED,
    JournalRow,
    LabelsRow,
    SkippedRow,
    TransitionsRow,
)
from jormungandr.spec import ModelSpec
from jormungandr.streams import network_noise, streams

__all__ = ["Core"]

#: Evaluations remembered; the oldest is forgotten first.
HISTORY = 1_000


class Core:
    """Learn one model from its rows.

    Args:
        spec: the model's specification.
        generation: of the model id.
        first_version: number of the initial policy; past the highest of earlier generations.
    """

    def __init__(self, spec: ModelSpec, *, generation: int = 1, first_version: int = 0) -> None:
        self.spec, self.generation = spec, generation
        o = spec.observation
        masked = len(spec.action_set) if spec.action_masks else 0
        initialisation, self._sampling, self._acting = streams(spec.seed)
        # The engine is of the specification, never of what happens to be installed: recovery
        # computes with the same one.
        engine = ClosedFormC51 if spec.c51.engine == "closed_form" else C51
        self._noise = network_noise(spec.seed)
        self.algorithm: C51 = (
            NoisyC51(spec, initialisation, self._noise)
            if spec.c51.noisy
            else engine(spec, initialisation)
        )
        labelled = spec.auxiliary is not None
        self.replay = Replay(spec.replay, o.stored_shape, o.stored_dtype, masked, labelled)
        self.validation = ValidationStore(
            spec.validation.capacity, o.stored_shape, o.stored_dtype, masked
        )
        self.normalizer = RunningMoments(o.moments_shape)
        self.pacing = Pacing(spec.pacing)
        self.windows = NStepWindows(spec.c51.n_step, spec.c51.gamma, spec.replay.window_idle)
        self.returns = EpisodeReturns()
        #: Where the support should be; None where the specification says it.
        self.fitting = Fitting(spec.c51.gamma) if spec.c51.support == "auto" else None
        rule = spec.promotion
        #: What promotions are decided from; None in a model that has none.
        self.held_out = HeldOut(kept_episodes(rule.min_episodes)) if rule.gated else None
        self.evaluations: deque[Evaluation] = deque(maxlen=HISTORY)
        self.progress = Progress(version=first_version)
        self.last_update: Update | None = None
        self._latched: Moments = (np.zeros(o.moments_shape), np.ones(o.moments_shape))
        self._good: tuple[dict[str, NDArray[Any]], Moments] = (
            self.algorithm.state(),
            self._latched,
        )
        self._snapshot: PolicySnapshot | None = None
        self._on_update: Callable[[], None] | None = None
        self._on_phase: Callable[[str], None] | None = None

    # -- what it has become ---------------------------------------------------------------------

    @property
    def policy_version(self) -> int:
        """The newest policy version made."""
        return self.progress.version

    @property
    def served_version(self) -> int:
        """The version to act with: the newest, or the restored one while the model is diverged."""
        return self.progress.served_version

    @property
    def update_count(self) -> int:
        """Updates completed."""
        return self.progress.updates

    @property
    def diverged(self) -> bool:
        """Whether the last good policy is served because training went non-finite."""
        return self.progress.diverged

    def snapshot(self) -> PolicySnapshot:
        """Return the policy to act with; the same object until there is a newer one."""
        p = self.progress
        if self._snapshot is None or self._snapshot.version != self.served_version:
            state, moments = self._good if self.diverged else ({}, self._latched)
            acting = "online." if self.algorithm.average is None else "average."
            self._snapshot = PolicySnapshot(
                spec=self.spec,
                version=self.served_version,
                update_count=p.diverged_updates if self.diverged else p.updates,
                transitions=p.latched,
                weights=(
                    {name: array.copy() for name, array in _part(state, acting).items()}
                    if state
                    else self.algorithm.acting.get_weights()
                ),
                mean=moments[0].copy(),
                var=moments[1].copy(),
                generation=self.generation,
                bounds=self._bounds(state),
            )
        return self._snapshot

    def _bounds(self, state: dict[str, NDArray[Any]]) -> Bounds | None:
        """Return the bounds that go with a policy; None where they are in the specification."""
        if self.fitting is None:
            return None
        if not state:
            return self.algorithm.bounds
        low, high, _ = state["support"]
        return float(low), float(high)

    def warnings(self) -> list[str]:
        """Return what the operator should know, each with its remedy."""
        return figures.warnings(self)

    def info(self) -> dict[str, Any]:
        """Return the state's figures, as `GET /v1/models/{id}` shows them."""
        return figures.info(self)

    def metrics(self) -> dict[str, Any]:
        """Return the figures of the last update, JSON-able."""
        return figures.metrics(self)

    # -- how it gets there ----------------------------------------------------------------------

    def apply(
        self,
        row: JournalRow,
        on_update: Callable[[], None] | None = None,
        on_phase: Callable[[str], None] | None = None,
    ) -> None:
        """Apply one journal row, with every update that becomes due on the way.

        Args:
            row: the next row after the last one applied.
            on_update: called after each completed update; must not change the state.
            on_phase: called with "applying", "updating" or "evaluating" before each part of the
                work; must not change the state either.
        """
        self._on_update, self._on_phase = on_update, on_phase
        try:
            if isinstance(row, SkippedRow):
                self._pass_over(row)
            elif isinstance(row, LabelsRow):
                self._apply_labels(row)
            else:
                self._apply_transitions(row)
        finally:
            self._on_update = self._on_phase = None
        self.progress.lsn = row.lsn

    def _enter(self, phase: str) -> None:
        if self._on_phase is not None:
            self._on_phase(phase)

    def _pass_over(self, row: SkippedRow) -> None:
        """Go on without a row that was set aside."""
        p = self.progress
        p.set_aside(row, {TRAIN: self.pacing.transitions, VALIDATION: self.validation.added})
        # Policies made in the middle of the row may have been served: their numbers are used.
        if row.published > p.version:
            self.renumber(row.published + 1, lineages=0)

    def _apply_labels(self, row: LabelsRow) -> None:
        self._enter("applying")
        for i in np.flatnonzero(row.outcome == ATTACHED):
            ordinal = self.progress.own_ordinal(int(row.split[i]), int(row.ordinal[i]))
            label = int(row.label[i])
            if ordinal is None:
                self.progress.unlabelled += 1
            elif row.split[i] == VALIDATION:
                self.validation.set_label(ordinal, label)
            elif not self.replay.set_label(ordinal, label) and not self.windows.set_label(
                ordinal, label
            ):
                self.progress.unlabelled += 1

    def _apply_transitions(self, row: TransitionsRow) -> None:
        accepted, taken = row.columns, row.outcome == ACCEPTED
        if not taken.all():
            accepted = accepted.take(taken)
        self.returns.add(accepted)
        if self.held_out is not None:
            self.held_out.add(accepted, row.lsn)
        is_train = accepted.split == TRAIN
        if len(accepted) == 1:
            self._store(accepted, is_train)
            self._run_due()
            return
        seen = np.cumsum(is_train)  # (B,) training transitions up to and including each
        start = 0
        while start < len(accepted):
            due = self.pacing.until_due()
            before = int(seen[start - 1]) if start else 0
            # Up to and including the training transition that makes the next update due.
            stop = len(accepted) if due is None else int(np.searchsorted(seen, before + due)) + 1
            stop = min(stop, len(accepted))
            part = accepted
            if stop - start < len(accepted):
                part = accepted.take(slice(start, stop))
            self._store(part, is_train[start:stop])
            start = stop
            self._run_due()

    def _store(self, part: Columns, is_train: NDArray[np.bool_]) -> None:
        """Route transitions to replay and moments, or to the held-out store."""
        self._enter("applying")
        if not is_train.all():
            self.validation.add(part.take(~is_train))
            part = part.take(is_train)
        if not len(part):
            return
        if self.fitting is not None:
            self.fitting.add(part.reward)
        if self.spec.observation.is_image:  # it has no moments, but is counted
            self.normalizer.update(np.zeros((2 * len(part), 0)))
        else:
            # (B, 2 · D) and so (2 · B, D): each observation, and then its successor.
            both = np.concatenate([part.observation, part.next_observation], axis=1)
            self.normalizer.update(both.reshape(-1, part.observation.shape[1]))
        if self.spec.c51.n_step == 1:
            self.replay.add_steps(part, self.pacing.transitions, self.spec.c51.gamma)
        else:
            self.replay.add_items(list(self.windows.add(part, self.pacing.transitions)))
        self.pacing.transitions += len(part)

    def _run_due(self) -> None:
        while self.pacing.owed > 0:
            self.pacing.paid += 1
            if len(self.replay) < self.spec.c51.batch_size:
                self.progress.skipped += 1
            else:
                self._update()

    def update(self, n: int = 1) -> int:
        """Run `n` updates now, outside the pacing and the journal's guarantee.

        With fewer items than a batch, items are drawn repeatedly.

        Returns:
            The policy version afterwards.

        Raises:
            InvalidValue: replay is empty, or n < 1.
        """
        if n < 1:
            raise InvalidValue("n", ">= 1", n)
        if not len(self.replay):
            raise InvalidValue(
                "replay", "at least one training transition", "none", "add some first"
            )
        for _ in range(n):
            self._update()
        return self.progress.version

    def _update(self) -> None:
        self._enter("updating")
        p, c = self.progress, self.spec.c51
        undo = self._fit_support()
        sample = self.replay.sample(c.batch_size, self._beta(), self._sampling)
        moments = self.spec.observation.latched(*self.normalizer.both())
        with numeric_threads(self.spec.threads):
            result = self.algorithm.update(of_sample(sample, self.spec, moments), p.updates)
        self.last_update = result
        # With a finite gradient a step may still ruin the weights, and then it is too late to skip.
        if result.finite:
            self.algorithm.move_average()
        ruined = result.finite and not self.algorithm.finite()
        if not result.finite or ruined:
            p.non_finite += 1
            p.non_finite_run += 1
            undo()  # or the version that stays would stand for two policies
            if ruined or p.non_finite_run >= self.spec.divergence.patience:
                self._roll_back()
            return
        p.non_finite_run = 0
        self.replay.priorities.update(sample, result.priority)
        p.updates += 1
        p.version += 1
        self._latched = moments
        p.average_clipped(result.clipped_low, result.clipped_high)
        if p.updates % c.target_interval == 0:
            self.algorithm.copy_target()
        p.since_copy += 1
        if p.since_copy >= self.spec.divergence.copy_every:
            self._good, p.since_copy = (self.algorithm.state(), moments), 0
            p.diverged_version = -1
        if not self.diverged:
            p.latched = self.pacing.transitions
        if p.updates % self.spec.validation.evaluate_every == 0:
            self.evaluate()
        if self._on_update is not None:
            self._on_update()

    def _fit_support(self) -> Callable[[], None]:
        """Move the support to where the rewards so far want it; return what takes that back."""
        algorithm, p = self.algorithm, self.progress
        clipped = p.clipped_low, p.clipped_high
        if self.fitting is None:
            return _nothing
        known = algorithm.bounds if algorithm.fitted else None
        new = self.fitting.wanted(known, *clipped, learned=p.updates > 0)
        if new is None:
            return _nothing
        before = algorithm.state()
        if algorithm.fitted:
            algorithm.move_support(new)
        else:  # nothing was learned, or that all is 0, which is where it was
            algorithm.take_bounds(new)
            algorithm.fitted = True
        p.clipped_low = p.clipped_high = 0.0
        p.widened += 1

        def undo() -> None:
            algorithm.restore(before)
            p.clipped_low, p.clipped_high = clipped
            p.widened -= 1

        return undo

    def renumber(self, version: int, lineages: int = 1) -> None:
        """Go on under another number: the same policy becomes `version`.

        Where what computes is not what computed before, the same rows no longer give the same bits,
        and no number may stand for two policies.

        Args:
            version: past every one made so far.
            lineages: lineage rows that are passed with it.

        Raises:
            InvalidValue: a number that was used.
        """
        p = self.progress
        if version <= p.version:
            raise InvalidValue("version", f"past {p.version}", version)
        p.version = version
        if self.diverged:
            p.diverged_version = version
        p.lineages += lineages
        self._snapshot = None

    def _beta(self) -> float:
        r = self.spec.replay
        return min(1.0, r.beta_start + (1 - r.beta_start) * self.progress.updates / r.beta_updates)

    def _roll_back(self) -> None:
        state, self._latched = self._good
        self.algorithm.restore(state)
        p = self.progress
        p.version += 1
        p.rollbacks += 1
        p.non_finite_run = p.since_copy = 0
        if self.fitting is not None:
            p.clipped_low = p.clipped_high = 0.0  # they were of other bounds
        p.diverged_version, p.diverged_updates = p.version, p.updates
        p.latched = self.pacing.transitions
        if self._on_update is not None:
            self._on_update()

    def evaluate(self) -> Evaluation | None:
        """Measure the whole validation store under the newest version; None when it is empty.

        It reads the store, the networks and the latched moments, and changes nothing but the
        history.
        """
        if not len(self.validation):
            return None
        held = self.validation.all()
        discount = np.where(held["terminated"], 0.0, self.spec.c51.gamma).astype(np.float32)
        losses = self._measured({**held, "discount": discount})
        categorical = losses.categorical.astype(np.float64)
        auxiliary = losses.auxiliary.astype(np.float64)
        trained = np.zeros(0, dtype=np.bool_)
        if self.spec.auxiliary is not None and len(self.replay):
            trained = self._measured(self.replay.newest(CHUNK)).correct
        result = Evaluation(
            policy_version=self.progress.version,
            update_count=self.progress.updates,
            transitions=len(categorical),
            validation_loss=float(categorical.mean()),
            auxiliary_loss=float(auxiliary.mean()) if len(auxiliary) else None,
            auxiliary_accuracy=float(losses.correct.mean()) if len(auxiliary) else None,
            auxiliary_labelled=len(auxiliary),
            train_auxiliary_accuracy=float(trained.mean()) if len(trained) else None,
        )
        self.evaluations.append(result)
        return result

    def _measured(self, columns: dict[str, NDArray[Any]]) -> Losses:
        """Measure transitions with the newest networks and the moments latched with them."""
        return measured(self.algorithm, self._latched, columns, lambda: self._enter("evaluating"))

    # -- how it is kept -------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write everything the state consists of to a checkpoint folder."""
        self._save(Path(path), {})

    def _save(self, path: Path, files: dict[str, bytes]) -> None:
        import msgspec

        windows, steps = self.windows.state()
        state = {
            "spec": self.spec.to_dict(),
            "generation": self.generation,
            "progress": vars(self.progress),
            "pacing": {"transitions": self.pacing.transitions, "paid": self.pacing.paid},
            "streams": {
                "sampling": self._sampling.bit_generator.state,
                "acting": self._acting.bit_generator.state,
                **({"noise": self._noise.bit_generator.state} if self.spec.c51.noisy else {}),
            },
            "windows": windows,
            "returns": self.returns.state(),
            **({"held_out": self.held_out.state()} if self.held_out is not None else {}),
            "evaluations": [msgspec.to_builtins(e) for e in self.evaluations],
        }
        good, moments = self._good
        tensors = {
            **_prefixed("algorithm.", self.algorithm.state()),
            **_prefixed("good.", good),
            **_prefixed("replay.", self.replay.state()),
            **_prefixed("validation.", self.validation.state()),
            **_prefixed("windows.", steps),
            **_prefixed("normalizer.", self.normalizer.state()),
            **_prefixed("fitting.", {} if self.fitting is None else self.fitting.state()),
            "latched.mean": self._latched[0],
            "latched.var": self._latched[1],
            "latched_good.mean": moments[0],
            "latched_good.var": moments[1],
        }
        # The policy on its own, so that acting from a checkpoint needs no torch.
        write_checkpoint(path, state, tensors, {**files, POLICY_FILE: self.snapshot().to_bytes()})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Rebuild what `save` wrote; it goes on bit for bit.

        Raises:
            CheckpointError: the folder is incomplete, damaged, or of another format.
        """
        core, _ = cls._load(Path(path))
        return core

    @classmethod
    def _load(cls, path: Path) -> tuple[Self, dict[str, bytes]]:
        import msgspec

        state, tensors, files = read_checkpoint(path)
        try:
            core = cls(ModelSpec.from_dict(state["spec"]), generation=state["generation"])
            core.progress = Progress(**state["progress"])
            core.pacing.transitions = state["pacing"]["transitions"]
            core.pacing.paid = state["pacing"]["paid"]
            core._sampling.bit_generator.state = state["streams"]["sampling"]
            core._acting.bit_generator.state = state["streams"]["acting"]
            if core.spec.c51.noisy:
                core._noise.bit_generator.state = state["streams"]["noise"]
            core.windows.restore(state["windows"], _part(tensors, "windows."))
            core.returns.restore(state["returns"])
            if core.held_out is not None:
                core.held_out.restore(state["held_out"])
            core.evaluations.extend(msgspec.convert(state["evaluations"], list[Evaluation]))
            core.algorithm.restore(_part(tensors, "algorithm."))
            core.replay.restore(_part(tensors, "replay."))
            core.validation.restore(_part(tensors, "validation."))
            core.normalizer = RunningMoments.from_state(_part(tensors, "normalizer."))
            if core.fitting is not None:
                core.fitting.restore(_part(tensors, "fitting."))
            core._latched = (tensors["latched.mean"], tensors["latched.var"])
            good = (tensors["latched_good.mean"], tensors["latched_good.var"])
            core._good = (_part(tensors, "good."), good)
        except (
            JormungandrError,  # of a specification that this version does not know
            msgspec.MsgspecError,
            LookupError,
            TypeError,
            ValueError,
            RuntimeError,
        ) as error:
            raise CheckpointError(str(path), "a whole checkpoint", repr(error)) from None
        return core, files


def _nothing() -> None:
    """Take back what was not done."""


def _prefixed(prefix: str, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {prefix + name: array for name, array in arrays.items()}


def _part(arrays: dict[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
