"""A byte that is not what it was: named with file and row, or of no use to anybody."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path
from typing import Any

import apsw
import msgspec
import numpy as np
import pytest

from jormungandr.errors import DataDirError
from jormungandr.service.journal import commits as commits_module
from jormungandr.service.journal.commits import Commits
from jormungandr.service.journal.database import VersionRow, check, checksum, read_meta
from jormungandr.service.journal.reader import JournalReader
from jormungandr.service.journal.space import FreeSpace
from jormungandr.service.journal.wal_check import check_wal, mended_wal, wal_path
from jormungandr.service.journal.writer import Journal
from jormungandr.service.lock import Lock
from jormungandr.service.shelf import PolicyShelf
from jormungandr.service.tools.findings import Finding
from jormungandr.service.tools.verification import verify
from tests.faults.built import ROWS, Built, build, contents, files
from tests.service.serving import Server, experience, identity, until

MODEL = Path("models/m.1")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two directories: of a server that ended well, and of one that was killed."""
    folder = tmp_path_factory.mktemp("made")
    return {"closed": build(folder / "closed"), "killed": build(folder / "killed", killed=True)}


@pytest.fixture
def data(made: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of the first, for the test to damage."""
    return Path(shutil.copytree(made["closed"], tmp_path / "data"))


def damages(data_dir: Path) -> list[Finding]:
    """Return what verify names, without running the learner again."""
    return [f for f in verify(data_dir, rebuild=False) if f.status == "damage"]


def flip(path: Path, rng: random.Random) -> bytes:
    """Flip one bit of a file; return what it was."""
    before = path.read_bytes()
    at = rng.randrange(len(before))
    path.write_bytes(before[:at] + bytes([before[at] ^ 1 << rng.randrange(8)]) + before[at + 1 :])
    return before


def flips(data_dir: Path, seed: int, journals: int, others: int) -> tuple[int, int]:
    """Flip bits, one at a time, in every file; return how many were named, and were unused.

    Fails where one is neither: it is not named, and something reads other than it was.
    """
    rng, named, unused = random.Random(seed), 0, 0
    want = contents(data_dir / MODEL)
    for path in files(data_dir):
        journal = path.name.startswith("journal.db")
        for _ in range(journals if journal else others):
            before = flip(path, rng)
            if damages(data_dir):
                named += 1
            else:
                assert journal, path
                assert contents(data_dir / MODEL) == want, path
                unused += 1
            path.write_bytes(before)
    assert damages(data_dir) == []
    return named, unused


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_a_flipped_bit(made: dict[str, Path], tmp_path: Path, how: str) -> None:
    """Wherever it is, it is named, or it changes nothing that anybody reads."""
    data = Path(shutil.copytree(made[how], tmp_path / "data"))
    assert damages(data) == []
    named, unused = flips(data, seed=1, journals=25, others=2)

    assert named > 40
    assert unused < 50


@pytest.mark.slow
@pytest.mark.parametrize("how", ["closed", "killed"])
def test_many_flipped_bits(made: dict[str, Path], tmp_path: Path, how: str) -> None:
    """The same, at many more places."""
    data = Path(shutil.copytree(made[how], tmp_path / "data"))
    named, _ = flips(data, seed=2, journals=400, others=15)

    assert named > 100


def change(data_dir: Path, statement: str, *values: Any) -> None:
    """Change a journal behind everybody's back."""
    connection = apsw.Connection(str(data_dir / MODEL / "journal.db"))
    connection.execute(statement, values)
    connection.close()


def first(data_dir: Path, kind: str) -> int:
    """Return the position of the first row of a kind."""
    connection = apsw.Connection(str(data_dir / MODEL / "journal.db"))
    found = connection.execute("SELECT min(lsn) FROM journal WHERE kind = ?", (kind,)).fetchone()
    connection.close()
    assert found is not None
    return int(found[0])


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("UPDATE journal SET payload = zeroblob(9) WHERE lsn = {lsn}", "row {lsn}"),
        ("UPDATE journal SET accepted_train = accepted_train + 1 WHERE lsn = {lsn}", "row {lsn}"),
        ("UPDATE journal SET actors = CAST(actors AS BLOB) WHERE lsn = {lsn}", "row {lsn}"),
        ("UPDATE journal SET kind = X'80' WHERE lsn = {lsn}", "row {lsn}"),
        ("DELETE FROM journal WHERE lsn = {lsn}", "row {lsn}: missing"),
        ("UPDATE journal SET payload = '{{}}' WHERE lsn = {version}", "row {version}"),
        ("DELETE FROM journal WHERE lsn = {version}", "row {version}: missing"),
        ("UPDATE ledger SET slots = zeroblob(416)", "ledger of ('a', 'e0', 0)"),
        ("DELETE FROM ledger WHERE episode = 'e3'", "ledger: 1 missing"),
        ("UPDATE episode SET last = last + 1", "episode of ('a', 'e0')"),
        ("UPDATE pending_label SET label = 0", "pending_label of ('a', 'e50', 0)"),
        ("UPDATE meta SET value = replace(value, '2', '3') WHERE name = 'counters'", "'counters'"),
        ("CREATE TABLE more (x)", "its tables are not those of a journal"),
    ],
)
def test_what_is_named(data: Path, statement: str, named: str) -> None:
    """A change that SQLite itself knows nothing of is named with its row."""
    at = {"lsn": first(data, "transitions"), "version": first(data, "version")}
    change(data, statement.format(**at))

    assert named.format(**at) in " ".join(map(str, damages(data)))


