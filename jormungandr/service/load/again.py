"""When whoever was told to come back later should."""

from __future__ import annotations

import math
import random

from jormungandr.errors import JormungandrError

__all__ = ["retry_after"]

#: Seconds over which those who are refused together are spread.
SPREAD = 3


def retry_after(error: JormungandrError) -> int:
    """Return the seconds of a ``Retry-After``, drawn so that a crowd does not return as one."""
    return max(1, math.ceil(error.retry_after or 1.0)) + random.randrange(SPREAD)
