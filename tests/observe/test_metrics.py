"""`GET /metrics`: what Prometheus' own parser reads, and what it says of a service."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from jormungandr import Learner
from jormungandr.service.observe import scrape as module
from jormungandr.service.observe.exposition import Histogram, Values, exposition
from jormungandr.service.observe.requests import Observed
from tests.service.conftest import App
from tests.service.serving import QUIET, SPEC, TOKEN, experience


def parsed(text: str) -> dict[str, Any]:
    """Return {(sample name, labels): value}, and families, by the parser that Prometheus ships."""
    samples: dict[Any, float] = {}
    kinds = {}
    for family in text_string_to_metric_families(text):
        assert family.name not in kinds, f"{family.name} twice"
        kinds[family.name] = family.type
        assert family.documentation.endswith(".")
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in samples, f"{key} twice"
            samples[key] = sample.value
    return {"kinds": kinds, "samples": samples}


def scrape(app: App) -> dict[str, Any]:
    """Return what the service says, parsed."""
    response = app.request("GET", "/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return parsed(response.text)


def value(found: dict[str, Any], name: str, /, **labels: str) -> float:
    """Return one sample."""
    return float(found["samples"][f"jormungandr_{name}", frozenset(labels.items())])


# -- the text -----------------------------------------------------------------------------------


@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=4, unique=True
    ),
    st.floats(allow_nan=False),
)
def test_every_label_and_number_comes_back(names: list[str], number: float) -> None:
    """Whatever a label holds, and whatever a number is, is read as it was meant."""
    family = Values("gauge", "some_things", 'of "all" kinds \\ of\nlines', ("name",))
    for name in names:
        family.set(number, name)
    text = exposition([family]).decode()
    (read,) = text_string_to_metric_families(text)

    assert {s.labels["name"]: s.value for s in read.samples} == dict.fromkeys(names, number)


@given(st.lists(st.floats(-10, 100), max_size=30))
@example([0.5, 1, 2, 50])
def test_histogram(values: list[float]) -> None:
    """Buckets count what is at most their bound, one by one or all at once."""
    bounds = (0.5, 1, 2, 50)
    one, many = (Histogram("some_seconds", "of something.", bounds) for _ in range(2))
    for number in values:
        one.observe(number)
    many.observe_all(np.array(values))
    for histogram in (one, many):
        (read,) = text_string_to_metric_families(exposition([histogram]).decode())
        found = {s.labels.get("le", s.name): s.value for s in read.samples}
        for bound in (*bounds, math.inf):
            label = "+Inf" if bound == math.inf else f"{bound:g}"
            assert found[label] == sum(number <= bound for number in values)
        assert found["some_seconds_count"] == len(values)
        assert found["some_seconds_sum"] == pytest.approx(sum(values))


def test_a_counter_is_called_one() -> None:
    """A counter's name ends with _total, and no other's does."""
    with pytest.raises(AssertionError):
        Values("counter", "things", "some.")
    with pytest.raises(AssertionError):
        Values("gauge", "things_total", "some.")


# -- what it says -------------------------------------------------------------------------------


def test_conventions(app: App) -> None:
    """Names have our prefix or the standard one of processes, a base unit, and one meaning."""
    app.connect("m").create(SPEC)
    found = scrape(app)

    assert len(found["kinds"]) > 30
    for name, kind in found["kinds"].items():
        assert name.startswith(("jormungandr_", "process_"))
        assert kind in ("counter", "gauge", "histogram")
        for unit in ("_ms", "_millis", "_kb", "_mb", "_percent"):
            assert not name.endswith(unit)
    assert value(found, "models") == 1
    assert value(found, "state", state="ready") == 1
    assert value(found, "queue_bytes", lane="ingestion") == 0
    assert value(found, "queue_refused_total", lane="inference") == 0
    assert found["samples"]["process_open_fds", frozenset()] > 3
    assert found["samples"]["process_resident_memory_bytes", frozenset()] > 1e7


def test_figures_of_a_model(app: App) -> None:
    """Transitions, labels, commits, passes, lag, the journal and the learner show as they are."""
    endpoint, rows = app.connect("m"), experience(4, 4)
    endpoint.create(SPEC)
    app.publish("m", Learner(SPEC))
    endpoint.add(rows)
    endpoint.add(rows[:3])
    endpoint.add([{**rows[0], "episode_id": "new", "policy_version": 0}])
    endpoint.label([{"actor_id": "a", "episode_id": "none", "timestep": 0, "label": 1}])
    endpoint.act([[0.0, 0.0]] * 5)
    learner = Learner(SPEC)
    learner.add(rows)
    app.publish("m", learner, lsn=1)
    found = scrape(app)

    assert value(found, "transitions_total", model="m", outcome="accepted") == 17
    assert value(found, "transitions_total", model="m", outcome="duplicate") == 3
    assert value(found, "journal_transitions_total", model="m", split="validation") == 4
    assert value(found, "labels_total", model="m", outcome="pending") == 1
    assert value(found, "labels_pending", model="m") == 1
    assert value(found, "policy_lag_versions_count", model="m") == 1
    assert value(found, "inference_forward_rows_count") == 1
    assert value(found, "inference_forward_rows_sum") == 5
    assert value(found, "inference_requests_total") == 1
    assert value(found, "commit_group_items_sum") >= 18
    assert value(found, "commit_duration_seconds_count") >= 4
    assert value(found, "updates_total", model="m") == learner.update_count > 0
    assert value(found, "policy_version", model="m") == learner.policy_version
    assert value(found, "backlog_transitions", model="m") == 1
    assert value(found, "backlog_rows", model="m") > 0
    assert value(found, "journal_bytes", model="m") > 0
    assert value(found, "wal_bytes", model="m") > 0
    states = [value(found, "learner_state", model="m", state=s) for s in module.LEARNER_STATES]
    assert sorted(states) == [0] * 8 + [1]
    assert value(found, "learner_state", model="m", state="running") == 1
    add = {"method": "POST", "route": "/v1/models/{model_id}/experience/add", "status": "200"}
    assert value(found, "http_request_duration_seconds_count", **add) == 3


def test_labels_are_few(app: App) -> None:
    """Neither actors, nor paths that do not exist, nor methods made up become labels."""
    endpoint = app.connect("m")
    endpoint.create(QUIET)
    before = len(scrape(app)["samples"])
    for n in range(20):
        endpoint.add([{**experience(1, 1)[0], "actor_id": f"actor-{n}"}])
        app.request("GET", f"/v1/nothing-{n}")
        app.request("GET", f"/v1/models/unknown-{n}")
        app.http.request(f"METHOD{n}", "/v1/info", headers={"Authorization": f"Bearer x{n}"})
    found = scrape(app)

    text = " ".join(f"{name} {labels}" for name, labels in found["samples"])
    for word in ("actor-", "nothing-", "unknown-", "METHOD", TOKEN):
        assert word not in text
    assert len(found["samples"]) < before + 6 * 20  # six series of requests, of twenty lines each


def test_a_deleted_model_is_gone(app: App) -> None:
    """Of a deleted model nothing is said any more."""
    endpoint = app.connect("m")
    endpoint.create(QUIET)
    endpoint.add(experience(1, 2))
    endpoint.delete()
    found = scrape(app)

    assert not [labels for _, labels in found["samples"] if ("model", "m") in labels]


def test_it_takes_a_token_that_may_observe(app: App) -> None:
    """Figures are for those who may see them."""
    assert app.http.get("/metrics").status_code == 401
    assert app.request("GET", "/metrics?all=1").status_code == 422
    assert app.request("POST", "/metrics").status_code == 405


def test_a_fault_in_it_is_a_500(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures that cannot be had are an error of our form."""
    monkeypatch.setattr(module.os, "statvfs", lambda _: 1 / 0)
    response = app.request("GET", "/metrics")

    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")


def test_counting_ends_with_the_request(app: App) -> None:
    """After each request, answered or not, none is in flight but the one that asks."""
    app.request("GET", "/v1/info")
    app.request("GET", "/v1/nothing")

    assert value(scrape(app), "http_requests_in_flight") == 1
    assert isinstance(app.http.app.app, Observed)  # type: ignore[attr-defined]
