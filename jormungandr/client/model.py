"""`RemoteModel`: what a model of a service is, and what its owner does with it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jormungandr.bundle import MANIFESTS, from_zip
from jormungandr.client.calls import Calls, decoded
from jormungandr.errors import CheckpointError, InvalidValue, WaitTimeout
from jormungandr.manifest import check_replaceable, write_folder
from jormungandr.policy import PolicySnapshot
from jormungandr.protocol import LabelReceipt, LabelsLike
from jormungandr.spec import ModelSpec
from jormungandr.wire import encode, encode_labels

__all__ = ["RemoteModel"]

#: Longest time one barrier request waits on the server, in seconds.
WAIT_SLICE = 20.0


class RemoteModel:
    """A model of a service: created, looked at, waited for, labelled, exported, deleted.

    Args:
        calls: to the service.
        model_id: of the model.
    """

    def __init__(self, calls: Calls, model_id: str) -> None:
        self.model_id, self._calls = model_id, calls
        self._path = f"/v1/models/{quote(model_id, safe='')}"

    def create(self, spec: ModelSpec | Mapping[str, Any]) -> dict[str, Any]:
        """Create the model, or check that it exists with this specification.

        Fields that are not given match anything an existing model has.

        Raises:
            ModelConflict: it exists with another specification; the paths that differ are named.
        """
        given = spec.to_dict() if isinstance(spec, ModelSpec) else dict(spec)
        body = encode({"model_id": self.model_id, "spec": given})
        return decoded(self._calls.request("POST", "/v1/models", body), dict[str, Any])

    def label(self, labels: LabelsLike) -> LabelReceipt:
        """Submit labels; they are durable when this returns."""
        answer = self._calls.request("POST", f"{self._path}/labels/add", encode_labels(labels))
        return decoded(answer, LabelReceipt)

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
        longest = min(WAIT_SLICE, self._calls.timeout / 2)  # answered before the request times out
        while True:
            left = longest if end is None else min(longest, end - time.monotonic())
            found = self._object(f"{self._path}?applied_lsn={lsn}&wait={max(0.0, left):.3f}")
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
        return self._object(self._path)

    def metrics(self) -> dict[str, Any]:
        """Return the last update's figures and the evaluations so far."""
        return self._object(f"{self._path}/metrics")

    def promotion(self) -> dict[str, Any]:
        """Return who is champion, who is tried with what so far, and what was decided."""
        return self._object(f"{self._path}/promotion")

    def decide(
        self, action: str, version: int | None = None, *, reason: str = ""
    ) -> dict[str, Any]:
        """Decide about the policy that is served, in the place of the evidence.

        Args:
            action: ``promote``, ``rollback``, ``refuse``, ``pin`` or ``unpin``.
            version: of the policy; None is the candidate for ``promote``, the champion before this
                one for ``rollback``, and this one for ``pin``.
            reason: that is kept with it.

        Returns:
            What `promotion` returns, after it.

        Raises:
            InvalidValue: the model promotes nothing, or no such action.
            PolicyVersionUnknown: there is no such policy, no candidate or no earlier champion.
            PolicyGone: it is no longer kept.
        """
        body = {"action": action, "reason": reason}
        given = body if version is None else {**body, "version": version}
        path = f"{self._path}/promotion"
        return decoded(self._calls.request("POST", path, encode(given)), dict[str, Any])

    def snapshot(self, policy: str | None = None) -> PolicySnapshot:
        """Return a policy that is handed out, whole; it needs a token with the scope `policy`.

        Args:
            policy: ``"latest"``, ``"champion"`` or ``"candidate"``; None is what the model serves.

        Raises:
            PolicyNotReady: there is none yet.
            CheckpointError: what came is damaged.
        """
        role = "" if policy is None else f"?policy={quote(policy, safe='')}"
        answer = self._calls.request("GET", f"{self._path}/policy{role}")
        snapshot = PolicySnapshot.from_bytes(answer.body)
        if snapshot.digest() != answer.headers.get("jormungandr-policy-digest"):
            raise CheckpointError("policy", "the digest it was announced with", "another")
        return snapshot

    def _object(self, path: str) -> dict[str, Any]:
        return decoded(self._calls.request("GET", path), dict[str, Any])

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
        query = f"{self._path}/export?format={quote(format, safe='')}"
        answer = self._calls.request("POST", query, timeout=timeout)
        write_folder(Path(path), from_zip(answer.body), MANIFESTS)

    def delete(self) -> None:
        """Delete the model and everything it learned from."""
        self._calls.request("DELETE", self._path)
