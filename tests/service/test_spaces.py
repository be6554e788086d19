"""Every kind of observation, all the way: HTTP, journal, policy, export, Stable-Baselines3."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from jormungandr import Learner, ModelSpec, PolicySnapshot, RemotePolicy
from jormungandr.columns import columns
from jormungandr.encoding import observations
from jormungandr.errors import InvalidInput
from jormungandr.learner.core import Core
from jormungandr.sb3 import C51Policy
from jormungandr.service.journal.reader import JournalReader
from jormungandr.wire import decode_object, encode_transitions
from tests.service.serving import TOKEN, InMemory

SPACES: dict[str, spaces.Space[Any]] = {
    "box": spaces.Box(-5, 5, (3,), np.float32),
    "box of two axes": spaces.Box(-5, 5, (2, 3), np.float64),
    "discrete": spaces.Discrete(4, start=2),
    "bits": spaces.MultiBinary(3),
    "multi-discrete": spaces.MultiDiscrete([2, 3]),
    "dict": spaces.Dict(
        {"x": spaces.Box(-5, 5, (2,)), "n": spaces.Discrete(3), "b": spaces.MultiBinary(2)}
    ),
    "image": spaces.Box(0, 255, (36, 40, 3), np.uint8),
    "stack": spaces.Box(-5, 5, (3,), np.float32),
    "stack of images": spaces.Box(0, 255, (36, 36), np.uint8),
}
FIELDS: dict[str, Any] = {
    "action_masks": True,
    "c51": {"hidden": [8], "atoms": 11, "batch_size": 4},
    "replay": {"capacity": 64},
    "pacing": {"learning_starts": 6, "updates_per_transition": 0.5},
}


class Shows(gym.Env[Any, Any]):
    """An environment of which only the spaces matter."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = space, spaces.Discrete(3)