def test_what_has_a_good_checksum_is_compared_with_the_rows(data: Path) -> None:
    """A ledger that was written so, and is not what the rows say, is named all the same."""
    connection = apsw.Connection(str(data / MODEL / "journal.db"))
    row = connection.execute("SELECT * FROM episode WHERE episode = 'e2'").fetchone()
    assert row is not None
    check("", *row)
    changed = (*row[:5], int(row[5]) + 1)
    connection.execute(
        "INSERT OR REPLACE INTO episode VALUES (?, ?, ?, ?, ?, ?, ?)",
        (*changed, checksum(*changed)),
    )
    connection.close()

    assert "('a', 'e2'): it is not what the rows say" in " ".join(map(str, damages(data)))


def test_totals_that_are_not_those_of_the_rows(data: Path) -> None:
    """Nor are totals believed for their checksum alone."""
    connection = apsw.Connection(str(data / MODEL / "journal.db"))
    found = connection.execute("SELECT value FROM meta WHERE name = 'counters'").fetchone()
    assert found is not None
    value = bytes(found[0]).replace(b'"train":72', b'"train":73')
    assert value != found[0]
    row = ("counters", value)
    connection.execute(
        "UPDATE meta SET value = ?, checksum = ? WHERE name = 'counters'", (value, checksum(*row))
    )
    connection.close()

    assert "{'train': '73, and by the rows 72'}" in " ".join(map(str, damages(data)))


@pytest.fixture
def two_actors(tmp_path: Path) -> Path:
    """A directory in which ``a`` and then ``b`` sent something, once as a request of three rows."""
    built = Built(tmp_path / "data")
    rows = experience(2, 6)
    built.add(rows[:4])
    # Labels for what is known divide it: rows 3, 4 and 5.
    built.add([rows[4], {**rows[0], "label": 1}, rows[5]])
    built.add([{**row, "actor_id": "b", "policy_version": 0} for row in rows[:6]])
    built.close()
    return tmp_path / "data"


def tally(data_dir: Path, actor: str, **changed: int) -> None:
    """Change the tally of an actor, or of a new one, with a checksum to match."""
    connection = apsw.Connection(str(data_dir / MODEL / "journal.db"))
    name = f"actor:{actor}"
    found = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    fields = {} if found is None else msgspec.json.decode(found[0])
    row = (name, msgspec.json.encode({**fields, **changed}))
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?, ?)", (*row, checksum(*row)))
    connection.close()


def test_tallies_of_what_is_whole(two_actors: Path) -> None:
    """They are what the rows say, also where one request became several rows."""
    text = " ".join(map(str, verify(two_actors, rebuild=False)))

    assert "tallies: 2 actors, as the rows say" in text
    assert "DAMAGE" not in text


