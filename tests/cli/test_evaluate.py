"""``jormungandr evaluate``: what it prints and writes, for one contender and for two."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jormungandr import Learner, PolicySnapshot
from jormungandr.cli import main
from jormungandr.cli.comparison import print_table
from jormungandr.cli.contenders import ReferenceContender
from jormungandr.cli.matches import Played, Result, summarize
from jormungandr.numerics.statistics import (
    iqm_bootstrap,
    paired_bootstrap,
    probability_of_improvement,
)
from tests.service.serving import SPEC

Capture = pytest.CaptureFixture[str]

NUMBER = r"-?\d+\.\d+"
INTERVAL = rf"\[{NUMBER}, {NUMBER}\]"


def lines(capsys: Capture, *arguments: str) -> list[str]:
    """Run the command and return what it printed."""
    assert main(["evaluate", *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out.splitlines()


def test_a_good_policy_against_random(capsys: Capture, balancer: str) -> None:
    """Both get a line, what they are, and the pair its figures: the good one wins every time."""
    printed = lines(
        capsys, "CartPole-v1", "--policy", balancer, "--against", "random", "--episodes", "10"
    )

    assert printed[0] == "CartPole-v1, 10 episodes, seeds from 1000000000"
    heads = r"  mean   95 %   IQM   95 %   median   lowest   highest   steps"
    assert re.fullmatch(heads.replace("   ", r"\s+").replace("  mean", r"\s+mean"), printed[1])
    row = rf"\s+{NUMBER}\s+{INTERVAL}\s+{NUMBER}\s+{INTERVAL}(\s+{NUMBER}){{4}}"
    assert re.fullmatch(f"  A{row}", printed[2])
    assert re.fullmatch(f"  B{row}", printed[3])
    assert printed[4] == f"  A: {balancer} (policy version 7, after 7 updates)"
    assert printed[5] == "  B: random (uniformly random actions)"
    assert printed[6] == "A minus B, paired by seed, with 95 % intervals:"
    signed = r"\+\d+\.\d+"
    for name, line in zip(("mean difference", "IQM of differences"), printed[7:9], strict=True):
        assert re.fullmatch(rf"  {name}\s+{signed}   \[{signed}, {signed}\]", line)
    assert re.fullmatch(
        r"  P\(A > B\)\s+1\.000   \[0\.722, 1\.000\]   10 won, 0 tied, 0 lost", printed[9]
    )
    assert len(printed) == 10


def test_one_contender_alone(capsys: Capture, balancer: str) -> None:
    """Without another there is a table of one line, and no pair."""
    printed = lines(capsys, "CartPole-v1", "--policy", balancer, "--episodes", "3")

    assert [line[:4] for line in printed] == ["Cart", "    ", "  A ", "  A:"]


def test_what_is_written_is_what_the_statistics_say(
    capsys: Capture, tmp_path: Path, balancer: str
) -> None:
    """The file has every episode, and its figures are those of the episodes."""
    path = tmp_path / "report.json"
    compare = ["--policy", "random", "--against", balancer, "--episodes", "9", "--seed", "5"]
    lines(capsys, "CartPole-v1", *compare, "--max-steps", "60", "--json", str(path))
    report = json.loads(path.read_text())

    head = {key: report[key] for key in ("environment", "episodes", "seed", "max_steps")}
    assert list(head.values()) == ["CartPole-v1", 9, 5, 60]
    a, b = (np.array(report["contenders"][letter]["returns"]) for letter in "AB")
    for letter, returns in (("A", a), ("B", b)):
        found = report["contenders"][letter]
        assert found["lengths"] == returns.tolist()  # one point a step
        assert found["cut"] == (returns == 60).tolist()
        assert tuple(found["mean"].values()) == paired_bootstrap(returns, seed=5)
        assert tuple(found["iqm"].values()) == iqm_bootstrap(returns, seed=5)
        assert (found["lowest"], found["highest"]) == (returns.min(), returns.max())
        assert (found["median"], found["length"]) == (np.median(returns), returns.mean())
    assert (report["contenders"]["A"]["policy"], report["contenders"]["B"]["policy"]) == (
        "random",
        balancer,
    )
    assert list(report["paired"]["mean"]) == ["estimate", "low", "high"]
    assert tuple(report["paired"]["mean"].values()) == paired_bootstrap(a - b, seed=5)
    assert tuple(report["paired"]["iqm"].values()) == iqm_bootstrap(a - b, seed=5)
    better = probability_of_improvement(a - b)
    found = report["paired"]["improvement"]
    assert tuple(found.pop("probability").values()) == better.probability
    assert found == {"wins": better.wins, "ties": better.ties, "losses": better.losses}

    lines(capsys, "CartPole-v1", *compare[:2], "--episodes", "2", "--json", str(path))
    report = json.loads(path.read_text())
    assert (list(report["contenders"]), report["paired"]) == (["A"], None)


def test_equal_contenders_print_no_difference(capsys: Capture, balancer: str) -> None:
    """A contender against itself: zero with an interval of no width, and ties alone."""
    printed = lines(
        capsys, "CartPole-v1", "--policy", balancer, "--against", balancer, "--episodes", "4"
    )

    assert [" ".join(line.split()) for line in printed[-3:]] == [
        "mean difference +0.000 [+0.000, +0.000]",
        "IQM of differences +0.000 [+0.000, +0.000]",
        "P(A > B) 0.500 [0.150, 0.850] 0 won, 4 tied, 0 lost",
    ]


def test_episodes_that_were_cut_are_named(capsys: Capture) -> None:
    """An environment without an end is played to the limit, and that is said."""
    arguments = ["--policy", "random", "--episodes", "3", "--max-steps", "1234"]
    printed = lines(capsys, "EndlessCoins-v0", *arguments)

    assert printed[-1] == "     3 of its 3 episodes truncated after 1,234 steps (--max-steps)"
    assert printed[2].endswith(" 1234.0")


def test_the_digits_suit_the_returns(capsys: Capture) -> None:
    """Four digits of the largest return are shown, be it large or small."""
    for scale, shown in ((0.002, "0.002000"), (1.0, "1.000"), (500.0, "500.0"), (3e7, "30000000")):
        played = Played(np.full(3, scale), np.ones(3, np.int64), np.zeros(3, np.bool_))
        contender = ReferenceContender("reference", lambda _: 0)
        print_table("title", {"A": Result(contender, played, summarize(played, 0))}, 9)
        row = capsys.readouterr().out.splitlines()[2].split()
        assert row[1:4] == [shown, f"[{shown},", f"{shown}]"]


def test_a_checkpoint_on_ou_spread(capsys: Capture, tmp_path: Path) -> None:
    """There the probe, the reference and the optimum come along, on held-out paths as before."""
    Learner({**SPEC, "observation": {"shape": [4]}}).save(tmp_path / "m")
    arguments = ["--policy", str(tmp_path / "m"), "--against", "reference", "--episodes", "50"]
    text = "\n".join(lines(capsys, "OUSpread-v0", *arguments))

    assert text.startswith("OUSpread-v0, 50 episodes, seeds from 1000000000\n")
    assert "\n  B: reference (the environment's own reference policy)\n" in text
    assert "\nprobe at (z, 0, flat, full time):\n" in text
    assert "\n50 held-out paths of OUSpread-v0 (seed 1000000000), return per episode:\n" in text
    assert re.search(r"\n  gap closed +-?\d+\.\d{3} +\[-?\d+\.\d{3}, -?\d+\.\d{3}\]$", text)


def test_the_reference_on_ou_spread(capsys: Capture) -> None:
    """It closes nothing of its gap, and says what it expects of nothing."""
    text = "\n".join(lines(capsys, "OUSpread-v0", "--policy", "reference", "--episodes", "99"))

    assert "probe" not in text
    assert re.search(r"\n  gap closed +0\.000 +\[0\.000, 0\.000\]$", text)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("Nothing-v0 --policy random", "Nothing"),
        ("no_such_package:Env-v0 --policy random", "no_such_package"),
        ("Pendulum-v1 --policy random", "action_space: expected a Discrete"),
        ("CartPole-v1 --policy nowhere", "--policy: expected a policy's file, checkpoint"),
        ("CartPole-v1 --policy random --against nowhere", "--against: expected a policy's file"),
        ("CartPole-v1 --policy reference", "--policy: expected an environment with a method ref"),
        ("CartPole-v1 --policy README.md", "README.md: policy: expected safetensors of a policy"),
        ("CartPole-v1 --policy http://[::1/v1/models/m", "--policy: expected an address"),
        ("CartPole-v1 --policy FILE --json docs", "--json: expected a file in a folder"),
        ("CartPole-v1 --policy FILE --json /proc/x.json", "--json: expected a file that can be"),
        ("CartPole-v1 --policy FILE --gif /proc/x.gif", "--gif: expected a file that can be"),
        ("Acrobot-v1 --policy FILE", "--policy: expected 6 features and 3 actions, as Acrobot-v1"),
        ("Acrobot-v1 --policy random --against FILE", "--against: expected 6 features and 3 act"),
        ("OUSpread-v0 --policy FILE", "--policy: expected 4 features and 3 actions, as OUSpread"),
        ("CartPole-v1 --policy FILE --episodes 1", "--episodes: expected >= 2"),
        ("CartPole-v1 --policy FILE --episodes 0", "--episodes: expected >= 2"),
        ("CartPole-v1 --policy FILE --seed -1", "--seed: expected >= 0"),
        ("CartPole-v1 --policy FILE --max-steps 0", "--max-steps: expected >= 1"),
        ("CartPole-v1 --policy FILE --json no/report.json", "--json: expected a file in a folder"),
        ("CartPole-v1 --policy http://127.0.0.1:1", "--policy: expected http://HOST:PORT/v1/mod"),
        ("BrokenCoins-v0 --policy random", "return of the episode with seed 1000000000: expec"),
    ],
)
def test_error(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, balancer: str, arguments: str, text: str
) -> None:
    """What cannot be done is said in one line, with status 1 and nothing printed before."""
    monkeypatch.chdir(Path(__file__).parents[2])
    given = ["evaluate", *arguments.replace("FILE", balancer).split()]

    assert main(given) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("jormungandr evaluate: ")
    assert text in captured.err


def test_no_policy_at_all(capsys: Capture) -> None:
    """An empty name is not the folder one stands in."""
    assert main(["evaluate", "CartPole-v1", "--policy", ""]) == 1
    assert "--policy: expected a policy's file, checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--policy", "random"],
        ["CartPole-v1"],
        ["runs/cartpole", "--env", "CartPole-v1"],
        ["CartPole-v1", "--policy", "random", "--episodes", "many"],
    ],
)
def test_bad_arguments(capsys: Capture, arguments: list[str]) -> None:
    """What does not parse ends with status 2 and the usage; so does the form of old."""
    with pytest.raises(SystemExit) as end:
        main(["evaluate", *arguments])

    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("usage: jormungandr evaluate")


def test_help_says_what_a_policy_can_be(capsys: Capture) -> None:
    """Every kind of contender is in the help, and that a .zip runs code."""
    with pytest.raises(SystemExit):
        main(["evaluate", "--help"])
    text = capsys.readouterr().out

    for kind in ("PATH", "http://HOST:PORT/v1/models/ID", "dqn:FILE.zip", "random", "reference"):
        assert f"\n  {kind} " in text
    assert "Loading one runs code in it" in text


def test_seeds_count_on(
    capsys: Capture, tmp_path: Path, caller: Callable[..., PolicySnapshot]
) -> None:
    """The episodes from seed S + 1 on are those of an evaluation that begins there."""
    reports = []
    for seed, episodes in (("4", "5"), ("5", "4")):
        path = tmp_path / f"{seed}.json"
        arguments = ["--policy", "random", "--seed", seed, "--episodes", episodes]
        lines(capsys, "JudgedCoins-v0", *arguments, "--against", "reference", "--json", str(path))
        reports.append(json.loads(path.read_text())["contenders"])

    assert reports[0]["B"]["returns"][1:] == reports[1]["B"]["returns"] == [6.0] * 4
