"""`train`: one training from its beginning or from where it was left, to its last step."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from jormungandr.cli.contenders import SnapshotContender
from jormungandr.cli.evaluate import MAX_STEPS
from jormungandr.cli.making import make_env
from jormungandr.cli.matches import play
from jormungandr.cli.train_folder import TrainingFolder
from jormungandr.cli.train_log import Evaluated, EvaluationLog
from jormungandr.cli.train_plan import EVALUATION_SEED, Plan, reset_seed
from jormungandr.cli.train_stage import Stage, open_stage
from jormungandr.errors import InvalidValue
from jormungandr.numerics.statistics import paired_bootstrap
from jormungandr.policy import PolicySnapshot
from jormungandr_wrappers import RemoteActor, SpecifiedEnv

__all__ = ["Trained", "tell", "train"]

#: Environment steps between two lines of progress.
REPORT_EVERY = 2_000


@dataclass(frozen=True)
class Trained:
    """What a training came to.

    Args:
        policy: the last one.
        best: the one that did best in an evaluation, and `best_step` when that was.
        steps: that were trained in all.
        seconds: they took, evaluations left out.
        warnings: of the model.
    """

    policy: PolicySnapshot
    best: PolicySnapshot
    best_step: int
    steps: int
    seconds: float
    warnings: tuple[str, ...]


def train(plan: Plan, tell: Callable[[str], None]) -> Trained:
    """Train, evaluate on the way, and keep what is to be kept.

    Episodes are reset with seeds that depend on the seed and the step they begin at, and the state
    is kept at the end of episodes: so what is resumed is exactly what would have been, in every
    environment that its seed and the actions decide. Evaluations are played in an environment of
    their own, and draw nothing that the model draws.

    Args:
        plan: what to train.
        tell: takes lines of progress.

    Raises:
        JormungandrError: the model's, the service's, or of what cannot be kept.
    """
    with contextlib.ExitStack() as stack:
        folder = None if plan.out is None else stack.enter_context(TrainingFolder(plan.out))
        envs = [stack.enter_context(contextlib.closing(make_env(plan.env_id))) for _ in range(2)]
        stage = stack.enter_context(contextlib.closing(open_stage(plan, folder)))
        course = _Course(plan, stage, folder, envs[0], envs[1], tell)
        course.run()
        return course.result()


def tell(line: str) -> None:
    """Print a line of progress at once, also where the output is a file."""
    print(line, flush=True)


class _Course:
    """A training on its way."""

    def __init__(
        self,
        plan: Plan,
        stage: Stage,
        folder: TrainingFolder | None,
        env: gymnasium.Env[Any, Any],
        judged_in: gymnasium.Env[Any, Any],
        tell: Callable[[str], None],
    ) -> None:
        self._plan, self._stage, self._folder, self._tell = plan, stage, folder, tell
        self._env, self._judged_in = SpecifiedEnv(env, plan.spec), judged_in
        self._step = stage.transitions()
        self._log = EvaluationLog(None if folder is None else folder.evaluations, self._step)
        best, last = self._log.best, self._log.last
        if folder is not None:
            folder.settle_best(None if best is None else best.digest)
        #: Of training, evaluations left out, up to `_since`.
        self._seconds, self._since = 0.0 if last is None else last.seconds, 0.0
        self._best: PolicySnapshot | None = None  # None too where the folder has it
        self._returns: list[float] = []  # of the episodes since the last line of progress
        self._actor: RemoteActor | None = None  # None between episodes

    def run(self) -> None:
        """Train up to the last step."""
        plan, unsaved = self._plan, False
        if self._step > plan.steps:
            done = f">= {self._step:,}, the steps that are done"
            remedy = "jormungandr evaluate plays what came of them"
            raise InvalidValue("--steps", done, f"{plan.steps:,}", remedy)
        if self._folder is not None:
            self._folder.keep_steps(plan.steps)
        if self._step:
            self._tell(f"{plan.name}  goes on from step {self._step:,}")
        self._since = time.perf_counter()
        if self._step and self._due() and not self._evaluated():
            self._evaluate()  # a service had taken the step when the training was stopped
        while self._step < plan.steps:
            self._advance()
            due = self._due()
            if due:
                self._evaluate()
                unsaved = True
            if due or self._step % REPORT_EVERY == 0:
                self._report(self._log.last if due else None)
            if unsaved and self._actor is None:
                self._save()
                unsaved = False
        if unsaved:
            self._save()

    def result(self) -> Trained:
        """Return what came of it."""
        best, last = self._log.best, self._log.last
        assert best is not None  # the last step is evaluated
        assert last is not None
        policy, chosen = self._stage.policy(), self._best
        warnings, step = [*self._stage.warnings()], best.step
        if not policy.update_count:
            begin = policy.spec.pacing.learning_starts
            warnings.append(
                f"nothing was learned: the first update comes after {begin:,} steps"
                " (pacing.learning_starts)"
            )
        if chosen is None:
            assert self._folder is not None  # it was there before this process
            chosen = PolicySnapshot.open(self._folder.best)
            if chosen.digest() != best.digest:  # somebody put it there
                warnings.append(
                    f"best/ does not hold the policy that did best, at step {step:,}; in the table"
                    " the last one stands for it"
                )
                chosen, step = policy, self._step
        return Trained(policy, chosen, step, self._step, last.seconds, tuple(warnings))

    def _due(self) -> bool:
        return self._step % self._plan.eval_every == 0 or self._step >= self._plan.steps

    def _evaluated(self) -> bool:
        return self._log.last is not None and self._log.last.step == self._step

    def _advance(self) -> None:
        """Take one step, of a new episode if none is running."""
        plan, seed = self._plan, None
        if self._actor is None:
            seed = reset_seed(plan.seed, self._step)
            # Sent step by step: an update that is due runs before the next action is chosen.
            self._actor = RemoteActor(
                self._env,
                self._stage.endpoint,
                actor_id="train",
                label_key=plan.label_key,
                mask_key="action_mask" if plan.spec.action_masks else None,
                batch_size=1,
                run=f"step-{self._step}",
            )
        result = self._actor.run(steps=1, seed=seed)
        self._step += 1
        if result.episodes:
            self._returns.append(result.episodes[0].total_reward)
            self._actor = None

    def _evaluate(self) -> None:
        """Play held-out episodes with the newest policy, and keep it if none did better."""
        self._seconds += time.perf_counter() - self._since  # the clock stops
        plan, policy = self._plan, self._stage.policy()
        played = play(
            SnapshotContender("", policy),
            self._judged_in,
            episodes=plan.eval_episodes,
            seed=EVALUATION_SEED,
            max_steps=MAX_STEPS,
        )
        mean = paired_bootstrap(played.returns, seed=0)
        evaluated = Evaluated(
            step=self._step,
            updates=policy.update_count,
            policy_version=policy.version,
            episodes=plan.eval_episodes,
            mean=mean.estimate,
            low=mean.low,
            high=mean.high,
            worst=float(played.returns.min()),
            length=float(played.lengths.mean()),
            seconds=round(self._seconds, 3),
            digest=policy.digest(),
        )
        best = self._log.best
        if best is None or evaluated.mean > best.mean:
            self._best = policy
            if self._folder is not None:
                # Before its line: a line without its policy would be one that nobody can have.
                self._folder.keep_best(policy)
        self._log.add(evaluated)
        self._since = time.perf_counter()

    def _save(self) -> None:
        if self._folder is not None:
            self._folder.keep_latest(self._stage.save)

    def _report(self, evaluated: Evaluated | None) -> None:
        mean = f"{np.mean(self._returns):9.2f}" if self._returns else "        -"
        seconds = self._seconds + time.perf_counter() - self._since
        line = (
            f"{self._plan.name}  step {self._step:>8,}  updates {self._stage.updates():>7,}"
            f"  episodes {len(self._returns):>4}  mean return {mean}  {seconds:6.1f} s"
        )
        if evaluated is not None:
            best = " best" if self._log.best is evaluated else ""
            line += f"  held out {evaluated.mean:9.2f}{best}"
        self._tell(line)
        self._returns = []
