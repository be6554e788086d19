"""The gateway's part in a lineage: its number, its row, and what is compared across it."""

from __future__ import annotations

from typing import Any

import pytest

from jormungandr import Learner
from jormungandr.service.child.channel import Garbage
from jormungandr.service.journal.database import LineageRow
from tests.service.conftest import App
from tests.service.serving import SPEC, experience, policy_message

ROWS = experience(6, 5)


def learned(count: int, **spec: Any) -> Learner:
    """Return a learner of the first so many rows."""
    learner = Learner({**SPEC, **spec})
    learner.add(ROWS[:count])
    return learner


@pytest.fixture
def model(app: App) -> Any:
    """A model that serves the policy after 25 rows, seen at position 9."""
    app.connect("m").create(SPEC)
    for count, lsn in ((15, 5), (25, 9)):
        app.publish("m", learned(count), lsn)
    return app.model("m")


def ask(app: App, lsn: int, version: int) -> None:
    """Ask for a lineage, as a learner process does."""
    message = {
        "type": "lineage",
        "fingerprint": {"cpu": "another"},
        "applied_lsn": lsn,
        "version": version,
    }
    app.run(app.model("m").learning.hear, message)


def warned(app: App) -> bool:
    """Whether a policy came out otherwise than recorded."""
    return any("rebuilt_differently" in w for w in app.connect("m").info()["warnings"])


def test_number_is_past_every_published_one(app: App, model: Any) -> None:
    """The gateway chooses it, journals it, and only then tells the learner."""
    highest = model.published_version
    ask(app, 5, 3)
    assert model.learning.process.heard[-1] == "lineage"
    ask(app, 5, highest + 50)

    assert model.journal.lineages() == [
        LineageRow({"cpu": "another"}, 5, highest + 1),
        LineageRow({"cpu": "another"}, 5, highest + 50),
    ]
    assert model.published_version == highest


@pytest.mark.parametrize("crossed", [False, True])
def test_older_versions_are_not_compared(app: App, model: Any, crossed: bool) -> None:
    """A policy of before the lineage may come out otherwise here; one after it may not."""
    if crossed:
        ask(app, 0, 0)
    other = learned(15, seed=7)
    other.spec = learned(15).spec
    other.progress.version = learned(15).policy_version
    app.run(model.learning.hear, policy_message(other.snapshot()))
    assert warned(app) != crossed
    if not crossed:
        return
    lineage = model.journal.lineages()[0].version
    again = learned(25)
    again.renumber(lineage)
    app.run(model.learning.hear, policy_message(again.snapshot(), 9))
    assert model.served_version == lineage
    other.renumber(lineage)
    app.run(model.learning.hear, policy_message(other.snapshot(), 9))
    assert warned(app)
    assert model.served_version == lineage


def test_what_is_served_does_not_go_back(app: App, model: Any) -> None:
    """A learner that catches up under new numbers is heard when it has seen as much."""
    ask(app, 0, 0)
    before, lineage = model.served_version, model.journal.lineages()[0].version
    behind = learned(15)
    behind.renumber(lineage)
    app.run(model.learning.hear, policy_message(behind.snapshot(), 8))
    assert model.learning.process.heard[-1] == "published"  # it may send the next one
    assert model.served_version == model.published_version == before
    behind.add(ROWS[15:25])
    app.run(model.learning.hear, policy_message(behind.snapshot(), 9))

    assert model.served_version == model.published_version == behind.policy_version > lineage


@pytest.mark.parametrize(
    "fault", [{"version": -1}, {"fingerprint": {"cpu": 3}}, {"applied_lsn": "x"}]
)
def test_nonsense(app: App, model: Any, fault: dict[str, Any]) -> None:
    """A message that is none is garbage, and nothing is recorded."""
    message = {"type": "lineage", "fingerprint": {}, "applied_lsn": 0, "version": 0}
    with pytest.raises(Garbage):
        app.run(model.learning.hear, {**message, **fault})
    assert model.journal.lineages() == []
