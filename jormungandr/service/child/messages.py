"""What a learner process may tell the gateway, checked before anything is believed.

A learner is apart from the gateway so that its faults stay its own: what it says is looked at like
what comes from outside.
"""

from __future__ import annotations

from math import isfinite, prod
from typing import Annotated, Any, TypeAlias

import msgspec

from jormungandr.errors import JormungandrError
from jormungandr.heldout import HeldOutEpisode
from jormungandr.policy import PolicySnapshot
from jormungandr.protocol import Evaluation
from jormungandr.service.child.channel import Garbage
from jormungandr.spec import ModelSpec
from jormungandr.weights import layer_shapes

__all__ = [
    "LineageMessage",
    "PolicyMessage",
    "StateMessage",
    "as_lineage",
    "as_policy",
    "as_state",
    "longest",
    "snapshot",
]

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
#: Under another name, for a field that is called ``bytes``.
Raw: TypeAlias = bytes
#: Bytes of a message beside the weights in it.
ALLOWANCE = 64 << 20


class PolicyMessage(msgspec.Struct, frozen=True):
    """A policy to serve, as `PolicySnapshot.to_bytes` writes it."""

    type: str
    version: Count
    update_count: Count
    applied_lsn: Count
    digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16,128}$")]
    bytes: Raw


class LineageMessage(msgspec.Struct, frozen=True):
    """A learner computes otherwise than the one before, and asks for a number to go on from."""

    type: str
    fingerprint: dict[str, str]
    applied_lsn: Count
    version: Count


class _Info(msgspec.Struct, frozen=True):
    """What the gateway itself reads of a report."""

    policy_version: Count
    applied_lsn: Count
    transitions: dict[str, Count]
    diverged: bool
    warnings: list[str]


class Figures(msgspec.Struct, frozen=True):
    """Returns of whole episodes."""

    episodes: Count
    over_newest: Count
    mean_return: float | None
    interval_95: list[float] | None


class Returns(Figures, frozen=True):
    """The same with those of each tag, by key and value."""

    by_tag: dict[str, dict[str, Figures]]


class StateMessage(msgspec.Struct, frozen=True):
    """A report: figures, and evaluations that are new."""

    type: str
    info: dict[str, Any]
    metrics: dict[str, Any]
    evaluations: list[Evaluation]
    checkpoint_error: str | None
    checkpoints: Count = 0  # written by this process
    episodes: list[HeldOutEpisode] = []  # held-out ones that are new
    returns: dict[str, Returns] = {}


def longest(spec: ModelSpec) -> int:
    """Return how many bytes a message of a model's learner may have."""
    weights = sum(prod(shape) for shape in layer_shapes(spec).values())
    return 2 * 4 * weights + ALLOWANCE


def as_policy(message: dict[str, Any]) -> PolicyMessage:
    """Return a policy message whose fields are what they should be.

    Raises:
        Garbage: they are not.
    """
    try:
        return msgspec.convert(message, PolicyMessage)
    except (ValueError, RecursionError) as error:
        raise Garbage(f"a policy message: {error}") from None


def as_lineage(message: dict[str, Any]) -> LineageMessage:
    """Return a message that asks for a lineage.

    Raises:
        Garbage: its fields are not what they should be.
    """
    try:
        return msgspec.convert(message, LineageMessage)
    except (ValueError, RecursionError) as error:
        raise Garbage(f"a lineage message: {error}") from None


def snapshot(message: PolicyMessage, spec: ModelSpec, generation: int) -> PolicySnapshot:
    """Return the policy that a message carries.

    Raises:
        Garbage: it is no policy, one of another model, or another than the message says.
    """
    try:
        policy = PolicySnapshot.from_bytes(message.bytes)
    except JormungandrError as error:
        raise Garbage(f"policy {message.version}: {error}") from None
    for name, expected, got in (
        ("spec", spec.to_dict(), policy.spec.to_dict()),
        ("generation", generation, policy.generation),
        ("version", message.version, policy.version),
        ("update_count", message.update_count, policy.update_count),
        ("digest", message.digest, policy.digest()),
    ):
        if expected != got:
            raise Garbage(f"policy {message.version}: another {name} than expected")
    return policy


def as_state(message: dict[str, Any]) -> StateMessage:
    """Return a report whose fields are what they should be.

    Raises:
        Garbage: they are not, or cannot be shown as JSON.
    """
    try:
        report = msgspec.convert(message, StateMessage)
        info = msgspec.convert(report.info, _Info)
        msgspec.json.encode((report.info, report.metrics))
    except (ValueError, TypeError, RecursionError) as error:
        raise Garbage(f"a report: {error}") from None
    if not all(isfinite(episode.total) for episode in report.episodes):
        raise Garbage("a report: a held-out episode without a return")
    if "train" not in info.transitions:
        raise Garbage("a report: no training transitions")
    return report
