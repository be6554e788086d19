"""Every error of ours, with its wire code and HTTP status.

    JormungandrError
    ├── InvalidInput                     422  the content of a request is not acceptable
    │   ├── MissingField                      missing_field
    │   ├── UnknownField                      unknown_field
    │   ├── InvalidType                       invalid_type
    │   ├── InvalidValue                      invalid_value
    │   ├── ShapeMismatch                     shape_mismatch
    │   ├── DtypeMismatch                     dtype_mismatch
    │   ├── NonFinite                         non_finite
    │   ├── ActionRange                       action_range
    │   ├── UnknownSplit                      unknown_split
    │   └── LabelRange                        label_range
    ├── Conflict                         409  it contradicts what is already known; the first wins
    │   ├── IdentityConflict                  identity_conflict
    │   ├── SplitConflict                     split_conflict
    │   ├── EpisodeClosed                     episode_closed
    │   ├── LabelConflict                     label_conflict
    │   ├── PolicyVersionUnknown              policy_version_unknown
    │   ├── PolicyVersionStale                policy_version_stale
    │   └── ModelConflict                     model_conflict
    ├── LearnerFailed                    409  learner_failed: what is waited for will not come
    ├── Malformed                        400  malformed
    │   └── TooDeep                           too_deep
    ├── Unauthenticated                  401  unauthenticated
    ├── Forbidden                        403  forbidden: a token that may do other things
    │   └── ModelQuota                        model_quota: as many models as the service takes
    ├── ModelUnknown                     404  model_unknown
    │   └── ModelGone                         model_gone: deleted, or created again, meanwhile
    ├── NotFound                         404  not_found
    ├── MethodNotAllowed                 405  method_not_allowed
    ├── RequestTimeout                   408  request_timeout
    ├── PolicyGone                       410  policy_gone: a version that is no longer kept
    ├── BodyTooLarge                     413  body_too_large
    ├── UnsupportedMediaType             415  unsupported_media_type
    ├── TooManyRequests                  429  yours: come back later (Retry-After)
    │   ├── Backlog                           backlog
    │   ├── RateLimited                       rate_limited
    │   └── PendingLabelsFull                 pending_labels_full
    ├── PackageMissing                   501  package_missing
    ├── Unavailable                      503  ours: come back later (Retry-After)
    │   ├── StorageFull                       storage_full
    │   ├── Draining                          draining
    │   ├── Overloaded                        overloaded
    │   ├── PolicyNotReady                    policy_not_ready
    │   └── WaitTimeout                       wait_timeout
    ├── CheckpointError                  500  checkpoint_invalid: a saved state that does not verify
    ├── DataDirError                     500  data_dir: a data directory that cannot be used
    ├── ExportError                      500  export_failed
    └── InternalError                    500  internal_error: our bug

The client raises the very class that the learner raised. A message says where, what was expected,
what was given, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar


class JormungandrError(Exception):
    """Base of every error of ours.

    Args:
        where: the place in the caller's input, such as ``transitions[3].action``.
        expected: what would have been right there.
        got: what was given, shortened.
        remedy: what the caller can do; may be empty.
    """

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500
    #: Seconds after which a request may come again, where that is known.
    retry_after: float | None = None

    def __init__(self, where: str, expected: str, got: object = "", remedy: str = "") -> None:
        self.where = where
        self.expected = expected
        self.got = shown(got, str)
        self.remedy = remedy
        message = f"{where}: expected {expected}"
        if self.got:
            message += f", got {self.got}"
        if remedy:
            message += f"; {remedy}"
        super().__init__(message)

    def to_dict(self) -> dict[str, Any]:
        """Return the error as it goes over the wire."""
        return {
            "code": self.code,
            "message": str(self),
            "where": self.where,
            "expected": self.expected,
            "got": self.got,
            "remedy": self.remedy,
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.where, self.expected, self.got, self.remedy)


class InvalidInput(JormungandrError):
    """The content of a request is not acceptable; resending it will not help."""

    code, status = "invalid_input", 422


class MissingField(InvalidInput):
    """A required field is absent or null."""

    code = "missing_field"


class UnknownField(InvalidInput):
    """A field that does not exist here; unknown fields are refused so that typos are seen."""

    code = "unknown_field"


class InvalidType(InvalidInput):
    """A value of the wrong type."""

    code = "invalid_type"


class InvalidValue(InvalidInput):
    """A value of the right type outside its range."""

    code = "invalid_value"


class ShapeMismatch(InvalidInput):
    """An array whose shape is not the model's."""

    code = "shape_mismatch"


class DtypeMismatch(InvalidInput):
    """An array whose elements are not numbers of the model's dtype."""

    code = "dtype_mismatch"


class NonFinite(InvalidInput):
    """NaN or infinity, looked for after the cast to the model's dtype (1e39 is inf in float32)."""

    code = "non_finite"


class ActionRange(InvalidInput):
    """An action that is not an integer in [0, actions)."""

    code = "action_range"


class UnknownSplit(InvalidInput):
    """A split other than ``train`` and ``validation``."""

    code = "unknown_split"


class LabelRange(InvalidInput):
    """A label that is not one of the model's auxiliary classes."""

    code = "label_range"


class Conflict(JormungandrError):
    """The request contradicts what is already known; what came first stands."""

    code, status = "conflict", 409


class IdentityConflict(Conflict):
    """The same (actor, episode, timestep) was accepted before with other content."""

    code = "identity_conflict"


