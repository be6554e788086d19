"""The application in memory, as the tests of the service have it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.conftest import App, open_app

__all__ = ["app", "open_app"]


@pytest.fixture
def app(open_app: Callable[..., Any], tmp_path: Path) -> Iterator[App]:
    """An application of the test's own."""
    with open_app(tmp_path) as opened:
        yield opened
