"""Prioritized n-step replay in Stable-Baselines3's storage."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from jormungandr.errors import InvalidValue
from jormungandr.sb3 import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer

ACTIONS = spaces.Discrete(3)
BOX = spaces.Box(-np.inf, np.inf, (1,), np.float32)


@dataclass
class Step:
    """What one environment did; observations are unique numbers, so that they identify it."""

    observation: float
    action: int
    reward: float
    next_observation: float
    terminated: bool
    truncated: bool
    closed: bool = False


def fill(
    buffer: PrioritizedReplayBuffer, rows: int, rng: np.random.Generator, closing: float = 0.0
) -> list[list[Step]]:
    """Add random rows, with ends; return the steps of each environment, oldest first."""
    streams: list[list[Step]] = [[] for _ in range(buffer.n_envs)]
    for row in range(rows):
        steps = []
        for env, stream in enumerate(streams):
            end = rng.choice(["", "terminated", "truncated"], p=[0.7, 0.15, 0.15])
            number = float(1000 * env + row)
            steps.append(
                Step(
                    number,
                    int(rng.integers(3)),
                    float(np.float32(rng.normal())),
                    number + 0.5,
                    end == "terminated",
                    end == "truncated",
                )
            )
            stream.append(steps[-1])
        buffer.add(
            np.array([[s.observation] for s in steps], dtype=np.float32),
            np.array([[s.next_observation] for s in steps], dtype=np.float32),
            np.array([s.action for s in steps]),
            np.array([s.reward for s in steps]),
            np.array([s.terminated or s.truncated for s in steps]),
            [{"TimeLimit.truncated": s.truncated} for s in steps],
        )
        if rng.random() < closing:
            buffer.close()
            for s in steps:
                s.closed = True
    return [stream[-buffer.buffer_size :] for stream in streams]


def oracle(stream: list[Step], start: int, n: int, gamma: float) -> tuple[float, float, float]:
    """Return (sum of rewards, discount of the bootstrap, where it bootstraps), step by step."""
    total, k = 0.0, 0
    while True:
        step = stream[start + k]
        total += gamma**k * step.reward
        k += 1
        if k == n or step.terminated or step.truncated or step.closed or start + k == len(stream):
            return total, 0.0 if step.terminated else gamma**k, step.next_observation


def check(buffer: PrioritizedReplayBuffer, streams: list[list[Step]], drawn: Any) -> set[float]:
    """Compare drawn samples with the oracle; return the observations met."""
    place = {s.observation: (stream, i) for stream in streams for i, s in enumerate(stream)}
    discount = (1 - drawn.dones) * drawn.discounts
    for i, observation in enumerate(drawn.observations[:, 0].tolist()):
        stream, start = place[observation]
        total, bootstrap, successor = oracle(stream, start, buffer.n_steps, buffer.gamma)
        assert drawn.actions[i].tolist() == [stream[start].action]
        assert drawn.rewards[i].tolist() == pytest.approx([total], rel=1e-6)
        assert discount[i].tolist() == pytest.approx([bootstrap], rel=1e-6)
        assert drawn.next_observations[i].tolist() == [successor]
    return set(drawn.observations[:, 0].tolist())


@pytest.mark.parametrize("closing", [0.0, 0.2])
@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("n_steps", [1, 2, 5])
@pytest.mark.parametrize("rows", [1, 11, 16, 45])
def test_n_step_against_the_oracle(n_steps: int, n_envs: int, rows: int, closing: float) -> None:
    """Sums, discounts and successors are those found by walking, whatever ends or wraps."""
    buffer = PrioritizedReplayBuffer(
        16 * n_envs, BOX, ACTIONS, "cpu", n_envs, n_steps=n_steps, gamma=0.9, alpha=0.0, seed=0
    )
    streams = fill(buffer, rows, np.random.default_rng(rows), closing)
    met = check(buffer, streams, buffer.sample(40 * n_envs * min(rows, 16)))

    assert met == {step.observation for stream in streams for step in stream}


def test_buffer_shorter_than_the_steps() -> None:
    """A ring of three rows and five steps stops at the newest row."""
    buffer = PrioritizedReplayBuffer(3, BOX, ACTIONS, "cpu", n_steps=5, gamma=0.9, seed=0)
    streams = fill(buffer, 7, np.random.default_rng(3))

    assert len(check(buffer, streams, buffer.sample(50))) == 3


def test_timeouts_count_as_ends_when_asked() -> None:
    """Without `handle_timeout_termination` a truncation does not bootstrap, as in SB3."""
    buffer = PrioritizedReplayBuffer(
        16, BOX, ACTIONS, "cpu", handle_timeout_termination=False, seed=0
    )
    streams = fill(buffer, 16, np.random.default_rng(1))
    drawn = buffer.sample(200)
    ended = {s.observation: s.terminated or s.truncated for s in streams[0]}

    assert drawn.dones[:, 0].tolist() == [ended[o] for o in drawn.observations[:, 0].tolist()]
    assert any(s.truncated for s in streams[0])


def set_priorities(buffer: PrioritizedReplayBuffer, priorities: list[float]) -> None:
    """Give slot i priority i, through a draw as an update would."""
    drawn = buffer.sample(len(priorities)).drawn
    slot = np.arange(len(priorities))
    buffer.update_priorities(replace(drawn, slot=slot), np.array(priorities))


def test_frequencies_follow_the_priorities() -> None:
    """P(i) = p_i^α / Σ p^α over rows and environments: chi-square at the 0.1 % level."""
    buffer = PrioritizedReplayBuffer(8, BOX, ACTIONS, "cpu", n_envs=2, alpha=0.6, seed=1)
    fill(buffer, 3, np.random.default_rng(0))
    priorities = [0.0, 0.01, 0.5, 1.0, 2.0, 30.0]
    set_priorities(buffer, priorities)
    met = np.concatenate([buffer.sample(100).observations[:, 0].numpy() for _ in range(200)])
    # Slot = row · environments + environment, and observations are 1000 · environment + row.
    counts = np.array([(met == 1000 * (i % 2) + i // 2).sum() for i in range(6)])
    raw = (np.array(priorities) + 1e-6) ** 0.6
    expected = 20_000 * raw / raw.sum()

    assert counts.sum() == 20_000
    assert ((counts - expected) ** 2 / expected).sum() < 20.5  # five degrees of freedom


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("is_normalizer", ["batch", "buffer"])
def test_weights(is_normalizer: str, beta: float) -> None:
    """w_i = (N·P(i))^-β / max w for the β set before the draw."""
    buffer = PrioritizedReplayBuffer(
        6, BOX, ACTIONS, "cpu", alpha=0.6, is_normalizer=is_normalizer, seed=1
    )
    fill(buffer, 6, np.random.default_rng(0))
    priorities = np.array([1e-3, 0.1, 0.5, 1.0, 2.0, 30.0])
    set_priorities(buffer, priorities.tolist())
    buffer.beta = beta
    data = buffer.sample(4)
    raw = (priorities + 1e-6) ** 0.6
    weights = (6 * raw / raw.sum()) ** -beta
    slot = data.drawn.slot
    largest = weights.max() if is_normalizer == "buffer" else weights[slot].max()

    assert data.weights.numpy() == pytest.approx(weights[slot] / largest, rel=1e-6)


def test_priorities_for_overwritten_transitions_are_dropped() -> None:
    """A priority goes to the transition it was computed for, or to none."""
    buffer = PrioritizedReplayBuffer(4, BOX, ACTIONS, "cpu", seed=0)
    fill(buffer, 4, np.random.default_rng(0))
    drawn = buffer.sample(4).drawn  # strata: each slot once
    fill(buffer, 2, np.random.default_rng(1))
    buffer.update_priorities(drawn, np.array([5.0, 6.0, 7.0, 8.0]))

    assert drawn.slot.tolist() == [0, 1, 2, 3]
    assert buffer.priorities.tolist() == [1.0, 1.0, 7.0, 8.0]
    assert buffer.stale_writes == 2


def test_new_transitions_get_the_highest_priority() -> None:
    """What has not been drawn yet is as likely as the most surprising so far."""
    buffer = PrioritizedReplayBuffer(8, BOX, ACTIONS, "cpu", n_envs=2, seed=0)
    fill(buffer, 1, np.random.default_rng(0))
    set_priorities(buffer, [0.5, 3.0])
    fill(buffer, 1, np.random.default_rng(1))

    assert buffer.priorities.tolist() == [0.5, 3.0, 3.0, 3.0]


def test_dict_observations_are_gathered_by_key() -> None:
    """Each key comes from the same transitions, n-step successors included."""
    space = spaces.Dict({"image": spaces.Box(0, 255, (2, 3, 3), np.uint8), "vector": BOX})
    buffer = PrioritizedDictReplayBuffer(
        8, space, ACTIONS, "cpu", n_envs=2, n_steps=2, gamma=0.5, seed=0
    )

    def observed(row: int) -> dict[str, NDArray[Any]]:
        numbers = np.array([row, 100 + row])
        image = np.broadcast_to(numbers[:, None, None, None], (2, 2, 3, 3)).astype(np.uint8)
        return {"image": image, "vector": numbers[:, None].astype(np.float32)}

    for row in range(4):
        infos: list[dict[str, Any]] = [{}, {}]
        buffer.add(
            observed(row), observed(row + 1), np.zeros(2, int), np.ones(2), np.zeros(2), infos
        )
    data = buffer.sample(64)
    assert isinstance(data.observations, dict)
    assert isinstance(data.next_observations, dict)
    at = data.observations["vector"][:, 0]
    following = data.next_observations["vector"][:, 0]

    assert data.observations["image"].dtype.is_floating_point is False
    assert data.observations["image"][:, 1, 2, 0].tolist() == at.tolist()
    assert data.next_observations["image"][:, 0, 0, 2].tolist() == following.tolist()
    assert set((following - at).tolist()) == {1.0, 2.0}
    assert data.rewards[:, 0].tolist() == [1.5 if d == 2 else 1.0 for d in following - at]


def test_reward_normalisation_comes_before_the_sum(walk: Callable[..., VecEnv]) -> None:
    """Each reward is scaled as VecNormalize scales one, then they are summed."""
    env = VecNormalize(walk(1), norm_obs=False, gamma=0.9)
    env.ret_rms.var = np.array(0.25)
    buffer = PrioritizedReplayBuffer(
        16, BOX, ACTIONS, "cpu", n_steps=3, gamma=0.9, alpha=0.0, seed=0
    )
    streams = fill(buffer, 12, np.random.default_rng(0))
    for step in streams[0]:
        step.reward = float(env.normalize_reward(np.array(step.reward)))

    assert len(check(buffer, streams, buffer.sample(300, env=env))) == 12


def same(one: Any, other: Any) -> bool:
    """Whether two draws are equal, bit for bit."""
    arrays = (one.drawn.slot, one.observations.numpy(), one.rewards.numpy(), one.weights.numpy())
    others = (
        other.drawn.slot,
        other.observations.numpy(),
        other.rewards.numpy(),
        other.weights.numpy(),
    )
    return all(np.array_equal(a, b) for a, b in zip(arrays, others, strict=True))


@pytest.mark.parametrize("how", [copy.deepcopy, lambda b: pickle.loads(pickle.dumps(b))])
def test_copies_go_on_alike(how: Callable[[Any], Any]) -> None:
    """A copied or pickled buffer draws and learns as the original does, and apart from it."""
    buffer = PrioritizedReplayBuffer(8, BOX, ACTIONS, "cpu", n_envs=2, n_steps=2, seed=5)
    fill(buffer, 6, np.random.default_rng(0))
    set_priorities(buffer, [float(i) for i in range(8)])
    other = how(buffer)
    draws = []
    for each in (buffer, other):
        data = each.sample(8)
        each.update_priorities(data.drawn, np.linspace(0, 1, 8))
        draws.append((data, each.sample(8)))

    assert same(draws[0][0], draws[1][0])
    assert same(draws[0][1], draws[1][1])


def test_seed_decides_the_draws() -> None:
    """Equal seeds draw alike, different ones do not, and `seed` begins anew."""
    slots = []
    for seed in (0, 0, 1):
        buffer = PrioritizedReplayBuffer(32, BOX, ACTIONS, "cpu", seed=seed)
        fill(buffer, 32, np.random.default_rng(0))
        slots.append(buffer.sample(16).drawn.slot.tolist())
    buffer.seed(0)

    assert slots[0] == slots[1] != slots[2]
    assert buffer.sample(16).drawn.slot.tolist() == slots[0]


def test_reset_empties_it() -> None:
    """After `reset` only what is added anew is drawn."""
    buffer = PrioritizedReplayBuffer(4, BOX, ACTIONS, "cpu", n_steps=3, seed=0)
    fill(buffer, 6, np.random.default_rng(0), closing=1.0)
    buffer.reset()
    with pytest.raises(ValueError, match="positive priority"):
        buffer.sample(1)
    streams = fill(buffer, 2, np.random.default_rng(1))

    assert buffer.size() == 2
    assert len(check(buffer, streams, buffer.sample(20))) == 2


def test_memory_saving_variant_is_refused() -> None:
    """It would lose successors; the message says what to use instead."""
    with pytest.raises(InvalidValue, match=r"optimize_memory_usage: expected False.*replay_buffer"):
        PrioritizedReplayBuffer(
            4,
            BOX,
            ACTIONS,
            "cpu",
            optimize_memory_usage=True,
            handle_timeout_termination=False,
        )
