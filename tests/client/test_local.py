"""Policies placed with the actor: followed, swapped, trusted for so long, and guarded."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import gymnasium as gym
import msgspec
import numpy as np
import pytest

from jormungandr import Learner, PolicySnapshot, RemoteLearner, RemotePolicy
from jormungandr import errors as e
from jormungandr.client import Guard, Spool
from jormungandr.client import follower as follower_module
from jormungandr.client.calls import Calls
from jormungandr.client.follower import Follower
from jormungandr.client.guard import Guarded
from jormungandr.protocol import InferenceReply
from jormungandr.transport import Response
from jormungandr_wrappers import RemoteActor
from tests.fake_endpoint import FakeEndpoint
from tests.service.serving import SPEC, experience, until

ROWS = experience(12, 6)


class Service:
    """A service whose model serves what a learner has made; it may be away."""

    def __init__(self) -> None:
        self.learner = Learner(SPEC)
        self.changed = threading.Condition()
        self.away = False
        self.error: e.JormungandrError | None = None
        self.damage: Any = lambda data: data
        self.snapshot: PolicySnapshot = self.learner.snapshot()
        self.asked: list[dict[str, str]] = []
        self._at = 0

    def learn(self) -> PolicySnapshot:
        """Learn until there is a newer policy, and serve it."""
        before = self.snapshot.version
        while self.learner.policy_version == before:
            self.learner.add([{**ROWS[self._at], "split": "train"}])
            self._at += 1
        self.serve(self.learner.snapshot())
        return self.snapshot

    def serve(self, snapshot: PolicySnapshot) -> None:
        """Serve a policy."""
        with self.changed:
            self.snapshot = snapshot
            self.changed.notify_all()

    def request(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout: float
    ) -> Response:
        """Answer as the service does."""
        if self.away:
            raise ConnectionRefusedError("nobody there")
        if self.error is not None:
            return Response(
                self.error.status, {}, msgspec.json.encode({"error": self.error.to_dict()})
            )
        if path.endswith("/inference"):
            given = msgspec.json.decode(body or b"")
            return Response(200, {}, msgspec.json.encode(self.learner.act(**given)))
        if not urlsplit(path).path.endswith("/policy"):
            spec = self.learner.spec.to_dict()
            return Response(200, {}, msgspec.json.encode({"spec": spec, "generation": 1}))
        query = dict(parse_qsl(urlsplit(path).query))
        self.asked.append(query)
        than = int(query.get("newer_than", -1))
        with self.changed:
            self.changed.wait_for(
                lambda: self.snapshot.version > than or self.away, float(query["wait"])
            )
            if self.away:
                raise ConnectionResetError("gone")
            if self.snapshot.version <= than:
                return Response(304, {}, b"")
            head = {"jormungandr-policy-digest": self.snapshot.digest()}
            return Response(200, head, self.damage(self.snapshot.to_bytes()))

    def leave(self) -> None:
        """Be away from now on."""
        with self.changed:
            self.away = True
            self.changed.notify_all()

    def close(self) -> None:
        """Let go of whoever waits."""
        with self.changed:
            self.changed.notify_all()


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    """A service that clients ask again at once."""
    monkeypatch.setattr("jormungandr.client.calls.LONGEST_PAUSE", 0.002)
    monkeypatch.setattr(follower_module, "BETWEEN", 0.001)
    return Service()


@pytest.fixture
def policy(service: Service) -> Iterator[RemotePolicy]:
    """Its policy, placed here."""
    found = local(service)
    yield found
    found.close()


def local(service: Service, **options: Any) -> RemotePolicy:
    """Return a policy placed here."""
    return RemotePolicy(None, "m", "t", "local", transport=service, poll=0.1, **options)


OBSERVATIONS = np.random.default_rng(0).standard_normal((64, 2)).astype(np.float32)


# -- following ----------------------------------------------------------------------------------


def test_acts_as_the_service_does(service: Service) -> None:
    """The same policy, there and here: the same actions, and values within 1e-5."""
    for _ in range(20):
        service.learn()
    here = RemoteLearner(None, "m", "t", transport=service, placement="local", poll=0.1)
    there = RemoteLearner(None, "m", "t", transport=service)
    ours = here.act(OBSERVATIONS, deterministic=True, distribution=True)
    theirs = there.act(OBSERVATIONS, deterministic=True, distribution=True)
    here.close()

    assert ours.policy_version == theirs.policy_version == 20
    assert ours.indices.tolist() == theirs.indices.tolist()
    np.testing.assert_allclose(ours.expected_values, theirs.expected_values, atol=1e-5)
    np.testing.assert_allclose(ours.distribution, theirs.distribution, atol=1e-5)  # type: ignore[arg-type]
    assert ours.behavior_prob == theirs.behavior_prob


def test_follows(service: Service, policy: RemotePolicy) -> None:
    """Each newer policy is here soon after it is served, and it alone acts."""
    assert policy.version == 0
    for _ in range(3):
        newest = service.learn()
        until(lambda newest=newest: policy.version == newest.version, "the newest policy")
        best = newest.predict(OBSERVATIONS, deterministic=True)[0]
        assert policy.predict(OBSERVATIONS, deterministic=True)[0].tolist() == best.tolist()


def test_goes_on_while_the_service_is_away(service: Service, policy: RemotePolicy) -> None:
    """The policy that is here acts on and grows older; when the service is back, it is renewed."""
    service.leave()
    first = policy.age
    until(lambda: policy.age > first + 0.05, "time")
    assert policy.predict(OBSERVATIONS)[0].shape == (64,)
    service.away = False
    newest = service.learn()
    until(lambda: policy.version == newest.version, "the newest policy")


def test_age_is_since_it_was_known_to_be_the_newest(service: Service, policy: RemotePolicy) -> None:
    """An answer that there is no newer one makes it young again."""
    until(lambda: len(service.asked) > 3, "answers")
    assert policy.age < 60
    assert service.asked[-1]["newer_than"] == "0"


def test_first_policy_is_waited_for(service: Service) -> None:
    """A service that is away, or has none yet, is asked again until the patience is over."""
    service.error = e.PolicyNotReady("model", "a policy")
    with pytest.raises(e.PolicyNotReady):
        local(service, patience=0.05)
    service.error, service.away = None, True
    with pytest.raises(e.Unavailable, match="nobody there"):
        local(service, patience=0.05)
    threading.Timer(0.05, lambda: setattr(service, "away", False)).start()
    found = local(service)
    assert found.version == 0
    found.close()


@pytest.mark.parametrize(
    "error",
    [e.ModelUnknown("model_id", "a model"), e.Forbidden("token", "one with the scope 'policy'")],
    ids=lambda error: error.code,
)
def test_refused_from_the_start(service: Service, error: e.JormungandrError) -> None:
    """No model, or a token that may not fetch policies, is an error at once."""
    service.error = error
    with pytest.raises(type(error)) as raised:
        local(service)

    assert type(raised.value) is type(error)


@pytest.mark.parametrize("again", [True, False])
def test_model_that_is_gone(service: Service, policy: RemotePolicy, again: bool) -> None:
    """A model that is deleted, or created again, stops whoever acts with its policy."""
    if again:
        other = PolicySnapshot(
            **{
                name: getattr(service.snapshot, name)
                for name in ("spec", "update_count", "transitions", "weights", "mean", "var")
            },
            version=7,
            generation=2,
        )
        service.serve(other)
    else:
        service.error = e.ModelUnknown("model_id", "a model that exists", "'m'")

    def gone() -> bool:
        try:
            policy.predict(OBSERVATIONS)
        except e.ModelGone:
            return True
        return False

    until(gone, "an error")
    with pytest.raises(e.ModelGone, match="expected generation 1"):
        policy.predict(OBSERVATIONS)


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-1], lambda data: data[:-1] + bytes([data[-1] ^ 1]), lambda data: b"{}"],
    ids=["cut", "flipped", "other"],
)
def test_damaged_policy(service: Service, policy: RemotePolicy, damage: Any) -> None:
    """One that did not come whole is not acted with; it is asked for again."""
    service.damage = damage
    asked = len(service.asked)
    newest = service.learn()
    until(lambda: len(service.asked) > asked + 3, "attempts")
    assert policy.version == 0
    assert policy.predict(OBSERVATIONS)[0].shape == (64,)
    service.damage = lambda data: data
    until(lambda: policy.version == newest.version, "the newest policy")


def test_not_asked_without_a_pause(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a service that says "none newer" at once, nor one that publishes all the time."""
    pauses: list[float] = []
    stop = threading.Event()

    class Recorded:
        def __init__(self) -> None:
            self.is_set = stop.is_set

        def wait(self, seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 5:
                stop.set()

    class Hasty(Service):
        def request(self, *given: Any) -> Response:
            return Response(304, {}, b"") if pauses else super().request(*given)

    calls = Calls(None, "t", timeout=1, patience=1, transport=Hasty())
    follower = Follower(calls, "/v1/models/m", poll=20)
    follower._stopping = Recorded()  # type: ignore[assignment]
    follower._run()

    assert pauses == [follower_module.BETWEEN] * 5


def test_explores_by_itself(service: Service) -> None:
    """Two actors of one policy draw differently, unless they are given the same seed."""
    drawn = []
    for seed in (None, None, 3, 3):
        found = local(service, seed=seed)
        drawn.append(found.predict(OBSERVATIONS)[0].tolist())
        found.close()

    assert drawn[0] != drawn[1]
    assert drawn[2] == drawn[3]


def test_close_ends_the_thread(service: Service) -> None:
    """Nothing goes on asking after the end."""
    found = local(service)
    threads = [t for t in threading.enumerate() if t.name == "jormungandr-policy"]
    found.close()

    assert threads
    assert not any(t.is_alive() for t in threads)


def test_close_is_no_failure(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The connections that a spool lets go of at the end are those of the policy, too."""
    failures: list[str] = []
    failed = Follower._failed

    def noted(self: Follower, *given: Any) -> None:
        failed(self, *given)
        failures.append("policy")

    class Held(Service):
        """Answer no transitions; what is under way ends with the connections."""

        def request(self, method: str, path: str, *given: Any) -> Response:
            if not path.endswith("/experience/add"):
                return super().request(method, path, *given)
            adding.set()
            until(lambda: failures, "the end of the policy's connection")
            raise ConnectionResetError("gone")

        def close(self) -> None:
            self.leave()

    held, adding = Held(), threading.Event()
    monkeypatch.setattr(Follower, "_failed", noted)
    found = RemoteLearner(None, "m", "t", transport=held, placement="local", spool=Spool())
    found.act(OBSERVATIONS)
    found.send([{**ROWS[0], "split": "train"}])
    until(lambda: adding.is_set() and len(held.asked) == 2, "requests under way")
    with pytest.raises(e.Unavailable, match="1 that are lost"):
        found.close(0)

    assert failures == ["policy"]
    assert [r.getMessage() for r in caplog.records if "policy" in r.getMessage()] == []


# -- the guard ----------------------------------------------------------------------------------


class Acting:
    """Acts when it may, by a learner."""

    version, age = 3, 0.0

    def __init__(self) -> None:
        self.learner = Learner(SPEC)
        self.may = threading.Event()
        self.may.set()
        self.error: Exception | None = None
        self.seconds: list[float | None] = []

    def act(
        self, *given: Any, seconds: float | None = None, policy: Any = None, **more: Any
    ) -> InferenceReply:
        """Wait until it may."""
        self.seconds.append(seconds)
        self.may.wait()
        if self.error is not None:
            raise self.error
        return self.learner.act(*given, **{**more, "distribution": False})

    def close(self) -> None:
        """Nothing to close."""


@pytest.fixture
def acting() -> Acting:
    """What is guarded."""
    return Acting()


def guarded(acting: Acting, **options: Any) -> Guarded:
    """Return it under a guard."""
    options = {"fallback": 1, **options}
    return Guarded(acting, Guard(**options), lambda: acting.learner.spec)  # type: ignore[arg-type]


def tags(reply: InferenceReply) -> tuple[int, list[int], list[float]]:
    """Return version, actions and probabilities."""
    return reply.policy_version, reply.indices.tolist(), reply.behavior_prob


def test_in_time(acting: Acting) -> None:
    """An action in time is the policy's."""
    guard = guarded(acting, deadline_ms=60_000, max_policy_age=60)
    reply = guard.act([[0.0, 1.0]], True)
    guard.close()

    assert reply == acting.learner.act([[0.0, 1.0]], True)
    assert (guard.counts.decisions, guard.counts.fallbacks) == (1, 0)
    assert acting.seconds == [60.0]


def test_late(acting: Acting) -> None:
    """After the deadline the fallback acts; what comes then is nobody's; the next one may be."""
    guard = guarded(acting, deadline_ms=5)
    guard.act([[0.0, 1.0]])
    acting.may.clear()
    began = time.monotonic()
    assert tags(guard.act([[0.0, 1.0], [1.0, 1.0]])) == (-1, [1, 1], [1.0, 1.0])
    assert tags(guard.act([0.0, 1.0])) == (-1, [1], [1.0])
    assert time.monotonic() - began >= 0.01
    acting.may.set()
    until(lambda: guard.act([[0.0, 1.0]]).policy_version >= 0, "an action in time")
    assert guard.counts.late >= 2
    assert guard.counts.late == guard.counts.fallbacks
    guard.close()


def test_stale(acting: Acting) -> None:
    """With too old a policy the fallback acts, without a question."""
    guard = guarded(acting, max_policy_age=10)
    acting.age = 10.5
    assert guard.act([[0.0, 1.0]]).policy_version == -1
    acting.age = 9.5
    assert guard.act([[0.0, 1.0]]).policy_version == 0

    assert (guard.counts.stale, guard.counts.decisions) == (1, 2)
    assert len(acting.seconds) == 1


@pytest.mark.parametrize("deadline", [None, 60_000])
@pytest.mark.parametrize(
    "error", [e.Unavailable("service", "one"), e.RateLimited("token", "fewer")]
)
def test_failed(acting: Acting, error: Exception, deadline: float | None) -> None:
    """Where the service cannot be asked, or cannot answer now, the fallback acts."""
    guard = guarded(acting, deadline_ms=deadline)
    acting.error = error
    assert guard.act([[0.0, 1.0]]).policy_version == -1
    guard.close()

    assert (guard.counts.failed, guard.counts.fallbacks) == (1, 1)


@pytest.mark.parametrize(
    "error", [e.ShapeMismatch("observations", "(2,)"), e.ModelGone("m", "generation 1")]
)
def test_errors_that_no_fallback_helps(acting: Acting, error: Exception) -> None:
    """A wrong observation and a model that is gone are errors as ever."""
    guard = guarded(acting, deadline_ms=60_000)
    acting.error = error
    with pytest.raises(type(error)):
        guard.act([[0.0, 1.0]])
    guard.close()


def test_callable_fallback(acting: Acting) -> None:
    """It sees the observations, and chooses for each."""
    guard = guarded(
        acting, max_policy_age=1, fallback=lambda seen, masks: [int(x[0] > 0) * 2 for x in seen]
    )
    acting.age = 2

    assert guard.act([[0.5, 1.0], [-1.0, 1.0]]).indices.tolist() == [2, 0]


@pytest.mark.parametrize("fallback", [3, -1])
def test_fallback_that_the_model_does_not_have(
    acting: Acting, service: Service, fallback: int
) -> None:
    """It is an error at the first decision, or when a policy connects, though none is late."""
    guard = guarded(acting, deadline_ms=60_000, fallback=fallback)
    for _ in range(2):  # and at every later one
        with pytest.raises(e.ActionRange, match=r"fallback: expected an action in 0\.\.2"):
            guard.act([[0.5, 1.0]])
    guard.close()
    given = Guard(fallback, deadline_ms=60_000)
    with pytest.raises(e.ActionRange, match=r"fallback: expected an action in 0\.\.2"):
        RemotePolicy(None, "m", "t", transport=service, guard=given)

    assert acting.seconds == []


@pytest.mark.parametrize("fallback", [lambda seen, masks: [1], lambda seen, masks: [0.5, 1.0]])
def test_fallback_that_is_none(acting: Acting, fallback: Any) -> None:
    """What a function gives that is no action is an error where it is first needed."""
    guard = guarded(acting, max_policy_age=1, fallback=fallback)
    acting.age = 2
    with pytest.raises(e.ActionRange, match=r"fallback: expected 2 indices in 0\.\.2"):
        guard.act([[0.5, 1.0], [-1.0, 1.0]])


def test_fallback_and_masks() -> None:
    """Where a mask forbids it, the first action that the mask allows is taken."""
    spec = Learner({**SPEC, "action_masks": True}).spec
    masks = [[True, True, True], [True, False, True], [False, False, True]]

    assert Guard(1).choose([[0.0, 1.0]] * 3, masks, spec).tolist() == [1, 0, 2]


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"fallback": "hold"}, "fallback"),
        ({"fallback": True}, "fallback"),
        ({"fallback": 0, "deadline_ms": 0}, "deadline_ms"),
        ({"fallback": 0, "deadline_ms": float("nan")}, "deadline_ms"),
        ({"fallback": 0, "max_policy_age": -1}, "max_policy_age"),
    ],
)
def test_guard_arguments(options: dict[str, Any], where: str) -> None:
    """A guard that guards nothing is refused."""
    with pytest.raises(e.InvalidInput) as raised:
        Guard(**options)

    assert raised.value.where == where  # type: ignore[attr-defined]


