"""`Calls`: requests to one service, sent again until they are answered for good."""

from __future__ import annotations

import logging
import os
import random
import ssl
import time
from pathlib import Path
from typing import TypeVar

import msgspec

from jormungandr.errors import (
    BodyTooLarge,
    InternalError,
    InvalidValue,
    JormungandrError,
    Unavailable,
    from_dict,
)
from jormungandr.protocol import LIMITS
from jormungandr.transport import HttpTransport, Response, Transport
from jormungandr.wire import JSON

__all__ = ["Again", "Calls", "Pauses", "check_size", "decoded"]

T = TypeVar("T")

log = logging.getLogger("jormungandr")

#: Statuses after which the same bytes are sent again.
RETRY = frozenset({408, 429, 503})
#: Longest pause of our own choice, in seconds.
LONGEST_PAUSE = 5.0


class Again(Exception):
    """A request that may succeed when the same bytes are sent again.

    Args:
        failure: what to raise if nobody tries.
        pause: seconds that the service asks to wait first.
    """

    def __init__(self, failure: JormungandrError, pause: float) -> None:
        super().__init__(str(failure))
        self.failure, self.pause = failure, pause


class Pauses:
    """Pauses between the attempts of one request.

    Full jitter over a doubling bound: actors that failed together do not return so.
    """

    def __init__(self) -> None:
        self._attempts = 0

    def next(self, asked: float) -> float:
        """Return how long to wait now, in seconds; at least what the service asked for."""
        self._attempts = min(self._attempts + 1, 10)
        return max(asked, random.uniform(0, min(LONGEST_PAUSE, 0.05 * 2**self._attempts)))


class Calls:
    """Requests to one service with a token; several threads may send them at once.

    Args:
        url: of the service; None is the environment's ``JORMUNGANDR_URL``.
        token: None is ``JORMUNGANDR_TOKEN``, or the content of ``JORMUNGANDR_TOKEN_FILE``.
        timeout: seconds for one request.
        patience: seconds during which a request is repeated before its error is raised.
        transport: how requests travel; None is HTTP to `url`.

    Raises:
        InvalidValue: no address, or a token that no header can carry.
    """

    def __init__(
        self,
        url: str | None,
        token: str | None,
        *,
        timeout: float,
        patience: float,
        transport: Transport | None,
    ) -> None:
        url = url or os.environ.get("JORMUNGANDR_URL")
        if url is None and transport is None:
            raise InvalidValue(
                "url", "an address, or JORMUNGANDR_URL in the environment", "neither"
            )
        self.timeout, self.patience = timeout, patience
        self._transport = transport or HttpTransport(url or "")
        token = (token or _token() or "").strip()
        if not token.isprintable() or not token.isascii():
            # Without its value: a token does not belong in a traceback.
            raise InvalidValue("token", "printable ASCII characters", "others")
        self._where = url or "service"
        self._bearer = {"Authorization": f"Bearer {token}"} if token else {}

    def attempt(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        media: str = JSON,
        timeout: float | None = None,
    ) -> Response:
        """Send a request once, and return the answer of a success or a 304.

        Raises:
            Again: it may be sent again.
            JormungandrError: it is refused for good.
        """
        if body is not None:
            check_size(media, body)
        headers = {"Content-Type": media, **self._bearer}
        try:
            response = self._transport.request(method, path, body, headers, timeout or self.timeout)
        except OSError as error:
            failure: JormungandrError = Unavailable(
                self._where,
                "a connection",
                repr(error),
                _remedy(error, self._where),
            )
            if _no_tls(error):
                raise failure from None  # asking again would not change it
            raise Again(failure, 0.0) from None
        if response.status < 300 or response.status == 304:
            return response
        failure = _error(response)
        if response.status in RETRY:
            raise Again(failure, _retry_after(response))
        raise failure

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        media: str = JSON,
        timeout: float | None = None,
        patience: float | None = None,
    ) -> Response:
        """Send a request until it is answered for good, and return the answer of a success.

        Args:
            method: such as ``POST``.
            path: with the query.
            body: the same bytes each time; None sends none.
            media: content type of the body.
            timeout: seconds for one attempt; None is that of all.
            patience: seconds for all attempts, likewise.

        Raises:
            JormungandrError: it is refused, or there was no answer in time.
        """
        given = self.patience if patience is None else patience
        end = time.monotonic() + given
        pauses, warned = Pauses(), False
        while True:
            try:
                return self.attempt(method, path, body, media, timeout)
            except Again as again:
                if not warned:
                    log.warning("%s; trying again for up to %g s", again.failure, given)
                warned, pause = True, pauses.next(again.pause)
                if time.monotonic() + pause > end:
                    raise again.failure from None
            time.sleep(pause)

    def close(self) -> None:
        """Close the connections; the next request opens another."""
        self._transport.close()


def check_size(media: str, body: bytes) -> None:
    """Refuse a body that is over the limit of its content type.

    The service closes the connection on such a body, which looks like a fault on the way.

    Raises:
        BodyTooLarge: naming the limit.
    """
    limit = LIMITS["json_body_bytes" if media == JSON else "columns_body_bytes"]
    if len(body) > limit:
        raise BodyTooLarge("body", f"at most {limit} bytes", len(body), "send fewer rows")


def decoded(response: Response, kind: type[T]) -> T:
    """Return the JSON body of an answer.

    Raises:
        InternalError: it is none of a service of ours.
    """
    try:
        return msgspec.json.decode(response.body, type=kind)
    except msgspec.DecodeError as error:
        raise InternalError("service", "a Jormungandr service", error) from None


def _remedy(error: OSError, where: str) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return "JORMUNGANDR_CA_FILE names the certificate, or the authority, that is to be trusted"
    if _no_tls(error):
        return "it speaks no TLS: is its address http://…?"
    if isinstance(error, ConnectionResetError) and where.startswith("http://"):
        # So ends a request that a service with TLS could not read; one that was killed looks alike.
        return "is `jormungandr serve` running there? If with TLS, its address is https://…"
    return "is `jormungandr serve` running there?"


def _no_tls(error: OSError) -> bool:
    """Whether the other side has the wrong certificate, or speaks no TLS at all."""
    wrong = isinstance(error, ssl.SSLCertVerificationError)
    return wrong or getattr(error, "reason", None) == "WRONG_VERSION_NUMBER"


def _token() -> str | None:
    token = os.environ.get("JORMUNGANDR_TOKEN")
    file = os.environ.get("JORMUNGANDR_TOKEN_FILE")
    if token is None and file is not None:
        try:
            token = Path(file).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise InvalidValue("JORMUNGANDR_TOKEN_FILE", "a readable file", error) from None
    return token


def _error(response: Response) -> JormungandrError:
    try:
        return from_dict(msgspec.json.decode(response.body)["error"])
    except (msgspec.DecodeError, KeyError, TypeError):
        text = response.body[:200].decode(errors="replace")
        return InternalError("service", "a Jormungandr service", f"{response.status} {text}")


def _retry_after(response: Response) -> float:
    try:
        return max(0.0, float(response.headers.get("retry-after", 0)))
    except ValueError:
        return 0.0
