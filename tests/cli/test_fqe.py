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

from jormungandr import Learner, ModelSpec, PolicySnapshot
from jormungandr.cli import fqe as module
from jormungandr.cli import main
from jormungandr.errors import InvalidValue
from jormungandr.held_steps import HeldOutSteps
from jormungandr.off_policy import check_fits, evaluate_off_policy
from jormungandr.service.journal.database import SkipRow
from jormungandr.service.journal.decisions import ChampionRow, RollbackRow
from tests.cli.journals import Written, written

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
    assert f"policy version 7 ({caller_file}), by held-out steps of m.1, rows 1 to 11\n" in shown
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
        del found[-1]["data"], found[-1]["policy"]
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
    assert "policy version 0 (the checkpoint's), by held-out steps" in shown
    assert "12 episodes, 72 steps, gamma 0.5\n" in shown
    assert "warning: few_episodes: 12" in shown


def test_evaluating_changes_nothing(state: Any, caller: Caller) -> None:
    """Not a bit of the learner."""
    learner = Learner(SPEC)
    learner.add(calls(5))
    before = state(learner)
    learner.off_policy_value(caller())

    assert state(learner) == before


def test_rows_that_were_set_aside_do_not_count(
    tmp_path: Path, caller_file: str, capsys: Capture
) -> None:
    """No learner applied them; it is said how many there are."""
    rows = calls(8)
    with Written(tmp_path, SPEC) as journal:
        for i in range(0, len(rows), 6):
            journal.add(rows[i : i + 6])
        journal.control(SkipRow(3, "it ended the learner"))
    assert fqe(tmp_path, "--policy", caller_file) == 0

    shown = capsys.readouterr().out
    assert "by held-out steps of m.1, rows 1 to 9 without 1 set aside\n" in shown
    assert "7 episodes, 42 steps" in shown


