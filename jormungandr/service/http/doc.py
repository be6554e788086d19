"""`Doc`: what the OpenAPI document says of one route, written beside the route."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jormungandr.errors import JormungandrError

__all__ = ["Doc", "Query", "Raw"]


@dataclass(frozen=True, slots=True)
class Query:
    """One query parameter.

    Args:
        text: what it is.
        schema: JSON Schema of its value.
        required: whether it must be given.
    """

    text: str
    schema: Mapping[str, Any]
    required: bool = False


@dataclass(frozen=True, slots=True)
class Raw:
    """A body that is bytes: its media type, and what is in it."""

    media_type: str
    text: str


@dataclass(frozen=True, slots=True)
class Doc:
    """What is said of a route; its path, method, scope, media types and limits it says itself.

    Args:
        summary: one line.
        replies: by status, the struct (or any type that msgspec can describe) of the JSON answer,
            a `Raw`, or None for an answer without a body.
        body: the struct of the JSON body that it takes.
        packed: what a MessagePack body is, where it is something else than the same names.
        query: the query parameters by name; as many as the route takes.
        errors: besides those that follow from what the route takes.
        text: more than a line, where one is not enough.
    """

    summary: str
    replies: Mapping[int, Any]
    body: Any = None
    query: Mapping[str, Query] = field(default_factory=dict)
    errors: tuple[type[JormungandrError], ...] = ()
    text: str = ""
    packed: str = ""
