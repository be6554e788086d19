"""`Refused`: a request that a service refused for good, kept for somebody to look at."""

from __future__ import annotations

import base64
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from jormungandr.errors import JormungandrError
from jormungandr.wire import JSON

__all__ = ["KEEP", "Refused"]

log = logging.getLogger("jormungandr")

#: Refused requests that are kept; later ones are only counted and logged.
KEEP = 100


@dataclass(frozen=True)
class Refused:
    """A request that the service refused for good.

    Args:
        error: why.
        rows: how many transitions it has; none of them was kept.
        media: content type of the body.
        body: as it was sent.
    """

    error: JormungandrError
    rows: int
    media: str
    body: bytes

    def to_json(self) -> bytes:
        """Return it as JSON: a JSON body as it is, another one in base64."""
        body: Any = msgspec.Raw(self.body)
        if self.media != JSON:
            body = {"base64": base64.b64encode(self.body).decode()}
        return msgspec.json.encode(
            {"error": self.error.to_dict(), "content_type": self.media, "body": body}
        )

    def write_beside(self, path: Path) -> Path | None:
        """Write it into a file beside another, and return its path; None once there are `KEEP`."""
        for number in range(1, KEEP + 1):
            place = path.with_name(f"{path.name}.refused-{number:04d}.json")
            try:
                with place.open("xb") as file:
                    file.write(self.to_json())
            except FileExistsError:
                continue
            except OSError as error:
                log.error("%s: not written: %s", place, error)
                return None
            return place
        return None
