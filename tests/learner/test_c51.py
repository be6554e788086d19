"""The C51 update against a slow float64 oracle, and what it learns where answers are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from jormungandr import Learner, ModelSpec
from jormungandr.learner.c51 import C51, Batch

Step = Callable[..., dict[str, Any]]
Small = Callable[..., ModelSpec]
Floats = NDArray[np.float64]


def forward(state: dict[str, NDArray[Any]], net: str, x: Floats, shape: tuple[int, ...]) -> Any:
    """Return (log-probabilities (B, A, N), auxiliary log-probabilities) in float64."""
    w = {k: v.astype(np.float64) for k, v in state.items()}
    for i in range(2):
        x = np.maximum(x @ w[f"{net}.hidden.{i}.weight"].T + w[f"{net}.hidden.{i}.bias"], 0)
    value = (x @ w[f"{net}.value.weight"].T + w[f"{net}.value.bias"]).reshape(len(x), *shape)
    auxiliary = x @ w[f"{net}.auxiliary.weight"].T + w[f"{net}.auxiliary.bias"]
    return log_softmax(value), log_softmax(auxiliary)


def log_softmax(x: Floats) -> Floats:
    """Return log-probabilities over the last axis."""
    x = x - x.max(axis=-1, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(axis=-1, keepdims=True)))


def project(support: Floats, probs: Floats, reward: float, discount: float) -> Floats:
    """Return the projected distribution, one atom after the other."""
    target, gap = np.zeros(len(support)), support[1] - support[0]
    for z, p in zip(support, probs, strict=True):
        moved = min(max(reward + discount * z, support[0]), support[-1])
        b = (moved - support[0]) / gap
        for j in range(len(support)):
            target[j] += p * max(0.0, 1.0 - abs(b - j))
    return target


def oracle(spec: ModelSpec, state: dict[str, NDArray[Any]], batch: Batch) -> tuple[Floats, Floats]:
    """Return per-transition categorical losses (B,), and auxiliary losses of labelled ones."""
    support = np.linspace(*spec.c51.support, spec.c51.atoms)
    shape = (len(spec.action_set), spec.c51.atoms)
    log_p, aux = forward(state, "online", batch.observation.astype(float), shape)
    following = batch.next_observation.astype(float)
    target_p = np.exp(forward(state, "target", following, shape)[0])
    chooser = np.exp(forward(state, "online", following, shape)[0]) if spec.c51.double else target_p
    losses = []
    for i in range(len(batch.action)):
        best = int(np.argmax(chooser[i] @ support))
        m = project(support, target_p[i, best], float(batch.reward[i]), float(batch.discount[i]))
        losses.append(-float(m @ log_p[i, batch.action[i]]))
    labelled = np.flatnonzero(batch.label >= 0)
    return np.array(losses), np.array([-aux[i, batch.label[i]] for i in labelled])


def random_batch(seed: int, labelled: bool = True) -> Batch:
    """Return a batch with terminations, rewards beyond the support, labels and weights."""
    rng = np.random.default_rng(seed)
    count = 12
    return Batch(
        observation=rng.normal(size=(count, 2)).astype(np.float32),
        action=rng.integers(3, size=count),
        reward=rng.normal(scale=2.0, size=count).astype(np.float32),
        next_observation=rng.normal(size=(count, 2)).astype(np.float32),
        discount=rng.choice([0.0, 0.9, 0.81], size=count).astype(np.float32),
        label=(rng.integers(-1, 2, size=count) if labelled else np.full(count, -1)).astype(
            np.int32
        ),
        weight=rng.uniform(0.1, 1.0, size=count),
    )


def trained(spec: ModelSpec, updates: int = 3) -> C51:
    """Return an algorithm whose online and target networks differ."""
    algorithm = C51(spec, np.random.default_rng(0))
    for seed in range(updates):
        algorithm.update(random_batch(100 + seed))
    return algorithm


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_losses_against_the_oracle(small: Small, double: bool, seed: int) -> None:
    """Loss, priorities and auxiliary loss are those of projection and cross-entropy by hand."""
    spec = small(c51={"double": double, "lr": 0.05})
    algorithm, batch = trained(spec), random_batch(seed)
    losses, auxiliary = oracle(spec, algorithm.state(), batch)
    measured = algorithm.losses(batch)
    update = algorithm.update(batch)

    assert batch.weight is not None
    assert update.finite
    assert update.priority == pytest.approx(losses, rel=1e-5)
    assert update.loss == pytest.approx(float((losses * batch.weight).mean()), rel=1e-5)
    assert update.auxiliary_loss == pytest.approx(float(auxiliary.mean()), rel=1e-5)
    assert measured.categorical == pytest.approx(losses, rel=1e-5)
    assert measured.auxiliary == pytest.approx(auxiliary, rel=1e-5)


def test_double_chooses_with_the_online_network(small: Small) -> None:
    """Double learning differs from single exactly where the two networks choose differently."""
    single, double = (small(c51={"double": d, "lr": 0.05}) for d in (False, True))
    algorithm, batch = trained(single, updates=20), random_batch(5)
    state = algorithm.state()
    one, two = oracle(single, state, batch)[0], oracle(double, state, batch)[0]
    other = C51(double, np.random.default_rng(0))
    other.restore(state)

    assert (np.abs(one - two) > 1e-3).any()
    assert algorithm.losses(batch).categorical == pytest.approx(one, rel=1e-5)
    assert other.losses(batch).categorical == pytest.approx(two, rel=1e-5)


def gradient(algorithm: C51) -> Floats:
    """Return the online network's gradient as one vector."""
    return np.concatenate([p.grad.numpy().ravel() for p in algorithm.online.parameters()])  # type: ignore[union-attr]


