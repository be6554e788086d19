"""`Direct`: small requests whose answer needs nothing but this process, without tasks of their own.

It does what the routes do, with the same parts and in the same order, as long as nothing is out of
the ordinary. Whatever is, it leaves to them, before anything was counted or kept: so there is one
place that refuses, and says why.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from time import perf_counter

import msgspec
from msgspec import UNSET, UnsetType
from starlette.types import Scope

from jormungandr.columns import columns
from jormungandr.errors import JormungandrError
from jormungandr.nesting import scan_msgpack
from jormungandr.packed import unpack
from jormungandr.service.decoding import LOOP_BYTES
from jormungandr.service.gateway import Gateway
from jormungandr.service.http.authentication import Authenticated
from jormungandr.service.http.body import JSON, MSGPACK
from jormungandr.service.http.exchange import Exchange
from jormungandr.service.http.grants import Grant
from jormungandr.service.observe.meters import Meters
from jormungandr.service.observe.requests import Observed
from jormungandr.service.taken import Action, Desk, Taken
from jormungandr.typed_rows import typed_rows

__all__ = ["Direct"]

log = logging.getLogger("jormungandr")

#: Under which models are.
MODELS = "/v1/models/"
#: Requests with transitions that may wait here; more of them wait in turns, in the route.
WAITING = 256
#: Bytes of their bodies that are decoded in one turn of the event loop: a millisecond.
TURN = 4_096


class _Ask(msgspec.Struct, forbid_unknown_fields=True):
    """The plainest request for actions; anything else is for the route."""

    observations: list[list[int | float]]
    deterministic: bool | UnsetType = UNSET
    epsilon: int | float | UnsetType = UNSET
    action_masks: list[list[int | bool]] | UnsetType = UNSET


_ASK = msgspec.json.Decoder(_Ask)
_JSON, _COLUMNS = JSON.encode(), MSGPACK.encode()


class Direct:
    """Answers requests that come whole, small and plain.

    Args:
        gateway: of the models.
        access: knows who asks.
        observed: names, counts and logs requests.
        meters: count those in flight.
    """

    def __init__(
        self, gateway: Gateway, access: Authenticated, observed: Observed, meters: Meters
    ) -> None:
        self._gateway, self._access, self._turns = gateway, access, gateway.lanes.turns
        self._desk = Desk(observed, meters, gateway.lanes.rates)
        self._known: dict[tuple[bytes | None, bytes | None], Grant] = {}
        self._later: deque[Taken] = deque()
        one, lanes = f"{MODELS}{{model_id}}", gateway.lanes
        self._actions = {
            "inference": Action(
                "act", lanes.inference, f"{one}/inference", frozenset([_JSON]), _infer
            ),
            "experience/add": Action(
                "ingest",
                lanes.ingestion,
                f"{one}/experience/add",
                frozenset([_JSON, _COLUMNS]),
                self._wait,
            ),
        }

    def expects(self, scope: Scope) -> bool:
        """Whether a request may be one of those, once its body is there."""
        path: str = scope["path"]
        return scope["method"] == "POST" and path.endswith(tuple(self._actions))

    def __call__(self, exchange: Exchange) -> bool:
        """Take a request that is one of those, and answer it soon."""
        began, scope = perf_counter(), exchange.scope
        path: str = scope["path"]
        if (
            scope["method"] != "POST"
            or not path.startswith(MODELS)
            or len(exchange.body) >= LOOP_BYTES
        ):
            return False
        model_id, _, what = path[len(MODELS) :].partition("/")
        action, model = self._actions.get(what), self._gateway.find(model_id)
        if action is None or model is None:
            return False
        headers = _plain_headers(scope)
        if headers.get(b"content-type") not in action.kinds:
            return False
        try:
            grant = self._grant(scope, headers)
            grant.check(action.needs, model_id)
        except JormungandrError:
            return False
        one = Taken(self._desk, exchange, model, grant, action, headers, began)
        return _guarded(action.take, one)

    def _grant(self, scope: Scope, headers: dict[bytes, bytes]) -> Grant:
        """Return what a request may do; what came in one turn of the event loop is looked at once.

        Raises:
            JormungandrError: nobody is known by what it bears, or it means another host.
        """
        key = headers.get(b"authorization"), headers.get(b"host")
        found = self._known.get(key)
        if found is None:
            if not self._known:
                asyncio.get_running_loop().call_soon(self._known.clear)
            found = self._known[key] = self._access.grant(scope)
        return found

    def _wait(self, one: Taken) -> bool:
        """Have a request with transitions decoded soon, unless others wait in turns already."""
        if self._turns.waiting or len(self._later) >= WAITING:
            return False
        self._later.append(one)
        if len(self._later) == 1:
            asyncio.get_running_loop().call_soon(self._decode)
        return True

    def _decode(self) -> None:
        """Decode some, and let others be answered before the rest."""
        left = TURN
        while self._later and left > 0:
            one = self._later.popleft()
            left -= one.size
            if not _guarded(_add, one):
                one.exchange.route()
        if self._later:
            asyncio.get_running_loop().call_soon(self._decode)


def _plain_headers(scope: Scope) -> dict[bytes, bytes]:
    """Return the headers of a request that says of itself only what every one says, each once.

    There is no content type among those of any other.
    """
    headers = dict(scope["headers"])
    plain = (
        len(headers) == len(scope["headers"])
        and b"content-encoding" not in headers
        and b"%" not in scope["raw_path"]
        and not scope["query_string"]
        and not scope["root_path"]
    )
    return headers if plain else {}


def _guarded(take: Callable[[Taken], bool], one: Taken) -> bool:
    """Take a request; what goes wrong concerns no other one, and it is answered all the same."""
    try:
        return take(one)
    except Exception as error:
        if not one.entered:
            log.exception("a request could not be answered directly")
            return False
        if not one.done():
            one.set_exception(error)
        return True


def _infer(one: Taken) -> bool:
    if not one.fits():
        return False
    body = one.exchange.body
    try:
        given = _ASK.decode(body)
    except (msgspec.DecodeError, ValueError):
        return False
    options = (given.deterministic, given.epsilon, given.action_masks)
    if body.count(b":") != 4 - options.count(UNSET):  # one of them is there twice
        return False
    question = one.model.answers.question(
        given.observations,
        given.deterministic is True,
        None if given.epsilon is UNSET else given.epsilon,
        None if given.action_masks is UNSET else given.action_masks,
    )
    if question is None:
        return False
    one.enter(len(question))
    one.model.answers.ask(question, one)
    return True


def _add(one: Taken) -> bool:
    model = one.model
    if not one.fits() or not model.intake.is_open():
        return False
    body = one.exchange.body
    try:
        if one.headers[b"content-type"] == _COLUMNS:
            scan_msgpack(body)
            found = unpack(body, model.spec, model.generation)
        else:
            typed = typed_rows(body, model.spec)
            if typed is None:
                return False
            found = columns(typed, model.spec)
        one.grant.check_rows(found)
    except JormungandrError:
        return False
    one.enter(len(found))
    model.intake.put(found, one)
    return True
