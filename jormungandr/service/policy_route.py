"""Policies over HTTP: the bytes of a snapshot, for whoever acts with it elsewhere."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from starlette.types import Receive, Scope, Send

from jormungandr.errors import (
    CheckpointError,
    InvalidValue,
    Overloaded,
    PolicyGone,
    PolicyVersionUnknown,
    RateLimited,
)
from jormungandr.policy import PolicySnapshot
from jormungandr.protocol import LIMITS
from jormungandr.service.http.body import NO_BODY
from jormungandr.service.http.doc import Doc, Query, Raw
from jormungandr.service.http.grants import Needs
from jormungandr.service.http.hearing import while_heard
from jormungandr.service.http.route import JsonRoute, Request, number
from jormungandr.service.load.waits import Waits
from jormungandr.service.model import Model
from jormungandr.service.promotion.handing import ROLES

__all__ = ["PolicyRoute"]

CONTENT_TYPE = "application/octet-stream"
#: Longest time a request for a newer policy is held open, in seconds.
LONGEST_WAIT = 60.0
#: Policies whose bytes are kept in memory, of all models together.
KEEP = 8

Key = tuple[str, int, int]


class PolicyRoute:
    """Answers with the bytes of a policy, with 304 where there is no newer one, or with an error.

    The bytes of a version are made once, off the event loop, however many ask for them.

    Args:
        find: returns the model of an id.
        waits: counts whoever is kept waiting.
    """

    needs: Needs = "policy"
    query = ("newer_than", "wait", "version", "policy")
    accepts = NO_BODY
    doc = Doc(
        "The policy served, once it is newer than a version, or a version that is kept",
        {
            200: Raw(
                CONTENT_TYPE, "safetensors of weights and moments, as docs/export.md describes"
            ),
            304: None,
        },
        query={
            "newer_than": Query("the version that is there already", {"type": "integer"}),
            "wait": Query("seconds to wait for a newer one", {"type": "number", "maximum": 60}),
            "version": Query("this one, if it is still kept", {"type": "integer"}),
            "policy": Query("which one, where not what the model serves", {"enum": list(ROLES)}),
        },
        errors=(PolicyGone, PolicyVersionUnknown, RateLimited, Overloaded),
    )

    def __init__(self, find: Callable[[str], Model], waits: Waits) -> None:
        self._find, self._waits = find, waits
        self._made: OrderedDict[Key, asyncio.Task[bytes]] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; nothing is waited for once its client is gone."""
        found: list[tuple[int, list[tuple[bytes, bytes]], bytes]] = []

        async def call(request: Request) -> tuple[int, Any]:
            model = self._find(request.path["model_id"])
            if "version" in request.query:
                if len(request.query) > 1:
                    raise InvalidValue("query.version", "alone, without others", "both")
                version = _integer(request, "version", 0)
                data = await self._kept(model, version)
                found.append((200, _headers(model, version), data))
                return 200, None
            than, wanted = _integer(request, "newer_than", -1), request.query.get("policy")
            model.gate.check(wanted, "query.policy")
            wait = number(request, "wait", 0, LONGEST_WAIT, 0)
            with self._waits.enter(request.grant.name):
                newest = model.answers.newer_policy(than, wait, wanted)
                policy, newer = await while_heard(newest, receive)
            headers = _headers(model, policy.version, model.gate.role(wanted))
            if not newer:
                found.append((304, headers, b""))
                return 200, None
            data = await self._bytes(model, policy.version, policy.to_bytes)
            found.append((200, headers, data))
            return 200, None

        async def reply(message: Any) -> None:
            if not found:  # an error; a success has another form
                await send(message)

        await JsonRoute(call, needs=self.needs, query=self.query)(scope, receive, reply)
        for status, headers, data in found:
            if status == 200:
                headers.append((b"content-type", CONTENT_TYPE.encode()))
                headers.append((b"content-length", str(len(data)).encode()))
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": data})

    async def _kept(self, model: Model, version: int) -> bytes:
        """Return a version that may not be the newest.

        Raises:
            PolicyVersionUnknown: it was never published.
            PolicyGone: it is no longer kept.
        """
        if version > model.published_version:
            expected = f"one published, at most {model.published_version}"
            raise PolicyVersionUnknown("query.version", expected, version)
        digest = model.publication.digest(version)

        def read() -> bytes:
            try:
                data = model.publication.read(version)
                whole = PolicySnapshot.from_bytes(data).digest() == digest
            except (OSError, CheckpointError):
                whole = False
            if not whole:  # a damaged one is never served
                newest = f"the newest is {model.served_version}"
                raise PolicyGone("query.version", "a policy that is kept", version, newest)
            return data

        return await self._bytes(model, version, read)

    async def _bytes(self, model: Model, version: int, make: Callable[[], bytes]) -> bytes:
        """Return what `make` returns, or returned for somebody else."""
        key = (model.model_id, model.generation, version)
        task = self._made.get(key)
        if task is None:
            task = self._made[key] = asyncio.ensure_future(asyncio.to_thread(make))
            while len(self._made) > KEEP:
                self._made.popitem(last=False)
        self._made.move_to_end(key)
        try:
            # Shielded: whoever goes does not take it from those who wait on.
            return await asyncio.shield(task)
        except Exception:
            self._made.pop(key, None)
            raise


def _integer(request: Request, name: str, low: int) -> int:
    value = number(request, name, low, LIMITS["timestep_max"], -1)
    if value != int(value):
        raise InvalidValue(f"query.{name}", "an integer", value)
    return int(value)


def _headers(model: Model, version: int, role: str = "") -> list[tuple[bytes, bytes]]:
    digest = model.publication.digest(version) or ""
    return [
        *([(b"jormungandr-policy-role", role.encode())] if role else []),
        (b"etag", f'"{version}-{digest}"'.encode()),
        (b"jormungandr-policy-version", str(version).encode()),
        (b"jormungandr-policy-digest", digest.encode()),
        (b"jormungandr-generation", str(model.generation).encode()),
    ]
