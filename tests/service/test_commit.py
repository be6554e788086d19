"""Commit groups: nothing is answered before it is durable, and a failure leaves nothing behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import apsw
import pytest

from jormungandr import Learner
from jormungandr.errors import Backlog, Draining, StorageFull
from jormungandr.service import app as app_module
from jormungandr.service.journal import commits as commits_module
from jormungandr.service.journal.reader import JournalReader
from jormungandr.service.journal.writer import Journal
from tests.service.serving import QUIET, SPEC, experience, identity, state_message, until

ROWS = experience(1, 4)


class Held:
    """Commits that wait until they are let go; counts those that have begun, and their rows."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.begun: list[int] = []
        commit = Journal.commit

        def held(journal: Journal, draft: Any, rows: Any, controls: Any) -> None:
            self.begun.append(len(rows))
            assert self.open.wait(60)
            commit(journal, draft, rows, controls)

        patch.setattr(Journal, "commit", held)


@pytest.fixture
def model(app: Any) -> Any:
    """A model that serves version 0."""
    app.connect("m").create(QUIET)
    app.publish("m", Learner(QUIET))
    return app.model("m")


@pytest.fixture
def held(model: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """The model's commits, held."""
    commits = Held(monkeypatch)
    yield commits
    commits.open.set()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads for requests that are answered later."""
    with ThreadPoolExecutor(16) as threads:
        yield threads


def test_answer_comes_after_the_commit(
    app: Any, model: Any, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a commit is not done its request has no answer, and inference has."""
    commits = Held(monkeypatch)
    answer = pool.submit(app.connect("m").add, ROWS)
    until(lambda: commits.begun, "a commit")
    reader = JournalReader(app.path / "models" / "m.1" / "journal.db")
    before = app.connect("m").info()

    assert app.connect("m").act([[0, 0]] * 100).policy_version == 0
    assert not answer.done()
    assert before["journal_lsn"] == before["accepted"]["train"] == 0
    assert reader.rows(0) == []
    commits.open.set()
    assert answer.result(60).accepted == 4
    assert len(reader.rows(0)) == 1
    reader.close()


def test_label_is_answered_after_the_commit(app: Any, held: Held, pool: ThreadPoolExecutor) -> None:
    """Labels are promises like transitions."""
    answer = pool.submit(app.connect("m").label, [{**identity("a", "e", 0), "label": 1}])
    until(lambda: held.begun, "a commit")
    app.connect("m").act([[0, 0]])

    assert not answer.done()
    held.open.set()
    assert answer.result(60).pending == 1


def test_group_commit(app: Any, model: Any, held: Held, pool: ThreadPoolExecutor) -> None:
    """What gathers while one commit syncs is the next, and is one commit."""
    clients = [app.connect("m") for _ in range(10)]
    first = pool.submit(clients[0].add, ROWS)
    until(lambda: held.begun, "a commit")
    others = [
        pool.submit(client.add, experience(1, 4, actor_id=f"a{n}"))
        for n, client in enumerate(clients[1:])
    ]
    until(lambda: model.commits.waiting == 9, "a queue of nine")
    assert held.begun == [1]
    held.open.set()

    assert first.result(60).accepted == 4
    assert [answer.result(60).accepted for answer in others] == [4] * 9
    assert held.begun == [1, 9]
    assert sorted(answer.result().lsn for answer in others) == list(range(4, 13))


def test_same_identities_at_once(
    app: Any, model: Any, held: Held, pool: ThreadPoolExecutor
) -> None:
    """Of equal requests in one group the first is accepted, and all wait for its commit."""
    blocker = pool.submit(app.connect("m").add, experience(1, 1, actor_id="blocker"))
    until(lambda: held.begun, "a commit")
    equal = [pool.submit(app.connect("m").add, ROWS) for _ in range(3)]
    until(lambda: model.commits.waiting == 3, "a queue of three")
    held.open.set()
    blocker.result(60)
    receipts = [answer.result(60) for answer in equal]

    assert sorted((r.accepted, r.duplicate) for r in receipts) == [(0, 4), (0, 4), (4, 0)]
    assert len({r.lsn for r in receipts}) == 1
    assert held.begun == [1, 1]


def test_refusal_does_not_touch_its_group(
    app: Any, model: Any, held: Held, pool: ThreadPoolExecutor
) -> None:
    """A conflict inside a group is refused alone, also one with a request of the same group."""
    pool.submit(app.connect("m").add, experience(1, 1, actor_id="blocker"))
    until(lambda: held.begun, "a commit")
    good = pool.submit(app.connect("m").add, ROWS)
    until(lambda: model.commits.waiting == 1, "the good one")
    conflict = dict(ROWS[0], reward=9.0)
    bad = pool.submit(
        app.request, "POST", "/v1/models/m/experience/add", {"transitions": [ROWS[3], conflict]}
    )
    until(lambda: model.commits.waiting == 2, "the bad one")
    held.open.set()

    assert good.result(60).accepted == 4
    assert bad.result(60).status_code == 409
    assert bad.result().json()["error"]["code"] == "identity_conflict"


@pytest.mark.parametrize("same_group", [True, False])
def test_same_identities_on_a_full_disk(
    app: Any, model: Any, held: Held, pool: ThreadPoolExecutor, same_group: bool
) -> None:
    """Equal requests, in one group or one behind the other, both hear that there was no room."""
    first = ROWS if not same_group else experience(1, 1, actor_id="blocker")
    blocker = pool.submit(app.connect("m", patience=0).add, first)
    until(lambda: held.begun, "a commit")
    many = [*ROWS, *experience(60, 20, actor_id="many")]
    equal = [pool.submit(app.connect("m", patience=0).add, many) for _ in range(2)]
    until(lambda: model.commits.waiting == 2, "a queue of two")
    limit(model, 0)
    held.open.set()

    assert blocker.exception(60) is None or isinstance(blocker.exception(), StorageFull)
    assert [type(answer.exception(60)) for answer in equal] == [StorageFull] * 2
    limit(model, None)
    receipt = app.connect("m").add(many)
    assert receipt.accepted + receipt.duplicate == len(many)
    assert receipt.accepted >= len(many) - len(ROWS)


def test_group_is_bounded_by_its_transitions(
    app: Any, model: Any, held: Held, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group that has enough of them takes no further request, whatever waits."""
    monkeypatch.setattr(commits_module, "GROUP_ITEMS", 10)
    blocker = pool.submit(app.connect("m").add, experience(1, 1, actor_id="blocker"))
    until(lambda: held.begun, "a commit")
    answers = [
        pool.submit(app.connect("m").add, experience(1, 4, actor_id=f"a{n}")) for n in range(7)
    ]
    until(lambda: model.commits.waiting == 7, "a queue of seven")
    held.open.set()

    assert sum(answer.result(60).accepted for answer in answers) == 28
    assert blocker.result(60).accepted == 1
    assert held.begun == [1, 3, 3, 1]


def test_the_loop_goes_on_while_a_group_is_admitted(
    app: Any, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two large requests of a group the event loop has its turn."""
    turns: list[int] = []

    async def admit_in_one_group() -> None:
        now = 0

        async def count() -> None:
            nonlocal now
            while True:
                now += 1
                await asyncio.sleep(0)

        def admit(_: Any) -> Any:
            turns.append(now)
            return None, ()

        counting = asyncio.create_task(count())
        submit = model.commits.submit
        await asyncio.gather(*(submit(admit, items=commits_module.TURN) for _ in range(3)))
        await asyncio.gather(*(submit(admit, items=1) for _ in range(3)))
        counting.cancel()

    app.run(admit_in_one_group)
    large, small = turns[:3], turns[3:]
    assert large[0] < large[1] < large[2]
    assert len(set(small)) == 1


def test_large_bodies_are_decoded_beside_the_loop(
    app: Any, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoding and checking a large body leaves the loop to others; a small one is not worth it."""
    threads = []
    checked = app_module.columns

    def columns(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        return checked(*arguments)

    monkeypatch.setattr(app_module, "columns", columns)
    app.connect("m").add(ROWS)
    large = {"transitions": experience(5, 100, actor_id="large")}
    assert app.request("POST", "/v1/models/m/experience/add", large).json()["accepted"] == 500
    bad = [*experience(5, 100, actor_id="bad"), {"timestep": -1}]
    response = app.request("POST", "/v1/models/m/experience/add", {"transitions": bad})

    assert [name.startswith("decode") for name in threads] == [False, True, True]
    assert response.status_code == 422
    assert "transitions[500]" in response.json()["error"]["where"]


def test_duplicate_is_answered_without_a_commit(app: Any, held: Held) -> None:
    """What is durable already needs no sync."""
    held.open.set()
    app.connect("m").add(ROWS)
    commits = len(held.begun)

    assert app.connect("m").add(ROWS).duplicate == 4
    assert len(held.begun) == commits


# -- a full disk --------------------------------------------------------------------------------


def limit(model: Any, pages: int | None) -> None:
    """Let a model's database have so many pages more, or as many as it likes."""
    writer: apsw.Connection = model.journal._writer
    (now,) = writer.execute("PRAGMA page_count").fetchone()
    writer.execute(f"PRAGMA max_page_count={10**9 if pages is None else now + pages}").fetchall()


def test_full_disk(app: Any, model: Any) -> None:
    """A full disk is 503 storage_full with nothing kept; inference goes on, and it heals."""
    client = app.connect("m", patience=0)
    client.label([{**identity("a", "e0", 1), "label": 1}])
    client.add(ROWS[:1])
    before = client.info()
    many = [*ROWS, *experience(60, 20, actor_id="many")]
    limit(model, 0)
    response = app.request("POST", "/v1/models/m/experience/add", {"transitions": many})

    assert (response.status_code, response.json()["error"]["code"]) == (503, "storage_full")
    assert response.headers["retry-after"] in ("1", "2", "3")
    assert client.info() == before
    assert client.add(ROWS[:1]).duplicate == 1
    assert client.act([[0, 0]]).policy_version == 0
    assert app.http.get("/v1/health/ready").status_code == 200
    with pytest.raises(StorageFull):
        client.add(many)

    limit(model, None)
    receipt = client.add(many)
    assert (receipt.accepted, receipt.duplicate) == (1_203, 1)
    assert receipt.lsn == before["journal_lsn"] + 1
    assert client.info()["labels"]["pending"] == 0
    assert client.label([{**identity("a", "e0", 1), "label": 1}]).duplicate == 1


def test_full_disk_fails_the_whole_group(
    app: Any, model: Any, held: Held, pool: ThreadPoolExecutor
) -> None:
    """All requests of a group that found no room hear of it, and none of them is known after."""
    blocker = pool.submit(app.connect("m").add, experience(1, 1, actor_id="blocker"))
    until(lambda: held.begun, "a commit")
    small = pool.submit(app.connect("m", patience=0).add, ROWS)
    large = experience(60, 20, actor_id="large")
    big = pool.submit(app.connect("m", patience=0).add, large)
    until(lambda: model.commits.waiting == 2, "a queue of two")
    limit(model, 4)
    held.open.set()

    assert blocker.result(60).accepted == 1
    assert isinstance(small.exception(60), StorageFull)
    assert isinstance(big.exception(60), StorageFull)
    limit(model, None)
    assert app.connect("m").add(ROWS).accepted == 4
    assert app.connect("m").add(large).accepted == 1_200


def test_client_repeats_until_there_is_room(app: Any, model: Any, pool: ThreadPoolExecutor) -> None:
    """A client that is patient gets through by itself once there is room."""
    many = experience(60, 20)
    limit(model, 0)
    answer = pool.submit(app.connect("m", patience=60).add, many)
    until(lambda: "storage_full" in _last_error(app, many), "a full disk")
    assert not answer.done()
    limit(model, None)

    receipt = answer.result(60)
    assert receipt.accepted + receipt.duplicate == 1_200


def _last_error(app: Any, many: list[Any]) -> str:
    return str(app.request("POST", "/v1/models/m/experience/add", {"transitions": many}).text)


def test_free_space_floor(app: Any, model: Any) -> None:
    """Below the floor what is new is refused, what is known is answered, and all else goes on."""
    client = app.connect("m", patience=0)
    client.add(ROWS)
    before, space = client.info(), app.gateway._space
    space._floor = 1 << 60
    for path, body in (
        ("m/experience/add", {"transitions": [*ROWS, *experience(1, 1, actor_id="b")]}),
        ("m/labels/add", {"labels": [{**identity("a", "e9", 0), "label": 1}]}),
        ("", {"model_id": "n", "spec": QUIET}),
    ):
        response = app.request("POST", f"/v1/models/{path}".rstrip("/"), body)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "storage_full")
        assert response.headers["retry-after"] in ("1", "2", "3")
    assert client.add(ROWS).duplicate == 4
    assert client.act([[0, 0]]).policy_version == 0
    assert app.http.get("/v1/health/ready").status_code == 200
    after = client.info()
    assert [w.partition(":")[0] for w in after["warnings"]] == ["storage_full"]
    assert {**after, "warnings": []} == before

    space._floor = 0
    assert client.add([*ROWS, *experience(1, 1, actor_id="b")]).accepted == 1
    assert client.info()["warnings"] == []


def test_deletion_below_the_floor(app: Any, model: Any) -> None:
    """What makes room is not refused for want of it."""
    app.connect("m").add(ROWS)
    app.gateway._space._floor = 1 << 60

    assert app.request("DELETE", "/v1/models/m").status_code == 204


def test_policies_wait_below_the_floor(
    app: Any, model: Any, pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    """A policy that has no room is not served, and is once there is room."""
    learner = Learner(QUIET)
    learner.add(ROWS)
    learner.update(3)
    space = app.gateway._space
    space._floor = 1 << 60
    publishing = pool.submit(app.publish, "m", learner, 2)
    until(lambda: "policy 3 not recorded" in caplog.text, "a policy that waits")
    assert app.connect("m").act([[0, 0]]).policy_version == 0
    assert not publishing.done()
    assert sorted(path.stem for path in model.publication.shelf.paths()) == [f"{0:020d}"]
    space._floor = 0

    publishing.result(60)
    assert app.connect("m").act([[0, 0]]).policy_version == 3


# -- other ways for a request to end ------------------------------------------------------------


def test_unforeseen_error_in_a_commit(
    app: Any, model: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A commit that fails for an unforeseen reason is 500, keeps nothing, and ends nothing."""

    def fail(*_: Any) -> None:
        raise apsw.MisuseError("no such thing")

    before = app.connect("m").info()
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "_write_row", fail)
        response = app.request("POST", "/v1/models/m/experience/add", {"transitions": ROWS})

    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")
    assert "MisuseError" in caplog.text
    assert app.connect("m").info() == before
    assert app.connect("m").add(ROWS).accepted == 4


def test_learner_too_far_behind(app: Any) -> None:
    """Behind by more than the model allows, transitions are 429 and inference is not."""
    spec = {**SPEC, "pacing": {"learning_starts": 8, "max_backlog": 5}}
    app.connect("m").create(spec)
    client = app.connect("m", patience=0)
    client.add(experience(1, 6))
    app.publish("m", Learner(spec))
    response = app.request("POST", "/v1/models/m/experience/add", {"transitions": ROWS})

    assert (response.status_code, response.json()["error"]["code"]) == (429, "backlog")
    assert response.headers["retry-after"] in ("1", "2", "3")
    with pytest.raises(Backlog):
        client.add(experience(1, 6, actor_id="b"))
    assert client.act([[0, 0]]).policy_version == 0
    assert client.label([{**identity("a", "e0", 0), "label": 1}]).attached == 1
    learner = Learner(spec)
    learner.add(experience(1, 6))
    app.run(app.model("m").learning.hear, state_message(learner, 2))
    assert client.add(experience(1, 6, actor_id="b")).accepted == 6


def test_learner_is_told(app: Any, model: Any) -> None:
    """What is new rings the learner's bell, after the commit; what is not does not."""
    app.connect("m").add(ROWS)
    assert model.learning.process.state == "running"
    assert model.learning.process.heard.count("doorbell") == 1
    app.connect("m").add(ROWS)
    app.connect("m").label([{**identity("z", "e0", 0), "label": 1}])

    assert model.learning.process.heard.count("doorbell") == 2


def test_label_alone_starts_the_learner(app: Any) -> None:
    """A model that has only labels has a learner too: a barrier on them is reached."""
    app.connect("m").create(QUIET)
    app.connect("m").label([{**identity("a", "e0", 0), "label": 1}])

    assert app.model("m").learning.process.state == "running"


def test_stop_answers_what_has_come_in(
    app: Any, model: Any, held: Held, pool: ThreadPoolExecutor
) -> None:
    """A shutdown finishes what was admitted; what comes later is told to come again."""
    early = pool.submit(app.connect("m").add, ROWS)
    until(lambda: held.begun, "a commit")
    stopping = pool.submit(app.run, app.gateway.stop)
    until(lambda: model.commits.refusal is not None, "draining")
    late = app.request("POST", "/v1/models/m/experience/add", {"transitions": ROWS})
    assert not stopping.done()
    held.open.set()

    assert (late.status_code, late.json()["error"]["code"]) == (503, "draining")
    assert early.result(60).accepted == 4
    stopping.result(60)
    assert app.gateway.state == "stopped"
    assert Draining.status == 503


def test_delete_answers_what_has_come_in(
    app: Any, model: Any, held: Held, pool: ThreadPoolExecutor
) -> None:
    """What was admitted before a deletion is answered; what comes after it is 404."""
    early = pool.submit(app.connect("m").add, ROWS)
    until(lambda: held.begun, "a commit")
    deletion = pool.submit(app.request, "DELETE", "/v1/models/m")
    until(lambda: model.commits.refusal is not None, "a deletion")
    late = app.request("POST", "/v1/models/m/experience/add", {"transitions": ROWS})
    held.open.set()

    assert late.status_code == 404
    assert early.result(60).accepted == 4
    assert deletion.result(60).status_code == 204


def test_deletion_on_a_full_disk(app: Any, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deletion without room for its record is 503, the model goes on, and its numbers too."""
    client = app.connect("m", patience=0)
    client.add(ROWS)
    learner = Learner(QUIET)
    learner.add(ROWS)
    learner.update(3)
    app.publish("m", learner, client.info()["journal_lsn"])

    def full(*_: Any) -> None:
        raise apsw.FullError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(model.journal, "_write_control", full)
        refused = app.request("DELETE", "/v1/models/m")

    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "storage_full")
    assert client.act([[0.0, 0.0]]).policy_version == 3
    assert client.add(ROWS).duplicate == len(ROWS)
    assert app.request("DELETE", "/v1/models/m").status_code == 204
    assert app.request("GET", "/v1/models/m").status_code == 404
    created = client.create(QUIET)
    assert (created["generation"], created["policy_version"]) == (2, 4)
