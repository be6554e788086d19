"""``jormungandr promotion``: shows how things stand, and decides."""

from __future__ import annotations

from typing import Any

import pytest

from jormungandr.cli import main
from jormungandr.cli import promotion as module
from jormungandr.errors import PolicyVersionUnknown

EVIDENCE = {
    **{"method": None, "after": 3, "lsn": 9, "seen": 4, "candidate": 1, "champion": 2},
    **{"pairs": 7, "unmatched": 1, "confidence": 0.95, "min_episodes": 100},
    **{"mean_candidate": 2.0, "mean_champion": 1.0, "estimate": 1.0, "low": None},
}
STANDING: dict[str, Any] = {
    "serve": "champion",
    "champion": 12,
    "candidate": 40,
    "pinned": False,
    "evidence": EVIDENCE,
    "decisions": {},
    "history": [
        {"kind": "champion", "version": 12, "by": "service", "reason": "the first policy"},
        {"kind": "candidate", "version": 40, "champion": 12},
    ],
}


class Model:
    """Stands for a model of a service."""

    calls: list[Any]
    standing = STANDING

    def __init__(self, url: str | None, model_id: str) -> None:
        Model.calls = [(url, model_id)]

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def promotion(self) -> dict[str, Any]:
        """Say how things stand."""
        return self.standing

    def decide(self, action: str, version: int | None, *, reason: str) -> dict[str, Any]:
        """Take a decision."""
        if version == 99:
            raise PolicyVersionUnknown("version", "one published", version)
        Model.calls.append((action, version, reason))
        return {**STANDING, "pinned": action == "pin"}


@pytest.fixture(autouse=True)
def model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a model in the place of the client."""
    monkeypatch.setattr(module, "RemoteLearner", Model)


def test_show(capsys: pytest.CaptureFixture[str]) -> None:
    """Champion, candidate, the evidence so far, and what was decided."""
    assert main(["promotion", "show", "ou", "--url", "http://x"]) == 0

    assert capsys.readouterr().out.splitlines() == [
        "champion   policy 12",
        "candidate  policy 40",
        "evidence   7 of 100 pairs; without pairs 1 of the candidate and 2 of the champion;"
        " mean difference so far +1",
        "champion   policy 12 by the service: the first policy",
        "candidate  policy 40",
    ]
    assert Model.calls == [("http://x", "ou")]


def test_show_after_a_start(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has yet to be counted again is not shown as none."""
    monkeypatch.setattr(Model, "standing", {**STANDING, "evidence": None})
    assert main(["promotion", "show", "ou"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "candidate  policy 40"
    assert lines[2].startswith("evidence   not yet counted since the service was started")


def test_without_promotions(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so."""
    monkeypatch.setattr(Model, "standing", {**STANDING, "serve": "latest"})
    main(["promotion", "show", "ou"])

    assert "serves the latest" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "call"),
    [
        (["promote", "ou"], ("promote", None, "")),
        (["promote", "ou", "--version", "7"], ("promote", 7, "")),
        (["rollback", "ou", "--reason", "it stalls"], ("rollback", None, "it stalls")),
        (["refuse", "ou"], ("refuse", None, "")),
        (["pin", "ou", "--version", "3"], ("pin", 3, "")),
        (["unpin", "ou"], ("unpin", None, "")),
    ],
)
def test_decide(arguments: list[str], call: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Each action is asked for, and how things stand after it is printed."""
    assert main(["promotion", *arguments]) == 0

    assert Model.calls[-1] == call
    pinned = ", pinned" if call[0] == "pin" else ""
    assert capsys.readouterr().out.startswith(f"champion   policy 12{pinned}\n")


def test_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The service's error is told, and the status is 1."""
    assert main(["promotion", "promote", "ou", "--version", "99"]) == 1
    assert "99" in capsys.readouterr().err
