"""More than the service takes on: refused early, in few words, and gone again at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jormungandr import Learner
from jormungandr.errors import Backlog, LearnerFailed, ModelQuota, Overloaded, PolicyNotReady
from jormungandr.service import app as app_module
from jormungandr.service.journal import commits as commits_module
from jormungandr.service.journal.writer import Journal
from jormungandr.service.load.lane import Bounds
from jormungandr.service.load.limits import Limits, declared_bytes
from jormungandr.service.load.waits import Waits
from jormungandr.spec import ModelSpec
from tests.service.serving import QUIET, SPEC, experience, state_message, until

ADD = "/v1/models/m/experience/add"


@pytest.fixture
def held(app: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A model ``m`` whose commits wait until the event is set."""
    app.connect("m").create(QUIET)
    app.publish("m", Learner(QUIET))
    go_on, commit = threading.Event(), Journal.commit

    def slow(*arguments: Any) -> None:
        assert go_on.wait(60)
        commit(*arguments)

    monkeypatch.setattr(Journal, "commit", slow)
    yield go_on
    go_on.set()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads for requests that are answered later."""
    with ThreadPoolExecutor(16) as threads:
        yield threads


def rows(name: str) -> dict[str, Any]:
    """Return the body of one request."""
    return {"transitions": experience(1, 4, actor_id=name)}


def test_a_full_lane(
    app: Any, held: threading.Event, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What finds no room is 503 before it is decoded; all else goes on, and so does it later."""
    lane = app.gateway.lanes.ingestion
    lane.bounds = Bounds(model_requests=3)
    accepted = [pool.submit(app.request, "POST", ADD, rows(f"a{n}")) for n in range(3)]
    until(lambda: lane.requests == 3 and not app.gateway.lanes.turns.waiting, "a full lane")
    decoded = []
    with monkeypatch.context() as patch:
        patch.setattr(app_module, "columns", lambda *_: decoded.append(1))
        refused = app.request("POST", ADD, rows("late"))

    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
    assert refused.headers["retry-after"] in ("1", "2", "3")
    assert decoded == []
    assert app.connect("m").act([[0, 0]]).policy_version == 0
    assert app.connect("m").info()["journal_lsn"] == 0
    held.set()
    assert [answer.result(60).status_code for answer in accepted] == [200] * 3
    assert app.request("POST", ADD, rows("late")).json()["accepted"] == 4
    assert (lane.bytes, lane.requests, lane.refused) == (0, 0, 1)


def test_bytes_that_wait(app: Any, held: threading.Event, pool: ThreadPoolExecutor) -> None:
    """Bodies count until what they hold is committed: a disk that is slow fills no memory."""
    lane = app.gateway.lanes.ingestion
    first = pool.submit(app.request, "POST", ADD, rows("a"))
    until(lambda: lane.bytes > 0, "a body that waits")
    lane.bounds = Bounds(model_bytes=lane.bytes + 100)
    refused = app.request("POST", ADD, rows("b"))

    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
    held.set()
    assert first.result(60).status_code == 200
    assert lane.bytes == 0


def test_actions_have_their_own_bounds(app: Any, held: threading.Event) -> None:
    """A flood of requests for actions is refused likewise, and takes no room from data."""
    lanes = app.gateway.lanes
    lanes.inference.bounds = Bounds(model_bytes=10)
    refused = app.request("POST", "/v1/models/m/inference", {"observations": [[0, 0]]})

    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
    held.set()
    assert app.request("POST", ADD, rows("a")).status_code == 200
    assert (lanes.inference.bytes, lanes.inference.requests) == (0, 0)


