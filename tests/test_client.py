"""Clients: what they send again, when they give up, and how they look to the rest of the world."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import msgspec
import numpy as np
import pytest
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

from jormungandr import Learner, ModelSpec, RemoteLearner, RemotePolicy
from jormungandr import errors as e
from jormungandr.client import calls
from jormungandr.client import model as model_module
from jormungandr.transport import HttpTransport, Response

RECEIPT = {
    "accepted": 1,
    "duplicate": 0,
    "stale_dropped": 0,
    "lsn": 2,
    "policy_version": 0,
    "generation": 1,
}
ROW = {
    "actor_id": "a",
    "episode_id": "e",
    "timestep": 0,
    "split": "train",
    "policy_version": 0,
    "observation": [0.5, 1.0],
    "action": 1,
    "reward": 0.5,
    "next_observation": [1.0, 0.5],
    "terminated": False,
    "truncated": False,
}


def answer(status: int, body: Any = None, **headers: str) -> Response:
    """Return a response; header names get their dash back."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(status, named, b"" if body is None else msgspec.json.encode(body))


def fault(error: e.JormungandrError, **headers: str) -> Response:
    """Return the response with which a service refuses."""
    return answer(error.status, {"error": error.to_dict()}, **headers)


OK = answer(200, RECEIPT)
FULL = fault(e.StorageFull("journal", "room"), retry_after="1")


class Script:
    """A transport that answers with what it was given, one after the other, the last for ever."""

    def __init__(self, *answers: Response | Exception) -> None:
        self._answers = list(answers)
        self.sent: list[tuple[str, str, bytes | None]] = []
        self.headers: dict[str, str] = {}
        self.timeouts: list[float] = []
        self.closed = 0

    def request(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout: float
    ) -> Response:
        """Answer."""
        self.sent.append((method, path, body))
        self.headers = headers
        self.timeouts.append(timeout)
        now = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(now, Exception):
            raise now
        return now

    def close(self) -> None:
        """Count."""
        self.closed += 1


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        """Return the time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let it pass."""
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The client's clock; its jitter is the largest there may be."""

    class Most:
        @staticmethod
        def uniform(low: float, high: float) -> float:
            assert low == 0
            return high

    clock = Clock()
    for module in (calls, model_module):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(calls, "random", Most)
    return clock


def remote(script: Any, **options: Any) -> RemoteLearner:
    """Return a client over a script."""
    return RemoteLearner(None, "m", "secret", transport=script, **options)


# -- sending again ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "first",
    [
        ConnectionRefusedError("no"),
        ConnectionResetError("gone"),
        TimeoutError("slow"),
        BrokenPipeError("broken"),
        OSError("unreachable"),
        answer(408),
        answer(429, "a proxy's words"),
        answer(503),
        fault(e.Backlog("model", "less")),
        fault(e.PendingLabelsFull("labels", "fewer")),
        FULL,
        fault(e.Draining("service", "one that stays")),
        fault(e.PolicyNotReady("model", "a policy")),
    ],
    ids=lambda given: str(getattr(given, "status", given)),
)
def test_sent_again(clock: Clock, first: Any) -> None:
    """After a fault on the way, or when asked to, the very same bytes are sent again."""
    script = Script(first, first, OK)

    assert remote(script).add([ROW]).lsn == 2
    assert len(script.sent) == 3
    assert script.sent[0] == script.sent[1] == script.sent[2]
    assert script.sent[0][:2] == ("POST", "/v1/models/m/experience/add")
    assert (
        script.sent[0][2] == b'{"transitions":[' + json.dumps(ROW).replace(" ", "").encode() + b"]}"
    )


