"""Policies over HTTP: the newest one, a newer one, a kept one, and their bytes."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from jormungandr import Learner, PolicySnapshot
from jormungandr.service import policy_route
from jormungandr.service.load.waits import Waits
from jormungandr.service.policy_route import PolicyRoute
from jormungandr.service.shelf import KEEP_POLICIES
from tests.service.serving import QUIET, SPEC, experience

PATH = "/v1/models/m/policy"


@pytest.fixture
def learner() -> Learner:
    """A learner that makes a version of every training transition after the eighth."""
    return Learner(SPEC)


@pytest.fixture
def served(app: Any, learner: Learner) -> Any:
    """An application whose model ``m`` serves version 0 of the learner."""
    app.connect("m").create(SPEC)
    app.publish("m", learner)
    return app


def publish(app: Any, learner: Learner, count: int) -> list[PolicySnapshot]:
    """Let the learner learn and publish so many versions; return them."""
    made: list[PolicySnapshot] = []
    for row in experience(40, 6, actor_id=f"v{learner.policy_version}"):
        before = learner.policy_version
        learner.add([{**row, "split": "train"}])
        if learner.policy_version > before:
            app.publish("m", learner)
            made.append(learner.snapshot())
        if len(made) == count:
            return made
    raise AssertionError("too few rows")


def test_newest(served: Any, learner: Learner) -> None:
    """The bytes are the snapshot's own, and the head names version and digest."""
    (newest,) = publish(served, learner, 1)
    got = served.request("GET", PATH)

    assert got.status_code == 200
    assert got.headers["content-type"] == "application/octet-stream"
    assert got.headers["jormungandr-policy-version"] == "1"
    assert got.headers["jormungandr-policy-digest"] == newest.digest()
    assert got.headers["jormungandr-generation"] == "1"
    assert got.headers["etag"] == f'"1-{newest.digest()}"'
    assert PolicySnapshot.from_bytes(got.content).digest() == newest.digest()
    assert got.content == newest.to_bytes()


def test_none_newer(served: Any) -> None:
    """304 without a body, after the time that was asked for."""
    began = time.monotonic()
    got = served.request("GET", f"{PATH}?newer_than=0&wait=0.2")

    assert (got.status_code, got.content) == (304, b"")
    assert time.monotonic() - began >= 0.2
    assert got.headers["jormungandr-policy-version"] == "0"
    assert served.request("GET", f"{PATH}?newer_than=7").status_code == 304


def test_newer_comes_as_soon_as_it_is_served(served: Any, learner: Learner) -> None:
    """A request that is held open is answered by the next policy."""
    answers: list[Any] = []

    def ask() -> None:
        answers.append(served.request("GET", f"{PATH}?newer_than=0&wait=60"))

    asking = [threading.Thread(target=ask) for _ in range(3)]
    for thread in asking:
        thread.start()
    publish(served, learner, 1)
    for thread in asking:
        thread.join()

    assert {(a.status_code, a.headers["jormungandr-policy-version"]) for a in answers} == {
        (200, "1")
    }


def test_made_once(served: Any, learner: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ask for a version, its bytes are made once."""
    publish(served, learner, 1)
    made = []
    real = PolicySnapshot.to_bytes
    monkeypatch.setattr(PolicySnapshot, "to_bytes", lambda s: made.append(s) or real(s))
    for _ in range(5):
        served.request("GET", PATH)

    assert len(made) == 1


def test_pinned(served: Any, learner: Learner) -> None:
    """A version is given for as long as it is kept, with the bits it was published with."""
    versions = publish(served, learner, KEEP_POLICIES + 2)
    oldest = versions[-KEEP_POLICIES]
    got = served.request("GET", f"{PATH}?version={oldest.version}")

    assert PolicySnapshot.from_bytes(got.content).digest() == oldest.digest()
    assert got.headers["etag"] == f'"{oldest.version}-{oldest.digest()}"'
    gone = served.request("GET", f"{PATH}?version={versions[0].version}")
    assert (gone.status_code, gone.json()["error"]["code"]) == (410, "policy_gone")
    future = served.request("GET", f"{PATH}?version=1000")
    assert (future.status_code, future.json()["error"]["code"]) == (409, "policy_version_unknown")


def test_damaged_is_gone(served: Any, learner: Learner) -> None:
    """A kept version whose file was damaged is not given."""
    publish(served, learner, 2)
    file = next((served.path / "models" / "m.1" / "policies").glob("*01.safetensors"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)

    assert served.request("GET", f"{PATH}?version=1").status_code == 410
    assert served.request("GET", PATH).status_code == 200  # the newest is in memory


@pytest.mark.parametrize(
    ("query", "status", "where"),
    [
        ("newer_than=x", 422, "query.newer_than"),
        ("newer_than=0.5", 422, "query.newer_than"),
        ("newer_than=-2", 422, "query.newer_than"),
        ("wait=61", 422, "query.wait"),
        ("version=-1", 422, "query.version"),
        ("version=0&wait=1", 422, "query.version"),
        ("version=0&policy=latest", 422, "query.version"),
        ("policy=champion", 422, "query.policy"),
        ("policy=0", 422, "query.policy"),
        ("format=zip", 422, "query.format"),
    ],
)
def test_refused(served: Any, query: str, status: int, where: str) -> None:
    """A query that is none is refused by name."""
    got = served.request("GET", f"{PATH}?{query}")

    assert (got.status_code, got.json()["error"]["where"]) == (status, where)


def test_deleted_while_it_waits(served: Any) -> None:
    """Whoever waits for a policy of a model that is deleted learns so at once."""
    answers: list[Any] = []
    asking = threading.Thread(
        target=lambda: answers.append(served.request("GET", f"{PATH}?newer_than=0&wait=60"))
    )
    asking.start()
    served.connect("m").delete()
    asking.join()

    assert (answers[0].status_code, answers[0].json()["error"]["code"]) == (404, "model_unknown")


def test_no_policy_yet(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model without a policy is 503: asked again, it may have one."""
    monkeypatch.setattr("jormungandr.service.answers.FIRST_POLICY", 0.05)
    app.connect("m").create(QUIET)
    got = app.request("GET", PATH)

    assert (got.status_code, got.json()["error"]["code"]) == (503, "policy_not_ready")


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the versions asked for, the last few are kept in memory; what failed is made again."""
    monkeypatch.setattr(policy_route, "KEEP", 2)
    route, model = PolicyRoute(lambda _: None, Waits()), SimpleNamespace(model_id="m", generation=1)  # type: ignore[arg-type, return-value]

    async def ask() -> list[Any]:
        for version in (1, 2, 3, 2):
            assert await route._bytes(model, version, lambda v=version: bytes([v])) == bytes(  # type: ignore[arg-type, misc]
                [version]
            )
        with pytest.raises(OSError, match="broken"):
            await route._bytes(model, 4, _broken)  # type: ignore[arg-type]
        return [version for *_, version in route._made]

    assert asyncio.run(ask()) == [2]


def _broken() -> bytes:
    raise OSError("broken")


def test_long_polls_are_bounded(served: Any) -> None:
    """Whoever waits for a newer policy is counted with everybody else who is kept waiting."""
    served.gateway.lanes.waits._bearer = 0

    got = served.request("GET", f"{PATH}?newer_than=0&wait=5")

    assert (got.status_code, got.json()["error"]["code"]) == (429, "rate_limited")
