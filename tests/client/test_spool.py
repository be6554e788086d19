"""What waits for a service: in order, bounded, in a file that outlives its process."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jormungandr import ModelSpec, RemoteLearner, Transition
from jormungandr import errors as e
from jormungandr.client import Spool
from jormungandr.client import refused as refused_module
from jormungandr.client import sender as sender_module
from jormungandr.client import spool_file as file_module
from jormungandr.client.spool_file import MAGIC, SpoolFile
from jormungandr.outbox import Outbox
from jormungandr.packed import unpack
from jormungandr.transport import Response
from jormungandr.wire import MSGPACK
from tests.service.serving import until

DOWN = ConnectionRefusedError("nobody there")


def row(timestep: int = 0, **fields: Any) -> dict[str, Any]:
    """Return a transition."""
    return {
        "actor_id": "a",
        "episode_id": "e",
        "timestep": timestep,
        "split": "train",
        "policy_version": 0,
        "observation": [0.5, 1.0],
        "action": 1,
        "reward": 0.5,
        "next_observation": [1.0, 0.5],
        "terminated": False,
        "truncated": False,
        **fields,
    }


class Service:
    """A service of one model in memory, which may be away, and may refuse."""

    def __init__(self) -> None:
        self.away = False
        self.generation: int | None = 1
        self.refuses: Callable[[list[Any]], e.JormungandrError | None] = lambda rows: None
        self.stored: dict[int, Any] = {}
        self.bodies: list[bytes] = []
        self.requests = 0

    def request(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout: float
    ) -> Response:
        """Answer as a service does."""
        self.requests += 1
        if self.away:
            raise DOWN
        if self.generation is None:
            return fault(e.ModelUnknown("model_id", "a model that exists", "'m'"))
        if method == "GET":
            return ok({"generation": self.generation, "spec": SPEC})
        assert body is not None
        assert path == "/v1/models/m/experience/add"
        self.bodies.append(body)
        rows = json.loads(body)["transitions"]
        error = self.refuses(rows)
        if error is not None:
            return fault(error)
        new = [r for r in rows if r["timestep"] not in self.stored]
        self.stored.update({r["timestep"]: r for r in new})
        return ok(
            {
                "accepted": len(new),
                "duplicate": len(rows) - len(new),
                "stale_dropped": 0,
                "lsn": len(self.stored),
                "policy_version": 3,
                "generation": self.generation,
            }
        )

    def close(self) -> None:
        """Nothing to close."""


SPEC = {"observation": {"shape": [2]}, "actions": 3}


def ok(body: Any) -> Response:
    """Return an answer."""
    return Response(200, {}, msgspec.json.encode(body))


def fault(error: e.JormungandrError) -> Response:
    """Return a refusal."""
    return Response(error.status, {}, msgspec.json.encode({"error": error.to_dict()}))


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    """A service; clients ask it again at once."""
    monkeypatch.setattr("jormungandr.client.calls.LONGEST_PAUSE", 0.002)
    return Service()


def remote(service: Service, spool: Spool | None, **options: Any) -> RemoteLearner:
    """Return a client of it that sends JSON."""
    options = {"columns_from": None, "patience": 60.0, **options}
    return RemoteLearner(None, "m", "t", transport=service, spool=spool, **options)


@pytest.fixture(params=["memory", "file"])
def make_spool(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Spool]:
    """Make spools of either kind."""
    file = tmp_path / "spool" if request.param == "file" else None
    return lambda **options: Spool(file, **options)


# -- sending ------------------------------------------------------------------------------------


def test_sent_in_order_without_waiting(service: Service, make_spool: Any) -> None:
    """While the service is away rows wait; when it is back they arrive, in order, once each."""
    service.away = True
    with remote(service, make_spool()) as endpoint:
        futures = [endpoint.send([row(2 * i), row(2 * i + 1)]) for i in range(50)]
        assert (len(endpoint.spool), endpoint.spool.rows) == (50, 100)
        assert not futures[0].done()
        until(lambda: service.requests > 3, "attempts")
        assert "nobody there" in str(endpoint.spool.failure)
        service.away = False
        receipt = endpoint.flush()

        assert list(service.stored) == list(range(100))
        assert (receipt.accepted, receipt.duplicate, receipt.lsn) == (100, 0, 100)
        assert futures[7].result().lsn == 16
        assert (endpoint.spool.rows, endpoint.spool.bytes, endpoint.spool.failure) == (0, 0, None)


def test_the_same_bytes_again(service: Service, make_spool: Any) -> None:
    """A request that is repeated is the same to the byte."""
    tries = iter([e.StorageFull("disk", "room"), e.Backlog("model", "less"), None])
    service.refuses = lambda rows: next(tries)
    with remote(service, make_spool()) as endpoint:
        endpoint.send([row(0)])
        endpoint.flush()

    assert len(service.bodies) == 3
    assert len(set(service.bodies)) == 1


def test_add_waits_for_its_own_receipt(service: Service, make_spool: Any) -> None:
    """`add` goes through the spool behind what was sent before, and raises its own refusal."""
    with remote(service, make_spool()) as endpoint:
        endpoint.send([row(0)])
        receipt = endpoint.add([row(1)])
        assert (receipt.accepted, receipt.lsn) == (1, 2)
        service.refuses = lambda rows: e.ActionRange("transitions[0].action", "0..2", 7)
        with pytest.raises(e.ActionRange):
            endpoint.add([row(2)])
        service.refuses = lambda rows: None

        endpoint.send([row(3)])  # what was told once is not told again
        assert endpoint.flush().accepted == 3
        assert endpoint.spool.refused_count == 0


def test_add_that_is_not_answered_in_time(service: Service, make_spool: Any) -> None:
    """It raises why, and the rows are sent when that is possible."""
    service.away = True
    with remote(service, make_spool(), patience=0.05) as endpoint:
        with pytest.raises(e.Unavailable, match=r"nobody there|spool: expected an answer"):
            endpoint.add([row(0)])
        service.away = False
        assert endpoint.flush(60).accepted == 1


def test_refused_after_nobody_waited_any_more(service: Service, make_spool: Any) -> None:
    """The refusal of an `add` that has given up is told by the next call, and set aside."""
    service.away = True
    service.refuses = lambda rows: e.ActionRange("transitions[0].action", "0..2", 7)
    endpoint = remote(service, make_spool(), patience=0.05)
    with pytest.raises(e.Unavailable):
        endpoint.add([row(0)])
    service.away = False
    endpoint.spool.join(60)
    with pytest.raises(e.ActionRange, match="set aside"):
        endpoint.send([row(1)])
    service.refuses = lambda rows: None
    endpoint.close()

    assert endpoint.spool.refused_count == 1


def test_flush_in_time_or_not(service: Service, make_spool: Any) -> None:
    """What is not answered in time is said, with what is in the way; it waits on."""
    service.away = True
    with remote(service, make_spool()) as endpoint:
        endpoint.send([row(0)])
        until(lambda: endpoint.spool.failure, "an attempt")
        with pytest.raises(e.WaitTimeout, match=r"got 1 that wait; .*nobody there"):
            endpoint.flush(0.01)
        service.away = False
        assert endpoint.flush().accepted == 1


def test_without_a_spool(service: Service) -> None:
    """`send` and `flush` are of a learner with one."""
    with remote(service, None) as endpoint:
        for call in (lambda: endpoint.send([row()]), endpoint.flush):
            with pytest.raises(e.InvalidValue, match="a learner with a spool"):
                call()


def test_what_cannot_be_sent_is_refused_at_once(service: Service, make_spool: Any) -> None:
    """What no service would take is an error of the call, and nothing of it waits."""
    with remote(service, make_spool()) as endpoint:
        with pytest.raises(e.NonFinite, match=r"transitions\[1\]\.reward"):
            endpoint.send([row(0), row(1, reward=float("nan"))])
        wide = [0.123456789] * 60_000
        with pytest.raises(e.BodyTooLarge):
            endpoint.send([row(0, observation=wide, next_observation=wide)])
        assert len(endpoint.spool) == 0


def test_columns_once_the_model_is_known(tmp_path: Path) -> None:
    """The first requests are JSON; when the service has told of the model, bulk goes as columns."""
    kinds = []

    class Counting(Service):
        def request(self, method: str, path: str, body: Any, headers: Any, timeout: float) -> Any:
            if method == "POST":
                kinds.append(headers["Content-Type"])
                body = b'{"transitions":[]}'
            return super().request(method, path, body, headers, timeout)

    with remote(Counting(), Spool(tmp_path / "spool"), columns_from=4) as endpoint:
        for _ in range(2):
            endpoint.send([row(t) for t in range(5)])
            endpoint.flush()
        endpoint.send([row(9)])

    assert kinds == ["application/json", "application/msgpack", "application/json"]


class Columnar(Service):
    """A service that takes columns, and counts the requests with transitions."""

    def request(self, method: str, path: str, body: Any, headers: Any, timeout: float) -> Any:
        """Make JSON of columns first."""
        if method == "POST" and headers["Content-Type"] == MSGPACK and not self.away:
            found = unpack(body, ModelSpec.from_dict(SPEC), self.generation)
            rows = [
                row(t, action=a)
                for t, a in zip(found.timestep.tolist(), found.action.tolist(), strict=True)
            ]
            body = msgspec.json.encode({"transitions": rows})
        return super().request(method, path, body, headers, timeout)


@pytest.fixture
def columnar(service: Service) -> Service:
    """A service that takes columns."""
    return Columnar()


def test_what_gathered_goes_together(columnar: Service, make_spool: Any) -> None:
    """After a while without a service, few requests take what many were; in order, once each."""
    with remote(columnar, make_spool(), columns_from=3) as endpoint:
        endpoint.send([row(0)])
        endpoint.flush()
        columnar.away = True
        at, sizes = 1, [1, 2, 5, 4, 1, 3] * 20
        futures = []
        for size in sizes:  # JSON and columns
            futures.append(endpoint.send([row(t, action=t % 3) for t in range(at, at + size)]))
            at += size
        columnar.away = False
        receipt = endpoint.flush()

    assert list(columnar.stored) == list(range(at))
    assert all(stored["action"] == t % 3 for t, stored in columnar.stored.items() if t)
    assert len(columnar.bodies) < 6
    assert (receipt.accepted, receipt.duplicate) == (at, 0)
    assert sum(future.result().accepted for future in futures) == at - 1


def test_the_same_bytes_again_whatever_gathers_meanwhile(
    columnar: Service, make_spool: Any
) -> None:
    """Requests that went together once go together until they are answered, and no others."""
    full = threading.Event()
    columnar.refuses = lambda rows: e.StorageFull("disk", "room") if full.is_set() else None
    with remote(columnar, make_spool(), columns_from=3) as endpoint:
        endpoint.send([row(0)])
        endpoint.flush()
        columnar.away = True
        for timestep in range(1, 5):
            endpoint.send([row(timestep)])
        until(lambda: endpoint.spool.failure, "an attempt")
        full.set()
        columnar.bodies.clear()
        columnar.away = False
        for timestep in range(5, 30):
            until(lambda t=timestep: len(columnar.bodies) > t - 4, "attempts")
            endpoint.send([row(timestep)])
        assert len(set(columnar.bodies)) == 1
        full.clear()
        endpoint.flush()

    assert list(columnar.stored) == list(range(30))


def test_refused_among_what_gathered(columnar: Service, make_spool: Any) -> None:
    """One that is refused takes none of the others with it, and is the one that is set aside."""
    spool = make_spool()
    columnar.refuses = lambda rows: (
        e.IdentityConflict("transitions[0]", "the first content", "another")
        if any(r["timestep"] == 33 for r in rows)
        else None
    )
    endpoint = remote(columnar, spool, columns_from=3)
    endpoint.send([row(0)])
    endpoint.flush()
    columnar.away = True
    for timestep in range(1, 60):
        endpoint.send([row(timestep)])
    columnar.away = False
    with pytest.raises(e.IdentityConflict):
        endpoint.flush()
    assert endpoint.flush().accepted == 59
    endpoint.close()

    assert list(columnar.stored) == [t for t in range(60) if t != 33]
    assert [json.loads(r.body)["transitions"][0]["timestep"] for r in spool.refused] == [33]


def test_what_cannot_go_together(columnar: Service, make_spool: Any) -> None:
    """A request that the model does not take goes alone, and is refused by the service."""
    columnar.refuses = lambda rows: (
        e.ActionRange("transitions[0].action", "0..2", 7) if rows[0]["action"] == 7 else None
    )
    endpoint = remote(columnar, make_spool(), columns_from=3)
    endpoint.send([row(0)])
    endpoint.flush()
    columnar.away = True
    for timestep in range(1, 9):
        endpoint.send([row(timestep, action=7 if timestep == 4 else 1)])
    columnar.away = False
    with pytest.raises(e.ActionRange):
        endpoint.flush()
    endpoint.flush()
    endpoint.close()

    assert list(columnar.stored) == [t for t in range(9) if t != 4]


# -- bounds -------------------------------------------------------------------------------------


def test_full_raises(service: Service, make_spool: Any) -> None:
    """With `on_full="raise"` a full spool is said, and nothing of the request is taken."""
    service.away = True
    endpoint = remote(service, make_spool(max_rows=3, on_full="raise"))
    endpoint.send([row(0), row(1)])
    with pytest.raises(e.Unavailable, match=r"spool: expected room for 2 more transitions, got 2"):
        endpoint.send([row(2), row(3)])
    endpoint.send([row(2)])
    service.away = False
    endpoint.flush()
    endpoint.send([row(t) for t in range(3, 9)])  # one alone is always taken
    endpoint.close()

    assert sorted(service.stored) == list(range(9))


def test_full_blocks(service: Service, make_spool: Any) -> None:
    """By default whoever sends waits until there is room, counted in bytes too."""
    service.away = True
    endpoint = remote(service, make_spool(max_bytes=500))
    endpoint.send([row(0)])
    sent = threading.Event()

    def send() -> None:
        for timestep in range(1, 4):
            endpoint.send([row(timestep)])
        sent.set()

    thread = threading.Thread(target=send)
    thread.start()
    until(lambda: len(endpoint.spool) == 2, "what fits")
    assert not sent.is_set()
    service.away = False
    thread.join()
    endpoint.close()

    assert sorted(service.stored) == [0, 1, 2, 3]


def test_full_in_an_outbox(service: Service, make_spool: Any) -> None:
    """Rows that a full spool does not take stay with whoever recorded them."""
    service.away = True
    endpoint = remote(service, make_spool(max_rows=2, on_full="raise"))
    outbox = Outbox(endpoint, 1)
    rows = [Transition(**row(t)) for t in range(4)]
    outbox.put(rows[:2])
    with pytest.raises(e.Unavailable):
        outbox.put(rows[2:])
    assert outbox.unsent == tuple(rows[2:])
    assert outbox.receipt.accepted == 0
    service.away = False
    endpoint.flush()

    assert outbox.flush().accepted == 4
    endpoint.close()


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"max_bytes": 0}, "max_bytes"),
        ({"max_rows": 1.5}, "max_rows"),
        ({"on_full": "drop"}, "on_full"),
    ],
)
def test_arguments(options: dict[str, Any], where: str) -> None:
    """A bound that is none is refused."""
    with pytest.raises(e.InvalidValue) as raised:
        Spool(**options)

    assert raised.value.where == where


# -- refusals -----------------------------------------------------------------------------------


def test_refused_is_set_aside_and_told_once(service: Service, tmp_path: Path) -> None:
    """A refused request is kept with its error, the next call raises it, later rows go on."""
    spool = Spool(tmp_path / "spool")
    service.refuses = lambda rows: (
        e.IdentityConflict("transitions[0]", "the first content", "another")
        if rows[0]["timestep"] == 1
        else None
    )
    with remote(service, spool) as endpoint:
        for timestep in range(3):
            endpoint.send([row(timestep)])
            spool.join(60)
            if timestep == 1:
                with pytest.raises(
                    e.IdentityConflict, match=r"1 transitions are set aside in .*refused-0001\.json"
                ):
                    endpoint.send([row(9)])
        assert endpoint.flush().accepted == 2

    assert list(service.stored) == [0, 2]
    kept = json.loads((tmp_path / "spool.refused-0001.json").read_bytes())
    assert kept["error"]["code"] == "identity_conflict"
    assert kept["body"]["transitions"][0]["timestep"] == 1
    assert [r.rows for r in spool.refused] == [1]


def test_refused_in_memory(service: Service) -> None:
    """Without a file it is kept in the spool; closing raises what was not told."""
    spool = Spool()
    service.refuses = lambda rows: e.ActionRange("transitions[0].action", "0..2", 7)
    endpoint = remote(service, spool)
    endpoint.send([row(0)])
    with pytest.raises(e.ActionRange, match=r"set aside in `spool\.refused`"):
        endpoint.close()

    assert json.loads(spool.refused[0].body)["transitions"][0]["timestep"] == 0


def test_refused_without_end(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much is refused, a bounded part of it is kept; all is counted."""
    monkeypatch.setattr(refused_module, "KEEP", 3)
    spool = Spool(tmp_path / "spool")
    service.refuses = lambda rows: e.ActionRange("transitions[0].action", "0..2", 7)
    endpoint = remote(service, spool)
    for timestep in range(5):
        while True:
            try:
                endpoint.send([row(timestep)])
                break
            except e.ActionRange:
                pass
    until(lambda: spool.refused_count == 5, "refusals")
    with pytest.raises(e.ActionRange):
        endpoint.close()

    assert len(list(tmp_path.glob("spool.refused-*.json"))) == 3
    assert len(spool) == 0