@pytest.mark.parametrize(
    "error",
    [
        e.Malformed("body", "JSON"),
        e.Unauthenticated("Authorization", "a token"),
        e.ModelUnknown("model_id", "a model"),
        e.NotFound("path", "a path"),
        e.MethodNotAllowed("method", "another"),
        e.IdentityConflict("transitions[0]", "the first", "another", "run ids"),
        e.EpisodeClosed("transitions[0]", "no step"),
        e.PolicyVersionUnknown("transitions[0].policy_version", "-1..3", 4),
        e.BodyTooLarge("body", "less"),
        e.UnsupportedMediaType("Content-Type", "application/json"),
        e.ActionRange("transitions[0].action", "0..2", 7),
        e.InternalError("service", "no fault"),
        e.CheckpointError("path", "a checkpoint"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_final(clock: Clock, error: e.JormungandrError) -> None:
    """Every other refusal is final, and raised as the class that refused."""
    script = Script(fault(error), OK)
    with pytest.raises(e.JormungandrError) as raised:
        remote(script).add([ROW])

    assert type(raised.value) is type(error)
    assert raised.value.to_dict() == error.to_dict()
    assert (len(script.sent), clock.slept) == (1, [])


@pytest.mark.parametrize(
    ("response", "text"),
    [
        (Response(502, {}, b"<html>Bad Gateway</html>"), "502 <html>Bad Gateway"),
        (Response(404, {}, b""), "404"),
        (answer(400, ["error"]), "400"),
        (answer(400, {"error": "no"}), "no"),
        (answer(400, {"error": {"code": "new_one", "where": "there"}}), "there"),
        (Response(500, {}, b"\xff\xfe"), "500"),
        (Response(200, {}, b"<html>Welcome to this hotel</html>"), "malformed"),
        (Response(200, {}, b""), "truncated"),
        (answer(200, ["no object"]), "Expected `object`"),
    ],
)
def test_answer_of_somebody_else(clock: Clock, response: Response, text: str) -> None:
    """The error page of a proxy is an InternalError that shows it, not a fault of the client."""
    with pytest.raises(e.InternalError) as raised:
        remote(Script(response)).info()

    assert text in str(raised.value)


def test_retry_after_is_kept(clock: Clock) -> None:
    """What the service asks for is waited, when it is longer than the client's own pause."""
    slow = answer(503, retry_after="7")
    remote(Script(slow, slow, OK)).add([ROW])

    assert clock.slept == [7, 7]


@pytest.mark.parametrize("text", ["Wed, 21 Oct 2026 07:28:00 GMT", "", "-5", "nan"])
def test_retry_after_that_is_no_number(clock: Clock, text: str) -> None:
    """A date, or nonsense, leaves the client's own pause."""
    remote(Script(answer(429, retry_after=text), OK)).add([ROW])

    assert clock.slept == [0.1]


def test_pauses_grow(clock: Clock) -> None:
    """Pauses are drawn below a bound that doubles, up to five seconds."""
    broken = ConnectionResetError("gone")
    remote(Script(*[broken] * 10, OK), patience=100).add([ROW])

    assert clock.slept == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5, 5]


def test_pauses_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clients that failed together do not come back together."""
    pauses = []
    for _ in range(2):
        clock = Clock()
        monkeypatch.setattr(calls, "time", clock)
        remote(Script(*[OSError()] * 5, OK)).add([ROW])
        pauses.append(clock.slept)

    assert pauses[0] != pauses[1]
    assert all(0 <= pause <= 0.05 * 2**n for p in pauses for n, pause in enumerate(p, 1))


@pytest.mark.parametrize("patience", [0.0, 1.0, 20.0])
def test_patience(clock: Clock, patience: float) -> None:
    """When the next attempt would come too late, the last error is raised."""
    script = Script(ConnectionRefusedError("no"), FULL)
    with pytest.raises(e.Unavailable) as raised:
        remote(script, patience=patience).add([ROW])

    assert sum(clock.slept) <= patience
    assert sum(clock.slept) > patience - 5.1 or patience == 0
    assert type(raised.value) is (e.Unavailable if patience == 0 else e.StorageFull)
    assert len(script.sent) == len(clock.slept) + 1


def test_connection_error_is_ours_in_the_end(clock: Clock) -> None:
    """A service that cannot be reached is Unavailable, and says what the system said."""
    with pytest.raises(e.Unavailable, match=r"expected a connection, got ConnectionRefusedError"):
        remote(Script(ConnectionRefusedError("no")), patience=1).info()


def test_too_large_for_the_service(clock: Clock) -> None:
    """A body over the limit is refused here: the service would just close the connection on it."""
    script = Script(OK)
    row = {**ROW, "observation": [0.123456789] * 1_000, "next_observation": [0.0] * 1_000}
    with pytest.raises(e.BodyTooLarge, match=r"body: expected at most 1048576 bytes"):
        remote(script, columns_from=None).add([row] * 100)

    assert script.sent == []


# -- a reply that got lost ----------------------------------------------------------------------


class Local:
    """A transport to a learner in this process, some of whose replies get lost on the way."""

    def __init__(self, learner: Learner, lose: int = 0) -> None:
        self.learner, self._lose = learner, lose
        self.requests = 0

    def request(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout: float
    ) -> Response:
        """Let the learner answer."""
        self.requests += 1
        given = json.loads(body or b"{}")
        found: Any
        if path.endswith("/experience/add"):
            found = self.learner.add(given["transitions"])
        elif path.endswith("/labels/add"):
            found = self.learner.label(given["labels"])
        elif path.endswith("/inference"):
            found = self.learner.act(**given)
        else:
            found = self.learner.info()
        if self._lose > 0:
            self._lose -= 1
            raise ConnectionResetError("after it had arrived")
        return answer(200, found)

    def close(self) -> None:
        """Nothing to close."""


def test_lost_reply(clock: Clock) -> None:
    """A request whose reply got lost is sent again, and counts once."""
    learner = Learner({"observation": {"shape": [2]}, "actions": 3})
    endpoint = remote(Local(learner, lose=2))
    receipt = endpoint.add([ROW, {**ROW, "timestep": 1}])

    assert (receipt.accepted, receipt.duplicate) == (0, 2)
    assert learner.info()["transitions"] == {"train": 2, "validation": 0}


# -- where, and with which token ----------------------------------------------------------------


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without any of our variables."""
    for name in ("URL", "TOKEN", "TOKEN_FILE"):
        monkeypatch.delenv(f"JORMUNGANDR_{name}", raising=False)
    return monkeypatch


def token_of(script: Script, token: str | None = None) -> str | None:
    """Return the Authorization header that a client sends."""
    RemoteLearner(None, "m", token, transport=script).info()
    return script.headers.get("Authorization")


def test_token_from_the_argument(environment: pytest.MonkeyPatch) -> None:
    """The argument wins over the environment."""
    environment.setenv("JORMUNGANDR_TOKEN", "from the environment")

    assert token_of(Script(OK), "mine") == "Bearer mine"


def test_token_from_the_environment(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A variable holds the token, or names a file that does; the former wins."""
    file = tmp_path / "token"
    file.write_text("from-the-file\n")
    environment.setenv("JORMUNGANDR_TOKEN_FILE", str(file))
    assert token_of(Script(OK)) == "Bearer from-the-file"
    environment.setenv("JORMUNGANDR_TOKEN", "from-the-variable")

    assert token_of(Script(OK)) == "Bearer from-the-variable"


def test_no_token(environment: pytest.MonkeyPatch) -> None:
    """Without a token none is sent."""
    assert token_of(Script(OK)) is None


def test_token_file_that_is_not_there(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file that is named and missing is an error of ours, with its name."""
    environment.setenv("JORMUNGANDR_TOKEN_FILE", str(tmp_path / "none"))

    with pytest.raises(e.InvalidValue, match=r"JORMUNGANDR_TOKEN_FILE: .*none"):
        RemoteLearner("http://127.0.0.1:1", "m")


def test_url_from_the_environment(environment: pytest.MonkeyPatch) -> None:
    """The address may come from the environment; the argument wins."""
    with pytest.raises(e.InvalidValue, match="JORMUNGANDR_URL"):
        RemoteLearner(None, "m")
    with Peer([[reply(200, b"{}")]]) as peer:
        environment.setenv("JORMUNGANDR_URL", peer.url)
        with RemoteLearner(None, "m") as endpoint:
            assert endpoint.info() == {}
        environment.setenv("JORMUNGANDR_URL", "http://127.0.0.1:1")
    with Peer([[reply(200, b"{}")]]) as peer, RemoteLearner(peer.url, "m") as endpoint:
        assert endpoint.info() == {}


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8000",
        "localhost",
        "ftp://x",
        "http://",
        "http://:80",
        "http://h:port",
        "http://h:99999",
        "file:///x",
    ],
)
def test_address_that_is_none(url: str) -> None:
    """An address that cannot be one is refused at once."""
    with pytest.raises(e.InvalidValue, match="url: expected http://host:port"):
        RemoteLearner(url, "m")


def test_model_id_in_the_path() -> None:
    """A model id is one piece of the path, whatever is in it."""
    script = Script(OK)
    RemoteLearner(None, "a/../b?x", transport=script).info()

    assert script.sent == [("GET", "/v1/models/a%2F..%2Fb%3Fx", None)]


# -- the calls ----------------------------------------------------------------------------------


def test_what_is_sent() -> None:
    """Each call is one request of the protocol."""
    script = Script(answer(200, {"evaluations": []}))
    endpoint = remote(script, timeout=12.0)
    endpoint.create({"actions": 2})
    endpoint.info()
    endpoint.metrics()
    endpoint.delete()

    assert script.sent == [
        ("POST", "/v1/models", b'{"model_id":"m","spec":{"actions":2}}'),
        ("GET", "/v1/models/m", None),
        ("GET", "/v1/models/m/metrics", None),
        ("DELETE", "/v1/models/m", None),
    ]
    assert script.headers == {"Content-Type": "application/json", "Authorization": "Bearer secret"}
    assert script.timeouts == [12.0] * 4


def test_create_with_a_spec() -> None:
    """A ModelSpec is sent whole."""
    script = Script(answer(200, {}))
    spec = ModelSpec.preset("ou-note")
    remote(script).create(spec)

    assert json.loads(script.sent[0][2] or b"")["spec"] == spec.to_dict()


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({}, {}),
        ({"deterministic": True}, {"deterministic": True}),
        ({"epsilon": 0.0}, {"epsilon": 0.0}),
        ({"epsilon": np.float32(0.5)}, {"epsilon": 0.5}),
        ({"distribution": True}, {"distribution": True}),
    ],
)
def test_act_options(options: dict[str, Any], sent: dict[str, Any]) -> None:
    """Only what was asked for is sent; epsilon 0 is not nothing."""
    reply = {"policy_version": 0, "generation": 1, "actions": [], "expected_values": []}
    script = Script(answer(200, {**reply, "behavior_prob": []}))
    remote(script).act([[1.0, 2.0]], **options)

    assert json.loads(script.sent[0][2] or b"") == {"observations": [[1.0, 2.0]], **sent}


