"""`jormungandr verify`: what it proves, what it names, and that it writes nothing."""

from __future__ import annotations

import os
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jormungandr.admission import Admission, check_labels
from jormungandr.cli import main
from jormungandr.columns import columns
from jormungandr.errors import DataDirError, JormungandrError, ModelUnknown
from jormungandr.learner.checkpoint import read_checkpoint, write_checkpoint
from jormungandr.ledger import Draft, MemoryStore
from jormungandr.rows import row_digest
from jormungandr.service.child.fingerprint import fingerprint
from jormungandr.service.datadir import DataDir
from jormungandr.service.journal.database import Created, LineageRow, SkipRow
from jormungandr.service.journal.writer import Journal
from jormungandr.service.tools.readmission import Readmission, same_rows
from jormungandr.service.tools.rebuild import Rebuild
from jormungandr.service.tools.tally_check import COUNTS
from jormungandr.service.tools.verification import verify
from jormungandr.spec import ModelSpec
from tests.faults.built import ROWS, Built, build
from tests.service.serving import LEDGER, QUIET

MODEL = Path("models/m.1")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of a server that ended well."""
    return build(tmp_path_factory.mktemp("made") / "data")


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Path:
    """A copy of it, for the test to change."""
    return Path(shutil.copytree(made, tmp_path / "data"))


def again(data_dir: Path, *, full: bool = False) -> list[str]:
    """Return what is found when the learner runs again, in this process."""
    folder = data_dir / MODEL
    journal = str(folder / "journal.db")
    return [str(f) for f in Rebuild(str(folder), journal, "m", immutable=True, full=full).run()]


def damages(found: list[str]) -> list[str]:
    """Return those that name damage."""
    return [text for text in found if text.startswith("DAMAGE")]


def tree(folder: Path) -> dict[str, Any]:
    """Return every file with its content and time of change."""
    return {
        str(path): (path.stat().st_mtime_ns, sha256(path.read_bytes()).hexdigest())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# -- the command --------------------------------------------------------------------------------


def test_the_command(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each thing checked, status 0, and not a byte written."""
    before = tree(made)
    assert main(["verify", str(made), "--full"]) == 0
    lines = capsys.readouterr().out.splitlines()

    assert lines[-1] == "14 proven, 0 not, no damage"
    assert all(line.startswith("ok ") for line in lines[:-1])
    assert sum("made again from the rows" in line for line in lines) == 2
    assert any("12 policies made again, bit for bit as recorded" in line for line in lines)
    assert tree(made) == before


def test_a_killed_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is in the WAL alone is checked too, and stays there."""
    data = build(tmp_path / "data", killed=True)
    (data / MODEL / "journal.db-shm").unlink()
    before = tree(data)
    assert main(["verify", str(data), "--model", "m"]) == 0
    out = capsys.readouterr().out

    assert "journal.db-wal: 3 commits" in out
    assert "not made again: a full check runs them" in out
    assert tree(data) == before


def test_damage_is_status_1(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It names file and row, and does not run a learner on it."""
    connection = apsw.Connection(str(data / MODEL / "journal.db"))
    connection.execute("UPDATE journal SET payload = zeroblob(3) WHERE lsn = 2")
    connection.close()
    assert main(["verify", str(data)]) == 1
    out = capsys.readouterr().out

    assert "DAMAGE      models/m.1/journal.db: row 2: it is not what its SHA-256" in out
    assert "not run again: the journal is damaged" in out


@pytest.mark.parametrize("arguments", [[], ["a", "b"], ["--all", "a"]])
def test_usage(arguments: list[str]) -> None:
    """Other arguments are status 2."""
    with pytest.raises(SystemExit) as raised:
        main(["verify", *arguments])
    assert raised.value.code == 2


def test_nothing_to_verify(tmp_path: Path, made: Path) -> None:
    """A directory that is none, or a model that is not there, is refused by name."""
    with pytest.raises(DataDirError, match="a data directory of a service, got none"):
        list(verify(tmp_path))
    with pytest.raises(ModelUnknown, match="'other'"):
        list(verify(made, "other"))