@pytest.mark.parametrize(
    "error",
    [
        e.Unauthenticated("Authorization", "a token"),
        e.Forbidden("token", "one with the scope 'ingest'"),
        e.NotFound("path", "a path"),
    ],
    ids=lambda error: error.code,
)
def test_refusal_of_all_stops_and_keeps(service: Service, tmp_path: Path, error: Any) -> None:
    """A token that is no longer good is nothing a request can help: all waits for the next one."""
    spool = Spool(tmp_path / "spool")
    service.refuses = lambda rows: error
    endpoint = remote(service, spool)
    endpoint.send([row(0)])
    endpoint.spool.join(60)
    for _ in range(2):
        with pytest.raises(type(error)):
            endpoint.send([row(1)])
    with pytest.raises(type(error)):
        endpoint.close()
    service.refuses = lambda rows: None

    with remote(service, Spool(tmp_path / "spool")) as endpoint:
        assert endpoint.flush().accepted == 1


@pytest.mark.parametrize("status", [500, 502])
def test_faults_of_the_service_are_waited_out(
    service: Service, make_spool: Any, status: int
) -> None:
    """An error page of a proxy, or a bug of the service, is no fault of what is sent."""
    real, left = service.request, iter([True, True, True])

    def request(method: str, *given: Any) -> Response:
        if method == "POST" and next(left, False):
            return Response(status, {}, b"<html>")
        return real(method, *given)

    service.request = request  # type: ignore[method-assign]
    with remote(service, make_spool()) as endpoint:
        endpoint.send([row(0)])
        assert endpoint.flush().accepted == 1


