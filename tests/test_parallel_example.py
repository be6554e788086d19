"""examples/parallel_market.py runs as it is shown, in this process and beside a service."""

import re
from pathlib import Path

import pytest

from tests.service.serving import Server

EXAMPLE = Path(__file__).parent.parent / "examples" / "parallel_market.py"


@pytest.fixture
def output(forks):
    """``output(*arguments, **variables)``: run the example as a user would; its lines."""

    def run(*arguments, **variables):
        done = forks.script(EXAMPLE, *arguments, **variables)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout.splitlines()

    return run


def test_it_stays_short():
    """What is shown as small is small."""
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= 60


def test_three_traders_teach_one_model_in_process(output):
    """One update per step of the market, and the shared policy is better on unseen paths."""
    printed = output()
    assert printed[0] == "4032 transitions of 3 traders, 1010 updates"
    low = re.fullmatch(r"policy - reference .*\[([+-][\d.]+), [+-][\d.]+\]", printed[1])
    assert low is not None
    assert float(low[1]) > 0
    assert re.fullmatch(r"gap closed -?\d+% \[-?\d+%, -?\d+%\] \(95 %\)", printed[2])


def test_three_traders_teach_one_model_of_a_service(tmp_path, output):
    """With JORMUNGANDR_URL the loop feeds a service, and a second run goes on with its model."""
    with Server(tmp_path) as server, server.connect("market") as client:
        access = {"JORMUNGANDR_URL": server.url, "JORMUNGANDR_TOKEN": server.token}
        first = output("--paths", "7", "--episodes", "5", **access)
        second = output("--paths", "1", "--episodes", "5", **access)
        info = client.info()
    assert first[0] == "1008 transitions of 3 traders, 2 updates"
    assert second[0] == "144 transitions of 3 traders, 50 updates"
    assert info["transitions"]["train"] == 1152