def test_beside_a_server(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that a server uses is refused, naming its process; a server waits for no verify."""
    directory = DataDir(data)
    assert main(["verify", str(data)]) == 1
    error = capsys.readouterr().err
    assert f"expected no server, got process {os.getpid()}, which holds its LOCK" in error
    assert len(error.splitlines()) == 1
    directory.close()

    reading = verify(data, rebuild=False)
    next(reading)
    with pytest.raises(DataDirError, match="got a verify, salvage or backup that reads it"):
        DataDir(data)
    assert list(verify(data, rebuild=False))  # two that read are in nobody's way
    reading.close()
    DataDir(data).close()


def test_strays(data: Path) -> None:
    """What does not belong is named, and proves nothing."""
    (data / "notes.txt").write_text("")
    (data / MODEL / "old.db").write_text("")
    (data / MODEL / "policies" / "best.safetensors").write_text("")
    (data / MODEL / "policies" / "00000000000000009999.safetensors").write_text("")
    (data / MODEL / "checkpoints" / "00000000000000000003.corrupt").mkdir()
    (data / "models" / ".x.1").mkdir()
    found = [f for f in verify(data, rebuild=False) if f.status != "ok"]

    assert {f.status for f in found} == {"gap"}
    assert [f.where for f in found] == [
        "notes.txt",
        "models/.x.1",
        "models/m.1/old.db",
        "models/m.1/checkpoints/00000000000000000003.corrupt",
        "models/m.1/policies/00000000000000009999.safetensors",
        "models/m.1/policies/best.safetensors",
    ]


def test_an_older_journal(data: Path) -> None:
    """Checkpoints and policies of rows that a journal does not have are named."""
    (data / MODEL / "checkpoints" / "00000000000000000028").rename(
        data / MODEL / "checkpoints" / "00000000000000000099"
    )
    for version in (7_000, 7_001):
        (data / MODEL / "policies" / f"{version:020d}.safetensors").write_text("")
    found = " ".join(str(f) for f in verify(data, rebuild=False) if f.status == "damage")

    assert "made from a journal newer than this one, which ends at row 30" in found
    assert "00000000000000007001.safetensors: no VERSION row is of it" in found


# -- run again ----------------------------------------------------------------------------------


def test_run_again(made: Path) -> None:
    """From the older checkpoint to the newer, or from the first row."""
    found = again(made)
    assert damages(found) == []
    assert sum("made again from the rows" in text for text in found) == 1
    assert "states and policies up to row 18 were not made again" in " ".join(found)

    found = again(made, full=True)
    assert damages(found) == []
    assert sum("made again from the rows" in text for text in found) == 2
    assert "not made again" not in " ".join(found)


@pytest.mark.parametrize(
    "name",
    ["algorithm.online.value.bias", "replay.reward", "validation.action", "normalizer.sums"],
)
def test_a_state_of_other_bits(data: Path, name: str) -> None:
    """A checkpoint whose digests are right and whose bits are not is named with its tensor."""
    path = data / MODEL / "checkpoints" / "00000000000000000028"
    state, tensors, files = read_checkpoint(path)
    changed = tensors[name].copy()
    changed.reshape(-1).view(np.uint8)[0] ^= 1
    write_checkpoint(path, state, tensors | {name: changed}, files)
    (found,) = damages(again(data))

    assert f"{path.name}/tensors.safetensors: {name}: made again it has other bits" in found


def test_values_of_a_state(data: Path) -> None:
    """Its counters are compared with the journal's before anything is run."""
    path = data / MODEL / "checkpoints" / "00000000000000000028"
    state, tensors, files = read_checkpoint(path)
    state["pacing"]["transitions"] += 1
    write_checkpoint(path, state, tensors, files)

    assert any("67 training transitions, and by the rows 66" in t for t in damages(again(data)))


def rewrite(data_dir: Path, kind: str, old: bytes, new: bytes) -> None:
    """Change what the last CONTROL row of a kind says, digest and all."""
    connection = apsw.Connection(str(data_dir / MODEL / "journal.db"))
    found = connection.execute(
        "SELECT max(lsn), payload FROM journal WHERE kind = ?", (kind,)
    ).fetchone()
    assert found is not None
    lsn, payload = int(found[0]), bytes(found[1]).replace(old, new)
    assert payload != found[1]
    connection.execute(
        "UPDATE journal SET payload = ?, digest = ? WHERE lsn = ?",
        (payload, row_digest(lsn, kind, payload), lsn),
    )
    connection.close()


def test_a_policy_of_other_bits(data: Path) -> None:
    """A record that the rows do not lead to is named with its version."""
    rewrite(data, "version", b'"digest":"', b'"digest":"0')
    assert "version 64: made again it has other bits" in " ".join(damages(again(data)))
    rewrite(data, "version", b'"version":64', b'"version":65')
    assert "version 65: no row leads to it" in " ".join(damages(again(data)))


def test_another_machine(data: Path) -> None:
    """What other numerics made is not compared, and is named with what differs."""
    mine = fingerprint(1)["numpy"].encode()
    rewrite(data, "create", b'"numpy":"' + mine, b'"numpy":"1.0')
    found = again(data, full=True)

    assert damages(found) == []
    assert "other numerics than there are here (numpy '1.0')" in " ".join(found)
    assert "policies made again" not in " ".join(found)


def test_a_damaged_ledger_beside_a_damaged_row(data: Path) -> None:
    """That rows are not there is no reason to call the ledger's checksums right."""
    connection = apsw.Connection(str(data / MODEL / "journal.db"))
    connection.execute("UPDATE journal SET payload = x'00' WHERE lsn = 2")
    newest = "(SELECT max(rowid) FROM ledger)"
    connection.execute(f"UPDATE ledger SET checksum = checksum + 1 WHERE rowid = {newest}")
    connection.close()
    found = [str(finding) for finding in verify(data, rebuild=False)]

    assert len(damages(found)) == 2
    assert "its checksums are right" not in " ".join(found)


def test_a_row_of_a_program_that_knows_more(data: Path) -> None:
    """A CONTROL row with a field that is not known here is named, not stumbled over."""
    rewrite(data, "version", b'"digest":"', b'"since":1,"digest":"')

    found = [str(finding) for finding in verify(data, rebuild=False)]
    assert "not to be read" in " ".join(damages(found))


def test_a_lineage(tmp_path: Path) -> None:
    """Policies after a change of the machine are compared; before it they are not."""
    built = Built(tmp_path / "data")
    built.add(ROWS[:24])
    built.publish()
    built.checkpoint()
    lsn, version = built.core.progress.lsn, 500
    other = fingerprint(1) | {"cpu": "another"}
    for row in (LineageRow(other, lsn, version), LineageRow(fingerprint(1), lsn, version + 50)):
        built.control(row)
        built.core.renumber(row.version)
    built.add(ROWS[24:40])
    built.publish()
    built.checkpoint()
    built.close()

    for full in (False, True):
        found = again(tmp_path / "data", full=full)
        assert damages(found) == []
        assert "policies made again, bit for bit" in " ".join(found)
        assert sum("made again from the rows" in text for text in found) == 1 + full


def test_a_row_that_was_set_aside(tmp_path: Path) -> None:
    """A checkpoint from before it was is not compared; what follows is, from there on."""
    built = Built(tmp_path / "data")
    built.add(ROWS[:24])
    built.publish()
    built.add(ROWS[24:40])
    built.checkpoint()
    built.control(SkipRow(2, "it ended the learner"))
    built.add(ROWS[40:60])
    built.publish()
    built.checkpoint()
    built.close()
    found = again(tmp_path / "data", full=True)

    assert damages(found) == []
    assert "not compared: row 2 was set aside" in " ".join(found)
    assert sum("made again from the rows" in text for text in found) == 1


def test_why_policies_were_not_compared(tmp_path: Path) -> None:
    """The reason of that time is named, also when all is compared again in the end."""
    built = Built(tmp_path / "data")
    built.add(ROWS[:6])
    built.add(ROWS[6:24])
    built.publish()
    built.add(ROWS[24:40])
    built.control(SkipRow(2, "it ended the learner"))
    built.publish()
    built.checkpoint()
    built.add(ROWS[40:60])
    built.checkpoint()
    built.close()
    found = " ".join(again(tmp_path / "data", full=True))

    assert "1 policies were not compared: row 2 was set aside" in found
    assert "None" not in found


def test_rows_that_were_dropped(data: Path) -> None:
    """Where retention took the first rows, what is left is proven, and the rest named."""
    journal = Journal(data / MODEL / "journal.db")
    while journal.drop_rows(18, 1 << 20):
        pass
    journal.close()
    found = [str(f) for f in verify(data, rebuild=False)] + again(data, full=True)

    assert damages(found) == []
    text = " ".join(found)
    assert "rows up to 18: dropped to make room" in text
    assert "rows were dropped to make room" in text
    assert sum("made again from the rows" in line for line in found) == 1


# -- the ledger from the rows -------------------------------------------------------------------

_SPEC = ModelSpec.from_dict(QUIET)
RULES: list[dict[str, Any]] = [
    {"mode": "drop", "stale_share": 0},
    {"mode": "drop", "stale_share": 0.75},
    {"mode": "accept"},
]


@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(
    steps=st.lists(LEDGER, min_size=1, max_size=12),
    rule=st.sampled_from(
        [{"mode": "accept"}, {"mode": "drop", "stale_share": 0}, {"mode": "drop"}]
    ),
)
def test_rows_make_the_ledger_they_came_from(steps: list[Any], rule: dict[str, Any]) -> None:
    """Whatever was sent, its rows alone give the same identities, labels, totals and counts.

    Transitions of odd steps are of the first policy, and stale.
    """
    spec = ModelSpec.from_dict({**_SPEC.to_dict(), "staleness": {"max_policy_lag": 2, **rule}})
    rules, store = Admission(spec), MemoryStore()
    remade = Readmission(Created("m", 1, 0, spec))
    for n, (kind, items) in enumerate(steps):
        draft = Draft(store)
        try:
            if kind == "add":
                sent = [{**item, "policy_version": item["timestep"] % 2 - 1} for item in items]
                given_ = columns(sent, spec)
                _, rows = rules.transitions(given_, draft, served=3 + n, published=3 + n)
            elif kind == "label":
                _, rows = rules.labels(check_labels(items, spec), draft)
            else:
                continue
        except JormungandrError:
            continue
        store.apply(draft)
        for row in rows:
            assert same_rows(row, remade.add(row))

    assert remade.store.counters == store.counters
    assert remade.store.episodes == store.episodes
    assert list(remade.store.pendings.items()) == list(store.pendings.items())
    assert {k: b.tobytes() for k, b in remade.store.blocks.items()} == {
        k: b.tobytes() for k, b in store.blocks.items()
    }
    assert _counts(remade.store) == _counts(store)


def _counts(store: MemoryStore) -> dict[str, list[int]]:
    """Return what is counted of each actor."""
    return {actor: [getattr(tally, name) for name in COUNTS] for actor, tally in store.roll.items()}
