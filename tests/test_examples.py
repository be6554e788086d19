"""The examples run from a checkout, quickly, without a warning, and learn something."""

import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def output(forks):
    """``output(name, *arguments)``: run an example as a user would, and return what it printed."""

    def run(name, *arguments):
        done = forks.script(EXAMPLES / name, *arguments)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout

    return run


@pytest.mark.parametrize(("name", "limit"), [("in_process.py", 60), ("own_loop.py", 40)])
def test_examples_stay_short(name, limit):
    """What is shown as small is small."""
    assert len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) <= limit


def test_in_process_beats_the_reference(output):
    """The preset makes its 344 updates, and the learned policy is better on unseen paths."""
    printed = output("in_process.py", "--seed", "0")
    assert "training transitions 1344, updates 344\n" in printed
    low = re.search(r"policy - reference .*\[([+-][\d.]+),", printed)
    assert low is not None
    assert float(low[1]) > 0


def test_own_loop_learns_to_heat(output):
    """Held-out days end far better than at random, which comes to -12 a day."""
    days = [float(x) for x in re.findall(r"25 more days: (\S+) a day", output("own_loop.py"))]
    assert len(days) == 3
    assert days[2] > -8.0


def test_compare_sb3_prints_its_table(output):
    """Every contestant gets a row, the two yardsticks theirs."""
    pytest.importorskip("stable_baselines3")
    printed = output(
        "compare_sb3.py", "--transitions", "96", "--seeds", "1", "--episodes", "300"
    ).splitlines()
    assert printed[0] == "96 training transitions, 1 seeds, 300 paths"
    names = ["C51 ", "C51, labels", "SB3 DQN", "SB3 PPO", "reference", "optimum"]
    assert [line.startswith(name) for line, name in zip(printed[2:], names, strict=True)] == (
        [True] * 6
    )
    for row in printed[2:6]:
        assert re.search(r"[+-]\d+\.\d{3} +-?\d+% \[ *-?\d+%, *-?\d+%\] +\d+\.\d s  -?\d+%$", row)
