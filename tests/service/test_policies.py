"""Policies: recorded before they are served, served again after a restart, never confused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jormungandr import Learner
from jormungandr.errors import PolicyNotReady
from jormungandr.service import answers as module
from jormungandr.service import shelf as shelf_module
from jormungandr.service.child.channel import Garbage
from jormungandr.service.journal.writer import Journal
from tests.service.serving import SPEC, experience, policy_message, state_message

ROWS = experience(8, 4)


@pytest.fixture(scope="module")
def learners() -> list[Learner]:
    """The learner of `SPEC` after each of its first updates: versions 0, 1, 2, …."""
    learner = Learner(SPEC)
    found = []
    for row in ROWS:
        learner.add([row])
        if learner.policy_version == len(found):
            copy = Learner(SPEC)
            copy.add(ROWS[: ROWS.index(row) + 1])
            found.append(copy)
    return found[:4]


def files(app: Any) -> list[int]:
    """Return the versions whose files are kept."""
    folder = app.path / "models" / "m.1" / "policies"
    return sorted(int(path.stem) for path in folder.glob("*.safetensors"))


def recorded(app: Any) -> list[int]:
    """Return the versions that the journal records."""
    return [row.version for row in app.model("m").journal.versions()]


def served(app: Any) -> int:
    """Return the version that inference answers with."""
    return int(app.connect("m").act([[0, 0]]).policy_version)


@pytest.fixture
def created(app: Any) -> Any:
    """An application with a model of `SPEC`."""
    app.connect("m").create(SPEC)
    return app


def test_served_as_it_was_made(created: Any, learners: list[Learner]) -> None:
    """The service answers with the very numbers of the learner's snapshot."""
    created.publish("m", learners[2])
    x = np.random.default_rng(0).standard_normal((5, 2)).astype(np.float32)

    reply = created.connect("m").act(x, deterministic=True, distribution=True)
    assert reply == learners[2].act(x, deterministic=True, distribution=True)


