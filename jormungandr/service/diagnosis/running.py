"""A running service, from outside: reached, ready, let in; its clock; its learners."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from jormungandr.errors import InternalError, JormungandrError, from_dict
from jormungandr.service.diagnosis.finding import Finding, fail, ok, skip, warn
from jormungandr.transport import HttpTransport, Response, Transport
from jormungandr.version import __version__

__all__ = ["RunningService", "check_learners", "check_service"]

#: Seconds for an answer.
TIMEOUT = 10.0
#: Seconds between two clocks; the header has whole ones.
SKEW = 5.0
#: States of a learner that does not get on, and of one that should be looked at.
BAD, DOUBTFUL = ("failed", "hung"), ("restarting", "diverged")


class RunningService:
    """A service at an address.

    Args:
        url: of it.
        token: to show; None shows none.
        transport: that reaches it; None is HTTP.

    Raises:
        InvalidValue: an address that is none.
    """

    def __init__(self, url: str, token: str | None, transport: Transport | None = None) -> None:
        self.url, self.token = url, token
        self._transport = transport or HttpTransport(url)

    def get(self, path: str) -> Response:
        """Ask for a path.

        Raises:
            OSError: no answer came.
        """
        shown = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        return self._transport.request("GET", path, None, shown, TIMEOUT)

    def json(self, path: str) -> Any:
        """Return the content of an answer.

        Raises:
            OSError: no answer came.
            JormungandrError: another one than was asked for.
        """
        response = self.get(path)
        try:
            content = json.loads(response.body)
        except ValueError:
            status = f"status {response.status} and something else"
            raise InternalError(self.url, "an answer in JSON", status) from None
        if response.status != 200:
            raise from_dict(content.get("error") if isinstance(content, dict) else content)
        return content

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()


def check_service(service: RunningService) -> Iterator[Finding]:
    """Reach it, ask whether it is ready, show the token, compare clocks and versions."""
    try:
        ready = service.get("/v1/health/ready")
    except OSError as error:
        remedy = "check address, port, firewall, and that `jormungandr serve` runs"
        yield fail("service", f"{service.url} is not reached: {error}", remedy)
        return
    if ready.status != 200:
        state = _status(ready)
        remedy = "wait, or look at its log" if state else "check the address: another service?"
        yield fail("service", f"{service.url} is not ready: {state or ready.status}", remedy)
        return
    try:
        info = service.json("/v1/info")
    except JormungandrError as error:
        yield fail("service", f"{service.url}: {error.code}, {error.expected}", error.remedy)
        return
    except OSError as error:
        yield fail("service", f"{service.url} ended the connection: {error}", "look at its log")
        return
    skew = _skew(ready)
    said = f"{service.url} is ready, the token is known, version {info['version']}"
    if skew is not None:
        said += f", clocks differ by {abs(skew):.0f} s"
    if info["version"] != __version__:
        yield warn("service", said, f"this is {__version__}: install the same on both sides")
    elif skew is not None and abs(skew) > SKEW:
        remedy = "run NTP on both machines: tokens expire and logs are read by the clock"
        yield warn("service", said, remedy)
    else:
        yield ok("service", said)


def _status(response: Response) -> str:
    try:
        return str(json.loads(response.body)["status"])
    except (ValueError, KeyError, TypeError):
        return ""


def _skew(response: Response) -> float | None:
    """Return by how many seconds the service's clock is behind."""
    try:
        # Half a second: its header leaves out the fraction.
        return time.time() - parsedate_to_datetime(response.headers["date"]).timestamp() - 0.5
    except (KeyError, ValueError):
        return None


def check_learners(service: RunningService) -> Iterator[Finding]:
    """Look at the state, the backlog and the warnings of every model."""
    try:
        models = service.json("/v1/models")["models"]
    except JormungandrError as error:
        if error.code != "forbidden":
            yield skip("learners", str(error))
            return
        yield skip("learners", str(error), "use a token with the scope observe")
        return
    except OSError as error:
        yield skip("learners", f"the service is not reached: {error}")
        return
    bad = [_said(m) for m in models if m["learner"]["state"] in BAD]
    doubtful = [_said(m) for m in models if m["learner"]["state"] in DOUBTFUL]
    warned = [f"{m['model_id']}: {text}" for m in models for text in m["warnings"]]
    if bad:
        remedy = "its error says why; data is kept, the last policy is served; see the log"
        yield fail("learners", "; ".join(bad), remedy)
    elif doubtful or warned:
        yield warn("learners", "; ".join(doubtful + warned), "each says what to do")
    else:
        behind = sum(m["journal_lsn"] - m["applied_lsn"] for m in models)
        yield ok("learners", f"{len(models)} models, {behind} rows not applied yet")


def _said(model: Mapping[str, Any]) -> str:
    learner = model["learner"]
    return f"{model['model_id']} is {learner['state']}: {learner.get('error') or 'no reason given'}"