def test_deadline_bounds_the_request(service: Service) -> None:
    """A remote policy's request has no more time than its decision."""
    timeouts = []
    real = service.request

    def request(method: str, path: str, body: Any, headers: Any, timeout: float) -> Response:
        timeouts.append(timeout)
        return real(method, path, body, headers, timeout)

    service.request = request  # type: ignore[method-assign]
    policy = RemotePolicy(None, "m", "t", transport=service, guard=Guard(0, deadline_ms=50_000))
    policy.predict(OBSERVATIONS[:1])
    service.leave()
    assert policy.predict(OBSERVATIONS[:3])[0].tolist() == [0, 0, 0]
    policy.close()

    assert timeouts[0] == timeouts[1] == 30.0  # figures, twice
    assert timeouts[2:] == [50.0, 50.0]  # and no second attempt
    assert (policy.guarded.decisions, policy.guarded.failed) == (2, 1)


def test_fallbacks_are_recorded_as_not_the_policys(service: Service) -> None:
    """What a fallback chose is experience too: of version -1, chosen with certainty."""
    endpoint = RemoteLearner(
        None, "m", "t", transport=service, placement="local", guard=Guard(2, max_policy_age=1e-9)
    )
    recorded = FakeEndpoint()
    recorded.act = endpoint.act  # type: ignore[method-assign]
    env = gym.wrappers.TransformObservation(
        gym.make("OUSpread-v0"), lambda seen: seen[:2], gym.spaces.Box(-99, 99, (2,), np.float32)
    )
    RemoteActor(env, recorded, actor_id="a").run(steps=5, seed=0)
    endpoint.close()

    assert {(r.policy_version, r.action, r.behavior_prob) for r in recorded.rows} == {(-1, 2, 1.0)}
    assert endpoint.guarded.stale == 5
