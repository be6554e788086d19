"""What a model says of itself: the answers of its two GET routes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jormungandr.protocol import SPLITS

if TYPE_CHECKING:
    from jormungandr.service.model import Model
    from jormungandr.trial import Evidence

__all__ = ["info", "metrics"]


def info(model: Model) -> dict[str, Any]:
    """Return a model's specification and figures."""
    counters, spec, learning = model.journal.counters, model.spec, model.learning
    empty = {
        "update_count": 0,
        "transitions": {"train": 0, "validation": 0},
        "replay": {"size": 0, "capacity": spec.replay.capacity},
        "validation": {"size": 0, "capacity": spec.validation.capacity},
        "normalizer": {"count": 0},
        "updates": {"skipped": 0, "non_finite": 0, "rollbacks": 0},
        "unlabelled": 0,
        "lineages": 0,
        "quarantined": 0,
        "returns": {split: {"episodes": 0} for split in SPLITS},
        "diverged": False,
        "warnings": [],
    }
    learner = learning.process.report()
    if learning.info.get("diverged") and learner["state"] in ("running", "idle", "parked"):
        learner["state"] = "diverged"
    return {
        **empty,
        **learning.info,
        "model_id": model.model_id,
        "generation": model.generation,
        "spec": spec.to_dict(),
        "policy_version": model.served_version,
        "applied_lsn": learning.settled_lsn,
        "journal_lsn": counters.data_lsn,
        "journal": model.retention.info(),
        "accepted": {"train": counters.train, "validation": counters.validation},
        "stale_dropped": counters.stale_dropped,
        "labels": {"pending": counters.pending, "expired": counters.pending_expired},
        "mixed_episodes": counters.mixed_episodes,
        "unversioned": counters.unversioned,
        "lag": model.intake.actors.summary(),
        "promotion": _promotion(model),
        "evaluation": next(reversed(learning.evaluations.values()), None),
        "learner": learner,
        "warnings": _warnings(model),
    }


def metrics(model: Model) -> dict[str, Any]:
    """Return the last update's figures and the evaluations so far."""
    learning = model.learning
    return {
        "update": learning.metrics,
        "evaluations": list(learning.evaluations.values()),
        "returns": learning.returns or {split: {"episodes": 0, "by_tag": {}} for split in SPLITS},
        "actors": model.intake.actors.figures(model.journal.roll, model.journal.counters),
        "learner": {
            "ends": learning.process.report()["ends"],
            "quarantined": learning.quarantine.positions,
        },
    }


def _promotion(model: Model) -> dict[str, Any]:
    """Return who is champion and who is tried, in a few figures."""
    gate, evidence = model.gate, model.gate.shown()
    standing = gate.standing
    return {
        "serve": gate.rule.serve,
        "champion": None if standing.champion is None else standing.champion.version,
        "candidate": None if standing.candidate is None else standing.candidate.version,
        "pairs": _pairs(standing.candidate is not None, evidence),
        "decisions": standing.decided,
    }


def _pairs(tried: bool, evidence: Evidence | None) -> int | None:
    """Return the pairs of the trial that runs; None while they are counted again after a start."""
    if evidence is None:
        return None if tried else 0
    return evidence.pairs


def _warnings(model: Model) -> list[str]:
    """Return what the operator should know."""
    learning = model.learning
    found = [*learning.info.get("warnings", []), *model.journal.counters.warnings()]
    found += [*learning.quarantine.warnings(), *model.intake.actors.warnings()]
    if learning.checkpoint_error is not None:
        found.append(
            f"checkpoint_failed: {learning.checkpoint_error}; what is journaled is safe, a restart"
            " takes longer"
        )
    shortage = model.retention.shortage()
    if shortage is not None:
        found.append(f"storage_full: {shortage}")
    if model.gate.lost is not None:
        found.append(
            f"champion_lost: the file of policy {model.gate.lost} is damaged or gone, and nothing"
            " is handed out; promote another one, or roll back"
        )
    if model.publication.mismatched is not None:
        found.append(
            f"rebuilt_differently: policy {model.publication.mismatched} came out with other bits"
            " than recorded; NumPy, torch or the processor may have changed"
        )
    return found
