"""The application in memory, as in the tests of the service."""

from tests.service.conftest import app, open_app, shared

__all__ = ["app", "open_app", "shared"]
