"""What an operator may decide about promotions; recorded like what the gate decides."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import msgspec

from jormungandr.errors import (
    CheckpointError,
    InvalidValue,
    PolicyGone,
    PolicyNotReady,
    PolicyVersionUnknown,
)
from jormungandr.policy import PolicySnapshot
from jormungandr.protocol import LIMITS
from jormungandr.service.journal.decisions import ChampionRow, Named, RollbackRow
from jormungandr.wire import decode_object, fields

if TYPE_CHECKING:
    from jormungandr.service.model import Model

__all__ = ["Order", "obey", "order"]

Action = Literal["promote", "rollback", "refuse", "pin", "unpin"]
#: Characters of a reason.
LONGEST_REASON = 500


class Order(msgspec.Struct, forbid_unknown_fields=True):
    """What is to be done: to which version, where that does not follow, and why."""

    action: Action
    version: Annotated[int, msgspec.Meta(ge=0, le=LIMITS["timestep_max"])] | None = None
    reason: Annotated[str, msgspec.Meta(max_length=LONGEST_REASON)] = ""


def order(body: bytes) -> Order:
    """Return what a request orders.

    Raises:
        InvalidInput: (one of its classes) it is none.
    """
    given: dict[str, Any] = fields(
        decode_object(body), {"action": str}, {"version": int, "reason": str}
    )
    if given["action"] not in get_args(Action):
        raise InvalidValue("action", f"one of {list(get_args(Action))}", repr(given["action"]))
    if not 0 <= given.get("version", 0) <= LIMITS["timestep_max"]:
        raise InvalidValue("version", f"0..{LIMITS['timestep_max']}", given["version"])
    if len(given.get("reason", "")) > LONGEST_REASON:
        expected = f"at most {LONGEST_REASON} characters"
        raise InvalidValue("reason", expected, len(given["reason"]))
    return Order(**given)


async def obey(model: Model, given: Order) -> None:
    """Do what an operator says.

    * ``promote``: serve a version that is kept, or the candidate.
    * ``rollback``: serve an earlier champion, or the one before this one.
    * ``refuse``: end the trial that runs.
    * ``pin``: serve a version, or the champion, and try no other until told otherwise.
    * ``unpin``: try others again.

    Args:
        model: of which.
        given: what.

    Raises:
        InvalidValue: the model promotes nothing, or the action takes no version.
        PolicyVersionUnknown: there is no such policy, no candidate or no earlier champion.
        PolicyGone: its file is no longer kept, or damaged.
        PolicyNotReady: there is no champion yet, or the service comes to its end.
    """
    gate = model.gate
    if not gate.rule.gated:
        where, served = "spec.promotion.serve", repr(gate.rule.serve)
        raise InvalidValue(where, "'champion'", served, "it is decided when a model is created")
    if given.version is not None and given.action in ("refuse", "unpin"):
        raise InvalidValue("version", f"none, with {given.action!r}", given.version)
    async with gate.deciding:
        if gate.standing.champion is None:
            raise PolicyNotReady("model", "a champion", "no policy yet")
        if given.action == "refuse":
            if gate.trial is None:
                raise PolicyVersionUnknown("candidate", "one that is tried", "none")
            done = await gate.refuse("operator", given.reason)
        else:
            done = await _serve(model, given, gate.standing.champion)
    if not done:
        raise PolicyNotReady("journal", "a record of it", "none", "nothing was decided")


async def _serve(model: Model, given: Order, champion: ChampionRow) -> bool:
    """Serve what an order names."""
    gate, version = model.gate, given.version
    kind: type[ChampionRow] = ChampionRow
    if given.action == "rollback":
        kind, standing = RollbackRow, gate.standing
        earlier = standing.earlier() if version is None else standing.was_champion(version)
        if earlier is None or earlier.version == champion.version:
            raise PolicyVersionUnknown("version", "an earlier champion that is kept", version)
        version = earlier.version
    elif given.action == "promote" and version is None:
        if gate.standing.candidate is None:
            raise PolicyVersionUnknown("candidate", "one that is tried", "none", "name a version")
        version = gate.standing.candidate.version
    elif version is None:
        version = champion.version
    gate.standing.held = version  # its file stays while it is read and decided on
    try:
        named, policy = await _kept(model, version)
        pin = given.action == "pin"
        return await gate.serve(kind, named, policy, "operator", given.reason, pin)
    finally:
        gate.standing.held = None


async def _kept(model: Model, version: int) -> tuple[Named, PolicySnapshot]:
    """Return a policy that is kept, and what names it."""
    if version > model.published_version:
        expected = f"one published, at most {model.published_version}"
        raise PolicyVersionUnknown("version", expected, version)
    known = model.gate.standing.named(version)
    digest = model.publication.digest(version) if known is None else known.digest

    def read() -> tuple[str, PolicySnapshot]:
        data = model.publication.read(version)
        return sha256(data).hexdigest(), PolicySnapshot.from_bytes(data)

    try:
        file, policy = await asyncio.to_thread(read)
    except (OSError, CheckpointError):
        raise PolicyGone("version", "a policy that is kept", version) from None
    if policy.digest() != digest or (known is not None and file != known.file):
        raise PolicyGone("version", "a policy that is kept", version, "its file is damaged")
    return Named(version, policy.update_count, policy.digest(), file), policy