@pytest.mark.parametrize("labelled", [True, False])
def test_gradient_against_finite_differences(small: Small, labelled: bool) -> None:
    """The step follows mean(w · CE) + weight · mean(auxiliary CE), unclipped, on every weight."""
    spec = small(c51={"max_grad_norm": 1e6, "lr": 1e-30}, auxiliary={"weight": 0.7})
    algorithm, batch = trained(spec), random_batch(9, labelled)
    state = algorithm.state()
    algorithm.update(batch)
    assert batch.weight is not None

    def total(values: dict[str, NDArray[Any]]) -> float:
        losses, auxiliary = oracle(spec, values, batch)
        extra = 0.7 * float(auxiliary.mean()) if len(auxiliary) else 0.0
        return float((losses * batch.weight).mean()) + extra

    for name, parameter in algorithm.online.named_parameters():
        if parameter.grad is None:
            assert (name.split(".")[0], labelled) == ("auxiliary", False)
            continue
        key = f"online.{name}"
        index = int(np.abs(parameter.grad.numpy()).argmax())
        values = {k: v.astype(np.float64) for k, v in state.items()}
        h = 1e-5
        values[key].ravel()[index] += h
        above = total(values)
        values[key].ravel()[index] -= 2 * h
        slope = (above - total(values)) / (2 * h)
        assert float(parameter.grad.ravel()[index]) == pytest.approx(slope, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("limit", [0.01, 1e6])
def test_gradient_is_clipped_by_its_global_norm(small: Small, limit: float) -> None:
    """The gradient of all weights together is scaled down to the limit, and never up."""
    algorithm = trained(small(c51={"max_grad_norm": limit}))
    update = algorithm.update(random_batch(1))
    norm = float(np.linalg.norm(gradient(algorithm)))

    assert update.grad_norm > 0.05
    assert norm == pytest.approx(min(limit, update.grad_norm), rel=1e-4)


def test_adam_has_the_specified_step_and_epsilon(small: Small) -> None:
    """The first step of Adam is lr · g / (|g| + eps), with the epsilon of the specification."""
    spec = small(c51={"lr": 0.01, "adam_eps": 0.5, "max_grad_norm": 1e6})
    algorithm = C51(spec, np.random.default_rng(0))
    before = algorithm.online.get_weights()
    algorithm.update(random_batch(2))
    for name, parameter in algorithm.online.named_parameters():
        g = parameter.grad.numpy()  # type: ignore[union-attr]
        moved = algorithm.online.get_weights()[name] - before[name]
        assert moved == pytest.approx(-0.01 * g / (np.abs(g) + 0.5), abs=1e-7)


def test_target_moves_only_when_copied(small: Small, step: Step) -> None:
    """The target network is the online one of the last multiple of `target_interval`."""
    learner = Learner(small())  # every five updates
    learner.add([step(t) for t in range(4)])
    seen = []
    for _ in range(12):
        learner.update()
        state = learner.algorithm.state()
        seen.append((state["online.value.bias"].tobytes(), state["target.value.bias"].tobytes()))
    copied = [i for i in range(12) if seen[i][0] == seen[i][1]]

    assert copied == [4, 9]
    assert [seen[i][1] == seen[i - 1][1] for i in range(1, 12)] == [
        i not in (4, 9) for i in range(1, 12)
    ]


def test_copied_target_does_not_follow(small: Small) -> None:
    """A copy is a copy: later steps of the online network do not reach the target."""
    algorithm = trained(small())
    algorithm.copy_target()
    before = algorithm.state()["target.value.weight"].tobytes()
    algorithm.update(random_batch(1))

    assert algorithm.state()["target.value.weight"].tobytes() == before
    assert not any(p.requires_grad for p in algorithm.target.parameters())


def test_state_round_trip(small: Small) -> None:
    """Restored into a fresh object, with optimizer and target, it goes on bit for bit."""
    algorithm = trained(small(), updates=7)
    state = algorithm.state()
    back = C51(small(), np.random.default_rng(99))
    back.restore(state)
    for seed in range(3):
        algorithm.update(random_batch(seed))
        back.update(random_batch(seed))

    assert {k: v.tobytes() for k, v in algorithm.state().items()} == {
        k: v.tobytes() for k, v in back.state().items()
    }
    assert {name.split(".")[0] for name in state} == {"online", "target", "adam"}


def test_state_is_a_copy(small: Small) -> None:
    """A state taken earlier does not change when the algorithm does."""
    algorithm = trained(small())
    state = algorithm.state()
    before = {k: v.tobytes() for k, v in state.items()}
    algorithm.update(random_batch(1))

    assert {k: v.tobytes() for k, v in state.items()} == before


def test_initial_weights(small: Small) -> None:
    """Weights and biases begin uniform in ±1/√inputs, the target equal to the online network."""
    state = C51(small(c51={"hidden": [64, 100]}), np.random.default_rng(0)).state()
    for name, inputs in (("hidden.0", 2), ("hidden.1", 64), ("value", 100), ("auxiliary", 100)):
        weight = state[f"online.{name}.weight"] * np.sqrt(inputs)
        assert 0.97 < np.abs(weight).max() <= 1.0 + 1e-6
        assert abs(float(weight.mean())) < 0.1
        assert np.abs(state[f"online.{name}.bias"]).max() <= 1 / np.sqrt(inputs)
        assert np.array_equal(state[f"target.{name}.weight"], state[f"online.{name}.weight"])


def test_clipped_mass_is_measured_at_each_end(small: Small) -> None:
    """The share of target mass beyond each end of the support is reported."""
    algorithm = C51(small(), np.random.default_rng(0))
    batch = random_batch(0)
    rewards = {"low": (-100.0, (1.0, 0.0)), "high": (100.0, (0.0, 1.0)), "in": (0.0, (0.0, 0.0))}
    for reward, shares in rewards.values():
        changed = Batch(
            **{
                **{name: getattr(batch, name) for name in batch.__slots__},
                "reward": np.full(12, reward, dtype=np.float32),
            }
        )
        update = algorithm.update(changed)
        assert (update.clipped_low, update.clipped_high) == pytest.approx(shares, abs=1e-6)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("n_step", [1, 3])
def test_two_state_problem(n_step: int, double: bool) -> None:
    """Values of a two-state problem are found exactly enough, with both bootstraps in it.

    From s0, action 0 ends with reward 0.2, action 1 leads to s1 for nothing. From s1, action 0 ends
    with reward 1, and action 1 *truncates* back at s1 with reward 0: Q(s1, 1) = γ max Q(s1, ·).
    """
    spec = ModelSpec.from_dict(
        {
            "observation": {"shape": [2], "normalize": False},
            "actions": 2,
            "c51": {
                "atoms": 21,
                "support": [-1, 1],
                "gamma": 0.5,
                "hidden": 32,
                "lr": 3e-3,
                "batch_size": 32,
                "target_interval": 20,
                "n_step": n_step,
                "double": double,
            },
            "pacing": {"learning_starts": 10**6},
        }
    )
    learner = Learner(spec)
    s0, s1 = [1.0, 0.0], [0.0, 1.0]
    episodes = [
        [(s0, 0, 0.2, s0, "terminated")],
        [(s0, 1, 0.0, s1, ""), (s1, 0, 1.0, s0, "terminated")],
        [(s1, 1, 0.0, s1, "truncated")],
    ]
    rows = []
    for i in range(60):
        for t, (obs, action, reward, following, end) in enumerate(episodes[i % 3]):
            rows.append(
                {
                    "actor_id": "a",
                    "episode_id": str(i),
                    "timestep": t,
                    "split": "train",
                    "policy_version": -1,
                    "observation": obs,
                    "action": action,
                    "reward": reward,
                    "next_observation": following,
                    "terminated": end == "terminated",
                    "truncated": end == "truncated",
                }
            )
    learner.add(rows)
    learner.update(600)
    values = learner.snapshot().values(np.array([s0, s1]))

    assert values == pytest.approx(np.array([[0.2, 0.5], [1.0, 0.5]]), abs=0.03)


def test_a_distribution_is_learned_not_its_mean(small: Small, step: Step) -> None:
    """A reward of ±1 at even odds becomes two spikes, where a mean would be nothing at 0."""
    learner = Learner(
        small(c51={"hidden": 32, "batch_size": 32, "lr": 3e-3}, pacing={"learning_starts": 1000})
    )
    rows = [
        step(0, episode_id=str(i), reward=[-1.2, 1.2][i % 2], terminated=True, action=0)
        for i in range(16)
    ]
    learner.add(rows)
    learner.update(400)
    reply = learner.act([[0.0, 1.0]], deterministic=True, distribution=True)
    probs = learner.snapshot().distribution(np.array([[0.0, 1.0]]))[0, 0]

    assert reply.support == pytest.approx(np.linspace(-2, 2, 11).tolist())
    assert probs[[2, 8]] == pytest.approx([0.5, 0.5], abs=0.03)
    assert probs[5] < 0.01
