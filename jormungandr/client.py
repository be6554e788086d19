"""Clients: `RemoteLearner`, the endpoint over HTTP, and `RemotePolicy`, in SB3's shape.

Over the standard library: an actor process needs neither torch nor an HTTP package.
"""

from __future__ import annotations

import logging
import os
import random
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import quote

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from jormungandr.bundle import MANIFESTS, from_zip
from jormungandr.errors import (
    BodyTooLarge,
    InternalError,
    InvalidType,
    InvalidValue,
    JormungandrError,
    NonFinite,
    Unavailable,
    WaitTimeout,
    from_dict,
)
from jormungandr.manifest import check_replaceable, write_folder
from jormungandr.prediction import Predictor
from jormungandr.protocol import (
    LIMITS,
    InferenceReply,
    LabelReceipt,
    LabelsLike,
    Receipt,
    TransitionsLike,
)
from jormungandr.recorder import Episodic
from jormungandr.spec import ModelSpec
from jormungandr.transport import HttpTransport, Response, Transport
from jormungandr.wire import encode, encode_labels, encode_transitions

__all__ = ["RemoteLearner", "RemotePolicy"]

T = TypeVar("T")

log = logging.getLogger("jormungandr")

#: Statuses after which the same bytes are sent again.
RETRY = frozenset({408, 429, 503})
#: Longest time one barrier request waits on the server, in seconds.
WAIT_SLICE = 20.0