@pytest.mark.parametrize(
    ("actor", "changed", "named"),
    [
        ("a", {"train": 5}, "train 5, and by the rows 6"),
        ("a", {"train": 7}, "train 7, and by the rows 6"),
        ("a", {"validation": 1}, "validation 1, and by the rows 0"),
        ("b", {"stale_dropped": 1}, "stale_dropped 1, and by the rows 0"),
        ("b", {"version": 1}, "version 1, and by the rows 0"),
        ("b", {"first": 9}, "first row 9, and by the rows 6"),
        ("a", {"last": 4}, "last row 4, and by the rows 5"),
        ("b", {"last": 7}, "last row 7, and by the rows 6"),
        ("b", {"place": 7}, "place 7 of 6, and by the rows 6"),
        ("b", {"place": 5}, "place 5 of 6, and by the rows 6"),
        ("c", {"train": 1, "first": 6, "last": 6}, "train 1, and by the rows 0"),
        ("b", {"more": 1}, "not to be read"),
    ],
)
def test_a_tally_that_is_not_that_of_the_rows(
    two_actors: Path, actor: str, changed: dict[str, int], named: str
) -> None:
    """What is counted of an actor is not believed for its checksum alone either."""
    tally(two_actors, actor, **changed)
    (found,) = damages(two_actors)

    assert found.where.endswith(f"journal.db: meta 'actor:{actor}'")
    assert named in found.text


def test_a_tally_that_is_missing(two_actors: Path) -> None:
    """Where there are others of that time, one that is not there is named."""
    change(two_actors, "DELETE FROM meta WHERE name = 'actor:b'")
    (found,) = damages(two_actors)

    assert found.where.endswith("meta 'actor:b'")
    assert found.text == "missing"


def test_a_journal_that_is_older_than_its_tallies(two_actors: Path) -> None:
    """What they count is compared as far as they go back, and the rest is not proven."""
    tally(two_actors, "a", train=1, first=5)
    text = " ".join(map(str, verify(two_actors, rebuild=False)))
    assert "tallies: they begin with row 5" in text
    assert "DAMAGE" not in text
    tally(two_actors, "a", train=7)
    assert [f.text for f in damages(two_actors)] == ["train 7, and by the rows 6"]
    change(two_actors, "DELETE FROM meta WHERE name >= 'actor:' AND name < 'actor;'")
    text = " ".join(map(str, verify(two_actors, rebuild=False)))

    assert "tallies: there are none" in text
    assert "DAMAGE" not in text


def test_tallies_of_rows_that_were_dropped(two_actors: Path) -> None:
    """They may count more than the rows that are left, and not less."""
    journal = Journal(two_actors / MODEL / "journal.db")
    assert journal.drop_rows(3, 1 << 20) == 2
    journal.close()
    text = " ".join(map(str, verify(two_actors, rebuild=False)))
    assert "tallies: no less than the rows say" in text
    assert "DAMAGE" not in text
    tally(two_actors, "b", train=5)

    assert [f.text for f in damages(two_actors)] == ["train 5, and by the rows 6"]


def test_rows_in_another_order(data: Path) -> None:
    """Two rows that changed places are both named."""
    one, two = first(data, "transitions"), first(data, "transitions") + 2
    change(data, "UPDATE journal SET lsn = 1000 WHERE lsn = ?", one)
    change(data, "UPDATE journal SET lsn = ? WHERE lsn = ?", one, two)
    change(data, "UPDATE journal SET lsn = ? WHERE lsn = 1000", two)
    found = " ".join(map(str, damages(data)))

    assert f"row {one}: it is not what" in found
    assert f"row {two}: it is not what" in found


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json", "manifest.json"])
def test_a_checkpoint(data: Path, name: str) -> None:
    """A damaged file of a checkpoint is named."""
    path = max((data / MODEL / "checkpoints").iterdir())
    flip(path / name, random.Random(3))
    (found,) = damages(data)

    assert path.name in found.where
    assert name in found.text


@pytest.mark.parametrize("how", ["weight", "header", "length"])
def test_a_policy_is_not_served(data: Path, how: str) -> None:
    """A damaged policy is named and passed over; the one before it is served."""
    journal = Journal(data / MODEL / "journal.db")
    recorded = {row.version: row.digest for row in journal.versions()}
    sums = {row.version: row.file for row in journal.versions()}
    journal.close()
    shelf = PolicyShelf(data / MODEL)
    *_, before, newest = shelf.paths()
    whole = newest.read_bytes()
    damaged = {
        "weight": whole[:-1] + bytes([whole[-1] ^ 1]),
        "header": whole.replace(rb"\"transitions\": 7", rb"\"transitions\": 5"),
        "length": whole[:-1],
    }
    assert damaged[how] != whole
    newest.write_bytes(damaged[how])
    (found,) = damages(data)
    served = shelf.newest(recorded, sums)

    assert newest.name in found.where
    assert served is not None
    assert served.version == int(before.stem)