# -- a model that is gone -----------------------------------------------------------------------


def test_deleted_model(service: Service, make_spool: Any) -> None:
    """A model that was there and is deleted stops the actor, and says what still waits."""
    endpoint = remote(service, make_spool())
    endpoint.send([row(0)])
    endpoint.flush()
    service.generation = None
    endpoint.send([row(1)])
    endpoint.spool.join(60)
    for call in (lambda: endpoint.send([row(2)]), endpoint.flush, endpoint.close):
        with pytest.raises(e.ModelGone, match=r"m: expected generation 1 of the model"):
            call()


@pytest.mark.parametrize("away", [True, False])
def test_created_again(service: Service, make_spool: Any, away: bool) -> None:
    """What was meant for a deleted model is not sent to another one of its name.

    Where the connection never broke, the first receipt tells; that one request has arrived.
    """
    endpoint = remote(service, make_spool())
    endpoint.send([row(0)])
    endpoint.flush()
    service.away, service.generation = away, 2
    service.stored.clear()
    endpoint.send([row(1)])
    if away:
        until(lambda: endpoint.spool.failure, "an attempt")
        service.away = False
    endpoint.spool.join(60)
    with pytest.raises(e.ModelGone, match="generation 2"):
        endpoint.send([row(4)])
    with pytest.raises(e.ModelGone):
        endpoint.close()

    assert list(service.stored) == ([] if away else [1])