def test_commits_that_are_behind(
    app: Any,
    held: threading.Event,
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When enough waits for the disk the rest is left undecoded, and goes on when it is its turn.

    Another model, whose commits are not behind, does not wait for this one's.
    """
    monkeypatch.setattr(commits_module, "WAITING", 2)
    model, turns = app.model("m"), app.gateway.lanes.turns
    first = pool.submit(app.request, "POST", ADD, rows("first"))
    until(lambda: app.gateway.lanes.ingestion.requests == 1 and not model.commits.waiting, "one")
    answers = [pool.submit(app.request, "POST", ADD, rows(f"a{n}")) for n in range(5)]
    until(lambda: (model.commits.waiting, turns.waiting) == (2, 3), "two decoded, three not")
    app.connect("n").create(QUIET)
    other = pool.submit(app.request, "POST", ADD.replace("/m/", "/n/"), rows("n"))
    until(lambda: app.gateway.lanes.ingestion.requests == 7, "one for another model")
    until(lambda: turns.waiting == 3, "which is decoded before them")
    held.set()

    assert [answer.result(60).json()["accepted"] for answer in (first, *answers, other)] == [4] * 7
    assert turns.waiting == 0


def test_a_learner_too_far_behind_is_told_before_decoding(
    app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`max_backlog` is asked before anything of a body is looked at."""
    spec = {**QUIET, "pacing": {"learning_starts": 1_000_000, "max_backlog": 1}}
    client = app.connect("m", patience=0.0)
    client.create(spec)
    app.run(app.model("m").learning.hear, state_message(Learner(spec)))
    client.add(experience(1, 6))
    monkeypatch.setattr(app_module, "columns", lambda *_: pytest.fail("decoded"))
    response = app.request("POST", ADD, rows("late"))

    assert (response.status_code, response.json()["error"]["code"]) == (429, "backlog")
    assert response.headers["retry-after"] in ("1", "2", "3")
    assert Backlog.status == 429


def test_barriers_are_bounded(app: Any, held: threading.Event, pool: ThreadPoolExecutor) -> None:
    """Of requests that are held open there are so many, and no more."""
    app.gateway.lanes.waits = waits = Waits(service=2, bearer=2)
    barriers = [
        pool.submit(app.request, "GET", "/v1/models/m?applied_lsn=9&wait=60") for _ in range(2)
    ]
    until(lambda: waits.requests == 2, "two barriers")
    refused = app.request("GET", "/v1/models/m?applied_lsn=9&wait=60")

    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limited")
    assert app.connect("m").info()["model_id"] == "m"
    held.set()
    app.connect("m").delete()
    assert {barrier.result(60).status_code for barrier in barriers} <= {200, 404}
    assert waits.requests == 0


# -- a learner that was given up ----------------------------------------------------------------


def test_nobody_waits_for_a_failed_learner(app: Any) -> None:
    """A barrier on a model whose learner was given up is answered at once, with the reason."""
    client = app.connect("m")
    client.create(SPEC)
    lsn = client.add(experience(1, 4)).lsn
    process = app.model("m").learning.process
    process.error = "five ends in a row"
    process.start = lambda: None  # it is not tried again before a pause is over
    with ThreadPoolExecutor(1) as pool:
        barrier = f"/v1/models/m?applied_lsn={lsn}&wait=60"
        waiting = pool.submit(app.request, "GET", barrier)
        until(lambda: app.gateway.lanes.waits.requests == 1, "a barrier")
        process.state = "failed"

        async def wake() -> None:
            app.model("m").learning.wake()

        app.run(wake)
        response = waiting.result(30)

    with pytest.raises(LearnerFailed, match="five ends in a row"):
        client.wait(lsn)
    assert (response.status_code, response.json()["error"]["code"]) == (409, "learner_failed")
    assert "retry-after" not in response.headers
    assert app.request("GET", "/v1/models/m?applied_lsn=0").status_code == 200
    with pytest.raises(PolicyNotReady, match="learner failed: five ends in a row"):
        app.connect("m", patience=0.0).act([[0, 0]])


def test_what_a_failed_learner_has_applied_is_applied(app: Any) -> None:
    """A barrier on a row that was applied before is answered as ever."""
    client = app.connect("m")
    client.create(QUIET)
    receipt, learner = client.add(experience(1, 4)), Learner(QUIET)
    learner.add(experience(1, 4))
    app.publish("m", learner, receipt.lsn)
    app.model("m").learning.process.state = "failed"
    app.model("m").learning.process.start = lambda: None

    assert client.wait(receipt.lsn)["applied_lsn"] == receipt.lsn


# -- many models --------------------------------------------------------------------------------


def test_models_are_capped(open_app: Any, tmp_path: Path) -> None:
    """Beyond the cap a model is 403, not those that there are; a deletion makes room."""
    with open_app(tmp_path, limits=Limits(max_models=2)) as app:
        for name in "ab":
            app.connect(name).create(QUIET)
        with pytest.raises(ModelQuota, match="--max-models"):
            app.connect("c").create(QUIET)
        assert app.connect("a").create(QUIET)["model_id"] == "a"
        app.connect("b").delete()
        assert app.connect("c").create(QUIET)["model_id"] == "c"
    with open_app(tmp_path, limits=Limits(max_models=1)) as app:  # those that there are stay
        assert app.connect("c").info()["model_id"] == "c"
        with pytest.raises(ModelQuota):
            app.connect("d").create(QUIET)


def test_declared_replays_are_capped(open_app: Any, tmp_path: Path) -> None:
    """Replays that could not all be full are refused when declared, not when they are full."""
    small = ModelSpec.from_dict(QUIET)
    with open_app(tmp_path, limits=Limits(replay_bytes=2 * declared_bytes(small))) as app:
        app.connect("a").create(QUIET)
        large = {**QUIET, "replay": {"capacity": 1_000}}
        with pytest.raises(ModelQuota, match=r"spec\.replay\.capacity.*--replay-bytes"):
            app.connect("b").create(large)
        app.connect("b").create(QUIET)
        with pytest.raises(ModelQuota):
            app.connect("c").create(QUIET)
        assert [p.name for p in sorted((app.path / "models").iterdir())] == ["a.1", "b.1"]


def test_more_than_the_memory_is_refused(app: Any) -> None:
    """A replay that no machine has room for is refused, whatever the number of models."""
    with pytest.raises(ModelQuota, match=r"spec\.replay\.capacity"):
        app.connect("m").create(
            {"observation": {"shape": [512]}, "actions": 2, "replay": {"capacity": 10**8}}
        )


def test_a_model_takes_no_thread(app: Any) -> None:
    """Threads do not grow with models that nobody uses."""
    for n in range(24):
        app.connect(f"m{n}").create(QUIET)

    # asyncio's own are shared, and bounded by the number of processors.
    own = [t.name for t in threading.enumerate() if not t.name.startswith("asyncio_")]
    assert len(own) < 8, own


def test_overloaded_is_asked_again() -> None:
    """It is ours, and says so: a client sends the same bytes again."""
    assert (Overloaded.status, Overloaded.code) == (503, "overloaded")
