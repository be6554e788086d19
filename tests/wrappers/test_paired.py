"""Paired actors: both of a pair meet the same, each is one version's, and the tag says so."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest

import jormungandr_envs  # noqa: F401 - registers the environment
from jormungandr import Learner, ModelSpec, RemoteLearner
from jormungandr.errors import InvalidValue
from jormungandr_wrappers import PairedActor
from tests.fake_endpoint import FakeEndpoint

VERSIONS: dict[Any, int] = {"champion": 3, "candidate": 8}


class Promoting(FakeEndpoint):
    """An endpoint whose candidate changes while an episode is played."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted: list[Any] = []

    def act(self, observations: Any, *arguments: Any, policy: Any = None, **options: Any) -> Any:
        """Act as the policy that is asked for."""
        self.wanted.append(policy)
        self.version = VERSIONS.get(policy, policy)
        return super().act(observations, *arguments, **options)


@pytest.fixture
def endpoint() -> Any:
    """One that knows roles."""
    return Promoting()


def actor(endpoint: Any, **options: Any) -> PairedActor:
    """Return an actor in short episodes."""
    env = gymnasium.make("OUSpread-v0", horizon=3)
    return PairedActor(env, endpoint, actor_id="v", run="r", **options)


def test_pairs_share_a_seed_and_a_tag(endpoint: Any) -> None:
    """What the environment draws is the same for both, and another for each pair."""
    actor(endpoint).run(3, seed=1)
    episodes = list(endpoint.episodes().values())

    assert [rows[0].tags for rows in episodes] == [{"pair": f"r-{1 + k // 2}"} for k in range(6)]
    assert {rows[0].split for rows in episodes} == {"validation"}
    starts = [float(rows[0].observation[0]) for rows in episodes]
    assert starts[::2] == starts[1::2]
    assert len(set(starts)) == 3


def test_each_goes_first_in_turn(endpoint: Any) -> None:
    """An episode asks for a role once, and then for the version that answered."""
    actor(endpoint).run(2, seed=1)

    assert endpoint.wanted == [
        *("candidate", 8, 8, "champion", 3, 3),
        *("champion", 3, 3, "candidate", 8, 8),
    ]
    versions = [{row.policy_version for row in rows} for rows in endpoint.episodes().values()]
    assert versions == [{8}, {3}, {3}, {8}]
    assert all(deterministic for _, deterministic, _ in endpoint.asked)


def test_what_comes_back(endpoint: Any) -> None:
    """Of each pair the candidate's episode, and the champion's, by name; and the receipt."""
    playing = actor(endpoint)
    first = playing.run(1, seed=5)
    result = playing.run(2)

    assert [pair.name for pair in first.pairs + result.pairs] == ["r-1", "r-2", "r-3"]
    versions = [(p.candidate.first_version, p.champion.first_version) for p in result.pairs]
    assert versions == [(8, 3)] * 2
    returns = [(p.candidate.total_reward, p.champion.total_reward) for p in result.pairs]
    assert result.differences.tolist() == [ours - theirs for ours, theirs in returns]
    assert result.differences.shape == (2,)
    assert (first.transitions, result.transitions) == (6, 12)
    assert first.lsn < result.lsn == result.receipt.lsn
    assert result.receipt.accepted == len(endpoint.rows) == 18


def test_seeds_go_on(endpoint: Any) -> None:
    """Two runs of one pair play what one run of two would."""
    one = actor(endpoint)
    first = one.run(1, seed=9).pairs + one.run(1).pairs
    again = actor(Promoting()).run(2, seed=9).pairs

    assert [(a.candidate.total_reward, a.champion.total_reward) for a in first] == [
        (b.candidate.total_reward, b.champion.total_reward) for b in again
    ]


def test_an_endpoint_without_roles() -> None:
    """A learner in process promotes nothing, and cannot be asked for a role."""
    learner = Learner(ModelSpec.from_dict({"observation": {"shape": [2]}, "actions": 2}))
    with pytest.raises(InvalidValue, match=r"endpoint: expected one whose act\(\) takes a policy"):
        actor(learner)
    with RemoteLearner("http://127.0.0.1:9", "m", "t") as remote:
        actor(remote)


def test_no_pairs(endpoint: Any) -> None:
    """There is nothing to play."""
    with pytest.raises(InvalidValue, match="pairs"):
        actor(endpoint).run(0)
