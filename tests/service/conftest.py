"""The application in memory, with a learner process that is not there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from jormungandr import Learner, RemoteLearner
from jormungandr.service import app as app_module
from jormungandr.service import learning as learning_module
from jormungandr.service.gateway import Gateway
from jormungandr.service.model import Model
from tests.service.serving import (
    BEARER,
    QUIET,
    connect,
    memory,
    policy_message,
    state_message,
)


class NoProcess:
    """Stands for a learner process: it is told things, and does nothing."""

    pid = 1

    def __init__(
        self, folder: Path, threads: int, on_message: Callable[..., Any], **_: Any
    ) -> None:
        self.state, self.error = "idle", None
        self.heard: list[str] = []

    def start(self) -> None:
        """Say that it runs."""
        self.state = "running"

    def send(self, kind: str) -> None:
        """Remember what it was told."""
        self.heard.append(kind)

    def report(self) -> dict[str, Any]:
        """Say how it is."""
        return {"state": self.state, "error": None, "pid": None, "ends": 0}

    def progressed(self) -> None:
        """Nothing to forgive."""

    async def stop(self, *, at_once: bool = False) -> None:
        """Say that it does not run."""
        self.state = "stopped"


@dataclass
class App:
    """An application in memory and what is behind it."""

    http: TestClient
    gateway: Gateway
    path: Path

    def connect(self, model_id: str, **options: Any) -> RemoteLearner:
        """Return the client of a model."""
        return connect(self.http, model_id, **options)

    def model(self, model_id: str) -> Any:
        """Return a model of the gateway."""
        return self.gateway.model(model_id)

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Send a request with the token; a body that is not bytes goes as JSON."""
        options = {"content": body} if isinstance(body, bytes) else {"json": body}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        kind = {} if body is None else {"Content-Type": "application/json"}
        return self.http.request(
            method, path, headers={**BEARER, **kind, **named}, **({} if body is None else options)
        )

    def run(self, call: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        """Run a coroutine function on the application's event loop."""
        assert self.http.portal is not None
        return self.http.portal.call(call, *arguments)

    def publish(self, model_id: str, learner: Learner, lsn: int = 0) -> None:
        """Deliver a learner's policy and figures, as a learner process does."""
        model: Model = self.model(model_id)
        self.run(model.learning.hear, policy_message(learner.snapshot(), lsn))
        self.run(model.learning.hear, state_message(learner, lsn))


@pytest.fixture(scope="session")
def open_app() -> Callable[..., Any]:
    """A context manager over a data directory: the application on it, made with options."""

    class Opened:
        def __init__(self, path: Path, **options: Any) -> None:
            self._path, self._options, self._patch = path, options, pytest.MonkeyPatch()

        def __enter__(self) -> App:
            gateways: list[Gateway] = []

            class Seen(Gateway):
                def __init__(self, *arguments: Any, **options: Any) -> None:
                    super().__init__(*arguments, **options)
                    gateways.append(self)

            self._patch.setattr(app_module, "Gateway", Seen)
            self._patch.setattr(learning_module, "LearnerProcess", NoProcess)
            self._memory = memory(self._path, **self._options)
            return App(self._memory.__enter__(), gateways[0], self._path)

        def __exit__(self, *error: Any) -> None:
            self._memory.__exit__(*error)
            self._patch.undo()

    return Opened


@pytest.fixture
def app(open_app: Callable[[Path], Any], tmp_path: Path) -> Iterator[App]:
    """An application of the test's own."""
    with open_app(tmp_path) as opened:
        yield opened


@pytest.fixture(scope="module")
def shared(
    open_app: Callable[[Path], Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[App]:
    """An application that tests of a module share, with a model ``m`` that serves version 0."""
    with open_app(tmp_path_factory.mktemp("data")) as opened:
        opened.connect("m").create(QUIET)
        opened.publish("m", Learner(QUIET))
        yield opened
