"""What a state machine says of itself: figures and warnings, read and never changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jormungandr.learner.support import CLIPPED

if TYPE_CHECKING:
    from jormungandr.learner.core import Core

__all__ = ["info", "metrics", "warnings"]


def warnings(core: Core) -> list[str]:
    """Return what the operator should know, each with its remedy."""
    found = []
    low, high = core.algorithm.bounds
    for share, end, bound in (
        (core.progress.clipped_low, "lowest", low),
        (core.progress.clipped_high, "highest", high),
    ):
        # One that fits itself is about to.
        if share > CLIPPED and core.fitting is None:
            found.append(
                f"support_clipped: {share:.1%} of the target mass lies beyond the {end} atom"
                f" ({bound:g}); widen c51.support, or let it be 'auto'"
            )
    if core.diverged:
        found.append(
            f"diverged: updates went non-finite; policy {core.served_version} is the last good"
            " one; lower c51.lr or look at the rewards and observations"
        )
    return [*found, *core.returns.tags.warnings()]


def info(core: Core) -> dict[str, Any]:
    """Return the state's figures, as `GET /v1/models/{id}` shows them."""
    p = core.progress
    return {
        "generation": core.generation,
        "policy_version": core.served_version,
        "update_count": p.updates,
        "updates": {
            "skipped": p.skipped,
            "non_finite": p.non_finite,
            "rollbacks": p.rollbacks,
        },
        "transitions": {"train": core.pacing.transitions, "validation": core.validation.added},
        "replay": {"size": len(core.replay), "capacity": core.replay.capacity},
        "validation": {"size": len(core.validation), "capacity": core.validation.capacity},
        "normalizer": {"count": int(core.normalizer.count)},
        "returns": core.returns.info(),
        "unlabelled": p.unlabelled,
        "lineages": p.lineages,
        "quarantined": p.quarantined,
        "applied_lsn": p.lsn,
        "diverged": core.diverged,
        "warnings": core.warnings(),
    }


def metrics(core: Core) -> dict[str, Any]:
    """Return the figures of the last update, JSON-able."""
    u, p = core.last_update, core.progress
    if u is None:
        return {}
    return {
        "policy_version": p.version,
        "loss": u.loss,
        "auxiliary_loss": u.auxiliary_loss,
        "grad_norm": u.grad_norm,
        "clipped_low": p.clipped_low,
        "clipped_high": p.clipped_high,
        "support": list(core.algorithm.bounds),
        "support_moves": p.widened,
        "priority_max": core.replay.priorities.max_priority,
        "priority_stale_writes": core.replay.priorities.stale_writes,
    }
