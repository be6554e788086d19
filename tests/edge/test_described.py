"""Requests drawn from the committed OpenAPI document, and answers held against it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
import urllib3
from hypothesis import HealthCheck, Phase, given, settings

from jormungandr import Learner
from tests.edge.asgi import Answer, ask
from tests.service.serving import QUIET

SCHEMA = schemathesis.openapi.from_path(Path(__file__).parents[2] / "docs" / "openapi.json")
OPERATIONS = [found.ok() for found in SCHEMA.get_all_operations()]
#: What would be our own; 503 says that there is no policy, or nobody to export for.
FAULTS = {500, 501}


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: f"{o.method} {o.path}")
def test_every_operation(operation: Any, open_app: Callable[[Path], Any], tmp_path: Path) -> None:
    """Whatever the document allows is answered as the document says, and is no fault of ours."""
    with open_app(tmp_path) as app:
        app.connect("m").create(QUIET)
        app.publish("m", Learner(QUIET))

        @settings(max_examples=60, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy())
        def check(case: Any) -> None:
            app.connect("m").create(QUIET)  # again, where it was deleted
            if "model_id" in (case.path_parameters or {}):
                case.path_parameters["model_id"] = "m"
            if "wait" in (case.query or {}):
                case.query["wait"] = 0
            options = case.as_transport_kwargs(base_url="http://testserver")
            options.pop("cookies", None)
            request = requests.Request(**options).prepare()
            answer = app.run(sent, app, request)
            assert answer.status not in FAULTS, answer
            operation.validate_response(response(request, answer), case=case)

        check()


async def sent(app: Any, request: requests.PreparedRequest) -> Answer:
    """Send a prepared request into the application."""
    assert request.method is not None
    body = request.body.encode() if isinstance(request.body, str) else request.body
    kind = request.headers.get("content-type", "application/json")
    return await ask(app.http.app, request.method, request.path_url, body, kind)


def response(request: requests.PreparedRequest, answer: Answer) -> requests.Response:
    """Return an answer as the library that checks it has answers."""
    found = requests.Response()
    found.status_code, found._content = answer.status, answer.body
    found.headers.update(answer.headers)
    found.request, found.url, found.elapsed = request, str(request.url), timedelta(seconds=0)
    found.raw = urllib3.HTTPResponse(answer.body, answer.headers, answer.status)
    return found
