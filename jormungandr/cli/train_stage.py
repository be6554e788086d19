"""Where a training learns: a `Learner` in this process, or a model of a service."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from jormungandr.cli.train_folder import TrainingFolder, keep_policy
from jormungandr.cli.train_plan import Plan
from jormungandr.client import RemoteLearner
from jormungandr.errors import InvalidValue
from jormungandr.policy import PolicySnapshot
from jormungandr.protocol import Endpoint, Receipt, TransitionsLike

if TYPE_CHECKING:
    from jormungandr.learner import Learner

__all__ = ["InProcess", "Lockstep", "Stage", "Through", "open_stage"]


class Stage(Protocol):
    """What a training needs of where it learns."""

    @property
    def endpoint(self) -> Endpoint:
        """What acts and takes transitions."""
        ...

    def transitions(self) -> int:
        """Return how many training transitions it has applied."""
        ...

    def updates(self) -> int:
        """Return how many updates it has completed."""
        ...

    def policy(self) -> PolicySnapshot:
        """Return the newest policy, after everything that was sent."""
        ...

    def warnings(self) -> list[str]:
        """Return what the operator should know."""
        ...

    def save(self, path: Path) -> None:
        """Write what there is to keep."""
        ...

    def close(self) -> None:
        """Release what it holds."""
        ...


class InProcess:
    """A learner in this process.

    Args:
        learner: of the plan's specification, from its beginning or from a checkpoint.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner = learner

    @property
    def endpoint(self) -> Endpoint:
        """See `Stage.endpoint`."""
        return self._learner

    def transitions(self) -> int:
        """See `Stage.transitions`."""
        return self._learner.pacing.transitions

    def updates(self) -> int:
        """See `Stage.updates`."""
        return self._learner.update_count

    def policy(self) -> PolicySnapshot:
        """See `Stage.policy`."""
        return self._learner.snapshot()

    def warnings(self) -> list[str]:
        """See `Stage.warnings`."""
        return self._learner.warnings()

    def save(self, path: Path) -> None:
        """Write the whole state."""
        self._learner.save(path)

    def close(self) -> None:
        """Hold nothing."""


class Lockstep(RemoteLearner):
    """A model of a service that is waited for after everything that is sent to it.

    So the next action is chosen by the policy that a learner in process would have by then: the
    newest, whatever the model serves to others.

    Args:
        url: of the service.
        model_id: of the model.
    """

    def __init__(self, url: str | None, model_id: str) -> None:
        super().__init__(url, model_id, policy="latest")

    def add(self, transitions: TransitionsLike) -> Receipt:
        """Submit transitions, and wait until they are applied and the policy after them served."""
        receipt = super().add(transitions)
        self.wait(receipt.lsn)
        return receipt

    def policy(self) -> PolicySnapshot:
        """Return the newest policy that there is."""
        return self.snapshot("latest")


class Through:
    """A model of a service.

    Args:
        plan: names both; the model is created with its specification.

    Raises:
        ModelConflict: the model exists with another specification.
        InvalidValue: it has learned already, and that is not to be gone on with.
    """

    def __init__(self, plan: Plan) -> None:
        self._remote = Lockstep(plan.service, plan.model_id)
        try:
            found = self._remote.create(plan.spec)
            if found["journal_lsn"] and not plan.resume:
                got = f"{plan.model_id}, which has {found['accepted']['train']} transitions"
                raise InvalidValue("--model", "a model that is new, or --resume", got)
            self._remote.wait(found["journal_lsn"])
        except BaseException:
            self._remote.close()
            raise

    @property
    def endpoint(self) -> Endpoint:
        """See `Stage.endpoint`."""
        return self._remote

    def transitions(self) -> int:
        """See `Stage.transitions`."""
        applied: int = self._remote.info()["transitions"]["train"]
        return applied

    def updates(self) -> int:
        """See `Stage.updates`."""
        completed: int = self._remote.info()["update_count"]
        return completed

    def policy(self) -> PolicySnapshot:
        """See `Stage.policy`."""
        return self._remote.policy()

    def warnings(self) -> list[str]:
        """See `Stage.warnings`."""
        found: list[str] = self._remote.info()["warnings"]
        return found

    def save(self, path: Path) -> None:
        """Write the policy; the service has the rest."""
        keep_policy(path, self.policy())

    def close(self) -> None:
        """Close the connections."""
        self._remote.close()


def open_stage(plan: Plan, folder: TrainingFolder | None) -> Stage:
    """Return where a plan learns, as far as it has come.

    Raises:
        JormungandrError: what there is cannot be gone on with.
    """
    resumed = folder is not None and plan.resume and folder.check_same(plan.facts())
    stage: Stage
    if plan.service is not None:
        stage = Through(plan)
    else:
        from jormungandr.learner import Learner

        if folder is not None and resumed and folder.has_latest():
            stage = InProcess(Learner.load(folder.latest))
        else:
            stage = InProcess(Learner(plan.spec))
    if folder is not None and not resumed:
        folder.begin({**plan.facts(), "steps": plan.steps})
    return stage
