"""``jormungandr train --service``: waited for, a service learns what a learner in process does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jormungandr import PolicySnapshot
from jormungandr.cli import main
from jormungandr.cli.train_stage import Lockstep
from tests.service.serving import Server

Capture = pytest.CaptureFixture[str]

TRAIN = [
    *("train", "OUSpread-v0", "--steps", "72", "--eval-every", "36", "--eval-episodes", "2"),
    *("--set", "c51.hidden=8", "--set", "c51.atoms=11", "--set", "c51.support=[-8,8]"),
    *("--set", "c51.batch_size=8", "--set", "pacing.learning_starts=30"),
    *("--set", "exploration.transitions=60", "--set", "pacing.updates_per_transition=0.5"),
]
LABELLED = ["--label-key", "drift_label", "--set", 'auxiliary={"classes":["D","F","U"]}']


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that the tests of this module share."""
    with Server(tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.fixture(autouse=True)
def token(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its token, where the command looks for it."""
    monkeypatch.setenv("JORMUNGANDR_TOKEN", server.token)


def lines(out: Path) -> list[dict[str, Any]]:
    """Return the evaluations of a training, but for how long it took."""
    found = (out / "evaluations.jsonl").read_text().splitlines()
    return [{**json.loads(line), "seconds": None} for line in found]


def table(text: str) -> list[list[str]]:
    """Return the rows of the table at the end, but for the pace."""
    rows = text[text.index("  seed  ") :].splitlines()
    return [row.split()[:4] for row in rows if not row.startswith("  steps/s")]


def test_as_in_process(tmp_path: Path, server: Server, capsys: Capture) -> None:
    """Of each seed the service makes the very policies that a learner in process makes."""
    train = [*TRAIN, *LABELLED, "--seeds", "2"]
    assert main([*train, "--out", str(tmp_path / "here")]) == 0
    here = table(capsys.readouterr().out)
    assert main([*train, "--out", str(tmp_path / "there"), "--service", server.url]) == 0
    there = table(capsys.readouterr().out)

    assert there == here
    for seed in ("seed-0", "seed-1"):
        both = [tmp_path / place / seed for place in ("here", "there")]
        assert lines(both[0]) == lines(both[1])
        for name in ("latest", "best"):
            one, other = (PolicySnapshot.open(out / name) for out in both)
            assert one.digest() == other.digest()
    with server.connect("ouspread-v0-seed-1") as endpoint:
        assert endpoint.info()["transitions"]["train"] == 72


def test_a_model_that_exists(tmp_path: Path, server: Server, capsys: Capture) -> None:
    """One that has learned is not trained on by mistake; --resume goes on with it."""
    train = [*TRAIN, "--service", server.url, "--model", "mine", "--out", str(tmp_path / "out")]
    assert main([*train, "--steps", "36"]) == 0
    capsys.readouterr()
    again = [*TRAIN, "--service", server.url, "--model", "mine"]
    assert main(again) == 1
    assert "--model: expected a model that is new, or --resume" in capsys.readouterr().err
    assert main([*train, "--resume"]) == 0
    with server.connect("mine") as endpoint:
        info = endpoint.info()

    assert info["transitions"]["train"] == 72
    assert [line["step"] for line in lines(tmp_path / "out")] == [36, 72]
    assert main([*again, "--set", "c51.lr=0.7"]) == 1
    assert "got differences at c51.lr" in capsys.readouterr().err


def test_an_evaluation_that_was_missed(tmp_path: Path, server: Server) -> None:
    """A training that was killed before it evaluated what the service had, evaluates it first."""
    train = [*TRAIN, "--service", server.url, "--model", "late", "--out", str(tmp_path / "out")]
    assert main([*train, "--steps", "36"]) == 0
    file = tmp_path / "out" / "evaluations.jsonl"
    whole = lines(tmp_path / "out")
    file.write_bytes(b"")
    assert main([*train, "--steps", "36", "--resume"]) == 0

    assert lines(tmp_path / "out") == whole


def test_it_learns_from_the_newest(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training acts with and evaluates the newest policy, also where the champion is served."""
    acted, act = [], Lockstep.act

    def watched(endpoint: Lockstep, *arguments: Any, **options: Any) -> Any:
        reply = act(endpoint, *arguments, **options)
        acted.append(reply.policy_version)
        return reply

    monkeypatch.setattr(Lockstep, "act", watched)
    train = [*TRAIN, "--set", "promotion.serve=champion"]
    there = ["--service", server.url, "--model", "gated"]
    assert main([*train, *there, "--out", str(tmp_path / "there")]) == 0
    assert main([*train, "--out", str(tmp_path / "here")]) == 0

    assert lines(tmp_path / "there") == lines(tmp_path / "here")
    assert lines(tmp_path / "there")[-1]["policy_version"] == 21
    assert sorted(set(acted)) == list(range(21))
    with server.connect("gated") as endpoint:
        assert endpoint.promotion()["champion"] == 0


def test_no_such_service(tmp_path: Path, capsys: Capture) -> None:
    """An address of nothing is said in one line."""
    assert main([*TRAIN, "--service", "nowhere"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
