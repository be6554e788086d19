"""Killed at every place there is, and in its recovery too: nothing acknowledged is lost.

Each case runs a real server to a place, where SIGKILL ends it or its learner, or to several places,
one after the other, then twice more into its recovery, where it is ended again, and then lets the
oracle finish and the checker look.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from jormungandr import RemoteLearner
from jormungandr.errors import JormungandrError, ModelUnknown
from jormungandr.failpoints import NAMES
from jormungandr.service.child.recovery import checkpoints
from tests.faults.checker import (
    SPEC,
    Actors,
    Servers,
    Told,
    bits,
    check_service,
    check_stored,
    differing,
    newest_checkpoint,
    rebuild,
)
from tests.service.serving import DEADLINE, until

#: Transitions that an oracle has acknowledged in the end, at least, and in one request.
ENOUGH, BATCH = 300, 20
WIDE = 1_024  # numbers of an observation, for a WAL that grows fast
#: A model whose first policy is champion, and whose next one is tried.
PROMOTING: dict[str, Any] = {"promotion": {"serve": "champion", "candidate_every": 1}}
#: Numerics that count as other ones, and give the same bits for matrices as small as these.
ELSEWHERE = {"NPY_DISABLE_CPU_FEATURES": " "}


@dataclass(frozen=True)
class Case:
    """How places are come to.

    Args:
        run: takes a stage to where the place is reached, with the number of times, if not once.
        places: that it comes to, in this order; () is the one that the case is called after.
        times: the place is passed so often first.
        serve: further arguments of the server.
        width: numbers in an observation.
        transitions: that the oracle sends.
        learns: the learner has a part in it; else what it would become is looked at in this
            process, which saves the time that its own takes to start.
        spec: further fields of the model's specification.
    """

    run: Callable[..., None]
    places: tuple[str, ...] = ()
    times: int = 1
    serve: tuple[str, ...] = ()
    width: int = 2
    transitions: int = ENOUGH
    learns: bool = True
    spec: dict[str, Any] = field(default_factory=dict)


class Stage:
    """A data directory, its servers, and an oracle that sends to whichever of them is up."""

    def __init__(self, path: Path, case: Case) -> None:
        self.case, self.data_dir = case, path / "data"
        self.folder = self.data_dir / "models" / "m.1"
        self.servers = Servers(self.data_dir, *case.serve)
        self.actors: Actors | None = None

    def endpoint(self, model: str = "m", **options: Any) -> RemoteLearner:
        """Return a client of the server that is up."""
        return self.servers.server.connect(model, **options)

    def create(self, model: str = "m") -> None:
        """Create a model on the server that is up."""
        features = {"observation": {"shape": [self.case.width]}}
        with self.endpoint(model, patience=0) as endpoint:
            endpoint.create({**SPEC, **features, **self.case.spec})

    def load(self) -> None:
        """Let the oracle loose."""
        options = ("--batch", str(BATCH), "--transitions", str(self.case.transitions))
        width = ("--width", str(self.case.width))
        quiet = () if self.case.learns else ("--quiet",)
        url = self.servers.server.url
        self.actors = Actors(self.data_dir, url, ["o"], *options, *width, *quiet)

    def ended(self) -> None:
        """Wait for the end of the gateway, which must be by SIGKILL, and its own doing."""
        self.servers.server.process.wait(DEADLINE)
        assert self.servers.server.process.returncode == -signal.SIGKILL
        self.servers.kill()

    def learner_ended(self, times: int = 2) -> None:
        """Wait until the learner has ended so often, then end the gateway."""
        with self.endpoint() as endpoint:
            learner = until(
                lambda: (found := endpoint.info()["learner"])["ends"] >= times and found,
                "ends of the learner",
            )
        assert "SIGKILL" in learner["last_end"]
        self.servers.kill()

    def checkpoint(self) -> None:
        """Wait until the learner has written one."""
        until(lambda: checkpoints(self.folder), "a checkpoint")

    def finish(self) -> Told:
        """Return what the oracle was told, when it has finished."""
        assert self.actors is not None
        return self.actors.finish()

    def close(self) -> None:
        """End everything."""
        if self.actors is not None:
            self.actors.kill()
        self.servers.kill()


def in_gateway(stage: Stage, name: str) -> None:
    """While an oracle sends."""
    stage.servers.start(name)
    stage.create()
    stage.load()
    stage.ended()


def in_learner(stage: Stage, first: str, *further: str) -> None:
    """In the learner process, and in the one after it; then the same at the next place.

    So the learners that come to a further place recover from being killed at the one before.
    """
    stage.servers.start(first)
    stage.create()
    stage.load()
    stage.learner_ended()
    for name in further:
        stage.servers.start(name)
        stage.learner_ended()


def in_creation(stage: Stage, name: str) -> None:
    """While a second model is created; creating it again succeeds."""
    stage.servers.start(f"{name}:2")
    stage.create("other")
    with pytest.raises(JormungandrError):
        stage.create()
    stage.ended()
    stage.servers.start()
    stage.create()
    stage.load()
    stage.servers.kill()


def in_deletion(stage: Stage, name: str) -> None:
    """While a model is deleted: afterwards it is there whole, or gone."""
    server = stage.servers.start(name)
    stage.create()
    stage.load()
    said = stage.finish()
    with stage.endpoint() as endpoint:
        served = endpoint.wait(said.lsn)["policy_version"]
    with pytest.raises(JormungandrError), server.connect("m", patience=0) as endpoint:
        endpoint.delete()
    stage.ended()
    stage.servers.start_to_end("recovery.wal")
    server = stage.servers.start()
    with server.connect("m") as endpoint:
        if name == "delete.before":
            check_service(endpoint, said, stage.folder)
            endpoint.delete()
        assert not any((stage.folder / name).exists() for name in ("policies", "checkpoints"))
        with pytest.raises(ModelUnknown):
            endpoint.info()
    # What is checked from here on is the next generation, which knows nothing of this one.
    stage.folder = stage.data_dir / "models" / "m.2"
    stage.create()
    stage.load()  # the same oracle, from its beginning
    with server.connect("m") as endpoint:
        assert endpoint.info()["generation"] == 2
        assert endpoint.act([[0.0, 0.0]]).policy_version > served
    stage.servers.kill()


def after_checkpoint(stage: Stage, name: str) -> None:
    """In a learner that recovers from a checkpoint, and in the one after it."""
    stage.servers.start()
    stage.create()
    stage.load()
    stage.checkpoint()
    stage.servers.kill()
    stage.servers.start(name)
    stage.learner_ended()


def in_recovery(stage: Stage, name: str) -> None:
    """Before it listens."""
    stage.servers.start()
    stage.create()
    stage.load()
    until(lambda: stage.actors is not None and stage.actors.acknowledged, "a receipt")
    stage.servers.kill()
    stage.servers.start_to_end(name)


def elsewhere(stage: Stage, name: str) -> None:
    """On a machine that computes otherwise."""
    stage.servers.start()
    stage.create()
    stage.load()
    with stage.endpoint() as endpoint:
        until(lambda: endpoint.info()["update_count"], "an update")
    stage.servers.kill()
    stage.servers.start(name, **ELSEWHERE)
    stage.ended()


SMALL_BUDGET = ("--recovery-budget", "0.01")
TIGHT = ("--recovery-budget", "0.1", "--journal-max-bytes", str(600_000))
CASES = {
    "admit.request": Case(in_gateway, times=5, learns=False),
    "commit.before": Case(in_gateway, times=5, learns=False),
    "commit.written": Case(in_gateway, times=5, learns=False),
    "commit.durable": Case(in_gateway, times=5, learns=False),
    "commit.merged": Case(in_gateway, times=5, learns=False),
    "wal.before": Case(in_gateway, width=WIDE, transitions=2_500, learns=False),
    "wal.after": Case(in_gateway, width=WIDE, transitions=2_500, learns=False),
    "publish.written": Case(in_gateway, times=2),
    "publish.file": Case(in_gateway, times=2),
    "publish.row": Case(in_gateway, times=2),
    "publish.serving": Case(in_gateway, times=2),
    "promotion.row": Case(in_gateway, times=2, spec=PROMOTING),
    "checkpoint": Case(
        in_learner,
        places=(
            "checkpoint.file",
            "checkpoint.manifest",
            "checkpoint.rename",
            "checkpoint.renamed",
            "checkpoint.drop",
        ),
        serve=SMALL_BUDGET,
        transitions=2 * ENOUGH,  # enough of them for a checkpoint at each
    ),
    "retention.before": Case(in_gateway, serve=TIGHT, width=64, transitions=3_000),
    "retention.after": Case(in_gateway, serve=TIGHT, width=64, transitions=3_000),
    "recovery.wal": Case(in_recovery, learns=False),
    "recovery.checkpoint": Case(after_checkpoint, serve=SMALL_BUDGET),
    "recovery.lineage": Case(elsewhere),
    "apply": Case(in_learner, places=("apply.begin", "apply.row", "apply.update")),
    "create.journal": Case(in_creation, learns=False),
    "create.renamed": Case(in_creation, learns=False),
    "create.done": Case(in_creation, learns=False),
    "delete.before": Case(in_deletion),
    "delete.recorded": Case(in_deletion),
    "delete.done": Case(in_deletion),
}
#: Those of `make test`; the others are slow together.
FAST = ("commit.durable", "create.renamed", "recovery.wal")


def test_every_place_has_a_case() -> None:
    """A new place without one would be a place that nobody dies at."""
    places = [place for name, case in CASES.items() for place in case.places or (name,)]
    assert sorted(places) == sorted(NAMES)


@pytest.fixture
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    """Where a case is played."""
    stage = Stage(tmp_path, CASES[request.param])
    yield stage
    stage.close()


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        pytest.param(name, name, id=name, marks=() if name in FAST else pytest.mark.slow)
        for name in CASES
    ],
    indirect=["stage"],
)
def test_killed_there(name: str, stage: Stage) -> None:
    """What was acknowledged is stored once, and the policies are those of an undisturbed run."""
    case = stage.case
    places = case.places or (name,)
    case.run(stage, *(at if case.times == 1 else f"{at}:{case.times}" for at in places))
    for _ in range(2):
        stage.servers.start_to_end("recovery.wal")
    server = stage.servers.start()
    said = stage.finish()
    if not case.learns:
        stage.servers.kill()
        found = check_stored(stage.folder, said)
        assert rebuild(stage.folder).normalizer.count == 2 * found.train
        return
    whole = "--journal-max-bytes" not in case.serve
    with server.connect("m") as endpoint:
        info = check_service(endpoint, said, stage.folder)
        assert info["quarantined"] == 0
        assert "rebuilt_differently" not in str(info["warnings"])
    assert server.terminate() == 0
    check_stored(stage.folder, said, whole=whole)
    if whole:
        assert differing(bits(rebuild(stage.folder)), bits(newest_checkpoint(stage.folder))) == []
