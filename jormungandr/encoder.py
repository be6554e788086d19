"""`TransitionEncoder`: transitions as the body of a request, in the form that suits them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from jormungandr.checks import listed
from jormungandr.columns import Columns, columns
from jormungandr.errors import ModelConflict, UnsupportedMediaType
from jormungandr.packed import pack
from jormungandr.protocol import LIMITS, TransitionsLike
from jormungandr.spec import ModelSpec
from jormungandr.steps import Steps
from jormungandr.wire import JSON, MSGPACK, encode_transitions

__all__ = ["COLUMNS_FROM", "TransitionEncoder"]

#: Rows from which columns are worth it: below, a request costs more than what is in it.
COLUMNS_FROM = 16

T = TypeVar("T")


class TransitionEncoder:
    """A few rows become JSON; many, or what JSON is too long for, become columns.

    For columns it has to know the model, since observations are encoded and labels become classes
    here. It asks once.

    Args:
        describe: returns the model's ``spec`` and ``generation``, as `GET /v1/models/{id}` does.
        columns_from: rows from which they are columns; None is never.
    """

    def __init__(
        self,
        describe: Callable[[], Mapping[str, Any]],
        columns_from: int | None = COLUMNS_FROM,
    ) -> None:
        self._describe, self._from = describe, columns_from
        self._model: tuple[ModelSpec, int] | None = None

    @property
    def ready(self) -> bool:
        """Whether it makes a body without asking: it knows the model, or makes no columns."""
        return self._from is None or self._model is not None

    @property
    def model(self) -> tuple[ModelSpec, int] | None:
        """Specification and generation, where they are known and columns are made."""
        return None if self._from is None else self._model

    def know(self, found: Mapping[str, Any]) -> None:
        """Take what `describe` would return."""
        self._model = ModelSpec.from_dict(found["spec"]), int(found["generation"])

    def __call__(self, transitions: TransitionsLike) -> tuple[str, bytes]:
        """Return the media type of a body, and the body.

        Raises:
            InvalidInput: (one of its classes) something that is no transition, or, in columns, the
                first that the model does not take.
            BodyTooLarge: more than a request may have.
        """
        given = _given(transitions)
        if self._from is None or len(given) < self._from:
            body = encode_transitions(given)
            if self._from is None or len(body) <= LIMITS["json_body_bytes"]:
                return JSON, body
        if self._model is None:
            self.know(self._describe())
        assert self._model is not None
        spec, generation = self._model
        return MSGPACK, pack(columns(given, spec), generation)

    def deliver(self, transitions: TransitionsLike, send: Callable[[str, bytes], T]) -> T:
        """Return what `send` makes of media type and body.

        Columns of a model that was created again meanwhile are made again, once: nothing of a
        request that is refused has been kept.

        Raises:
            UnsupportedMediaType: the service takes no columns.
            JormungandrError: whatever `send` or encoding raises.
        """
        given = _given(transitions)
        media, body = self(given)
        if media == JSON:
            return send(media, body)
        try:
            return send(media, body)
        except ModelConflict:
            self._model = None
            return send(*self(given))
        except UnsupportedMediaType as error:
            expected, remedy = "a service that takes columns", "update it, or use columns_from=None"
            raise UnsupportedMediaType("Content-Type", expected, error.got, remedy) from None


def _given(transitions: Any) -> Any:
    if isinstance(transitions, Columns | Steps):
        return transitions
    return listed(transitions, "transitions", "a list of transitions")
