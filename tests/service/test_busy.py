"""Another process that writes to a journal: what is sent meanwhile is refused, nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import apsw
import pytest

from jormungandr import Learner
from jormungandr.admission import Admission
from jormungandr.errors import Overloaded
from jormungandr.service.journal import commits as commits_module
from jormungandr.service.journal import database
from jormungandr.service.journal.writer import Journal
from tests.service.serving import QUIET, experience, policy_message, until

ROWS = experience(1, 4)


@pytest.fixture
def other(app: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[apsw.Connection]:
    """A connection of somebody else to the journal of the model ``m``, for whom nobody waits."""
    monkeypatch.setattr(database, "BUSY_TIMEOUT", 10)
    app.connect("m").create(QUIET)
    app.publish("m", Learner(QUIET))
    connection = apsw.Connection(str(app.model("m").journal.path))
    yield connection
    connection.close()


def test_data_is_refused_until_it_is_over(app: Any, other: apsw.Connection) -> None:
    """A 503 while he writes, nothing kept; the same request is taken afterwards."""
    before = app.connect("m").info()
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Overloaded, match="nobody else who writes to it"):
        app.connect("m", patience=0).add(ROWS)
    other.execute("ROLLBACK")

    assert app.connect("m").info() == before
    assert app.connect("m").add(ROWS).accepted == 4


def test_a_commit_that_is_not_sealed(
    app: Any, other: apsw.Connection, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """A seal that finds him in the way is left out, and commits go on."""
    seal = Journal.seal

    def in_the_way(journal: Journal) -> None:
        other.execute("BEGIN IMMEDIATE")
        try:
            seal(journal)
        finally:
            other.execute("ROLLBACK")

    monkeypatch.setattr(commits_module, "SEAL_AFTER", 0.01)
    monkeypatch.setattr(Journal, "seal", in_the_way)
    assert app.connect("m").add(ROWS[:2]).accepted == 2
    until(lambda: "last commit not sealed" in caplog.text, "a seal")

    assert app.connect("m").add(ROWS[2:]).accepted == 2


def test_a_seal_that_fails_for_any_reason(
    app: Any, other: apsw.Connection, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Whatever a seal ends of, the commits after it are made."""

    def fail(_: Journal) -> None:
        raise apsw.MisuseError("no seal")

    monkeypatch.setattr(commits_module, "SEAL_AFTER", 0.01)
    monkeypatch.setattr(Journal, "seal", fail)
    assert app.connect("m").add(ROWS[:2]).accepted == 2
    until(lambda: "last commit not sealed: no seal" in caplog.text, "a seal")

    assert app.connect("m").add(ROWS[2:]).accepted == 2


def test_a_policy_is_recorded_when_it_is_over(
    app: Any, other: apsw.Connection, caplog: Any
) -> None:
    """A policy that meets him is recorded and served when he has gone."""
    learner = Learner(QUIET)
    learner.add(ROWS)
    learner.update()
    other.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(1) as pool:
        published = pool.submit(app.publish, "m", learner)
        until(lambda: "version row not recorded yet" in caplog.text, "a try")
        assert app.model("m").served_version == 0
        other.execute("ROLLBACK")
        published.result(60)

    assert app.model("m").served_version == 1


def test_a_learner_whose_policy_failed_may_send_the_next(
    app: Any, other: apsw.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told that its policy was dealt with, also when that went wrong in an unforeseen way."""
    learning = app.model("m").learning

    async def fail(_: dict[str, Any]) -> None:
        raise apsw.MisuseError("not now")

    learning.process.heard.clear()
    with monkeypatch.context() as patch:
        patch.setattr(learning._publication, "policy_made", fail)
        app.run(learning.hear, policy_message(Learner(QUIET).snapshot()))

    assert learning.process.heard == ["published"]


def test_an_unforeseen_error_is_the_callers_alone(
    app: Any, other: apsw.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request on which admission fails is answered 500, and what shares its group is kept."""
    admit, commit, held = Admission.transitions, Journal.commit, threading.Event()

    def fragile(self: Admission, columns: Any, *arguments: Any, **options: Any) -> Any:
        if list(columns.actors) == ["bad"]:
            raise RuntimeError("a fault of ours")
        return admit(self, columns, *arguments, **options)

    def waiting(journal: Journal, draft: Any, rows: Any, controls: Any) -> None:
        assert held.wait(60)
        commit(journal, draft, rows, controls)

    monkeypatch.setattr(Admission, "transitions", fragile)
    monkeypatch.setattr(Journal, "commit", waiting)
    model, path = app.model("m"), "/v1/models/m/experience/add"
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(app.connect("m").add, experience(1, 1, actor_id="first"))
        until(lambda: not model.commits.waiting, "a commit")
        good = pool.submit(app.connect("m").add, ROWS)
        until(lambda: model.commits.waiting == 1, "the good one")
        sent = {"transitions": experience(1, 1, actor_id="bad")}
        bad = pool.submit(app.request, "POST", path, sent)
        until(lambda: model.commits.waiting == 2, "the bad one")
        held.set()

        assert first.result(60).accepted == 1
        assert good.result(60).accepted == 4
        assert bad.result(60).status_code == 500