def test_a_damaged_ledger_answers_nobody(data: Path) -> None:
    """Whoever asks for a damaged block or episode hears so, and no answer made from it."""
    change(data, "UPDATE ledger SET slots = zeroblob(416) WHERE episode = 'e1'")
    change(data, "UPDATE episode SET last = 99 WHERE episode = 'e2'")
    journal = Journal(data / MODEL / "journal.db")
    for call in (lambda: journal.block(("a", "e1"), 0), lambda: journal.episode(("a", "e2"))):
        with pytest.raises(DataDirError, match=r"of \('a', 'e\d'.*its recorded checksum"):
            call()
    assert journal.block(("a", "e0"), 0) is not None
    journal.close()


@pytest.mark.parametrize("kind", ["create", "version"])
def test_a_control_row(data: Path, kind: str) -> None:
    """A damaged CONTROL row is refused at start: its content decides what is served."""
    lsn = first(data, kind)
    change(
        data,
        "UPDATE journal SET payload = CAST(replace(payload, '1', '2') AS BLOB) WHERE lsn = ?",
        lsn,
    )

    with pytest.raises(DataDirError, match=rf"row {lsn}: expected its recorded SHA-256"):
        Journal(data / MODEL / "journal.db").versions()


# -- the log of commits that are not in the database file yet -----------------------------------


def as_sqlite(database: Path, folder: Path) -> int:
    """Return the position of the last row that SQLite finds."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for path in (database, wal_path(database)):
        shutil.copyfile(path, folder / path.name)
    connection = apsw.Connection(str(folder / database.name))
    found = connection.execute("SELECT max(lsn) FROM journal").fetchone()
    connection.close()
    assert found is not None
    return int(found[0])


def test_a_log_that_is_torn(made: dict[str, Path], tmp_path: Path) -> None:
    """Cut anywhere, a log is one that a power cut tore: as SQLite does, the rest is taken."""
    data = Path(shutil.copytree(made["killed"], tmp_path / "data")) / MODEL / "journal.db"
    whole = wal_path(data).read_bytes()
    page = 24 + 4096
    commits = check_wal(data).commits
    assert commits > 2
    seen = set()
    for end in range(32, len(whole), page // 3):
        wal_path(data).write_bytes(whole[:end])
        seen.add((check_wal(data).commits, as_sqlite(data, tmp_path / "copy")))
    assert {n for n, _ in seen} == set(range(commits))
    assert len(seen) <= commits + 1


def test_a_commit_that_is_torn_in_its_middle(tmp_path: Path) -> None:
    """A power cut may keep the end of the last commit and not its beginning: it is torn as well."""
    data = build(tmp_path / "data", killed=True, sealed=False) / MODEL / "journal.db"
    log, page = wal_path(data), 24 + 4096
    commits, whole = check_wal(data).commits, log.read_bytes()
    assert len(whole) == 32 + 10 * page  # the last commit is of three pages
    torn = 32 + 7 * page + 24  # behind the frame's own header, from which the next one goes on
    log.write_bytes(whole[:torn] + bytes(4096) + whole[torn + 4096 :])

    assert check_wal(data).commits == commits - 1


def test_a_log_that_is_damaged(made: dict[str, Path], tmp_path: Path) -> None:
    """A frame that SQLite would cut at, with all after it, is named; a start refuses."""
    data = Path(shutil.copytree(made["killed"], tmp_path / "data")) / MODEL / "journal.db"
    whole = wal_path(data).read_bytes()
    page, last = 24 + 4096, as_sqlite(data, tmp_path / "copy")
    damaged = bytearray(whole)
    damaged[32 + page + 900] ^= 4
    wal_path(data).write_bytes(damaged)

    assert as_sqlite(data, tmp_path / "copy") < last  # this is what nobody would have noticed
    with pytest.raises(DataDirError, match=r"journal\.db-wal: frame 1 \(page \d+\)"):
        Journal(data)
    assert wal_path(data).read_bytes() == damaged
    wal_path(data).write_bytes(mended_wal(data))
    assert as_sqlite(data, tmp_path / "copy") == last


@pytest.mark.parametrize("at", range(0, 32, 5))
def test_the_head_of_a_log(made: dict[str, Path], tmp_path: Path, at: int) -> None:
    """Damaged there, SQLite would take nothing of the log at all."""
    data = Path(shutil.copytree(made["killed"], tmp_path / "data")) / MODEL / "journal.db"
    whole = wal_path(data).read_bytes()
    wal_path(data).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])

    with pytest.raises(DataDirError, match=r"journal\.db-wal: header"):
        check_wal(data)


def test_the_last_commit(tmp_path: Path) -> None:
    """Unsealed, damage to the last commit passes for a torn one, and verify says that it would."""
    data = build(tmp_path / "data", killed=True, sealed=False)
    log = wal_path(data / MODEL / "journal.db")
    text = " ".join(map(str, verify(data, rebuild=False)))
    assert "nothing follows its last commit" in text
    whole = log.read_bytes()
    log.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])

    assert "a commit that did not end" in " ".join(map(str, verify(data, rebuild=False)))


def test_what_was_committed_last_is_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While nobody sends anything, one commit that holds nothing follows the last one."""
    monkeypatch.setattr(commits_module, "SEAL_AFTER", 0.0)
    built = Built(tmp_path / "data")
    journal = built.journal

    def sealed() -> Any:
        return read_meta(journal._reader, "seal")

    async def run() -> None:
        commits = Commits(journal, FreeSpace(tmp_path, 0), lambda: None)
        for version in range(2):
            row = VersionRow(version, 0, 0, "", "")
            await commits.submit(lambda _: (None, ()), row)
            while sealed() != journal.counters.lsn:
                await asyncio.sleep(0)
        await commits.on_writer(int)  # the thread has nothing else to do
        assert check_wal(journal.path).commits == 4  # two of data, and one behind each
        await commits.close()

    asyncio.run(run())
    built.directory.close()


