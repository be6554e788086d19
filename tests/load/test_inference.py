"""Requests for actions that come together share a forward pass, and cannot tell."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from jormungandr import Learner
from jormungandr.errors import BodyTooLarge, InvalidValue, JormungandrError, ShapeMismatch
from jormungandr.policy import PolicySnapshot
from jormungandr.protocol import InferenceReply
from jormungandr.service import app as app_module
from jormungandr.service import inference as module
from jormungandr.service.inference import Inference
from jormungandr.service.observe.exposition import exposition
from jormungandr.service.observe.meters import Meters
from jormungandr.streams import streams
from tests.service.serving import SPEC, experience, until

MASKED: dict[str, Any] = {**SPEC, "action_masks": True}
#: Every option that a request may have.
OPTIONS: list[dict[str, Any]] = [
    {"deterministic": True},
    {"epsilon": 1.0},
    {"epsilon": 0.5},
    {"epsilon": 0.0},
    {"distribution": True},
    {"deterministic": True, "epsilon": 1.0, "distribution": True},
]


class Asked:
    """The inference of one policy, and what it has counted."""

    def __init__(self, spec: dict[str, Any] = SPEC) -> None:
        learner = Learner(spec)
        if "action_masks" not in spec:
            learner.add(experience(4, 8))
        self.policy: PolicySnapshot = learner.snapshot()
        self.meters = Meters()
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="forward")
        self.inference = Inference(
            self.policy.spec, self.rng(), lambda: self.policy, self.pool, self.meters
        )

    def rng(self) -> np.random.Generator:
        """Return the acting stream of the model from its beginning."""
        return streams(self.policy.spec.seed)[2]

    def together(self, requests: list[tuple[Any, dict[str, Any]]]) -> list[Any]:
        """Return the replies, or errors, to requests that come at one moment."""

        async def ask() -> list[Any]:
            return await asyncio.gather(
                *(self.inference.act(rows, **given(options)) for rows, options in requests),
                return_exceptions=True,
            )

        return asyncio.run(ask())

    def apart(self, requests: list[tuple[Any, dict[str, Any]]]) -> list[Any]:
        """Return the same for requests that come one after another."""
        rng = self.rng()
        replies: list[Any] = []
        for rows, options in requests:
            try:
                replies.append(self.policy.act(rows, rng, **given(options)))
            except JormungandrError as error:
                replies.append(error)
        return replies

    @property
    def counted(self) -> tuple[float, float]:
        """Forward passes, and requests answered."""
        text = exposition(list(self.meters.families())).decode()
        lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
        passes = _sample(lines, "jormungandr_inference_forward_rows_count")
        return passes, _sample(lines, "jormungandr_inference_requests_total")


def _sample(text: str, name: str) -> float:
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.split()[0] == name)


def given(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a request with what a service fills in."""
    filled = {"deterministic": False, "epsilon": 0.25, "action_masks": None, "distribution": False}
    return {**filled, **options}


def same(a: Any, b: Any) -> None:
    """Check that two replies say the same."""
    assert type(a) is type(b)
    if not isinstance(a, InferenceReply):
        assert str(a) == str(b)
        return
    for name in ("policy_version", "generation", "actions"):
        assert getattr(a, name) == getattr(b, name)
    for name in ("expected_values", "behavior_prob", "distribution", "support"):
        one, other = getattr(a, name), getattr(b, name)
        assert (one is None) == (other is None), name
        if one is not None:
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


def mixed(count: int, masks: bool) -> list[tuple[Any, dict[str, Any]]]:
    """Return requests of one to three observations, with every option, and masks perhaps."""
    rng = np.random.default_rng(1)
    requests = []
    for n in range(count):
        rows = rng.standard_normal((1 + n % 3, 2)).tolist()
        allowed = rng.random((len(rows), 3)) < 0.5
        allowed[:, n % 3] = True
        more = {"action_masks": allowed.tolist()} if masks else {}
        requests.append((rows, {**OPTIONS[n % len(OPTIONS)], **more}))
    return requests


@pytest.mark.parametrize("spec", [SPEC, MASKED], ids=["all allowed", "masks"])
def test_replies_are_those_of_one_after_another(spec: dict[str, Any]) -> None:
    """Values to 1e-6; actions, explored ones too, and probabilities as draw after draw."""
    asked = Asked(spec)
    requests = mixed(60, spec is MASKED)
    for together, apart in zip(asked.together(requests), asked.apart(requests), strict=True):
        same(together, apart)

    assert asked.counted == (1, 60)


def test_sixty_four_at_once() -> None:
    """64 requests of one observation that are in flight at once cost at most 8 passes."""
    asked = Asked()
    rows = np.random.default_rng(2).standard_normal((64, 1, 2)).tolist()
    replies = asked.together([(row, {"deterministic": True}) for row in rows])

    assert len(replies) == 64
    assert asked.counted[0] <= 8
    assert asked.counted[1] == 64


def test_an_error_is_its_own() -> None:
    """A request that is refused draws nothing and touches none of those it came with."""
    asked = Asked()
    bad: list[tuple[Any, dict[str, Any]]] = [
        ([[1.0, 2.0, 3.0]], {}),
        ([[1.0, 2.0]], {"epsilon": 2.0}),
        ([[1.0, 2.0]], {"action_masks": [[True, False, False]]}),
    ]
    good = mixed(6, masks=False)
    requests = [request for pair in zip(good, bad * 2, strict=True) for request in pair]
    together = asked.together(requests)

    assert [type(reply) for reply in together[1::2]][:2] == [ShapeMismatch, InvalidValue]
    for reply, expected in zip(together, asked.apart(requests), strict=True):
        same(reply, expected)
    assert asked.counted == (1, 6)