@pytest.fixture(scope="module")
def opened(open_app: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An application that the tests of this module share."""
    with open_app(tmp_path_factory.mktemp("data")) as app:
        yield app


def played(name: str, count: int) -> tuple[ModelSpec, list[Any], list[dict[str, Any]]]:
    """Return a specification, observations as the environment shows them, and transitions."""
    space, frames = SPACES[name], 2 if name.startswith("stack") else 1
    spec = ModelSpec.for_env(Shows(space), observation={"frame_stack": frames}, **FIELDS)
    space.seed(0)
    rng = np.random.default_rng(0)
    shown: list[Any] = [
        np.stack([space.sample() for _ in range(frames)]) if frames > 1 else space.sample()
        for _ in range(count + 1)
    ]
    rows = []
    for t in range(count):
        mask = rng.random(3) < 0.5
        mask[rng.integers(3)] = True
        rows.append(
            {
                "actor_id": "a",
                "episode_id": "e",
                "timestep": t,
                "split": "train",
                "policy_version": 0,
                "observation": shown[t],
                "action": int(rng.integers(3)),
                "reward": float(rng.normal()),
                "next_observation": shown[t + 1],
                "terminated": False,
                "truncated": False,
                "next_action_mask": mask,
            }
        )
    return spec, shown, rows


@pytest.mark.parametrize("name", SPACES)
def test_all_the_way(name: str, opened: Any, tmp_path: Path) -> None:
    """What is sent is journaled as it is learned from, and the policy acts the same everywhere."""
    spec, shown, rows = played(name, 20)
    model_id = name.replace(" ", "-")
    endpoint = opened.connect(model_id)
    endpoint.create(spec)
    for at in range(0, 20, 5):
        endpoint.add(rows[at : at + 5])
    learner = Learner(spec)
    learner.add(rows)
    assert learner.update_count == 7

    # The rows of the journal make the same learner.
    reader = JournalReader(opened.path / "models" / f"{model_id}.1" / "journal.db")
    again = Core(reader.created().spec)
    for row in reader.rows(0):
        again.apply(row)
    reader.close()
    assert again.snapshot().digest() == learner.snapshot().digest()

    # The service acts as the learner does, among the allowed actions.
    opened.publish(model_id, learner)
    masks = [[True, False, True]] * 10 + [[False, True, True]] * 10
    here = learner.act(shown[:20], True, action_masks=masks, distribution=True)
    there = endpoint.act(shown[:20], True, action_masks=masks, distribution=True)
    assert there.indices.tolist() == here.indices.tolist()
    assert np.array(there.expected_values) == pytest.approx(np.array(here.expected_values))
    one = endpoint.act(shown[0], True, action_masks=masks[0])
    assert one.indices.tolist() == here.indices[:1].tolist()
    with pytest.raises(InvalidInput, match="action_masks"):
        endpoint.act(shown[:2], True)
    for placement in ("remote", "local"):
        policy = RemotePolicy(
            None, model_id, TOKEN, placement, transport=InMemory(opened.http), poll=0.1
        )
        assert policy.spec == spec
        if spec.observation.frame_stack == 1:
            index, _ = policy.predict(shown[0], deterministic=True, action_masks=masks[0])
            assert (index.shape, int(index)) == ((), int(here.indices[0]))
        policy.close()

    # So does an actor with its policy.
    placed = opened.connect(model_id, placement="local", poll=0.1)
    mine = placed.act(shown[:20], True, action_masks=masks, distribution=True)
    placed.close()
    assert mine.indices.tolist() == here.indices.tolist()
    assert np.array(mine.expected_values) == pytest.approx(
        np.array(there.expected_values), abs=1e-5
    )

    # A bundle is that policy, for us, for Stable-Baselines3, and for torch alone.
    endpoint.export(tmp_path / "bundle", format="bundle")
    bundle = PolicySnapshot.open(tmp_path / "bundle")
    assert bundle.digest() == learner.snapshot().digest()
    x = observations(shown[:20], spec)
    mask = np.array(masks)
    assert bundle.greedy(x, mask).tolist() == here.indices.tolist()
    sb3 = C51Policy.from_bundle(tmp_path / "bundle")
    batch: Any = shown[:20]
    if isinstance(SPACES[name], spaces.Dict):
        batch = {key: np.stack([row[key] for row in batch]) for key in batch[0]}
    else:
        batch = np.stack(batch) if np.ndim(batch[0]) else np.array(batch)
    chosen, _ = sb3.predict(batch, deterministic=True, action_masks=mask)
    assert chosen.tolist() == here.indices.tolist()
    learner.export(tmp_path / "script", format="torchscript")
    (file,) = (tmp_path / "script").glob("*.ts")
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        module = torch.jit.load(str(file))
    with torch.no_grad():
        found = module(torch.from_numpy(x), torch.from_numpy(mask))
    assert found[0].tolist() == here.indices.tolist()
    assert found[1].numpy() == pytest.approx(np.array(here.expected_values), abs=1e-5)


@pytest.mark.parametrize("name", SPACES)
def test_columns_travel(name: str) -> None:
    """A batch that was read back is sent as rows, bit for bit, masks and pixels too."""
    spec, _, rows = played(name, 4)
    held = columns(rows, spec)
    back = columns(decode_object(encode_transitions(held))["transitions"], spec)

    assert back.digests().tolist() == held.digests().tolist()
    assert back.next_action_mask.tolist() == [row["next_action_mask"].tolist() for row in rows]
    assert back.observation.dtype == spec.observation.stored_dtype


def test_limits_count_observations(opened: Any, learner_of: Callable[[str], Learner]) -> None:
    """The limit is on observations, whatever they look like."""
    for name in ("discrete", "dict"):
        spec, shown, _ = played(name, 1)
        endpoint = opened.connect(f"limit-{name}")
        endpoint.create(spec)
        opened.publish(f"limit-{name}", learner_of(name))
        many = [shown[0]] * 4097
        response = opened.request(
            "POST",
            f"/v1/models/limit-{name}/inference",
            {"observations": _plain(many), "action_masks": [[True] * 3] * 4097},
        )
        assert response.status_code == 413, response.text
        assert response.json()["error"]["where"] == "observations"


@pytest.fixture(scope="module")
def learner_of() -> Callable[[str], Learner]:
    """Return a new learner for a kind of observation."""
    return lambda name: Learner(played(name, 1)[0])


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