class RemoteLearner(Episodic):
    """A model of a service, as an `Endpoint`.

    A request that failed on the way, or that the service asks to repeat, is sent again with the
    same bytes: what had arrived already is counted as `duplicate`, never twice. Errors are the
    classes that a `Learner` raises.

    Args:
        url: of the service; None is the environment's ``JORMUNGANDR_URL``.
        model_id: of the model.
        token: None is ``JORMUNGANDR_TOKEN``, or the content of ``JORMUNGANDR_TOKEN_FILE``.
        timeout: seconds for one request.
        patience: seconds during which a request is repeated before its error is raised.
        transport: how requests travel; tests hand in an application in memory.

    Example:
        >>> RemoteLearner("http://127.0.0.1:8000", "ou", token="secret").model_id
        'ou'
    """

    def __init__(
        self,
        url: str | None,
        model_id: str,
        token: str | None = None,
        *,
        timeout: float = 30.0,
        patience: float = 60.0,
        transport: Transport | None = None,
    ) -> None:
        url = url or os.environ.get("JORMUNGANDR_URL")
        if url is None and transport is None:
            raise InvalidValue(
                "url", "an address, or JORMUNGANDR_URL in the environment", "neither"
            )
        self.model_id = model_id
        self.timeout, self.patience = timeout, patience
        self._transport = transport or HttpTransport(url or "")
        token = (token or _token() or "").strip()
        if not token.isprintable() or not token.isascii():
            # Without its value: a token does not belong in a traceback.
            raise InvalidValue("token", "printable ASCII characters", "others")
        self._where = url or "service"
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._path = f"/v1/models/{quote(model_id, safe='')}"

    def create(self, spec: ModelSpec | Mapping[str, Any]) -> dict[str, Any]:
        """Create the model, or check that it exists with this specification.

        Fields that are not given match anything an existing model has.

        Raises:
            ModelConflict: it exists with another specification; the paths that differ are named.
        """
        given = spec.to_dict() if isinstance(spec, ModelSpec) else dict(spec)
        body = encode({"model_id": self.model_id, "spec": given})
        return self._object("POST", "/v1/models", body)

    def add(self, transitions: TransitionsLike) -> Receipt:
        """Submit transitions; they are durable when this returns."""
        body = encode_transitions(transitions)
        return self._struct("POST", f"{self._path}/experience/add", body, Receipt)

    def label(self, labels: LabelsLike) -> LabelReceipt:
        """Submit labels; they are durable when this returns."""
        body = encode_labels(labels)
        return self._struct("POST", f"{self._path}/labels/add", body, LabelReceipt)

    def act(
        self,
        observations: ArrayLike,
        deterministic: bool = False,
        epsilon: float | None = None,
        *,
        action_masks: ArrayLike | None = None,
        distribution: bool = False,
    ) -> InferenceReply:
        """Choose actions for a batch of observations, or for a single one as a batch of one.

        Args:
            observations: as the environment shows them; of a Dict a list of dicts, or a dict.
            deterministic: take the best action always; wins over `epsilon`.
            epsilon: probability of a random action; None is the model's exploration schedule.
            action_masks: (B, A) which actions are allowed; of a model with action masks.
            distribution: also return the return distribution of every action.
        """
        # A list goes as it is: an array of [1.0, True] or of rows of two lengths hides the fault.
        as_it_is = isinstance(observations, list | tuple | Mapping)
        rows: Any = observations if as_it_is else np.asarray(observations)
        _check_finite(rows, epsilon)
        if isinstance(rows, np.ndarray) and rows.ndim == 0:  # one observation that is a number
            rows = rows.reshape(1)
        request: dict[str, Any] = {"observations": rows}
        if deterministic:
            request["deterministic"] = True
        if epsilon is not None:
            request["epsilon"] = epsilon
        if action_masks is not None:
            # As a list: bytes of two axes would travel as pixels do.
            masks: Any = action_masks
            request["action_masks"] = masks.tolist() if isinstance(masks, np.ndarray) else masks
        if distribution:
            request["distribution"] = True
        try:
            body = encode(request)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidType("observations", "values that JSON can carry", error) from None
        return self._struct("POST", f"{self._path}/inference", body, InferenceReply)

    def wait(self, lsn: int, timeout: float | None = None) -> dict[str, Any]:
        """Return the model's figures once everything up to `lsn` is applied with its updates.

        Args:
            lsn: from a receipt.
            timeout: seconds; None waits for as long as it takes.

        Raises:
            WaitTimeout: it was not applied in time.
            InvalidValue: `lsn` is of no receipt.
        """
        end = None if timeout is None else time.monotonic() + timeout
        longest = min(WAIT_SLICE, self.timeout / 2)  # answered before the request times out
        while True:
            left = longest if end is None else min(longest, end - time.monotonic())
            path = f"{self._path}?applied_lsn={lsn}&wait={max(0.0, left):.3f}"
            found = self._object("GET", path)
            if found["applied_lsn"] >= lsn:
                return found
            newest = found.get("journal_lsn", lsn)
            if lsn > newest:  # of a model that was deleted and created again, say
                raise InvalidValue("lsn", f"one of a receipt, at most {newest}", lsn)
            if end is not None and time.monotonic() >= end:
                expected = f"lsn {lsn} applied within {timeout} s"
                raise WaitTimeout(self.model_id, expected, found["applied_lsn"])

    def info(self) -> dict[str, Any]:
        """Return the model's specification and figures."""
        return self._object("GET", self._path)

    def metrics(self) -> dict[str, Any]:
        """Return the last update's figures and the evaluations so far."""
        return self._object("GET", f"{self._path}/metrics")

    def export(
        self,
        path: str | Path,
        format: str = "bundle",  # noqa: A002 - the word of the command line and of the route
        *,
        timeout: float = 360.0,
    ) -> None:
        """Write the newest policy alone, for others to act with, as a folder that describes itself.

        Args:
            path: the folder; an earlier export there is replaced.
            format: ``bundle`` (data, for any language), ``onnx``, ``torchscript``, ``pt2`` or
                ``sb3``, which the service makes; see docs/export.md.
            timeout: seconds for one request: exporters are slow, and work one after another.

        Raises:
            InvalidValue: no such format, or something else at `path`.
            PackageMissing: the service lacks a package that the format needs.
            ExportError: what was made computes something else than the policy.
            CheckpointError: what came is damaged; nothing is written.
        """
        check_replaceable(Path(path), MANIFESTS)
        query = quote(format, safe="")
        data = self._request("POST", f"{self._path}/export?format={query}", timeout=timeout)
        write_folder(Path(path), from_zip(data), MANIFESTS)

    def delete(self) -> None:
        """Delete the model and everything it learned from."""
        self._request("DELETE", self._path)

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        self._transport.close()

    def __enter__(self) -> RemoteLearner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _object(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        return self._struct(method, path, body, dict[str, Any])

    def _struct(self, method: str, path: str, body: bytes | None, kind: type[T]) -> T:
        answer = self._request(method, path, body)
        try:
            return msgspec.json.decode(answer, type=kind)
        except msgspec.DecodeError as error:
            raise InternalError("service", "a Jormungandr service", error) from None

    def _request(
        self, method: str, path: str, body: bytes | None = None, timeout: float | None = None
    ) -> bytes:
        """Send a request until it is answered for good, and return the body of a success."""
        limit = LIMITS["json_body_bytes"]
        if body is not None and len(body) > limit:
            # The service closes the connection on such a body, which looks like a fault on the way.
            raise BodyTooLarge("body", f"at most {limit} bytes", len(body), "send fewer rows")
        end = time.monotonic() + self.patience
        attempt = 0
        while True:
            try:
                response = self._transport.request(
                    method, path, body, self._headers, timeout or self.timeout
                )
            except OSError as error:
                failure: JormungandrError = Unavailable(
                    self._where,
                    "a connection",
                    repr(error),
                    "is `jormungandr serve` running there?",
                )
                if _no_tls(error):
                    raise failure from None  # asking again would not change it
                pause = 0.0
            else:
                if response.status < 300:
                    return response.body
                failure = _error(response)
                if response.status not in RETRY:
                    raise failure
                pause = _retry_after(response)
            attempt += 1
            if attempt == 1:
                log.warning("%s; trying again for up to %g s", failure, self.patience)
            # Full jitter over a doubling bound: actors that failed together do not return so.
            pause = max(pause, random.uniform(0, min(5.0, 0.05 * 2**attempt)))
            if time.monotonic() + pause > end:
                raise failure
            time.sleep(pause)


class RemotePolicy(Predictor):
    """A service's newest policy in the shape SB3 gives policies; `evaluate_policy` takes it.

    Args:
        url, model_id, token: as for `RemoteLearner`.
        placement: ``remote`` asks the service for each action. ``local``, acting here with weights
            fetched from the service, is not part of this version.
    """

    def __init__(
        self,
        url: str | None,
        model_id: str,
        token: str | None = None,
        placement: Literal["remote", "local"] = "remote",
        *,
        transport: Transport | None = None,
    ) -> None:
        if placement != "remote":
            raise InvalidValue("placement", "'remote' in this version", repr(placement))
        self._endpoint = RemoteLearner(url, model_id, token, transport=transport)
        self._spec = ModelSpec.from_dict(self._endpoint.info()["spec"])

    @property
    def spec(self) -> ModelSpec:
        """The model's specification."""
        return self._spec

    def _specification(self) -> ModelSpec:
        return self._spec

    def _choose(self, observations: Any, deterministic: bool, masks: Any) -> NDArray[np.int64]:
        reply = self._endpoint.act(observations, deterministic=deterministic, action_masks=masks)
        return reply.indices

    def close(self) -> None:
        """Close the connection."""
        self._endpoint.close()


def _check_finite(observations: Any, epsilon: float | None) -> None:
    """Refuse NaN and infinity, which JSON cannot carry; all else is the service's to judge."""
    if isinstance(observations, Mapping):
        for part in observations.values():
            _check_finite(part, None)
        return
    if isinstance(epsilon, float | np.floating) and not np.isfinite(epsilon):
        raise InvalidValue("epsilon", "a number in 0..1", epsilon)
    for i, row in enumerate(observations if np.iterable(observations) else ()):
        if isinstance(row, Mapping):
            _check_finite(row, None)
            continue
        try:
            finite = bool(np.isfinite(row).all())
        except (TypeError, ValueError):  # no numbers
            continue
        if not finite:
            raise NonFinite(f"observations[{i}]", "numbers that are finite in float32", row)


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