def test_closes_its_transport() -> None:
    """Leaving the with block closes the connection."""
    script = Script(OK)
    with remote(script) as endpoint:
        endpoint.info()

    assert script.closed == 1


# -- waiting ------------------------------------------------------------------------------------


def at(lsn: int) -> Response:
    """Return figures with everything up to a position applied."""
    return answer(200, {"applied_lsn": lsn})


def test_wait_asks_until_it_is_so(clock: Clock) -> None:
    """A barrier that the service let go of too early is asked for again."""
    script = Script(at(3), at(6), at(7))

    assert remote(script).wait(7) == {"applied_lsn": 7}
    assert script.sent == [("GET", "/v1/models/m?applied_lsn=7&wait=15.000", None)] * 3


def test_wait_stays_below_the_timeout(clock: Clock) -> None:
    """A barrier is answered before the request that carries it times out."""
    script = Script(at(7))
    remote(script, timeout=4.0).wait(7)
    remote(script, timeout=600.0).wait(7)

    assert [path.rpartition("=")[2] for _, path, _ in script.sent] == ["2.000", "20.000"]


def test_wait_gives_up(clock: Clock) -> None:
    """After its time a wait raises, with how far the learner came."""

    class Slow(Script):
        def request(self, *given: Any) -> Response:
            clock.now += 4.0
            return super().request(*given)

    script = Slow(at(3))
    with pytest.raises(e.WaitTimeout, match=r"m: expected lsn 7 applied within 10 s, got 3"):
        remote(script).wait(7, timeout=10)

    waits = [float(path.rpartition("=")[2]) for _, path, _ in script.sent]
    assert waits == [10.0, 6.0, 2.0]


