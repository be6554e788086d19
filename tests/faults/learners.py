"""What tests of a learner's faults share: an application in memory with a real learner process."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from jormungandr import RemoteLearner
from jormungandr.service import app as app_module
from jormungandr.service.app import create_app
from jormungandr.service.child import process as process_module
from jormungandr.service.child import watchdog as watchdog_module
from jormungandr.service.gateway import Gateway
from jormungandr.service.model import Model
from tests.service.serving import TOKEN, connect, until

__all__ = ["Service", "impatient", "put", "service"]


class Service:
    """An application in this process, whose learner processes are real ones."""

    def __init__(self, http: TestClient, gateway: Gateway) -> None:
        self._http, self._gateway = http, gateway

    def connect(self, model_id: str = "m", **options: Any) -> RemoteLearner:
        """Return the client of a model."""
        return connect(self._http, model_id, **options)

    def model(self, model_id: str = "m") -> Model:
        """Return a model of the gateway."""
        return self._gateway.model(model_id)

    def learner(self, model_id: str = "m") -> dict[str, Any]:
        """Return what the model says of its learner."""
        found: dict[str, Any] = self.connect(model_id).info()["learner"]
        return found

    def reached(self, *states: str) -> dict[str, Any]:
        """Wait until the learner of ``m`` is in one of these states; return what is said of it."""

        def look() -> dict[str, Any] | None:
            found = self.learner()
            return found if found["state"] in states else None

        found: dict[str, Any] = until(look, f"a learner that is {states}")
        return found


@contextlib.contextmanager
def service(data_dir: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Iterator[Service]:
    """Run the application on a data directory."""
    made: list[Gateway] = []

    class Seen(Gateway):
        def __init__(self, *arguments: Any, **given: Any) -> None:
            super().__init__(*arguments, **given)
            made.append(self)

    monkeypatch.setattr(app_module, "Gateway", Seen)
    with TestClient(create_app(data_dir, token=TOKEN, **options)) as http:
        yield Service(http, made[0])


def impatient(monkeypatch: pytest.MonkeyPatch, seconds: float = 3.0) -> None:
    """Let the watchdog wait for a few seconds only, but not while a learner starts."""
    for phase in watchdog_module.DEADLINES:
        if phase not in ("importing", "recovering"):
            monkeypatch.setitem(watchdog_module.DEADLINES, phase, seconds)


def put(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """Put a shell script in the place of the learner process; $5 is its channel, $6 its heart."""
    path = folder / "child"
    path.write_text(f"#!{shutil.which('sh')}\n{script}\n")
    path.chmod(0o700)
    monkeypatch.setattr(process_module, "sys", SimpleNamespace(executable=str(path)))