@pytest.mark.parametrize("block", [1, 20, 100_000])
def test_no_more_is_kept_than_was_asked_for(
    block: int, tmp_path: Path, caller_file: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of interleaved episodes, cut anywhere, the newest stay; never more than twice as many."""
    most, joined = [0], HeldOutSteps.joined

    def watched(parts: list[HeldOutSteps]) -> HeldOutSteps:
        most.append(sum(map(len, parts)))
        return joined(parts)

    monkeypatch.setattr(HeldOutSteps, "joined", watched)
    monkeypatch.setattr(module, "BLOCK", block)
    rows = calls(30)
    rows = [row for i in range(0, 180, 12) for n in range(6) for row in rows[i + n : i + 12 : 6]]
    data = written(tmp_path / "data", SPEC, rows, size=5)
    out = tmp_path / "figures.json"
    assert fqe(data, "--policy", caller_file, "--episodes", "4", "--json", str(out)) == 0
    found = json.loads(out.read_bytes())
    whole = Learner(SPEC)
    whole.add(rows[-24:])
    expected = whole.off_policy_value(PolicySnapshot.open(caller_file)).to_dict()

    assert {name: found[name] for name in expected} == expected
    assert "4 episodes, 24 steps" in capsys.readouterr().out
    assert max(most) == 180 if block == 100_000 else max(most) <= 2 * 24 + block + 5


def test_the_default_is_what_the_model_serves(
    tmp_path: Path, caller: Caller, capsys: Capture
) -> None:
    """The champion, also after a rollback; the newest file of a model that serves the latest."""
    for name, serve in (("m.1", "champion"), ("n.1", "latest")):
        spec = {**SPEC, "promotion": {"serve": serve}}
        with Written(tmp_path, spec, name) as journal:
            journal.add(calls(3))
            (journal.folder / "policies").mkdir()
            for version in (5, 6, 7):
                made = replace(caller(), version=version)
                path = journal.folder / "policies" / f"{version:020d}.safetensors"
                path.write_bytes(made.to_bytes())
            if name == "m.1":
                assert fqe(tmp_path, model=("m",)) == 0
                assert "policy version 7 (the newest), by" in capsys.readouterr().out
                row = (6, 6, "", "", None, "service", "the first policy")
                journal.control(ChampionRow(*row))
                assert fqe(tmp_path, model=("m",)) == 0
                assert "policy version 6 (the champion), by" in capsys.readouterr().out
                journal.control(RollbackRow(5, 5, "", "", 6, "operator", ""))
    out = tmp_path / "figures.json"
    assert fqe(tmp_path, "--json", str(out)) == 0
    assert "policy version 5 (the champion), by" in capsys.readouterr().out
    assert json.loads(out.read_bytes())["policy"] == "the champion"
    assert fqe(tmp_path, model=("n",)) == 0
    assert "policy version 7 (the newest), by" in capsys.readouterr().out
    (tmp_path / "models" / "m.1" / "policies" / f"{5:020d}.safetensors").unlink()
    assert fqe(tmp_path) == 1
    assert f"{5:020d}.safetensors" in capsys.readouterr().err


def test_no_policy_yet(tmp_path: Path, capsys: Capture) -> None:
    """Of a model that has not learned it is said that it published none, and what to do."""
    data = written(tmp_path, SPEC, calls(3))
    assert fqe(data) == 1

    error = capsys.readouterr().err
    assert "m.1: expected a policy that was published, got none yet; name one with" in error


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
    # Of a noisy network the probability is that under its noise, which may have been explored with.
    noisy = Learner({**SPEC, "c51": {"gamma": 0.5, "noisy": True}})
    noisy.add(calls(behavior_prob=1.0))
    for policy in (None, caller()):
        of_noisy = noisy.off_policy_value(policy)
        assert of_noisy.unexplored is None
        assert "unexplored" not in "".join(of_noisy.warnings())
    unknown = held(behavior_prob=np.full(240, np.nan, dtype=np.float32))
    assert evaluate_off_policy(caller(), unknown).unexplored is None
    r = report.result
    thin = r._replace(effective_steps=0.05 * r.steps, fitted=r.value.high + 2)
    names = [w.partition(":")[0] for w in replace(report, result=thin).warnings()]
    assert names == ["off_support", "unexplored", "corrected"]
    more = replace(report, result=r._replace(unfinished=1.4)).warnings()
    assert more[1].startswith("outlived: the fit has 140% of its episodes reach the horizon")


def test_a_time_limit_counts_no_more_than_an_end(caller: Caller) -> None:
    """Six right calls are worth six where the environment ends after them, or is cut off."""
    log = calls()
    cut = [{**row, "terminated": False, "truncated": row["terminated"]} for row in log]
    found = []
    for rows in (log, cut):
        learner = Learner(SPEC)
        learner.add(rows)
        found.append(learner.off_policy_value(caller(), gamma=1.0).result)
    ends, limit = found

    assert limit.unfinished == pytest.approx(1.0, abs=0.1)
    assert ends.unfinished < 0.5
    assert ends.value.low <= 6.0 <= ends.value.high
    assert limit.value.estimate == pytest.approx(6.0, abs=0.5)


def test_actions_of_a_noisy_network_are_certain_under_its_noise() -> None:
    """It is why they say nothing of exploration: not greedy ones, each with probability 1."""
    fields = {"exploration": {"start": 0.0, "end": 0.0, "transitions": 1}}
    noisy = Learner({**SPEC, **fields, "c51": {"noisy": True}}).snapshot()
    weights = {n: w + np.float32(n.endswith("_sigma")) for n, w in noisy.weights.items()}
    noisy, rng = replace(noisy, weights=weights), np.random.default_rng(0)
    seen = np.ones((1, 2), dtype=np.float32)
    replies = [noisy.act(seen, rng) for _ in range(50)]

    assert len({reply.actions[0].index for reply in replies}) > 1
    assert {reply.behavior_prob[0] for reply in replies} == {1.0}


def test_a_policy_that_minds_risk_is_evaluated_as_it_acts() -> None:
    """Where the tail decides otherwise than the mean, the steps that agree are the tail's."""

    def gambler(**risk: Any) -> PolicySnapshot:
        spec = {**SPEC, "c51": {"gamma": 0.5, "atoms": 3, "support": [-1, 1]}, "risk": risk}
        made = Learner(spec).snapshot()
        zero = {n: np.zeros_like(w) for n, w in made.weights.items()}
        # Most of the first is 1 and some of it -1; the second is 0, and the third -1.
        probs = np.array([[0.3, 0.1, 0.6], [0.05, 0.9, 0.05], [0.9, 0.05, 0.05]])
        bias = np.log(probs).astype(np.float32).reshape(zero["value.bias"].shape)
        return replace(made, weights={**zero, "value.bias": bias})

    action = np.where(np.arange(240) % 4 == 0, 0, 1)
    steps = held(action=action)
    by_mean, by_tail = gambler(), gambler(kind="cvar", level=0.25)
    for policy, chosen in ((by_mean, 0), (by_tail, 1)):
        acted = policy.act(steps.observation, np.random.default_rng(0), deterministic=True)
        assert {choice.index for choice in acted.actions} == {chosen}
    assert evaluate_off_policy(by_mean, steps).result.agreement == pytest.approx(0.25)
    assert evaluate_off_policy(by_tail, steps).result.agreement == pytest.approx(0.75)


def test_steps_of_other_actions_are_refused(caller: Caller) -> None:
    """Of more than the policy has, or of fewer, which the steps alone do not show."""
    two = Learner({**SPEC, "actions": 2})
    two.add([{**row, "action": row["action"] % 2} for row in calls()])
    with pytest.raises(InvalidValue, match="the 2 actions of the steps, got 3 actions"):
        two.off_policy_value(caller())
    with pytest.raises(InvalidValue, match=r"actions 0\.\.1, as the policy has 2, got action 2"):
        evaluate_off_policy(two.snapshot(), held())
    wide = held(observation=np.zeros((240, 3)), next_observation=np.zeros((240, 3)))
    with pytest.raises(InvalidValue, match=r"observations of shape \(2,\).* got \(3,\)"):
        evaluate_off_policy(caller(), wide)


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


def test_policies_that_see_images_are_refused_with_what_to_do_instead() -> None:
    """The features that Q is fitted in are of vectors."""
    shape = {"type": "box", "shape": [84, 84], "dtype": "uint8"}
    spec = ModelSpec.from_dict({"observation": {"space": shape}, "actions": 3})
    with pytest.raises(InvalidValue, match=r"images; play it with .* let it act in held-out ep"):
        check_fits(spec, spec)


def test_data_that_cannot_be_used_are_refused(
    tmp_path: Path, caller: Caller, caller_file: str, capsys: Capture
) -> None:
    """No data, no model named, none held out, another task, too few episodes."""
    data = written(tmp_path / "data", SPEC, calls(1), size=50)
    trained = written(tmp_path / "trained", SPEC, calls(2, split="train"), size=50)
    empty = written(tmp_path / "empty", SPEC, [], size=50)
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
        (empty, ("m",), "expected held-out transitions, got none"),
        (other, ("m",), "policy: expected the 2 actions of the steps, got 3 actions"),
        (checkpoint, ("m",), "MODEL: expected none, for a checkpoint"),
        (checkpoint, (), "expected at least 2 episodes with first steps, got 0"),
    ):
        assert fqe(place, "--policy", caller_file, model=model) == 1
        assert message in capsys.readouterr().err
    for fields, message in (
        ({"actions": [{"label": x, "value": x} for x in "abc"]}, "the actions of the steps"),
        ({"action_repeat": 2}, "the action_repeat of the steps, 1"),
        ({"action_masks": True}, "are not stored, got masks; play it with `jormungandr evaluate"),
    ):
        wrong = tmp_path / "wrong.safetensors"
        snapshot = caller(**fields)
        wrong.write_bytes(snapshot.to_bytes())
        assert fqe(data, "--policy", str(wrong)) == 1
        assert message in capsys.readouterr().err