def test_wait_of_no_time(clock: Clock) -> None:
    """A timeout of nothing looks once."""
    script = Script(at(3))
    with pytest.raises(e.WaitTimeout):
        remote(script).wait(7, timeout=0)

    assert len(script.sent) == 1


# -- the connection -----------------------------------------------------------------------------


def reply(status: int, body: bytes, *headers: str) -> bytes:
    """Return a whole HTTP response."""
    lines = [f"HTTP/1.1 {status} Status", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Peer:
    """A server of few words: for each connection, what to say to each request; then it hangs up."""

    def __init__(self, script: list[list[bytes]]) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._script = script
        self.heard: list[list[bytes]] = []
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        for replies in self._script:
            connection, _ = self._listening.accept()
            self.heard.append([])
            with connection, connection.makefile("rb") as lines:
                for words in replies:
                    head = b""
                    while (line := lines.readline()) not in (b"", b"\r\n"):
                        head += line
                    if not head:  # whoever called hung up
                        break
                    length = [x for x in head.lower().split(b"\r\n") if b"content-length" in x]
                    body = lines.read(int(length[0].split(b":")[1])) if length else b""
                    self.heard[-1].append(head.split(b"\r\n")[0] + b" " + body)
                    connection.sendall(words)

    def __enter__(self) -> Peer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        while self._thread.is_alive():  # a call or two that it still waits for
            with socket.create_connection(self._listening.getsockname(), 60):
                self._thread.join(0.05)
        self._listening.close()


@pytest.fixture
def open_transport() -> Iterator[Callable[..., HttpTransport]]:
    """Transports that are closed after the test."""
    opened: list[HttpTransport] = []

    def build(url: str) -> HttpTransport:
        opened.append(HttpTransport(url))
        return opened[-1]

    yield build
    for transport in opened:
        transport.close()


def get(transport: HttpTransport, path: str = "/x", timeout: float = 60.0) -> Response:
    """Send a GET."""
    return transport.request("GET", path, None, {}, timeout)


def test_connection_is_kept(open_transport: Any) -> None:
    """Requests of one client go over one connection."""
    with Peer([[reply(200, b"one", "X-Some-Header: Yes"), reply(404, b"two")]]) as peer:
        transport = open_transport(peer.url)
        first, second = get(transport), transport.request("POST", "/y", b"body", {}, 60.0)

    assert first == Response(200, {"content-length": "3", "x-some-header": "Yes"}, b"one")
    assert (second.status, second.body) == (404, b"two")
    assert peer.heard == [[b"GET /x HTTP/1.1 ", b"POST /y HTTP/1.1 body"]]


def test_connection_that_was_closed_while_idle(open_transport: Any) -> None:
    """A server that hung up in between is called again, once, with the same request."""
    with Peer([[reply(200, b"one")], [reply(200, b"two")]]) as peer:
        transport = open_transport(peer.url)
        get(transport)
        second = transport.request("POST", "/y", b"body", {}, 60.0)

    assert second.body == b"two"
    assert peer.heard == [[b"GET /x HTTP/1.1 "], [b"POST /y HTTP/1.1 body"]]


def test_closed_by_another_thread(open_transport: Any) -> None:
    """A request that is under way then ends with an error, and is not sent again."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        transport = open_transport(f"http://127.0.0.1:{listening.getsockname()[1]}")
        ended: list[BaseException] = []

        def ask() -> None:
            get(transport)
            try:
                get(transport, "/held")
            except OSError as error:
                ended.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        connection, _ = listening.accept()
        with connection, connection.makefile("rb") as lines:
            for words in (reply(200, b"one"), b""):
                while lines.readline() not in (b"", b"\r\n"):
                    pass
                connection.sendall(words)
            transport.close()
            asking.join()
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):
            listening.accept()

    assert len(ended) == 1


def test_server_that_closes_by_its_word(open_transport: Any) -> None:
    """After `Connection: close` the next request opens another connection."""
    with Peer([[reply(200, b"one", "Connection: close")], [reply(200, b"two")]]) as peer:
        transport = open_transport(peer.url)

        assert [get(transport).body for _ in range(2)] == [b"one", b"two"]


@pytest.mark.parametrize(
    "words",
    [
        b"",
        b"HTTP/1.1 200",
        b"HTTP/1.1 200 OK\r\nContent-Ty",
        b"what?\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 200 + b"\r\n",
    ],
    ids=[
        "nothing",
        "half a line",
        "half a head",
        "nonsense",
        "half a body",
        "bad chunk",
        "too many headers",
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_answer_that_is_none(open_transport: Any, words: bytes, first: bool) -> None:
    """Whatever breaks the answer is an OSError, and the next request has a new connection."""
    talk = [[words], [reply(200, b"fine")]]
    if not first:
        talk = [[reply(200, b"one")], [words], [reply(200, b"fine")]]
    with Peer(talk) as peer:
        transport = open_transport(peer.url)
        if not first:
            get(transport)
        with pytest.raises(OSError):  # noqa: PT011 (any of its kinds)
            get(transport)

        assert get(transport).body == b"fine"


def test_nobody_there(open_transport: Any) -> None:
    """A refused connection is an OSError."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

    with pytest.raises(ConnectionRefusedError):
        get(open_transport(f"http://127.0.0.1:{port}"))


def test_no_answer_in_time(open_transport: Any) -> None:
    """A server that says nothing is left after the timeout."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        transport = open_transport(f"http://127.0.0.1:{listening.getsockname()[1]}")

        with pytest.raises(TimeoutError):
            get(transport, timeout=0.05)


def test_path_in_front(open_transport: Any) -> None:
    """A service may live below a path of a proxy."""
    with Peer([[reply(200, b"{}")]]) as peer, RemoteLearner(f"{peer.url}/rl/", "m") as endpoint:
        endpoint.info()

    assert peer.heard == [[b"GET /rl/v1/models/m HTTP/1.1 "]]


def test_learner_over_a_broken_connection() -> None:
    """A client over a real connection sends again what a broken one did not answer."""
    body = msgspec.json.encode(RECEIPT)
    talk = [[b""], [reply(503, b"")], [reply(200, body)]]
    with Peer(talk) as peer, RemoteLearner(peer.url, "m", "secret") as endpoint:
        assert endpoint.add([ROW]).accepted == 1

    sent = [request for connection in peer.heard for request in connection]
    assert len(sent) == 3
    assert len(set(sent)) == 1


# -- the policy ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def learner() -> Learner:
    """A learner of OUSpread-v0 that knows nothing yet."""
    return Learner(ModelSpec.preset("ou-note"))


@pytest.fixture(scope="module")
def policy(learner: Learner) -> RemotePolicy:
    """Its policy, as a client sees it."""
    return RemotePolicy(None, "m", transport=Local(learner))


def test_predict_one(policy: RemotePolicy, learner: Learner) -> None:
    """A single observation gives a single action, as an array of no axes."""
    x = np.array([-2.0, 0.0, 0.0, 1.0], dtype=np.float32)
    action, state = policy.predict(x, deterministic=True)

    assert (action.shape, action.dtype, state) == ((), np.int64, None)
    assert action == learner.act(x, deterministic=True).indices[0]
    assert gym.spaces.Discrete(3).contains(action[()])


def test_predict_many(policy: RemotePolicy, learner: Learner) -> None:
    """A batch gives a batch, also one of one."""
    x = np.random.default_rng(0).standard_normal((7, 4)).astype(np.float32)
    action, _ = policy.predict(x, deterministic=True)

    assert (action.shape, action.dtype) == ((7,), np.int64)
    assert action.tolist() == learner.act(x, deterministic=True).indices.tolist()
    assert policy.predict(x[:1])[0].shape == (1,)
    assert policy.predict(x[:0])[0].shape == (0,)


def test_predict_takes_lists(policy: RemotePolicy) -> None:
    """Lists are observations too."""
    assert policy.predict([0.0, 0.0, 0.0, 1.0])[0].shape == ()
    assert policy.predict([[0.0, 0.0, 0.0, 1.0]] * 2)[0].shape == (2,)


def test_predict_hands_state_through(policy: RemotePolicy) -> None:
    """The state of a recurrent policy is not ours to touch."""
    state = (np.zeros(3),)

    assert policy.predict(np.zeros(4), state=state, episode_start=np.array([True]))[1] is state


def test_predict_explores_unless_told(policy: RemotePolicy) -> None:
    """Deterministic is always the same; otherwise the model's schedule draws."""
    x = np.zeros((200, 4), dtype=np.float32)
    best = policy.predict(x, deterministic=True)[0]

    assert len(set(best.tolist())) == 1
    assert set(policy.predict(x)[0].tolist()) == {0, 1, 2}


def test_predict_of_a_reset_pair(policy: RemotePolicy) -> None:
    """The pair that reset returns is recognised, and the message has the line that is right."""
    env = gym.make("OUSpread-v0")
    pair: Any = env.reset(seed=0)

    with pytest.raises(e.InvalidType, match=r"write `obs, info = env\.reset\(\)` and pass `obs`"):
        policy.predict(pair)


def test_placement_that_is_none() -> None:
    """There are two placements."""
    with pytest.raises(e.InvalidValue, match="placement: expected 'remote' or 'local', got 'here'"):
        RemotePolicy("http://127.0.0.1:1", "m", placement="here")  # type: ignore[arg-type]


def test_sb3_evaluates_it(policy: RemotePolicy) -> None:
    """SB3's evaluate_policy takes it as it is, alone and in a vector environment."""
    env = Monitor(gym.make("OUSpread-v0"))
    env.reset(seed=0)
    returns, lengths = evaluate_policy(policy, env, 3, return_episode_rewards=True)  # type: ignore[arg-type]

    assert lengths == [48, 48, 48]
    assert np.isfinite(returns).all()


def test_wait_for_a_position_that_was_never_given(clock: Clock) -> None:
    """A position beyond the journal would be waited for without end: it is refused."""
    script = Script(answer(200, {"applied_lsn": 3, "journal_lsn": 3}))

    with pytest.raises(e.InvalidValue, match="one of a receipt, at most 3, got 7"):
        remote(script).wait(7)


@pytest.mark.parametrize(
    ("fault", "sent"),
    [
        (ssl.SSLCertVerificationError("self-signed"), 1),
        (ssl.SSLEOFError(8, "a proxy that starts again"), 2),
    ],
)
def test_tls_faults(clock: Clock, fault: OSError, sent: int) -> None:
    """A wrong certificate is final; a handshake that broke off is tried again."""
    script = Script(fault, at(7))
    if sent == 1:
        with pytest.raises(e.Unavailable, match="self-signed"):
            remote(script).info()
    else:
        assert remote(script).info() == {"applied_lsn": 7}

    assert len(script.sent) == sent
