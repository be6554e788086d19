"""`Direct` answers as the routes do: the same requests, to one service with it and one without."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jormungandr import Learner
from jormungandr.columns import columns
from jormungandr.errors import Backlog, Forbidden, Unauthenticated
from jormungandr.packed import pack, unpack
from jormungandr.protocol import LIMITS
from jormungandr.service.http.grants import Grant
from jormungandr.service.load.limits import Limits
from jormungandr.service.load.rates import RateLimit
from jormungandr.spec import ModelSpec
from tests.edge.wire import run, wire
from tests.service.conftest import App
from tests.service.serving import QUIET, TOKEN, experience

ADD, INFER, LABEL = (
    f"/v1/models/m/{name}" for name in ("experience/add", "inference", "labels/add")
)
JSON, COLUMNS = "application/json", "application/msgpack"
BEARER = (b"authorization", f"Bearer {TOKEN}".encode())
#: Deterministic, without labels, on one spec: answers are to be compared to the last byte.
SPEC = {**QUIET, "exploration": {"start": 0.5, "end": 0.5}}


class Exchange:
    """A request for `Direct`, and what it does with it."""

    def __init__(self, scope: dict[str, Any], body: bytes) -> None:
        self.scope, self.body = scope, body
        self.done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def reply(self, status: int, head: bytes, body: bytes) -> None:
        """Keep the answer."""
        lines = (line.partition(b": ")[::2] for line in head.splitlines())
        self.done.set_result((status, dict(lines), body))

    def route(self) -> None:
        """Note that somebody else has to answer."""
        self.done.set_result(None)


def scoped(
    target: str, body: bytes, headers: Any = None, host: bytes = b"testserver"
) -> dict[str, Any]:
    """Return what a server says of a request."""
    path, _, query = target.partition("?")
    given = [BEARER, (b"content-type", JSON.encode())] if headers is None else headers
    own = [(b"host", host), (b"content-length", b"%d" % len(body)), *given]
    return {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": own,
    }


async def asked(app: App, target: str, body: bytes, headers: Any, direct: bool) -> Any:
    """Return status, headers and body of an answer, and whether it is a direct one."""
    service: Any = app.http.app
    scope = scoped(target, body, headers)
    exchange = Exchange(scope, body)
    if direct and service.direct(exchange):
        answer = await exchange.done
        if answer is not None:
            return *answer, True
    waiting = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        return waiting.pop() if waiting else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await service(scope, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"], False


class Pair:
    """Two services that are told the same, one of them directly."""

    def __init__(self, plain: App, direct: App) -> None:
        self.plain, self.direct = plain, direct
        for app in (plain, direct):
            app.connect("m").create(SPEC)
            app.publish("m", Learner(SPEC))

    def ask(self, target: str, body: Any, headers: Any = None) -> tuple[int, bool]:
        """Return the status of both answers, which must be the same, and whether one is direct."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        one, other = (
            app.run(asked, app, target, data, headers, direct)
            for app, direct in ((self.plain, False), (self.direct, True))
        )
        assert one[0] == other[0]
        # Ids are of each service's own, and when to come again is drawn.
        names = [sorted(headers) for _, headers, _, _ in (one, other)]
        assert names[0] == names[1]
        assert one[2] == other[2]
        return one[0], other[3]


@pytest.fixture
def pair(open_app: Callable[..., Any], tmp_path: Any) -> Iterator[Pair]:
    """Two of them, empty."""
    with open_app(tmp_path / "plain") as plain, open_app(tmp_path / "direct") as direct:
        yield Pair(plain, direct)


def row(timestep: int = 0, **changes: Any) -> dict[str, Any]:
    """Return a transition."""
    found = {**experience(1, 1)[0], "timestep": timestep, "terminated": False, **changes}
    return {name: value for name, value in found.items() if value is not ...}


PLAIN = {"observations": [[0.5, -1], [2, 3.5]]}


