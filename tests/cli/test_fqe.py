"""``jormungandr fqe``: a policy's value from held-out steps, of a journal or of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from jormungandr import Learner, PolicySnapshot
from jormungandr.cli import main
from jormungandr.off_policy import HeldOutSteps, evaluate_off_policy
from tests.cli.journals import written

Capture = pytest.CaptureFixture[str]
Caller = Callable[..., PolicySnapshot]

SPEC: dict[str, Any] = {
    "observation": {"shape": [2]},
    "actions": 3,
    "c51": {"gamma": 0.5},
    "pacing": {"learning_starts": 1_000_000},
}


def calls(episodes: int = 40, split: str = "validation", **fields: Any) -> list[dict[str, Any]]:
    """Return episodes of the game of coins in which the calls are random; two thirds go wrong."""
    env = gymnasium.make("Coins-v0")
    rng, rows = np.random.default_rng(0), []
    for episode in range(episodes):
        seen, _ = env.reset(seed=episode)
        for timestep in range(6):
            action = int(rng.integers(3))
            following, reward, terminated, _, _ = env.step(action)
            row = {
                "actor_id": "a",
                "episode_id": f"{split}{episode}",
                "timestep": timestep,
                "split": split,
                "policy_version": 0,
                "observation": seen.tolist(),
                "action": action,
                "reward": float(reward),
                "next_observation": following.tolist(),
                "terminated": terminated,
                "truncated": False,
                "behavior_prob": 1 / 3,
            }
            rows.append({**row, **fields})
            seen = following
    env.close()
    return rows


@pytest.fixture
def caller_file(tmp_path: Path, caller: Caller) -> str:
    """Return the path of a policy that makes every call right."""
    path = tmp_path / "caller.safetensors"
    path.write_bytes(caller().to_bytes())
    return str(path)


def fqe(data: Path, *arguments: str, model: tuple[str, ...] = ("m",)) -> int:
    """Run the command."""
    return main(["fqe", str(data), *model, *arguments])


def test_value_of_a_policy_that_nobody_followed(
    tmp_path: Path, caller_file: str, capsys: Capture
) -> None:
    """Six right calls are worth six, though the log has two; training transitions do not count."""
    lies = calls(split="train", reward=100.0)
    data = written(tmp_path / "data", SPEC, [*lies, *calls()], size=50)
    out = tmp_path / "figures.json"
    assert fqe(data, "--policy", caller_file, "--gamma", "1", "--json", str(out)) == 0
    figures = json.loads(out.read_bytes())
    low, high = figures["interval_95"]

    assert low <= 6.0 <= high
    assert high - low < 1.5
    assert figures["value"] == pytest.approx(6.0, abs=0.5)
    assert (figures["episodes"], figures["steps"], figures["horizon"]) == (40, 240, 6)
    assert figures["agreement"] == pytest.approx(1 / 3, abs=0.1)
    assert figures["unexplored"] == 0.0
    shown = capsys.readouterr().out
    assert "policy version 7, by held-out steps of m.1, rows 1 to 11" in shown
    assert "40 episodes, 240 steps, gamma 1, at most 6 steps an episode" in shown


def test_checkpoint_journal_and_learner_say_the_same(tmp_path: Path, caller: Caller) -> None:
    """The same held-out steps, from wherever they are read."""
    learner = Learner(SPEC)
    learner.add(calls())
    learner.save(tmp_path / "checkpoint")
    data = written(tmp_path / "data", SPEC, calls(), size=7)
    policy = tmp_path / "caller.safetensors"
    policy.write_bytes(caller().to_bytes())
    found = []
    for place, model in ((tmp_path / "checkpoint", ()), (data, ("m",))):
        out = tmp_path / "figures.json"
        assert fqe(place, "--policy", str(policy), "--json", str(out), model=model) == 0
        found.append(json.loads(out.read_bytes()))
        del found[-1]["data"]
    here = learner.off_policy_value(caller()).to_dict()

    assert found == [here, here]


def test_ring_that_has_turned_keeps_whole_episodes_only(caller: Caller) -> None:
    """Of the oldest episode in it only the end is left, which has no first state."""
    learner = Learner({**SPEC, "validation": {"capacity": 40}})
    learner.add(calls(20))
    newest = Learner(SPEC)
    newest.add(calls(20)[-36:])

    assert learner.off_policy_value(caller()) == newest.off_policy_value(caller())
    assert learner.off_policy_value(caller()).result.episodes == 6


def test_newest_episodes_and_the_default_policy(tmp_path: Path, capsys: Capture) -> None:
    """A checkpoint brings the policy that is evaluated, and as many episodes as asked for."""
    learner = Learner(SPEC)
    learner.add(calls())
    learner.save(tmp_path / "checkpoint")
    assert fqe(tmp_path / "checkpoint", "--episodes", "12", model=()) == 0

    shown = capsys.readouterr().out
    assert "policy version 0, by held-out steps" in shown
    assert "12 episodes, 72 steps, gamma 0.5\n" in shown
    assert "warning: few_episodes: 12" in shown


def test_evaluating_changes_nothing(state: Any, caller: Caller) -> None:
    """Not a bit of the learner."""
    learner = Learner(SPEC)
    learner.add(calls(5))
    before = state(learner)
    learner.off_policy_value(caller())

    assert state(learner) == before


def held(**fields: Any) -> HeldOutSteps:
    """Return random calls as steps, some of their arrays replaced."""
    learner = Learner(SPEC)
    learner.add(calls())
    arrays = learner.validation.in_order()
    return HeldOutSteps.of_arrays({**arrays, **fields})


def test_the_newest_episodes_are_the_last_that_began() -> None:
    """Whole, in their order; with fewer there are, all."""
    steps = held()

    assert steps.newest(3).episode.tolist() == steps.episode[-18:].tolist()
    assert len(steps.newest(1_000)) == len(steps) == 240


def test_what_makes_an_estimate_doubtful_is_said(caller: Caller) -> None:
    """Actors that left nothing to chance, and a log that goes elsewhere."""
    certain = held(behavior_prob=np.ones(240, dtype=np.float32))
    report = evaluate_off_policy(caller(), certain)
    assert report.unexplored == pytest.approx(1 - report.result.agreement)
    assert [w.partition(":")[0] for w in report.warnings()] == ["unexplored"]
    unknown = held(behavior_prob=np.full(240, np.nan, dtype=np.float32))
    assert evaluate_off_policy(caller(), unknown).unexplored is None
    r = report.result
    thin = r._replace(effective_steps=0.05 * r.steps, fitted=r.value.high + 2)
    names = [w.partition(":")[0] for w in replace(report, result=thin).warnings()]
    assert names == ["off_support", "unexplored", "corrected"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--episodes", "1"], "--episodes: expected >= 2"),
        (["--seed", "-1"], "--seed: expected >= 0"),
        (["--gamma", "1.5"], "gamma: expected 0..1"),
        (["--horizon", "0"], "horizon: expected >= 1"),
        (["--policy", "nowhere"], "nowhere"),
        (["--json", "nowhere/x.json"], "--json: expected a file that can be written"),
    ],
)
def test_bad_arguments_are_refused(
    tmp_path: Path, caller_file: str, arguments: list[str], message: str, capsys: Capture
) -> None:
    """Before or after reading, with what was expected."""
    data = written(tmp_path / "data", SPEC, calls(3), size=50)
    assert fqe(data, "--policy", caller_file, *arguments) == 1
    assert message in capsys.readouterr().err


def test_data_that_cannot_be_used_are_refused(
    tmp_path: Path, caller: Caller, caller_file: str, capsys: Capture
) -> None:
    """No data, no model named, none held out, another task, too few episodes."""
    data = written(tmp_path / "data", SPEC, calls(1), size=50)
    trained = written(tmp_path / "trained", SPEC, calls(2, split="train"), size=50)
    other = written(tmp_path / "other", {**SPEC, "actions": 2}, [], size=50)
    checkpoint = tmp_path / "checkpoint"
    learner = Learner(SPEC)
    learner.save(checkpoint)
    for place, model, message in (
        (tmp_path, ("m",), "expected a data directory of a service, or a checkpoint"),
        (data, (), "MODEL: expected one of ['m']"),
        (data, ("n",), "MODEL: expected one of ['m']"),
        (data, ("m",), "expected at least 2 episodes with first steps, got 1"),
        (trained, ("m",), "expected held-out transitions, got none"),
        (other, ("m",), "expected held-out transitions, got none"),
        (checkpoint, ("m",), "MODEL: expected none, for a checkpoint"),
        (checkpoint, (), "expected at least 2 episodes with first steps, got 0"),
    ):
        assert fqe(place, "--policy", caller_file, model=model) == 1
        assert message in capsys.readouterr().err
    for fields, message in (
        ({"actions": [{"label": x, "value": x} for x in "abc"]}, "the actions of the steps"),
        ({"action_repeat": 2}, "the action_repeat of the steps, 1"),
        ({"action_masks": True}, "a model without action masks"),
    ):
        wrong = tmp_path / "wrong.safetensors"
        snapshot = caller(**fields)
        wrong.write_bytes(snapshot.to_bytes())
        assert fqe(data, "--policy", str(wrong)) == 1
        assert message in capsys.readouterr().err
