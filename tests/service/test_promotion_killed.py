"""Promotions with a real learner process, and after kill -9: what was decided is what is served."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jormungandr import RemoteLearner
from jormungandr.failpoints import VARIABLE
from jormungandr.service.journal.writer import Journal
from jormungandr.service.tools.verification import verify
from tests.service.serving import DEADLINE, SPEC, Server, experience

GATED: dict[str, Any] = {
    **SPEC,
    "pacing": {"learning_starts": 8, "updates_per_transition": 0.25},
    "promotion": {"serve": "champion", "min_episodes": 3, "candidate_every": 2},
}


class Acts:
    """What sends episodes to a service, and goes on with the next one."""

    def __init__(self) -> None:
        self._episodes, self._train = 0, iter(experience(60, 4, actor_id="t"))
        self._rng = np.random.default_rng(1)

    def learn(self, endpoint: RemoteLearner, rows: int) -> dict[str, Any]:
        """Send so many training transitions, and wait for what becomes of them."""
        sent = [{**next(self._train), "split": "train"} for _ in range(rows)]
        return endpoint.wait(endpoint.add(sent).lsn)

    def play(self, endpoint: RemoteLearner, role: str, reward: float, pair: str | None) -> int:
        """Play a held-out episode of three steps; return the version that played it."""
        self._episodes += 1
        rows: list[dict[str, Any]] = []
        version: Any = role
        for t in range(3):
            reply = endpoint.act([[0.1 * t, 0.2]], deterministic=True, policy=version)
            version = reply.policy_version
            row = {
                "actor_id": "v",
                "episode_id": f"v{self._episodes}",
                "timestep": t,
                "split": "validation",
                "policy_version": version,
                "observation": [0.1 * t, 0.2],
                "action": reply.actions[0].index,
                "reward": reward + float(self._rng.normal(0, 0.01)),
                "next_observation": [0.1 * t + 0.1, 0.2],
                "terminated": t == 2,
                "truncated": False,
            }
            if pair is not None and t == 0:
                row["tags"] = {"pair": pair}
            rows.append(row)
        endpoint.wait(endpoint.add(rows).lsn)
        return int(version)


@pytest.fixture
def acts() -> Acts:
    """One story, from its beginning."""
    return Acts()


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make the next servers end at a place."""

    def at(place: str | None) -> None:
        if place is None:
            monkeypatch.delenv(VARIABLE, raising=False)
        else:
            monkeypatch.setenv(VARIABLE, place)

    return at


def trial(acts: Acts, endpoint: RemoteLearner, better: float) -> None:
    """Play a trial to its end: three pairs, in which the candidate earns so much more."""
    for k in range(3):
        acts.play(endpoint, "champion", 0.0, f"p{acts._episodes}-{k}")
        acts.play(endpoint, "candidate", better, f"p{acts._episodes - 1}-{k}")


def proven(data_dir: Path) -> str:
    """Verify a data directory, and return what is said of promotions; nothing may be damaged."""
    found = list(verify(data_dir))
    assert not [f for f in found if f.status == "damage"], found
    return next((f.text for f in found if "promotions and refusals" in f.text), "")


@pytest.mark.slow
def test_the_whole_way(tmp_path: Path, acts: Acts) -> None:
    """Refused, promoted, rolled back, over restarts with SIGTERM and SIGKILL; `verify` agrees."""
    with Server(tmp_path) as server, server.connect("m") as endpoint:
        endpoint.create(GATED)
        acts.learn(endpoint, 20)
        first = endpoint.promotion()
        assert first["candidate"] is not None
        trial(acts, endpoint, -1.0)
        refused = endpoint.promotion()
        assert (refused["champion"], refused["decisions"]["refusal"]) == (first["champion"], 1)
        acts.learn(endpoint, 12)
        assert acts.play(endpoint, "candidate", 1.0, "cut") == endpoint.promotion()["candidate"]
    with Server(tmp_path) as server:
        with server.connect("m") as endpoint:
            endpoint.wait(endpoint.info()["journal_lsn"])
            before = endpoint.promotion()
            assert before["evidence"]["unmatched"] == 1
            trial(acts, endpoint, 1.0)
            after = endpoint.promotion()
            assert after["champion"] == before["candidate"]
            assert after["history"][-1]["evidence"]["estimate"] == pytest.approx(3.0, abs=0.1)
            reply = endpoint.act([[1, 1]], deterministic=True)
            assert reply.policy_version == after["champion"]
        server.kill()
    with Server(tmp_path) as server, server.connect("m") as endpoint:
        assert endpoint.act([[1, 1]], deterministic=True) == reply
        endpoint.decide("rollback", reason="a test")
        assert endpoint.act([[1, 1]]).policy_version == first["champion"]
    assert proven(tmp_path) == "2 promotions and refusals, as the rows say"


@pytest.mark.slow
def test_killed_between_the_decision_and_its_serving(
    tmp_path: Path, acts: Acts, dying: Any
) -> None:
    """The row is durable, nobody was served the candidate: the next start serves it."""
    dying("promotion.row:3")  # the first champion, the candidate, and its promotion
    with Server(tmp_path) as server:
        with server.connect("m", patience=0) as endpoint:
            endpoint.create(GATED)
            acts.learn(endpoint, 20)
            standing = endpoint.promotion()
            with pytest.raises(Exception, match="connection"):
                trial(acts, endpoint, 1.0)
        assert server.process.wait(DEADLINE) == -signal.SIGKILL
        server.kill()
    dying(None)
    journal = Journal(tmp_path / "models" / "m.1" / "journal.db")
    decided = journal.decisions()
    journal.close()
    assert [row.kind for row in decided] == ["champion", "candidate", "champion"]
    with Server(tmp_path) as server, server.connect("m") as endpoint:
        assert endpoint.act([[1, 1]]).policy_version == standing["candidate"]
        assert endpoint.promotion()["champion"] == standing["candidate"]
        endpoint.wait(endpoint.info()["journal_lsn"])
        assert endpoint.promotion()["decisions"]["champion"] == 2
    assert proven(tmp_path) == "1 promotions and refusals, as the rows say"


@pytest.mark.slow
def test_killed_before_the_decision(tmp_path: Path, acts: Acts, dying: Any) -> None:
    """Rows with all the evidence, and no decision: it is made from them at the next start."""
    with Server(tmp_path) as server:
        with server.connect("m") as endpoint:
            endpoint.create(GATED)
            acts.learn(endpoint, 20)
            trial_but_last(acts, endpoint)
        server.kill()
    dying("commit.written:2")  # the last episode, and then the decision on it
    with Server(tmp_path) as server:
        with server.connect("m", patience=0) as endpoint:
            endpoint.wait(endpoint.info()["journal_lsn"])
            standing = endpoint.promotion()
            with pytest.raises(Exception, match="connection"):
                acts.play(endpoint, "candidate", 1.0, "p2")
        assert server.process.wait(DEADLINE) == -signal.SIGKILL
        server.kill()
    dying(None)
    with Server(tmp_path) as server, server.connect("m") as endpoint:
        endpoint.wait(endpoint.info()["journal_lsn"])
        assert endpoint.promotion()["champion"] == standing["candidate"]
        assert endpoint.act([[1, 1]]).policy_version == standing["candidate"]
    assert proven(tmp_path) == "1 promotions and refusals, as the rows say"


def trial_but_last(acts: Acts, endpoint: RemoteLearner) -> None:
    """Play three pairs but for the candidate's last episode."""
    for k in range(3):
        acts.play(endpoint, "champion", 0.0, f"p{k}")
        if k < 2:
            acts.play(endpoint, "candidate", 1.0, f"p{k}")
