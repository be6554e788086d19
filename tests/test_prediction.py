"""`predict` on bare environments chooses what acting on specified ones would."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv
from starlette.testclient import TestClient

from jormungandr import Learner, ModelSpec, PolicySnapshot, RemotePolicy
from jormungandr.errors import InvalidType, MissingField, ShapeMismatch
from jormungandr.prediction import Predictor
from jormungandr.weights import layer_shapes
from jormungandr_wrappers import SpecifiedEnv
from tests.service.serving import TOKEN, InMemory, connect, memory
from tests.wrappers.walk import Walk

SEED, STEPS, COUNT = 5, 40, 4
DEPTHS, REPEATS = (1, 2, 3), (1, 2, 3)
ARRAYS = ("vector", "matrix", "image")
#: What is seen, how many frames of it, and how often an action is repeated.
CASES = [(kind, k, n) for kind in ARRAYS for k in DEPTHS for n in REPEATS]
CASES += [(kind, 1, n) for kind in ("discrete", "multi_discrete", "dict") for n in REPEATS]


def arbitrary(kind: str, k: int, n: int, **fields: Any) -> Learner:
    """Return a learner whose policy takes this action here and that one there."""
    spec = ModelSpec.for_env(
        Walk(kind, fields.get("action_masks", False)),
        observation={"frame_stack": k},
        action_repeat=n,
        c51={"hidden": 16, "atoms": 11},
        **fields,
    )
    learner, rng = Learner(spec), np.random.default_rng(2)
    weights = {
        # Of a weight; a large bias would choose for all observations.
        name: rng.normal(0, np.sqrt(6 / np.prod(shape[1:])) * (len(shape) > 1), shape)
        for name, shape in layer_shapes(spec).items()
    }
    weights = {name: array.astype(np.float32) for name, array in weights.items()}
    learner.algorithm.online.set_weights(weights)  # before the first snapshot is taken
    return learner


def taken_by_the_slow(learner: Learner, kind: str, seed: int, masked: bool = False) -> list[int]:
    """Return the actions that one bare environment is given when it is wrapped and acted in."""
    bare = Walk(kind, masked)
    env = SpecifiedEnv(bare, learner.spec)
    observation, info = env.reset(seed=seed)
    while len(bare.taken) < STEPS:
        batch = [observation] if isinstance(observation, dict) else np.asarray(observation)[None]
        masks = {"action_masks": [info["action_mask"]]} if masked else {}
        action = int(learner.act(batch, deterministic=True, **masks).indices[0])
        observation, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            observation, info = env.reset()
    return bare.taken[:STEPS]


def together(shown: list[Any]) -> Any:
    """Return what several environments show as a batch."""
    return shown if isinstance(shown[0], dict) else np.stack(shown)


def taken_by_predict(
    policy: Predictor, kind: str, masked: bool = False, count: int = COUNT
) -> list[list[int]]:
    """Return the actions that bare environments are given when they are played beside each other.

    Those whose episode ends are reset at once, as vector environments do.
    """
    envs = [Walk(kind, masked) for _ in range(count)]
    begun = [env.reset(seed=SEED + i) for i, env in enumerate(envs)]
    # Copied: a walk writes into what it showed before.
    shown, infos = [np.copy(o) if kind in ARRAYS else o for o, _ in begun], [i for _, i in begun]
    state, starts = None, np.ones(count, dtype=bool)
    for _ in range(STEPS):
        masks = np.stack([info["action_mask"] for info in infos]) if masked else None
        actions, state = policy.predict(together(shown), state, starts, True, masks)
        assert (actions.shape, actions.dtype) == ((count,), np.int64)
        for i, env in enumerate(envs):
            observation, _, terminated, truncated, infos[i] = env.step(int(actions[i]))
            starts[i] = terminated or truncated
            if starts[i]:
                observation, infos[i] = env.reset()
            shown[i] = np.copy(observation) if kind in ARRAYS else observation
    return [env.taken for env in envs]


@pytest.mark.parametrize(("kind", "k", "n"), CASES)
def test_predict_on_bare_environments(kind: str, k: int, n: int) -> None:
    """Several at once, whose episodes end at different times, each get the actions of one alone."""
    learner = arbitrary(kind, k, n)
    expected = [taken_by_the_slow(learner, kind, SEED + i) for i in range(COUNT)]

    assert taken_by_predict(learner.snapshot(), kind) == expected
    assert len({action for actions in expected for action in actions}) > 1


@pytest.mark.parametrize(("k", "n"), [(1, 2), (3, 1), (2, 3)])
def test_predict_with_masks(k: int, n: int) -> None:
    """A mask is asked for where an action is chosen, and there it is the one of that moment."""
    learner = arbitrary("vector", k, n, action_masks=True)
    expected = [taken_by_the_slow(learner, "vector", SEED + i, True) for i in range(COUNT)]

    assert taken_by_predict(learner.snapshot(), "vector", masked=True) == expected


@pytest.mark.parametrize(("k", "n"), [(1, 3), (2, 1), (3, 2)])
def test_a_single_environment_without_a_batch(k: int, n: int) -> None:
    """Observations of one environment give actions without an axis, and a state all the same."""
    learner = arbitrary("vector", k, n)
    policy, env, state = learner.snapshot(), Walk(), None
    observation, _ = env.reset(seed=SEED)
    start = True
    while len(env.taken) < STEPS:
        action, state = policy.predict(observation, state, np.array([start]), deterministic=True)
        assert (action.shape, action.dtype) == ((), np.int64)
        observation, _, terminated, truncated, _ = env.step(int(action))
        start = terminated or truncated
        if start:
            observation, _ = env.reset()

    assert env.taken == taken_by_the_slow(learner, "vector", SEED)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """Return an application in memory."""
    with memory(tmp_path_factory.mktemp("service")) as http:
        yield http


@pytest.mark.parametrize(
    ("kind", "k", "n", "seed"),
    # Of the model: one whose first policy takes more than one action.
    [("vector", 3, 2, 0), ("image", 2, 1, 29), ("discrete", 1, 2, 5)],
)
def test_a_remote_policy_predicts_the_same(
    service: TestClient, kind: str, k: int, n: int, seed: int
) -> None:
    """Over HTTP, with the frames kept on this side."""
    spec = arbitrary(kind, k, n, seed=seed).spec
    connect(service, kind).create(spec)
    policy = RemotePolicy(None, kind, TOKEN, transport=InMemory(service))
    learner = Learner(spec)  # a model begins as a learner does
    expected = [taken_by_the_slow(learner, kind, SEED + i) for i in range(2)]

    assert taken_by_predict(policy, kind, count=2) == expected
    assert len({action for actions in expected for action in actions}) > 1


@pytest.mark.parametrize(("k", "n"), [(1, 1), (3, 1), (1, 3), (2, 3)])
def test_evaluate_policy_of_stable_baselines3(k: int, n: int) -> None:
    """On bare environments it finds the returns and lengths of the specified ones."""
    learner = arbitrary("vector", k, n)
    venv = DummyVecEnv([Walk] * 3)
    venv.seed(SEED)
    returns, lengths = evaluate_policy(
        learner.snapshot(), venv, n_eval_episodes=12, return_episode_rewards=True, warn=False
    )

    expected = []
    for i in range(3):
        bare = Walk()
        env = SpecifiedEnv(bare, learner.spec)
        for e in range(4):
            observation, _ = env.reset(seed=SEED + i if e == 0 else None)
            total, over, before = 0.0, False, len(bare.taken)
            while not over:
                action = int(learner.act(observation[None], deterministic=True).indices[0])
                observation, reward, terminated, truncated, _ = env.step(action)
                total, over = total + float(reward), terminated or truncated
            expected.append((total, len(bare.taken) - before))
    assert sorted(zip(returns, lengths, strict=True)) == sorted(expected)


@pytest.mark.parametrize("kind", ARRAYS)
def test_stacks_are_taken_too(kind: str) -> None:
    """What a wrapped environment shows is acted on as it is, and the state is handed through."""
    learner = arbitrary(kind, 2, 3)
    policy = learner.snapshot()
    env = SpecifiedEnv(Walk(kind), learner.spec)
    stack, _ = env.reset(seed=1)
    batch = np.stack([stack, env.step(1)[0], env.step(2)[0]])
    actions, state = policy.predict(batch, "mine", deterministic=True)

    assert actions.tolist() == learner.act(batch, deterministic=True).indices.tolist()
    assert state == "mine"


@pytest.mark.parametrize("n", [1, 2])
def test_the_state_is_not_written_into(n: int) -> None:
    """Neither by the next call nor by a caller who changes the actions that came with it."""
    policy = arbitrary("vector", 3, n).snapshot()
    frames = np.random.default_rng(0).normal(size=(2, 50, 2)).astype(np.float32)
    actions, state = policy.predict(frames[0], None, None, True)
    assert state is not None
    kept = [part.copy() for part in state]
    one, _ = policy.predict(frames[1], state, None, True)
    actions[:] = 99
    other, _ = policy.predict(frames[1], state, None, True)

    assert one.tolist() == other.tolist()
    assert [part.tolist() for part in state] == [part.tolist() for part in kept]


def test_exploration_is_held_for_as_long_as_an_action() -> None:
    """An explored action is repeated too, and each environment explores for itself."""
    spec = ModelSpec.for_env(Walk(), action_repeat=4, exploration={"start": 1.0, "end": 1.0})
    policy = Learner(spec).snapshot()
    x = np.zeros((50, 2), np.float32)
    state, chosen = None, []
    for _ in range(8):
        actions, state = policy.predict(x, state)
        chosen.append(actions.tolist())

    assert chosen[0] == chosen[1] == chosen[2] == chosen[3]
    assert chosen[4] == chosen[5] == chosen[6] == chosen[7] != chosen[0]
    assert set(chosen[0]) == {0, 1, 2}


@pytest.fixture(scope="module")
def policy() -> PolicySnapshot:
    """Return one of two frames and two steps to an action, with masks."""
    return arbitrary("vector", 2, 2, action_masks=True).snapshot()


ONE, MASK = np.zeros(2, np.float32), [1, 1, 0]


@pytest.mark.parametrize(
    ("observation", "masks", "error", "where"),
    [
        (np.zeros((3, 5)), [MASK] * 3, ShapeMismatch, "observation"),
        ([[0.0, 1.0], [0.0]], [MASK] * 2, ShapeMismatch, "observation"),
        ({"x": 1}, [MASK], ShapeMismatch, "observation"),
        ((ONE, {}), [MASK], InvalidType, "observation"),
        (ONE, None, MissingField, "action_masks"),
        (np.stack([ONE, ONE]), MASK * 2, ShapeMismatch, "action_masks"),
        (np.stack([ONE, ONE]), [MASK] * 3, ShapeMismatch, "action_masks"),
        (np.stack([ONE, ONE]), [[1, 1], [1, 1]], ShapeMismatch, "action_masks[0]"),
        (np.stack([ONE, ONE]), [MASK, [1]], ShapeMismatch, "action_masks"),
    ],
)
def test_what_does_not_fit_is_refused(
    policy: PolicySnapshot, observation: Any, masks: Any, error: Any, where: str
) -> None:
    """By the name of the argument."""
    with pytest.raises(error) as caught:
        policy.predict(observation, None, None, True, masks)
    assert (type(caught.value), caught.value.where) == (error, where)


def test_state_and_starts_of_other_environments_are_refused(policy: PolicySnapshot) -> None:
    """A state is for as many environments as it came from."""
    two, three = np.zeros((2, 2), np.float32), np.zeros((3, 2), np.float32)
    _, state = policy.predict(two, None, None, True, [MASK] * 2)
    with pytest.raises(ShapeMismatch, match=r"^state: "):
        policy.predict(three, state, None, True, [MASK] * 3)
    with pytest.raises(ShapeMismatch, match=r"^episode_start: expected \(2,\), got \(3,\)"):
        policy.predict(two, state, np.ones(3), True, [MASK] * 2)
    with pytest.raises(ShapeMismatch, match=r"^episode_start: expected an array"):
        policy.predict(two, state, [[True], [True, False]], True, [MASK] * 2)
    with pytest.raises(InvalidType, match=r"^state: expected what the call before returned"):
        policy.predict(two, "lstm", None, True, [MASK] * 2)