def test_file_of_a_deleted_model(service: Service, tmp_path: Path) -> None:
    """The file remembers which generation it is for, and whose."""
    service_of(service, tmp_path / "spool", rows=1)
    service.generation = 2
    endpoint = remote(service, Spool(tmp_path / "spool"))
    endpoint.send([row(1)])
    endpoint.spool.join(60)
    with pytest.raises(e.ModelGone, match="expected generation 1 of the model, got generation 2"):
        endpoint.close()
    with pytest.raises(e.InvalidValue, match="spool: expected one of the model 'other', got m"):
        RemoteLearner(None, "other", "t", transport=service, spool=Spool(tmp_path / "spool"))


def test_actors_without_a_spool_stop_too(service: Service) -> None:
    """Whoever records for a model that is created again stops; receipts tell a client alone."""
    endpoint = remote(service, None)
    outbox = Outbox(endpoint, 1)
    outbox.put([Transition(**row(0))])
    service.generation = 2
    assert endpoint.add([row(1)]).generation == 2
    for timestep in (2, 3):
        with pytest.raises(e.ModelGone, match="expected generation 1 of the model, got generation"):
            outbox.put([Transition(**row(timestep))])

    assert list(service.stored) == [0, 1, 2]
    assert [r.timestep for r in outbox.unsent] == [3]