def test_sums_of_a_log_are_those_of_its_definition() -> None:
    """The product with powers of a matrix is the loop that SQLite's documentation gives."""
    from jormungandr.service.journal.wal_check import _sums

    rng = np.random.default_rng(0)
    for order in ("<u4", ">u4"):
        data = rng.integers(0, 256, 8 * 40, dtype=np.uint8)
        start = rng.integers(0, 1 << 32, 2, dtype=np.uint32)
        s0, s1 = map(int, start)
        words = [int(w) for w in data.view(order)]
        for a, b in zip(words[::2], words[1::2], strict=True):
            s0 = (s0 + a + s1) % (1 << 32)
            s1 = (s1 + b + s0) % (1 << 32)
        assert _sums(data.tobytes(), order, start).tolist() == [s0, s1]


# -- a service on a damaged journal -------------------------------------------------------------


def test_a_service_on_a_damaged_row(data: Path) -> None:
    """Its learner stops and names the row; the last policy acts on, and what is sent is kept."""
    shutil.rmtree(data / MODEL / "checkpoints")
    lsn = first(data, "transitions") + 2
    change(data, "UPDATE journal SET payload = zeroblob(length(payload)) WHERE lsn = ?", lsn)
    newest = max((data / MODEL / "policies").iterdir())
    lock = Lock(data)
    lock.settle()  # no copy that is looked through before it is served
    lock.close()
    with Server(data) as server:
        endpoint = server.connect("m")
        until(lambda: endpoint.info()["learner"]["state"] == "failed", "the end of the learner")
        assert f"row {lsn}: expected its recorded SHA-256" in endpoint.info()["learner"]["error"]
        assert endpoint.act([[0.5, -1.0]]).policy_version == int(newest.stem)
        more = [dict(row, **identity("z", "e", t)) for t, row in enumerate(ROWS[:3])]
        assert endpoint.add(more).accepted == 3
        assert endpoint.add(more).duplicate == 3
        endpoint.close()
    reader = JournalReader(data / MODEL / "journal.db")
    assert [len(row.columns) for row in reader.rows(reader.last() - 1)] == [3]  # type: ignore[union-attr]
    reader.close()


def test_a_service_on_a_damaged_log(made: dict[str, Path], tmp_path: Path) -> None:
    """It does not start, says why in one line, and leaves all as it was."""
    data = Path(shutil.copytree(made["killed"], tmp_path / "data"))
    log = wal_path(data / MODEL / "journal.db")
    flip_at(log, 32 + 2000)
    before = log.read_bytes()
    with pytest.raises(AssertionError, match=r"journal\.db-wal.*frame 0"):
        Server(data)

    assert log.read_bytes() == before


def flip_at(path: Path, at: int) -> None:
    """Flip a bit at a place."""
    before = path.read_bytes()
    path.write_bytes(before[:at] + bytes([before[at] ^ 1]) + before[at + 1 :])