def test_a_client_that_has_gone() -> None:
    """Whoever was cancelled meanwhile draws nothing."""
    asked = Asked()
    requests = mixed(3, masks=False)

    async def ask() -> list[Any]:
        tasks = [
            asyncio.create_task(asked.inference.act(rows, **given(options)))
            for rows, options in requests
        ]
        await asyncio.sleep(0)
        tasks[1].cancel()
        return await asyncio.gather(tasks[0], tasks[2])

    for reply, expected in zip(asyncio.run(ask()), asked.apart(requests[::2]), strict=True):
        same(reply, expected)


def test_alone_it_waits_for_one_turn_of_the_loop() -> None:
    """A request that comes alone is not held up for others that might come."""
    asked = Asked()

    async def turns() -> int:
        task = asyncio.create_task(asked.inference.act([[0.0, 0.0]], **given({})))
        count = 0
        while not task.done():
            await asyncio.sleep(0)
            count += 1
        return count

    assert asyncio.run(turns()) <= 4  # begun, answered, resumed


def test_no_waiting_for_ever_for_more() -> None:
    """While each turn of the loop brings another request, the first is answered all the same."""
    asked = Asked()

    async def stream() -> int:
        tasks = [
            asyncio.create_task(asked.inference.act([[0.0, 0.0]], **given({}))) for _ in range(2)
        ]
        while not tasks[0].done():
            tasks.append(asyncio.create_task(asked.inference.act([[0.0, 0.0]], **given({}))))
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        return len(tasks)

    assert asyncio.run(asyncio.wait_for(stream(), 30)) <= module.TURNS + 4


def test_large_ones_leave_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many observations, or few for a large network, are computed beside the event loop."""
    asked = Asked()
    threads = []
    answer = PolicySnapshot.answer

    def seen(policy: PolicySnapshot, questions: Any, rng: Any) -> Any:
        threads.append(threading.current_thread().name.partition("_")[0])
        return answer(policy, questions, rng)

    monkeypatch.setattr(PolicySnapshot, "answer", seen)
    asked.together([([[0.0, 0.0]] * 64, {}), ([[0.0, 0.0]] * 65, {})])
    assert sorted(threads) == ["MainThread", "forward"]
    wide = {**SPEC, "c51": {**SPEC["c51"], "hidden": [2_048, 2_048]}}
    assert Asked(wide).inference._small == 3


def test_passes_are_bounded() -> None:
    """So many observations that one pass would hold the loop take several, in order."""
    asked = Asked()
    requests = [([[n / 10, 0.0]] * 60, {"epsilon": 1.0}) for n in range(10)]
    for together, apart in zip(asked.together(requests), asked.apart(requests), strict=True):
        same(together, apart)

    assert asked.counted == (3, 10)


def test_distributions_are_bounded() -> None:
    """More probabilities than a reply can carry without holding everybody up are refused."""
    spec = {**SPEC, "actions": 100, "c51": {**SPEC["c51"], "atoms": 101}}
    (refused,) = Asked(spec).together([([[0.0, 0.0]] * 60, {"distribution": True})])

    assert isinstance(refused, BodyTooLarge)
    assert isinstance(Asked(spec).together([([[0.0, 0.0]] * 60, {})])[0], InferenceReply)


def test_over_http(app: Any) -> None:
    """The service counts passes and requests, and puts together what clients ask at once."""
    app.connect("m").create(SPEC)
    app.publish("m", Learner(SPEC))
    model = app.model("m")

    async def ask() -> list[Any]:
        options = {"deterministic": True, "epsilon": None, "action_masks": None}
        acts = (
            model.answers.act([[0.0, float(n)]], distribution=False, **options) for n in range(64)
        )
        return await asyncio.gather(*acts)

    before = _figures(app)
    replies = app.run(ask)
    after = _figures(app)

    assert len(replies) == 64
    assert after[0] - before[0] <= 8
    assert after[1] - before[1] == 64


def _figures(app: Any) -> tuple[float, float]:
    text = app.request("GET", "/metrics").text
    lines = "\n".join(line for line in text.splitlines() if line and not line.startswith("#"))
    return (
        _sample(lines, "jormungandr_inference_forward_rows_count"),
        _sample(lines, "jormungandr_inference_requests_total"),
    )


def test_ingestion_does_not_hold_up_actions(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a large body is decoded and others wait for their turn, actions are answered."""
    app.connect("m").create(SPEC)
    app.publish("m", Learner(SPEC))
    go_on, checked = threading.Event(), app_module.columns

    def held(*arguments: Any) -> Any:
        assert go_on.wait(60)
        return checked(*arguments)

    monkeypatch.setattr(app_module, "columns", held)
    rows = [{"transitions": experience(5, 100, actor_id=f"a{n}")} for n in range(3)]
    with ThreadPoolExecutor(3) as pool:
        sent = [pool.submit(app.request, "POST", "/v1/models/m/experience/add", r) for r in rows]
        until(lambda: app.gateway.lanes.turns.waiting == 2, "two that wait")
        assert app.connect("m").act([[0, 0]]).policy_version == 0
        assert app.connect("m").act([[0, 0]] * 500).policy_version == 0
        assert not any(answer.done() for answer in sent)
        go_on.set()

        assert [answer.result(60).json()["accepted"] for answer in sent] == [500] * 3
    assert (app.gateway.lanes.ingestion.bytes, app.gateway.lanes.ingestion.requests) == (0, 0)