def test_model_that_never_was(service: Service, make_spool: Any) -> None:
    """Who sends to a model that does not exist learns that, and not that it was deleted."""
    service.generation = None
    endpoint = remote(service, make_spool())
    endpoint.send([row(0)])
    endpoint.spool.join(60)
    with pytest.raises(e.ModelUnknown) as raised:
        endpoint.close()

    assert type(raised.value) is e.ModelUnknown


# -- the end ------------------------------------------------------------------------------------


def test_close_sends_what_waits(service: Service, make_spool: Any) -> None:
    """Leaving the block waits for the answers."""
    with remote(service, make_spool()) as endpoint:
        for timestep in range(20):
            endpoint.send([row(timestep)])

    assert len(service.stored) == 20


def test_close_after_a_refusal_sends_the_rest(service: Service, make_spool: Any) -> None:
    """What was refused is raised, after all others are answered."""
    service.refuses = lambda rows: (
        e.ActionRange("transitions[0].action", "0..2", 7) if rows[0]["timestep"] == 0 else None
    )
    service.away = True
    endpoint = remote(service, make_spool())
    for timestep in range(20):
        endpoint.send([row(timestep)])
    service.away = False
    with pytest.raises(e.ActionRange):
        endpoint.close()

    assert list(service.stored) == list(range(1, 20))


