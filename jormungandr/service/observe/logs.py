"""The log of a service: one line per event, as text or as JSON, with the id of the request.

Lines hold what happened and who asked by the *name* of his token: never a token, never a body,
never a path as it was sent.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias, get_args

import msgspec

__all__ = ["FORMATS", "REQUEST_ID", "LogFormat", "configure", "configure_child", "event"]

LogFormat: TypeAlias = Literal["text", "json"]
FORMATS: tuple[LogFormat, ...] = get_args(LogFormat)

#: The id of the request that is being answered; every line that is written meanwhile has it.
REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)

#: Tells child processes, whose lines go to the same place, how the service logs.
VARIABLE = "JORMUNGANDR_LOG_FORMAT"


def event(log: logging.Logger, level: int, message: str, **fields: Any) -> None:
    """Write one line with fields of its own."""
    if log.isEnabledFor(level):
        log.log(level, "%s", message, extra={"fields": fields})


class JsonFormatter(logging.Formatter):
    """One JSON object per line.

    Args:
        fields: that every line has.
    """

    def __init__(self, fields: dict[str, str]) -> None:
        super().__init__()
        self._fields = fields

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._fields,
            **dict(_fields(record)),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


class TextFormatter(logging.Formatter):
    """For people: time, level, logger, message, fields; a trace follows on lines of its own.

    Args:
        fields: that every line has.
    """

    def __init__(self, fields: dict[str, str]) -> None:
        super().__init__()
        self._fields = fields

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        # What others sent may be quoted in a message: it ends no line and writes none of its own.
        message = record.getMessage().replace("\r", "\\r").replace("\n", "\\n")
        fields = (*self._fields.items(), *_fields(record))
        said = "".join(f" {name}={value}" for name, value in fields)
        line = f"{_time(record)} {record.levelname} {record.name} {message}{said}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _time(record: logging.LogRecord) -> str:
    """Return when it happened, in UTC: clocks of several machines are read side by side."""
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _fields(record: logging.LogRecord) -> Iterator[tuple[str, Any]]:
    request_id = REQUEST_ID.get()
    if request_id is not None:
        yield "request_id", request_id
    yield from getattr(record, "fields", {}).items()


def configure(kind: LogFormat, level: str, **fields: str) -> None:
    """Have the log of this process, and of its children, written to the standard error.

    Args:
        kind: of the lines.
        level: name of the lowest one written.
        fields: that every line has.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(fields) if kind == "json" else TextFormatter(fields))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    os.environ[VARIABLE] = kind


def configure_child(**fields: str) -> None:
    """Have a child's log written as its service writes; at info, for it says little."""
    configure("json" if os.environ.get(VARIABLE) == "json" else "text", "info", **fields)
