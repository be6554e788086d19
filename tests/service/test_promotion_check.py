"""`verify` decides promotions again: from the rows, and only where they are all there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jormungandr import ModelSpec
from jormungandr.columns import columns
from jormungandr.heldout import HeldOut
from jormungandr.rows import ACCEPTED, TransitionsRow
from jormungandr.service.journal.decisions import CandidateRow, ChampionRow, RefusalRow
from jormungandr.service.tools.promotion_check import PromotionCheck
from jormungandr.settings import Promotion
from jormungandr.trial import Evidence, Trial

SPEC = ModelSpec.from_dict({"observation": {"shape": [1]}, "actions": 2})
RULE = Promotion(serve="champion", min_episodes=2)
FIRST = ChampionRow(0, 0, "d0", "f0", None, "service", "the first policy")
TRIED = CandidateRow(5, 5, "d5", "f5", 0, 1)


def episode(lsn: int, version: int, total: float) -> TransitionsRow:
    """Return the row of a held-out episode of one step."""
    step = {
        "actor_id": "a",
        "episode_id": f"e{lsn}",
        "timestep": 0,
        "split": "validation",
        "policy_version": version,
        "observation": [0.0],
        "action": 0,
        "reward": total,
        "next_observation": [0.0],
        "terminated": True,
        "truncated": False,
    }
    found = columns([step], SPEC)
    return TransitionsRow(lsn, found, np.full(1, ACCEPTED, dtype=np.uint8))


ROWS = [episode(k, v, t) for k, v, t in [(3, 0, 1.0), (4, 5, 3.0), (5, 0, 1.5), (6, 5, 3.5)]]


def decided() -> Evidence:
    """Return what the rows come to."""
    trial, held_out = Trial(5, 0, 1, RULE), HeldOut(100)
    for row in ROWS:
        held_out.add(row.columns, row.lsn)
    for one in held_out.since(0):
        trial.take(one)
    assert trial.verdict is not None
    return trial.verdict


def checked(decision: Any, *, gone: int = 0, whole: bool = True) -> tuple[PromotionCheck, Any]:
    """Return a check that was given a champion, a trial, its rows and a decision; and the fault."""
    check = PromotionCheck(RULE, gone)
    assert check.decision(1, FIRST, True) is None
    assert check.decision(2, TRIED, True) is None
    for row in ROWS:
        check.data(row)
    return check, check.decision(7, decision, whole)


def promotion(**changes: Any) -> ChampionRow:
    """Return the decision that the rows lead to, or another one."""
    right = ChampionRow(5, 5, "d5", "f5", 0, "gate", "", evidence=decided().to_dict())
    return replace(right, **changes)


def test_the_same_again() -> None:
    """A promotion that the rows lead to is proven."""
    check, fault = checked(promotion())

    assert (fault, check.again) == (None, 1)
    assert [f.status for f in check.findings("j")] == ["ok"]
    assert check.standing.champion == promotion()


@pytest.mark.parametrize(
    "change",
    [{"low": 0.5}, {"estimate": 1.0}, {"lsn": 5}, {"seen": 9}, {"after": 0}, {"method": "paired"}],
)
def test_other_evidence_is_damage(change: dict[str, Any]) -> None:
    """What is not what the rows say is named."""
    check, fault = checked(promotion(evidence={**decided().to_dict(), **change}))

    assert "not what the rows" in fault
    assert check.again == 0


def test_what_does_not_follow() -> None:
    """Promoted without enough, without a trial, in place of another champion."""
    lacking = {**decided().to_dict(), "low": -0.1}
    assert "not enough" in checked(promotion(evidence=lacking))[1]
    assert "no trial" in checked(promotion(version=4))[1]
    assert "was champion" in checked(promotion(previous=3))[1]
    assert (
        "not what the rows"
        in checked(RefusalRow(5, 0, "gate", "", {**decided().to_dict(), "low": None}))[1]
    )


def test_operators_need_no_evidence() -> None:
    """Their decisions only have to follow on the ones before."""
    assert checked(promotion(by="operator", evidence=None, version=3))[1] is None


@pytest.mark.parametrize(("gone", "whole"), [(2, True), (0, False)])
def test_what_cannot_be_decided_again(gone: int, whole: bool) -> None:
    """Where rows of the trial are gone or damaged, that is said, and nothing is claimed."""
    check, fault = checked(promotion(), gone=gone, whole=whole)

    assert (fault, check.again, check.unproven) == (None, 0, [7])
    assert [f.status for f in check.findings("j")] == ["gap"]


def test_a_lapse_is_not_counted_again_without_all_rows() -> None:
    """What began in rows that were dropped was seen to end, and is not any more."""
    lapsed = {**decided().to_dict(), "low": None, "method": None, "seen": 8_192}
    refusal = RefusalRow(5, 0, "gate", "lapsed", lapsed)
    check, fault = checked(refusal, gone=1)

    assert (fault, check.again, check.unproven) == (None, 0, [7])


def test_what_follows_on_a_lost_decision_is_not_proven() -> None:
    """Whose champion or trial was lost with a row, that is neither right nor wrong."""
    check = PromotionCheck(RULE, 0)
    assert check.decision(1, FIRST, True) is None
    assert check.decision(9, replace(TRIED, champion=4), False) is None
    assert check.decision(10, promotion(version=3, previous=4), False) is None
    assert check.decision(11, promotion(by="operator", previous=8), False) is None

    assert check.unproven == [9, 10, 11]
    lacking = {**decided().to_dict(), "low": -0.1}
    assert "not enough" in str(check.decision(12, promotion(evidence=lacking), False))
    assert "there is none" in str(check.decision(13, promotion(evidence=None), False))


def test_rows_from_before_the_trial_may_be_gone() -> None:
    """What began before them was not to count; how many have ended since is not known."""
    check, fault = checked(promotion(evidence={**decided().to_dict(), "seen": 6}), gone=1)

    assert (fault, check.again) == (None, 1)