def test_close_while_the_service_is_away(service: Service, tmp_path: Path) -> None:
    """What has no file is lost, and that is an error; what has one waits in it."""
    service.away = True
    endpoint = remote(service, Spool())
    endpoint.send([row(0)])
    with pytest.raises(e.Unavailable, match="1 that are lost"):
        endpoint.close(0.01)
    kept = remote(service, Spool(tmp_path / "spool"))
    kept.send([row(0)])
    kept.close(0.01)
    service.away = False

    with remote(service, Spool(tmp_path / "spool")) as endpoint:
        assert endpoint.flush().accepted == 1


def test_an_error_that_leaves_the_block_is_the_one_to_see(service: Service) -> None:
    """Closing does not hide it, and does not wait after an error of the service."""
    service.away = True

    def play() -> None:
        with remote(service, Spool()) as endpoint:
            endpoint.send([row(0)])
            raise e.EpisodeClosed("episode", "none")

    with pytest.raises(e.EpisodeClosed):
        play()


# -- the file -----------------------------------------------------------------------------------


def service_of(service: Service, file: Path, rows: int) -> None:
    """Let a process send so many rows, and be ended when the service is away."""
    endpoint = remote(service, Spool(file))
    for timestep in range(rows):
        endpoint.send([row(timestep)])
    endpoint.close()


