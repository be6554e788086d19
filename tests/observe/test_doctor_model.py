"""`doctor --model`: data that nothing can be learned from is named for what it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from jormungandr import Learner
from jormungandr.cli import main
from jormungandr.service.diagnosis.examination import examine_model
from jormungandr.service.diagnosis.finding import EXIT_CODES, Finding
from jormungandr.service.diagnosis.running import RunningService
from tests.service.conftest import App
from tests.service.serving import QUIET, TOKEN, InMemory, experience, state_message

CHECKS = list(EXIT_CODES)[10:]
#: Its support holds the returns of `GOOD`.
SPEC = {**QUIET, "c51": {**QUIET["c51"], "support": [-20, 20]}}
GOOD = experience(16, 8)

Row = dict[str, Any]


def examined(app: App, rows: list[Row], spec: dict[str, Any] = SPEC) -> dict[str, Finding]:
    """Return what is found of a model that was sent some rows, by check."""
    endpoint = app.connect("m")
    endpoint.create(spec)
    for k in range(0, len(rows), 500):
        endpoint.add(rows[k : k + 500])
    found = list(examine_model("m", app.path, None))
    assert [finding.check for finding in found] == CHECKS
    assert all(f.remedy for f in found if f.status in ("warn", "fail"))
    return {finding.check: finding for finding in found}


def changed(**fields: Any) -> list[Row]:
    """Return good rows with other fields; a callable makes one from a row's number."""
    return [
        {**row, **{k: v(n) if callable(v) else v for k, v in fields.items()}}
        for n, row in enumerate(GOOD)
    ]


def test_good_data(app: App) -> None:
    """Nothing is wrong with data that is as it should be."""
    found = examined(app, GOOD)

    assert {finding.status for finding in found.values()} == {"ok"}


def test_nothing_yet(app: App) -> None:
    """Of a model without data nothing is said."""
    assert {f.status for f in examined(app, []).values()} == {"skip"}


@pytest.mark.parametrize(
    ("rows", "check", "status"),
    [
        (lambda: changed(reward=lambda n: float(n % 5) * 10), "clipped", "fail"),
        (lambda: changed(reward=0.001), "clipped", "warn"),
        (lambda: changed(reward=1.0), "reward", "warn"),
        (lambda: changed(reward=lambda n: float(n == 0)), "reward", "ok"),
        (lambda: changed(observation=lambda n: [1.0, n]), "features", "warn"),
        (lambda: changed(observation=lambda n: [1.0, 2.0]), "features", "fail"),
        (lambda: changed(observation=lambda n: [1e9, n]), "features", "warn"),
        (lambda: changed(observation=lambda n: [5_000.0 + n % 2 / 100, n]), "features", "warn"),
        (lambda: changed(action=1), "actions", "fail"),
        (lambda: changed(action=lambda n: n % 2), "actions", "warn"),
        (lambda: changed(split="train"), "splits", "warn"),
        (lambda: changed(split="validation"), "splits", "warn"),
        (lambda: changed(split=lambda n: ["train", "validation"][n % 2]), "splits", "warn"),
        (
            lambda: [{k: v for k, v in row.items() if k != "label"} for row in GOOD],
            "labels",
            "fail",
        ),
        (lambda: [{**row, "label": 1} for row in GOOD], "labels", "warn"),
        (lambda: changed(terminated=False, truncated=False), "episodes", "warn"),
    ],
)
def test_bad_data(app: App, rows: Callable[[], list[Row]], check: str, status: str) -> None:
    """Each kind of data that teaches nothing is found by its check."""
    assert examined(app, rows())[check].status == status


@pytest.mark.parametrize(
    ("reward", "ends", "status"),
    [
        (1.0, {}, "fail"),  # eight steps each
        (0.0, {"terminated": lambda n: n % 8 == 7 or n % 24 == 3}, "fail"),  # of no reward
        (1.0, {"terminated": False}, "fail"),
        (1.0, {"terminated": False, "truncated": lambda n: n % 8 == (n // 8) % 8}, "fail"),
        (1.0, {"terminated": lambda n: n % 8 == (n // 8) % 8}, "ok"),
        (-1.0, {"terminated": lambda n: n == 3, "truncated": lambda n: n > 7 and n % 8 == 7}, "ok"),
    ],
)
def test_one_reward_for_all(
    app: App, monkeypatch: pytest.MonkeyPatch, reward: float, ends: dict[str, Any], status: str
) -> None:
    """It tells actions apart where it is not 0 and episodes terminate at different lengths."""
    monkeypatch.setattr("jormungandr.service.diagnosis.model_data.SETTLED", 64)
    rows, over = [], set[str]()
    for row in changed(reward=reward, **ends):
        if row["episode_id"] not in over:
            rows.append(row)
        if row["terminated"] or row["truncated"]:
            over.add(row["episode_id"])
    found = examined(app, rows)["reward"]

    assert (len(rows) >= 64, found.status) == (True, status)


def test_no_reward_yet(app: App) -> None:
    """Of a few episodes that were never paid is said no more than that."""
    found = examined(app, changed(reward=0.0))["reward"]

    assert (found.status, found.measured) == ("warn", "always 0, in only 128 transitions")


def test_episodes_that_never_end(app: App) -> None:
    """After a thousand transitions without one end, something is wrong."""
    row = GOOD[0]
    rows = [{**row, "timestep": t, "terminated": False} for t in range(1_000)]

    assert examined(app, rows)["episodes"].status == "fail"


def test_lag(app: App) -> None:
    """What was dropped as stale is counted against the actors."""
    spec = {**QUIET, "staleness": {"max_policy_lag": 0, "mode": "drop", "stale_share": 0.0}}
    app.connect("m").create(spec)
    learner = Learner({**spec, "pacing": {"learning_starts": 8}})
    app.publish("m", Learner(spec))
    model = app.model("m")
    model.publication.policy = learner.snapshot()
    found = examined(app, changed(policy_version=0), spec)

    assert found["lag"].measured.startswith("0% name no policy, lag of the others: median 0")


def test_by_what_the_service_says(app: App) -> None:
    """From afar, a model's figures are looked at; what they do not tell is said to be skipped."""
    app.connect("m").create(QUIET)
    app.connect("m").add(GOOD)
    learner = Learner({**QUIET, "pacing": {"learning_starts": 8, "updates_per_transition": 0.1}})
    learner.add(GOOD)
    message = {**state_message(learner, 1), "metrics": learner.metrics()["update"]}
    app.run(app.model("m").learning.hear, message)
    service = RunningService("http://memory", TOKEN, InMemory(app.http))
    found = {f.check: f for f in examine_model("m", None, service)}

    assert list(found) == CHECKS
    assert (found["features"].status, found["actions"].status) == ("skip", "skip")
    assert {found[name].status for name in ("reward", "episodes", "lag", "splits")} == {"ok"}
    assert found["clipped"].status != "skip"


def test_the_command(
    app: App, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends with the status of the first check that failed; it says who is not there."""
    monkeypatch.delenv("JORMUNGANDR_URL", raising=False)
    app.connect("m").create(QUIET)
    app.connect("m").add(changed(action=1))
    given = ["doctor", "--json", "--data-dir", str(app.path), "--model"]
    status = main([*given, "m"])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    failed = [finding["check"] for finding in found if finding["status"] == "fail"]

    assert status == EXIT_CODES[failed[0]]
    assert "actions" in failed
    assert main([*given, "unknown"]) == 1
    assert "expected one of ['m']" in capsys.readouterr().err
    assert main(["doctor", "--model", "m"]) == 1
    assert "--data-dir or --url" in capsys.readouterr().err