class SplitConflict(Conflict):
    """The same episode or transition was accepted before in the other split."""

    code = "split_conflict"


class EpisodeClosed(Conflict):
    """A timestep after the end of its episode, or an end before a known later timestep."""

    code = "episode_closed"


class LabelConflict(Conflict):
    """The same identity was labelled before with another class."""

    code = "label_conflict"


class PolicyVersionUnknown(Conflict):
    """A policy version that has not been published."""

    code = "policy_version_unknown"


class PolicyVersionStale(Conflict):
    """A policy version older than the model's ``staleness`` rule admits."""

    code = "policy_version_stale"


class ModelConflict(Conflict):
    """The model exists with another specification."""

    code = "model_conflict"


class LearnerFailed(JormungandrError):
    """What was waited for will not come: the model's learner was given up for now."""

    code, status = "learner_failed", 409


class Malformed(JormungandrError):
    """The body is not what its content type says."""

    code, status = "malformed", 400


class TooDeep(Malformed):
    """A body nested deeper than any of ours is."""

    code = "too_deep"


class Unauthenticated(JormungandrError):
    """No token, or not the right one."""

    code, status = "unauthenticated", 401


class Forbidden(JormungandrError):
    """A token that is known, and may not do this."""

    code, status = "forbidden", 403


class ModelQuota(Forbidden):
    """The service has as many models as it takes."""

    code = "model_quota"


class ModelUnknown(JormungandrError):
    """No model of that id."""

    code, status = "model_unknown", 404


class ModelGone(ModelUnknown):
    """The model that a client was connected to was deleted, or is another one under its id now."""

    code = "model_gone"


class NotFound(JormungandrError):
    """No such path."""

    code, status = "not_found", 404


class MethodNotAllowed(JormungandrError):
    """The path exists, but not for that method."""

    code, status = "method_not_allowed", 405


class RequestTimeout(JormungandrError):
    """A request that took too long to arrive."""

    code, status = "request_timeout", 408


class PolicyGone(JormungandrError):
    """A policy version that is no longer kept."""

    code, status = "policy_gone", 410


class BodyTooLarge(JormungandrError):
    """The body, or the number of rows in it, is over the published limit."""

    code, status = "body_too_large", 413


class UnsupportedMediaType(JormungandrError):
    """The content type is not one the service reads."""

    code, status = "unsupported_media_type", 415


class TooManyRequests(JormungandrError):
    """The caller is ahead of what the service takes from it; come back later."""

    code, status = "too_many_requests", 429


class Backlog(TooManyRequests):
    """The learner is behind by more than the model's ``pacing.max_backlog``."""

    code = "backlog"


class RateLimited(TooManyRequests):
    """More requests or rows than one token may send in that time."""

    code = "rate_limited"


class PendingLabelsFull(TooManyRequests):
    """Too many labels wait for their transitions."""

    code = "pending_labels_full"


class PackageMissing(JormungandrError):
    """What was asked for needs a package that is not installed where it would be made."""

    code, status = "package_missing", 501


class Unavailable(JormungandrError):
    """The service cannot do this now; come back later."""

    code, status = "unavailable", 503


class StorageFull(Unavailable):
    """The disk is full; nothing of the request was kept."""

    code = "storage_full"


class Draining(Unavailable):
    """The service is shutting down; nothing of the request was kept."""

    code = "draining"


class Overloaded(Unavailable):
    """More work is waiting than the service takes on; it was not begun."""

    code = "overloaded"


class PolicyNotReady(Unavailable):
    """No policy has been published yet."""

    code = "policy_not_ready"


class WaitTimeout(Unavailable):
    """What was waited for did not happen in time."""

    code = "wait_timeout"


class CheckpointError(JormungandrError):
    """A saved state that is incomplete, damaged, or of another format."""

    code, status = "checkpoint_invalid", 500


class DataDirError(JormungandrError):
    """A data directory that is locked, damaged, or of another format."""

    code, status = "data_dir", 500


class ExportError(JormungandrError):
    """An artefact that could not be made, or that does not compute what its policy does."""

    code, status = "export_failed", 500


class InternalError(JormungandrError):
    """Our own bug, or a server error without details."""

    code, status = "internal_error", 500


def shown(value: object, how: Callable[[object], str] = repr) -> str:
    """Return a value as a message shows it: shortened; 10**5000, say, cannot be printed."""
    try:
        return how(value)[:200]
    except Exception:
        article = "an" if type(value).__name__[0] in "aeiou" else "a"
        return f"{article} {type(value).__name__} too large to print"


def _tree(base: type[JormungandrError]) -> dict[str, type[JormungandrError]]:
    found = {base.code: base}
    for child in base.__subclasses__():
        found.update(_tree(child))
    return found


#: Wire code to class, for the client.
BY_CODE: dict[str, type[JormungandrError]] = {
    **_tree(JormungandrError),
    "internal_error": InternalError,
}


def from_dict(error: object) -> JormungandrError:
    """Rebuild an error from its wire form; an unknown code or form becomes `InternalError`."""
    if not isinstance(error, Mapping):
        return InternalError("service", "an error of ours", error)
    cls = BY_CODE.get(str(error.get("code")), InternalError)
    return cls(
        str(error.get("where", "")),
        str(error.get("expected", error.get("message", ""))),
        error.get("got", ""),
        str(error.get("remedy", "")),
    )
