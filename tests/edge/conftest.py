"""The application in memory, as the service's own tests have it."""

from __future__ import annotations

from tests.service.conftest import app, open_app, shared

__all__ = ["app", "open_app", "shared"]