@pytest.mark.parametrize(
    ("body", "status", "direct"),
    [
        (PLAIN, 200, True),
        ({**PLAIN, "deterministic": True}, 200, True),
        ({**PLAIN, "deterministic": False, "epsilon": 1}, 200, True),
        ({**PLAIN, "epsilon": 0.25}, 200, True),
        ({**PLAIN, "epsilon": None}, 200, False),
        ({**PLAIN, "distribution": True}, 200, False),
        ({**PLAIN, "policy": "latest"}, 200, False),
        ({"observations": [0.5, -1]}, 200, False),
        ({"observations": [[0.5, -1]] * 65}, 200, False),
        ({"observations": []}, 200, False),
        ({**PLAIN, "epsilon": 1.5}, 422, False),
        ({**PLAIN, "epsilon": -0.1}, 422, False),
        ({**PLAIN, "action_masks": [[1, 1, 1]] * 2}, 422, False),
        ({"observations": [[0.5]]}, 422, False),
        ({"observations": [[0.5, -1], [1]]}, 422, False),
        ({"observations": [[0.5, 1e39]]}, 422, False),
        ({"observations": [[0.5, -1e39]]}, 422, False),
        ({"observations": [[2**60 + 2**36 + 1, 2**64]]}, 200, True),
        ({"observations": [[0.5, 10**400]]}, 422, False),
        ({"observations": [[0.5, True]]}, 422, False),
        ({"observations": [["a", 1]]}, 422, False),
        ({**PLAIN, "deterministic": 1}, 422, False),
        ({**PLAIN, "other": 1}, 422, False),
        ({}, 422, False),
        (b'{"observations": [[1, 2]], "observations": [[3, 4]]}', 400, False),
        (b'{"observations": [[1, 2]], "epsilon": 0, "epsilon": 1}', 400, False),
        (b'{"observations": [[1, 2]]', 400, False),
        (b'{"observations": [[1, NaN]]}', 400, False),
        (b'{"observations": [[1, 1e999]]}', 400, False),
        (b"\xff", 400, False),
        (b"[" * 100 + b"]" * 100, 400, False),
    ],
    ids=lambda value: None if isinstance(value, bool | int) else str(value)[:60],
)
def test_actions(
    pair: Pair, body: Any, status: int, direct: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Actions, values, probabilities and errors are the same, and so are the draws after them."""
    assert pair.ask(INFER, body) == (status, direct)
    assert pair.ask(INFER, PLAIN) == (200, True)
    assert "could not be answered directly" not in caplog.text  # it was foreseen


@pytest.mark.parametrize(
    ("rows", "status", "direct"),
    [
        ([row()], 200, True),
        ([row(reward=1, behavior_prob=0.5, label=1)], 200, True),
        ([row(actor_id="a:b", episode_id="größe")], 200, True),
        ([row(t) for t in range(20)], 200, True),
        ([row(label=1), row(1), row(2, behavior_prob=1)], 200, True),
        ([row(), row()], 200, True),
        ([row(label="UP")], 200, False),
        ([row(behavior_prob=None)], 200, False),
        ([row(tags={"a": "b"})], 200, False),
        ([], 200, False),
        ([row(), row(reward=2.0)], 409, True),
        ([row(policy_version=7)], 409, True),
        ([row(label=-1)], 422, False),
        ([row(), row(1, label=-1)], 422, False),
        ([row(label=2)], 422, False),
        ([row(behavior_prob=0)], 422, False),
        ([row(action=3)], 422, False),
        ([row(action=1.0)], 422, False),
        ([row(timestep=-1)], 422, False),
        ([row(timestep=2**53)], 422, False),
        ([row(policy_version=-2)], 422, False),
        ([row(split="test")], 422, False),
        ([row(reward=1e39)], 422, False),
        ([row(observation=[0.0])], 422, False),
        ([row(), row(1, next_observation=[0.0, 1e300])], 422, False),
        ([row(terminated=1)], 422, False),
        ([row(actor_id="")], 422, False),
        ([row(episode_id="a\nb")], 422, False),
        ([row(reward=...)], 422, False),
        ([row(more=1)], 422, False),
        ([7], 422, False),
    ],
    ids=lambda value: None if isinstance(value, bool | int) else str(value)[-60:],
)
def test_transitions(pair: Pair, rows: Any, status: int, direct: bool) -> None:
    """Receipts and errors are the same, and so is what was kept."""
    assert pair.ask(ADD, {"transitions": rows}) == (status, direct)
    assert pair.ask(ADD, {"transitions": [row(actor_id="z")]}) == (200, True)
    one, other = (app.model("m").journal.counters for app in (pair.plain, pair.direct))
    assert one == other


def test_columns(pair: Pair) -> None:
    """Columns too; those of another generation are refused, and what is no columns at all."""
    kind = [BEARER, (b"content-type", COLUMNS.encode())]
    given = columns(experience(2, 20), ModelSpec.from_dict(SPEC))

    assert pair.ask(ADD, pack(given), kind) == (200, True)
    assert pair.ask(ADD, pack(given), kind) == (200, True)
    assert pair.ask(ADD, pack(given, 2), kind) == (409, False)
    assert pair.ask(ADD, pack(given)[:-1], kind) == (400, False)
    assert pair.ask(ADD, b"\x91" * 30 + b"\x01", kind) == (400, False)
    more, name = pack(given), b"\xaageneration\x01"
    assert more[0] == 0xDE  # a map, and of how many names
    once, twice = (more[:2] + bytes([more[2] + n]) + more[3:] + n * name for n in (1, 2))
    assert pair.ask(ADD, once, kind) == (200, True)
    assert pair.ask(ADD, twice, kind) == (400, False)
    assert pair.ask(INFER, b"\x81\xa1a\x01", kind) == (422, False)


@pytest.mark.parametrize(
    ("target", "headers", "status"),
    [
        (INFER, [BEARER, (b"content-type", b"text/plain")], 415),
        (INFER, [BEARER], 415),
        (INFER, [BEARER, (b"content-type", b"application/json; charset=utf-8")], 200),
        (INFER, [BEARER, *[(b"content-type", JSON.encode())] * 2], 400),
        (INFER, [BEARER, (b"content-type", JSON.encode()), (b"content-encoding", b"gzip")], 415),
        (INFER, [BEARER, BEARER, (b"content-type", JSON.encode())], 401),
        (INFER, [(b"content-type", JSON.encode())], 401),
        (INFER, [(b"authorization", b"Bearer x"), (b"content-type", JSON.encode())], 401),
        (f"{INFER}?a=1", None, 422),
        (f"{INFER}/", None, 404),
        ("/v1/models/n/inference", None, 404),
        ("/v1/models//inference", None, 404),
        (LABEL, None, 422),
    ],
)
def test_heads(pair: Pair, target: str, headers: Any, status: int) -> None:
    """Whatever is out of the ordinary in a head goes to the route."""
    assert pair.ask(target, PLAIN, headers) == (status, False)


def test_before_the_first_policy_and_after_the_end(
    open_app: Callable[..., Any], tmp_path: Any
) -> None:
    """There is nothing to act with, or nobody to keep anything: the route waits, or says so."""
    with open_app(tmp_path) as app:
        app.connect("m").create(SPEC)

        async def taken(target: str, body: Any) -> Any:
            found = await asked(app, target, json.dumps(body).encode(), None, True)
            return found[0], found[3]

        assert app.run(taken, ADD, {"transitions": [row()]}) == (200, True)
        model = app.model("m")
        assert model.answers.question(PLAIN["observations"], False, None, None) is None
        app.publish("m", Learner(SPEC))
        assert app.run(taken, INFER, PLAIN) == (200, True)
        app.run(app.gateway.drain)
        assert app.run(taken, ADD, {"transitions": [row(1)]}) == (503, False)
        assert app.run(taken, INFER, PLAIN) == (200, True)


def test_what_came_together_is_one_pass_and_one_commit(pair: Pair) -> None:
    """Many at one moment are answered as one after another, and leave nothing behind in a lane."""
    app = pair.direct

    async def together(target: str, bodies: list[Any]) -> list[Any]:
        asks = (asked(app, target, json.dumps(b).encode(), None, True) for b in bodies)
        return await asyncio.gather(*asks)

    service: Any = app.http.app
    passes = service.meters.forward_rows.count()
    answers = app.run(together, INFER, [PLAIN] * 8)
    assert [a[3] for a in answers] == [True] * 8
    assert service.meters.forward_rows.count() == passes + 1

    commits, first = service.meters.commit_requests.count(), app.model("m").journal.counters.lsn
    rows = [{"transitions": [row(actor_id=f"a{n}")]} for n in range(40)]
    answers = app.run(together, ADD, rows)
    assert {a[0] for a in answers} == {200}
    assert sorted(json.loads(a[2])["lsn"] for a in answers) == list(range(first + 1, first + 41))
    assert service.meters.commit_requests.count() < commits + 40

    assert service.meters.requests.count("POST", f"{ADD[:11]}{{model_id}}/inference", "200") == 8
    assert service.meters.in_flight.get() == 0
    for lane in (app.gateway.lanes.inference, app.gateway.lanes.ingestion):
        assert (lane.requests, lane.bytes) == (0, 0)


def test_rates_hold(open_app: Callable[..., Any], tmp_path: Any) -> None:
    """A token that has used up what it may send hears so from the route; every request counts."""
    limits = Limits(rate=RateLimit(requests=2.0))
    with open_app(tmp_path, limits=limits) as app:
        app.connect("m").create(SPEC)
        app.publish("m", Learner(SPEC))

        async def burst() -> list[Any]:
            body = json.dumps(PLAIN).encode()
            return [await asked(app, INFER, body, None, True) for _ in range(6)]

        found = [(a[0], a[3]) for a in app.run(burst)]

    assert found[:4] == [(200, True)] * 4
    assert (429, False) in found[4:]


class Ring:
    """A keyring with one token, which may change."""

    def __init__(self) -> None:
        self.held: Grant | None = None

    def grant(self, token: bytes) -> Grant:
        """Return the grant, or refuse."""
        if self.held is None:
            raise Unauthenticated("Authorization", "a token", "another")
        return self.held


def test_what_a_token_does_not_allow(pair: Pair) -> None:
    """Scopes, models, prefixes and splits hold, and a token that is revoked is no good at once."""
    ring, ingest = Ring(), frozenset[Any]({"ingest"})
    for app in (pair.plain, pair.direct):
        service: Any = app.http.app
        service.direct._access._keyring = ring
    rows = {"transitions": [row(actor_id="b1"), row(1, actor_id="b1", split="validation")]}
    for grant, taken in (
        (Grant("t", ingest), (200, True)),
        (Grant("t", ingest, ("m",), "b", None), (200, True)),
        (Grant("t", ingest, ("n",)), (403, False)),
        (Grant("t", ingest, ("*",), "a"), (403, False)),
        (Grant("t", ingest, split="train"), (403, False)),
        (Grant("t", frozenset({"act"})), (403, False)),
        (None, (401, False)),
        (Grant("t", ingest, ("m*",)), (200, True)),
    ):
        ring.held = grant
        assert pair.ask(ADD, rows) == taken
        assert pair.ask(INFER, PLAIN)[1] is (grant is not None and "act" in grant.scopes)


def test_a_lane_that_is_full_is_the_routes_to_refuse(pair: Pair) -> None:
    """No room: nothing is taken directly, and nothing counted twice."""
    lane = pair.direct.gateway.lanes.inference
    lane.bounds = type(lane.bounds)(service_requests=0)

    async def ask() -> Any:
        return await asked(pair.direct, INFER, json.dumps(PLAIN).encode(), None, True)

    status, _, _, direct = pair.direct.run(ask)
    assert (status, direct) == (503, False)
    assert lane.refused == 1


@pytest.mark.parametrize(
    "changes",
    [{"method": "PUT"}, {"raw_path": b"/v1/models/%6D/inference"}, {"root_path": "/behind"}],
)
def test_what_only_a_route_can_tell(pair: Pair, changes: dict[str, Any]) -> None:
    """Another method, an escape in the path, or a path below another one."""
    service: Any = pair.direct.http.app
    body = json.dumps(PLAIN).encode()

    async def taken(**changes: Any) -> bool:
        exchange = Exchange({**scoped(INFER, body), **changes}, body)
        found = service.direct(exchange)
        if found:
            await exchange.done
        return bool(found)

    assert pair.direct.run(taken) is True
    assert pair.direct.run(lambda: taken(**changes)) is False


def test_names_of_the_service(pair: Pair) -> None:
    """A token that is known already is no good under another name of the service."""
    service: Any = pair.direct.http.app

    class Hosts:
        def check(self, headers: Any) -> None:
            if (b"host", b"testserver") not in headers:
                raise Forbidden("Host", "a name of this service", "another")

    service.direct._access._hosts = Hosts()
    body = json.dumps(PLAIN).encode()

    async def together() -> list[bool]:
        hosts = [b"testserver", b"other", b"testserver"]
        asks = [Exchange(scoped(INFER, body, None, host), body) for host in hosts]
        found = [service.direct(exchange) for exchange in asks]
        await asks[0].done
        await asks[2].done
        return found

    assert pair.direct.run(together) == [True, False, True]


def test_who_waits_here(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only so many, decoded a few at a time; behind others that wait in turns nobody does."""
    service: Any = pair.direct.http.app
    turns: list[int] = []
    decode = service.direct._decode

    def counted() -> None:
        turns.append(len(service.direct._later))
        decode()

    monkeypatch.setattr(service.direct, "_decode", counted)
    monkeypatch.setattr("jormungandr.service.direct.WAITING", 3)
    monkeypatch.setattr("jormungandr.service.direct.TURN", 1)
    bodies = [json.dumps({"transitions": [row(actor_id=f"w{n}")]}).encode() for n in range(5)]

    async def together() -> list[Any]:
        asks = (asked(pair.direct, ADD, body, None, True) for body in bodies)
        return await asyncio.gather(*asks)

    found = pair.direct.run(together)
    assert [(a[0], a[3]) for a in found] == [(200, True)] * 3 + [(200, False)] * 2
    assert turns == [3, 2, 1]

    monkeypatch.setattr(service.direct, "_turns", type("Turns", (), {"waiting": 1}))
    assert [a[3] for a in pair.direct.run(together)] == [False] * 5


def test_a_lane_for_transitions_that_is_full(pair: Pair) -> None:
    """These too are the route's to refuse."""
    lane = pair.direct.gateway.lanes.ingestion
    lane.bounds = type(lane.bounds)(service_requests=0)
    body = json.dumps({"transitions": [row()]}).encode()

    status, _, _, direct = pair.direct.run(asked, pair.direct, ADD, body, None, True)
    assert (status, direct) == (503, False)
    assert lane.refused == 1


def test_a_learner_that_is_behind(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it has caught up nothing is taken directly either."""
    learning: Any = type(pair.direct.model("m").learning)
    behind = ModelSpec.from_dict(SPEC).pacing.max_backlog
    for more, expected in ((0, (200, True)), (1, (Backlog.status, False))):
        monkeypatch.setattr(learning, "behind", property(lambda _, n=behind + more: n))
        assert pair.ask(ADD, {"transitions": [row(more)]}) == expected


def test_rows_are_counted_and_names_logged(
    open_app: Callable[..., Any], tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """What a token has sent directly is used up, by its rows as well; its name is in the log."""
    caplog.set_level("INFO", "jormungandr")
    with open_app(tmp_path, limits=Limits(rate=RateLimit(rows=2.0))) as app:
        app.connect("m").create(SPEC)
        app.publish("m", Learner(SPEC))
        body = json.dumps({"observations": [[0.5, -1]] * 5}).encode()
        caplog.clear()
        found = [app.run(asked, app, INFER, body, None, True) for _ in range(2)]

    assert [(a[0], a[3]) for a in found] == [(200, True), (429, False)]
    tokens = [getattr(r, "fields", {}).get("token") for r in caplog.records]
    assert tokens[0] == tokens[1] is not None


def test_an_answer_that_cannot_be_sent(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, and the request counts as answered; the one beside it has its answer."""
    service: Any = pair.direct.http.app
    body = json.dumps(PLAIN).encode()

    class Gone(Exchange):
        def reply(self, status: int, head: bytes, body: bytes) -> None:
            raise RuntimeError("secret")

    async def together() -> Any:
        gone, beside = (kind(scoped(INFER, body), body) for kind in (Gone, Exchange))
        assert service.direct(gone)
        assert service.direct(beside)
        return await beside.done

    assert pair.direct.run(together)[0] == 200
    assert "an answer could not be sent" in caplog.text
    assert service.meters.in_flight.get() == 0
    assert pair.direct.gateway.lanes.inference.requests == 0


def test_a_fault_after_the_answer(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A request is answered once, whatever goes wrong behind its answer."""
    model = pair.direct.model("m")

    def broken(_: Any, asker: Any) -> None:
        asker.set_result({"as": "ever"})
        raise RuntimeError("secret")

    monkeypatch.setattr(model.intake, "put", broken)
    body = json.dumps({"transitions": [row()]}).encode()
    status, _, answer, direct = pair.direct.run(asked, pair.direct, ADD, body, None, True)
    assert (status, answer, direct) == (200, b'{"as":"ever"}', True)
    assert "Error" not in caplog.text


def test_a_fault_of_our_own(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody in a pass that fails gets an error of our form, without its insides."""
    policy: Any = pair.direct.model("m").policy

    def broken(*_: Any) -> Any:
        raise RuntimeError("secret")

    monkeypatch.setattr(type(policy), "answer", broken)

    async def ask() -> Any:
        return await asked(pair.direct, INFER, json.dumps(PLAIN).encode(), None, True)

    status, _, body, direct = pair.direct.run(ask)
    assert (status, direct) == (500, True)
    assert json.loads(body)["error"]["code"] == "internal_error"
    assert b"secret" not in body


def test_a_fault_in_decoding_concerns_nobody_else(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waited behind a request that could not be decoded is answered; that one by the route."""
    calls = []

    def broken(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == 1:
            raise RuntimeError("secret")
        return unpack(*given)

    monkeypatch.setattr("jormungandr.service.direct.unpack", broken)
    headers = [BEARER, (b"content-type", COLUMNS.encode())]

    async def ask() -> Any:
        bodies = [pack(columns([row(episode_id=e)], ModelSpec.from_dict(SPEC))) for e in "ab"]
        return await asyncio.gather(
            *(asked(pair.direct, ADD, body, headers, True) for body in bodies)
        )

    (first, _, _, by_route), (second, _, _, directly) = pair.direct.run(ask)
    assert (first, by_route, second, directly) == (200, False, 200, True)
    assert len(calls) == 2


def test_a_large_batch_is_the_routes(pair: Pair) -> None:
    """Bodies that would hold the event loop leave it; they are the same too."""
    rows = [row(t) for t in range(1, 400)]
    assert len(json.dumps({"transitions": rows})) > 1 << 16
    assert pair.ask(ADD, {"transitions": rows}) == (200, False)
    many = [row(t) for t in range(LIMITS["transitions_per_request"] + 1)]
    assert pair.ask(ADD, {"transitions": many}) == (413, False)


# -- over a connection --------------------------------------------------------------------------

HEAD = b"POST /inference HTTP/1.1\r\nHost: x\r\n"


class Answering:
    """Takes every request but those whose body says that it is for the route."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def expects(self, scope: Any) -> bool:
        """By its path."""
        return bool(scope["path"] == "/inference")

    def __call__(self, exchange: Any) -> bool:
        """Answer with the length of the body."""
        self.bodies.append(exchange.body)
        if exchange.body == b"route":
            return False
        length = b"%d" % len(exchange.body)
        head = b"content-length: %d\r\n" % len(length)
        asyncio.get_running_loop().call_soon(exchange.reply, 200, head, length)
        return True


class Routed:
    """An application that reads a body, and says so."""

    def __init__(self) -> None:
        self.seen = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer once the body is read."""
        self.seen += 1
        while (message := await receive()).get("more_body"):
            pass
        if message["type"] == "http.disconnect":
            return
        await send(
            {"type": "http.response.start", "status": 202, "headers": [(b"content-length", b"0")]}
        )
        await send({"type": "http.response.body", "body": b""})


def over_wire(test: Callable[[Any, Answering, Routed], Any]) -> None:
    """Run a test with a server whose connections are answered directly."""

    async def whole() -> None:
        direct, app = Answering(), Routed()
        async with wire(app, direct=direct) as opened:
            await test(opened, direct, app)

    run(whole())


def test_a_head_and_its_body_apart() -> None:
    """A short body that comes after its head is waited for; a long one is the application's."""

    async def test(opened: Any, direct: Answering, app: Routed) -> None:
        client = await opened.connect()
        for size in (3, 4_096):
            await client.send(HEAD + b"Content-Length: %d\r\n\r\n" % size)
            await opened.until(lambda: [c._phase.value for c in opened.open] == ["body"])
            await client.send(b"x" * (size - 1))
            await opened.heard(size - 1)
            await client.send(b"x")
            assert (await client.answer())[::2] == (200, b"%d" % size)
        assert app.seen == 0
        for head in (b"Content-Length: 4097\r\n", b"Content-Length: 3\r\nExpect: 100-continue\r\n"):
            await client.send(HEAD + head + b"\r\n")
            await opened.until(lambda: app.seen)
            app.seen = 0
            if b"Expect" in head:
                assert (await client.answer())[0] == 100
            await client.send(b"x" * (3 if b"Expect" in head else 4_097))
            assert (await client.answer())[0] == 202

    over_wire(test)


def test_answers_in_the_order_of_their_requests() -> None:
    """Pipelined ones too, whoever answers them; the last one may end the connection."""

    async def test(opened: Any, direct: Answering, app: Routed) -> None:
        client = await opened.connect()
        bodies = [b"a", b"route", b"ccc", b"", b"route"]
        parts = [HEAD + b"Content-Length: %d\r\n\r\n" % len(b) + b for b in bodies]
        last = HEAD + b"Connection: close\r\nContent-Length: 2\r\n\r\nzz"
        await client.send(b"".join(parts) + last)
        found = [(await client.answer())[::2] for _ in range(6)]
        assert found == [(200, b"1"), (202, b""), (200, b"3"), (200, b"0"), (202, b""), (200, b"2")]
        await client.closed()
        assert direct.bodies == [*bodies, b"zz"]

    over_wire(test)


def test_a_short_body_that_does_not_come() -> None:
    """Its client is told after its time, and nobody is asked to answer; so is one that breaks."""

    async def test(opened: Any, direct: Answering, app: Routed) -> None:
        client = await opened.connect()
        await client.send(HEAD + b"Content-Length: 5\r\n\r\nab")
        await opened.until(lambda: [c._payload for c in opened.open] == [2])
        await opened.pass_time(30.1)
        assert await client.error() == (408, "request_timeout")
        await client.closed()
        client = await opened.connect()
        await client.send(HEAD + b"Content-Length: 5\r\n\r\nab")
        await opened.until(lambda: [c._payload for c in opened.open] == [2])
        await client.leave()
        await opened.until(lambda: not opened.open)
        assert (direct.bodies, app.seen) == ([], 0)

    over_wire(test)


def test_what_follows_is_no_http() -> None:
    """The request is answered, and is the last one; of garbage behind one likewise."""

    async def test(opened: Any, direct: Answering, app: Routed) -> None:
        for after in (b"", b"GARBAGE\r\n\r\n"):
            client = await opened.connect()
            upgrade = b"" if after else b"Connection: upgrade\r\nUpgrade: x\r\n"
            await client.send(HEAD + upgrade + b"Content-Length: 1\r\n\r\na" + after)
            assert (await client.answer())[0] in (200, 202)
            await client.closed()

    over_wire(test)