def test_record_comes_first(
    created: Any, learners: list[Learner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a version's row commits, its file is whole, and the version before it is served."""
    created.publish("m", learners[0])
    seen = []
    commit = Journal.commit

    def watched(journal: Journal, draft: Any, rows: Any, controls: Any) -> None:
        seen.append((controls[0].version, files(created), created.model("m").policy.version))
        commit(journal, draft, rows, controls)

    monkeypatch.setattr(Journal, "commit", watched)
    created.publish("m", learners[1])

    assert seen == [(1, [0, 1], 0)]
    assert served(created) == 1
    (row,) = created.model("m").journal.versions()[1:]
    assert (row.version, row.update_count) == (1, 1)
    assert row.digest == learners[1].snapshot().digest()


def test_learner_may_send_the_next(created: Any, learners: list[Learner]) -> None:
    """Each policy is acknowledged once it is dealt with, also one that is not served."""
    for learner in (learners[1], learners[1], learners[0]):
        created.publish("m", learner)

    assert created.model("m").learning.process.heard.count("published") == 3
    assert served(created) == 1
    assert recorded(created) == [1]


def test_versions_only_go_up(created: Any, learners: list[Learner]) -> None:
    """An older version that a learner makes again on its way is not served in between."""
    created.publish("m", learners[3])
    created.publish("m", learners[1])

    assert (served(created), recorded(created)) == (3, [3])


def test_other_bits_under_a_recorded_version(
    created: Any, learners: list[Learner], caplog: pytest.LogCaptureFixture
) -> None:
    """A version that comes out otherwise than recorded is not served, and the model warns."""
    created.publish("m", learners[1])
    other = Learner({**SPEC, "seed": 1})
    other.add(ROWS[: ROWS.index(ROWS[0]) + 1])
    message = {**policy_message(other.snapshot()), "version": 1}
    before = created.connect("m").act([[1, 1]], deterministic=True)
    created.run(created.model("m").learning.hear, message)

    assert created.connect("m").act([[1, 1]], deterministic=True) == before
    warnings = created.connect("m").info()["warnings"]
    assert [w.partition(":")[0] for w in warnings] == ["rebuilt_differently"]
    assert "policy 1 is not the one recorded" in caplog.text


def test_damaged_message(created: Any, learners: list[Learner]) -> None:
    """Bytes that are no policy are not served, and whoever sent them is told from a learner."""
    created.publish("m", learners[0])
    message = policy_message(learners[1].snapshot())
    with pytest.raises(Garbage):
        created.run(created.model("m").learning.hear, {**message, "bytes": message["bytes"][:-9]})

    assert (served(created), recorded(created)) == (0, [0])
    created.publish("m", learners[2])
    assert served(created) == 2


def test_few_are_kept(
    created: Any, learners: list[Learner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the newest policies stay on the disk; all stay recorded."""
    monkeypatch.setattr(shelf_module, "KEEP_POLICIES", 2)
    for learner in learners:
        created.publish("m", learner)

    assert (files(created), recorded(created)) == ([2, 3], [0, 1, 2, 3])


def test_no_policy_yet(created: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose first policy does not come in time is 503, to be asked again."""
    monkeypatch.setattr(module, "FIRST_POLICY", 0.01)
    client = created.connect("m", patience=0)

    with pytest.raises(PolicyNotReady):
        client.act([[0, 0]])
    assert created.model("m").learning.process.state == "running"


def test_full_disk_delays_a_policy(
    created: Any, learners: list[Learner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy that finds no room is served later, when there is some; never unrecorded."""
    created.publish("m", learners[0])
    tries = []
    sleep = asyncio.sleep
    write = shelf_module.PolicyShelf.write

    def full(shelf: Any, version: int, data: bytes) -> None:
        tries.append(served(created))
        if len(tries) < 3:
            raise OSError(28, "No space left on device")
        write(shelf, version, data)

    monkeypatch.setattr(shelf_module.PolicyShelf, "write", full)
    monkeypatch.setattr(asyncio, "sleep", lambda _: sleep(0))
    created.publish("m", learners[1])

    assert tries == [0, 0, 0]
    assert (served(created), recorded(created)) == (1, [0, 1])


# -- restarts -----------------------------------------------------------------------------------


def test_restart_serves_the_last_at_once(
    open_app: Any, tmp_path: Path, learners: list[Learner]
) -> None:
    """The newest recorded policy answers before any learner has reported."""
    with open_app(tmp_path) as app:
        app.connect("m").create(SPEC)
        app.publish("m", learners[1])
        app.publish("m", learners[3])
        before = app.connect("m").act([[1, 1]], deterministic=True)
    with open_app(tmp_path) as app:
        assert app.connect("m").act([[1, 1]], deterministic=True) == before
        assert app.connect("m").info()["policy_version"] == 3


def test_file_without_a_record(open_app: Any, tmp_path: Path, learners: list[Learner]) -> None:
    """A policy whose row did not commit before the end was served to nobody, and is not now."""
    with open_app(tmp_path) as app:
        app.connect("m").create(SPEC)
        app.publish("m", learners[1])
        app.model("m").publication.shelf.write(2, learners[2].snapshot().to_bytes())
    with open_app(tmp_path) as app:
        assert served(app) == 1
        app.publish("m", learners[2])
        assert (served(app), recorded(app)) == (2, [1, 2])


@pytest.mark.parametrize("damage", ["missing", "flipped", "short", "another"])
def test_damaged_file(open_app: Any, tmp_path: Path, learners: list[Learner], damage: str) -> None:
    """A policy's file that is lost or damaged is passed over, until the learner makes it again."""
    with open_app(tmp_path) as app:
        app.connect("m").create(SPEC)
        lsn = app.connect("m").add(ROWS[:10]).lsn
        app.publish("m", learners[1])
        app.publish("m", learners[2])
    newest = max((tmp_path / "models" / "m.1" / "policies").glob("*.safetensors"))
    data = bytearray(newest.read_bytes())
    if damage == "missing":
        newest.unlink()
    elif damage == "flipped":
        data[-5] ^= 1
        newest.write_bytes(data)
    elif damage == "short":
        newest.write_bytes(data[:100])
    else:
        newest.write_bytes(learners[3].snapshot().to_bytes())
    with open_app(tmp_path) as app:
        assert served(app) == 1
        app.run(app.model("m").learning.hear, state_message(learners[2], lsn))
        assert app.connect("m").info()["applied_lsn"] == 0
        app.publish("m", learners[2], lsn)
        assert (served(app), recorded(app)) == (2, [1, 2])
        assert app.connect("m").info()["applied_lsn"] == lsn
    assert newest.read_bytes() == learners[2].snapshot().to_bytes()
