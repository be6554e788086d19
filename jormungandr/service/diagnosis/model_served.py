"""A model by what its service says of it: less than its data tells, and from anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jormungandr.errors import JormungandrError
from jormungandr.service.diagnosis.finding import Finding, fail, ok, skip, warn
from jormungandr.service.diagnosis.model_data import (
    CLIPPED,
    ENOUGH,
    HELD_OUT,
    MANY,
    MOSTLY_CLIPPED,
)
from jormungandr.service.diagnosis.running import RunningService

__all__ = ["check_served"]

HERE = "give --data-dir on the service's machine"


def check_served(service: RunningService, model_id: str) -> Iterator[Finding]:
    """Check a model by its figures.

    Raises:
        JormungandrError: there is none, or the token may not see it.
        OSError: the service is not reached.
    """
    path = f"/v1/models/{model_id}"
    info = service.json(path)
    try:
        update = service.json(f"{path}/metrics")["update"]
    except JormungandrError as error:
        yield skip("clipped", str(error), "use a token with the scope observe")
    else:
        yield _clipped(update, info)
    yield _reward(info)
    yield _episodes(info)
    yield skip("features", "not in a service's figures", HERE)
    yield skip("actions", "not in a service's figures", HERE)
    yield _lag(info)
    yield _splits(info)
    yield _labels(info)


def _clipped(update: dict[str, Any], info: dict[str, Any]) -> Finding:
    if "clipped_low" not in update:
        return skip("clipped", "no update yet")
    low, high = update["clipped_low"], update["clipped_high"]
    said = f"{low:.1%} of the target mass below the support, {high:.1%} above"
    if max(low, high) <= CLIPPED:
        return ok("clipped", said)
    support = info["spec"]["c51"]["support"]
    if support == "auto":
        return warn("clipped", said, "wait: the support is about to reach further")
    remedy = f"widen c51.support, which is {support}"
    return (fail if max(low, high) > MOSTLY_CLIPPED else warn)("clipped", said, remedy)


def _reward(info: dict[str, Any]) -> Finding:
    found = info["returns"]["train"]
    interval = found.get("interval_95")
    if not interval:
        return skip("reward", "fewer than two whole training episodes", HERE)
    said = f"return of the newest {found['over_newest']} episodes: {found['mean_return']:.3g}"
    if interval[0] == interval[1]:
        remedy = "nothing tells episodes apart: check what the environment returns"
        return warn("reward", f"{said}, each the same", remedy)
    return ok("reward", said)


def _episodes(info: dict[str, Any]) -> Finding:
    ended = sum(split["episodes"] for split in info["returns"].values())
    applied = sum(info["transitions"].values())
    said = f"{ended} whole episodes in {applied} transitions"
    if not applied:
        return skip("episodes", "no transitions yet")
    if not ended and applied >= ENOUGH:
        remedy = "send terminated or truncated with the last transition of each episode"
        return fail("episodes", said, remedy)
    return ok("episodes", said)


def _lag(info: dict[str, Any]) -> Finding:
    train, dropped = info["accepted"]["train"], info["stale_dropped"]
    if not train + dropped:
        return skip("lag", "no training transitions")
    share = dropped / (train + dropped)
    behind = max(train - info["transitions"]["train"], 0)
    said = f"{share:.1%} dropped as stale, the learner is {behind} transitions behind"
    if share > MANY:
        remedy = "let actors ask for newer policies, or raise staleness.max_policy_lag"
        return warn("lag", said, remedy)
    if behind > info["spec"]["pacing"]["max_backlog"] / 2:
        return warn("lag", said, "lower pacing.updates_per_transition, or send less")
    return ok("lag", said)


def _splits(info: dict[str, Any]) -> Finding:
    total = sum(info["accepted"].values())
    if not total:
        return skip("splits", "no transitions yet")
    share = info["accepted"]["validation"] / total
    said = f"{share:.1%} held out, {info['mixed_episodes']} episodes with both splits"
    if not share:
        remedy = "send some episodes as validation: without, nothing is measured"
        return warn("splits", said, remedy)
    if share > HELD_OUT:
        return warn("splits", said, "most is not learned from: send more of it as train")
    if info["mixed_episodes"]:
        remedy = "split_scope: episode keeps neighbours, which share an observation, in one split"
        return warn("splits", said, remedy)
    return ok("splits", said)


def _labels(info: dict[str, Any]) -> Finding:
    if info["spec"]["auxiliary"] is None:
        return ok("labels", "none needed: no auxiliary head")
    labelled = (info["evaluation"] or {}).get("auxiliary_labelled")
    if labelled is None:
        return skip("labels", "no evaluation yet", HERE)
    of = info["evaluation"]["transitions"]
    said = f"{labelled} of {of} held-out transitions labelled"
    if not labelled and of:
        remedy = "the auxiliary head is not measured: send labels of held-out transitions"
        return warn("labels", said, remedy)
    return ok("labels", said)