def test_the_next_process_goes_on(service: Service, tmp_path: Path) -> None:
    """What waited in the file is sent at the start of the next one, without a call; once each."""
    service.away = True
    first = remote(service, Spool(tmp_path / "spool"))
    for timestep in range(10):
        first.send([row(timestep)])
    first.close(0.0)
    service.away = False
    with remote(service, Spool(tmp_path / "spool")) as second:
        until(lambda: len(service.stored) == 10, "what waited")
        assert second.flush().accepted == 10
        second.send([row(10)])
    with remote(service, Spool(tmp_path / "spool")) as third:
        assert len(third.spool) == 0

    assert [json.loads(b)["transitions"][0]["timestep"] for b in service.bodies] == list(range(11))


def frames(path: Path, count: int) -> list[bytes]:
    """Write so many requests of different sizes; return their bodies."""
    file = SpoolFile(path)
    bodies = [f"body {i} ".encode() * (i + 1) for i in range(count)]
    for i, body in enumerate(bodies):
        file.append(i, "application/json", body)
    file.close()
    return bodies


def read(path: Path) -> list[bytes]:
    """Return the bodies that wait in a file."""
    file = SpoolFile(path)
    found = [file.read(framed)[1] for framed in file.waiting]
    file.close()
    return found


def test_torn_anywhere(tmp_path: Path) -> None:
    """Cut at any byte, the whole frames before it are read, and what is cut is kept beside it."""
    path = tmp_path / "whole"
    bodies = frames(path, 4)
    whole = path.read_bytes()
    ends = [i for i in range(len(whole) + 1) if _count(whole[:i], tmp_path) is not None]
    assert ends == list(range(len(whole) + 1))
    for cut in range(len(MAGIC), len(whole)):
        torn = tmp_path / "torn"
        torn.write_bytes(whole[:cut])
        found = read(torn)
        assert found == bodies[: len(found)]
        beside = torn.with_name("torn.torn")
        left = beside.read_bytes() if beside.exists() else b""
        assert torn.read_bytes() + left == whole[:cut]
        beside.unlink(missing_ok=True)
    assert read(path) == bodies


def _count(data: bytes, folder: Path) -> int | None:
    path = folder / "part"
    path.write_bytes(data)
    return len(read(path))


@given(data=st.data())
def test_damaged_anywhere(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A changed byte is never sent as if it were right: at worst what follows is set aside."""
    path = tmp_path_factory.mktemp("damaged") / "spool"
    bodies = frames(path, 5)
    damaged = bytearray(path.read_bytes())
    at = data.draw(st.integers(len(MAGIC), len(damaged) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(damaged)
    found = read(path)

    assert found == bodies[: len(found)]
    assert len(found) < 5


def test_another_file(tmp_path: Path) -> None:
    """A file of something else is refused, and not touched."""
    path = tmp_path / "notes.txt"
    path.write_text("my notes")
    with pytest.raises(e.InvalidValue, match="expected a spool, or no file yet"):
        Spool(path)

    assert path.read_text() == "my notes"


def test_one_process_at_a_time(tmp_path: Path) -> None:
    """Two actors on one file would send each other's rows."""
    first = Spool(tmp_path / "spool")
    with pytest.raises(e.InvalidValue, match="give each actor a file of its own"):
        Spool(tmp_path / "spool")
    first.close()
    Spool(tmp_path / "spool").close()


def test_folder_that_is_not_there(tmp_path: Path) -> None:
    """A path that cannot be written is named."""
    with pytest.raises(e.StorageFull, match="no/spool"):
        Spool(tmp_path / "no" / "spool")


def test_what_is_done_is_dropped(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file stays bounded however much goes through it, also while something always waits."""
    monkeypatch.setattr(file_module, "DROP_FROM", 4_096)
    path, sizes = tmp_path / "spool", []
    with remote(service, Spool(path)) as endpoint:
        for timestep in range(300):
            endpoint.send([row(timestep)])
            if timestep % 3 == 0:
                endpoint.flush()
            sizes.append(path.stat().st_size)

    assert len(service.stored) == 300
    assert max(sizes) < 3 * 4_096
    assert sum(map(len, service.bodies)) > 10 * max(sizes)
    assert json.loads(_model(path))["generation"] == 1


def _model(path: Path) -> bytes:
    file = SpoolFile(path)
    file.close()
    return json.dumps(file.model).encode()


def test_dropping_while_requests_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that wait are found again at their new places, by this process and the next."""
    monkeypatch.setattr(file_module, "DROP_FROM", 1)
    path = tmp_path / "spool"
    file = SpoolFile(path)
    waiting = [file.append(1, "application/json", bytes([65 + i]) * 50) for i in range(8)]
    for _ in range(6):
        drop, waiting = file.done(waiting[0]), waiting[1:]
        waiting = file.drop(waiting) if drop else waiting
        assert file.read(waiting[0])[1][:1] == bytes([65 + 8 - len(waiting)])
    waiting.append(file.append(1, "application/json", b"new"))
    bodies = [file.read(framed)[1] for framed in waiting]
    file.close()

    assert bodies == [b"G" * 50, b"H" * 50, b"new"]
    assert read(path) == bodies


def test_full_disk(tmp_path: Path, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that does not fit is refused whole; what waits and the file stay as they were."""
    service.away = True
    endpoint = remote(service, Spool(tmp_path / "spool"))
    endpoint.send([row(0)])
    size = (tmp_path / "spool").stat().st_size
    real = os.write

    def half(file: int, data: Any) -> int:
        if len(data) < 60:
            raise OSError(28, "No space left on device")
        return real(file, bytes(data)[: len(data) // 2])

    monkeypatch.setattr(file_module.os, "write", half)
    with pytest.raises(e.StorageFull, match="No space left"):
        endpoint.send([row(1)])
    monkeypatch.undo()
    assert (tmp_path / "spool").stat().st_size == size
    service.away = False
    endpoint.send([row(2)])
    endpoint.close()

    assert list(service.stored) == [0, 2]


def test_waits_for_the_disk_if_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `sync` every request is synced before `send` returns; without, none is."""
    synced: list[int] = []
    monkeypatch.setattr(file_module.os, "fsync", synced.append)
    for sync, times in ((True, 3), (False, 0)):
        synced.clear()
        file = SpoolFile(tmp_path / f"spool-{sync}", sync=sync)
        for _ in range(3):
            file.append(1, "application/json", b"{}")
        file.close()
        assert len(synced) == times


@pytest.mark.parametrize("asked", ["86400", "inf"])
def test_long_waits_are_cut(
    service: Service, make_spool: Any, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """A service that asks for a day, or for ever, is asked again sooner."""
    monkeypatch.setattr(sender_module, "LONGEST_PAUSE", 0.01)
    real, left = service.request, iter([True])

    def request(*given: Any) -> Response:
        if next(left, False):
            return Response(503, {"retry-after": asked}, b"")
        return real(*given)

    service.request = request  # type: ignore[method-assign]
    with remote(service, make_spool()) as endpoint:
        endpoint.send([row(0)])
        assert endpoint.flush().accepted == 1
