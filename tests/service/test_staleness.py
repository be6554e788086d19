"""Staleness in a service: one answer for good, tallies that outlive a kill, the same figures."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jormungandr import Learner, ModelSpec
from jormungandr.admission import Admission
from jormungandr.columns import columns
from jormungandr.errors import DataDirError, PolicyVersionStale
from jormungandr.ledger import Draft, MemoryStore
from jormungandr.rows import Row
from jormungandr.service.journal.database import Created
from jormungandr.service.journal.writer import Journal
from jormungandr.service.tools.readmission import Readmission, same_rows
from jormungandr.service.tools.salvage import salvage
from jormungandr.service.tools.verification import verify
from jormungandr.tally import RECENT, Tally
from jormungandr.transport import HttpTransport, Transport
from tests.service.serving import QUIET, SPEC, TOKEN, InMemory, Server, connect, memory

RULES: dict[str, dict[str, Any]] = {
    "accept": {"max_policy_lag": 2, "mode": "accept"},
    "drop": {"max_policy_lag": 2, "mode": "drop", "stale_share": 0},
    "fair": {"max_policy_lag": 2, "mode": "drop", "stale_share": 0.75},
    "reject": {"max_policy_lag": 2, "mode": "reject"},
}


def step(t: int, actor: str = "a", version: int = -1, episode: str = "e") -> dict[str, Any]:
    """Return a training transition."""
    return {
        "actor_id": actor,
        "episode_id": episode,
        "timestep": t,
        "split": "train",
        "policy_version": version,
        "observation": [0.5, float(t)],
        "action": t % 3,
        "reward": 0.25,
        "next_observation": [0.5, t + 1.0],
        "terminated": False,
        "truncated": False,
    }


class Gate:
    """Admission over a journal, or over memory, that can be opened again."""

    def __init__(self, rule: dict[str, Any], path: Path | None = None) -> None:
        self.spec = ModelSpec.from_dict({**QUIET, "staleness": rule, "replay": {"capacity": 40}})
        self.path, self.served = path, 0
        self.store: Any = MemoryStore()
        if path is not None:
            self.store = Journal(path, Created("m", 1, 0, self.spec))

    rows: Sequence[Row] = ()

    def add(self, rows: list[Any], *, lost: bool = False) -> tuple[int, int, int] | str:
        """Return what a receipt counts, or the code of the refusal; a lost commit keeps nothing."""
        draft = Draft(self.store)
        try:
            receipt, new = Admission(self.spec).transitions(
                columns(rows, self.spec), draft, served=self.served, published=self.served
            )
        except PolicyVersionStale as error:
            return error.code
        self.rows = [*self.rows, *new]
        if not lost and self.path is not None and new:
            self.store.commit(draft, new, [])
        if not lost:
            (self.store.apply if self.path is None else self.store.merged)(draft)
        return receipt.accepted, receipt.duplicate, receipt.stale_dropped

    def restart(self) -> None:
        """Forget everything that is not stored."""
        if self.path is None:
            self.store = MemoryStore.from_bytes(self.store.to_bytes())
        else:
            self.store.close()
            self.store = Journal(self.path)


REQUESTS = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"),
            st.lists(
                st.tuples(st.sampled_from("abc"), st.integers(0, 30), st.integers(0, 3)),
                min_size=1,
                max_size=8,
                unique_by=lambda row: row[:2],
            ),
        ),
        st.tuples(st.sampled_from(["serve", "restart", "lost"]), st.none()),
    ),
    max_size=30,
)


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=25)
@given(requests=REQUESTS)
def test_one_answer_for_good(rule: str, requests: list[tuple[str, Any]]) -> None:
    """The same bytes later, after any versions and restarts, hear what they heard first.

    A journal and a store in memory decide alike, and a commit that fails decides nothing.
    """
    with tempfile.TemporaryDirectory() as folder:
        gates = [Gate(RULES[rule]), Gate(RULES[rule], Path(folder) / "journal.db")]
        heard: list[tuple[list[Any], Any]] = []
        lose = False
        for n, (kind, content) in enumerate(requests):
            if kind == "add":
                rows = [
                    step(t, actor, max(0, gates[0].served - behind * 2), episode=f"e{n}")
                    for actor, t, behind in content
                ]
                answers = [gate.add(rows, lost=lose) for gate in gates]
                assert answers[0] == answers[1]
                if not lose:
                    heard.append((rows, answers[0]))
                lose = False
            for gate in gates:
                gate.served += 3 * (kind == "serve")
                if kind == "restart":
                    gate.restart()
            lose |= kind == "lost"
            # A journal's positions begin with its create row.
            rolls = [
                [
                    (actor, tally._replace(first=0, last=0))
                    for actor, tally in gate.store.roll.items()
                ]
                for gate in gates
            ]
            assert sorted(rolls[0]) == sorted(rolls[1])
        for rows, first in heard:
            for gate in gates:
                gate.served += 5
                again = gate.add(rows)
                if isinstance(first, str):
                    assert again == first
                else:
                    assert again == (0, first[0] + first[1], first[2])
        gates[1].store.close()


class Sent:
    """Requests to four models of a service, one for each rule, kept as bytes."""

    def __init__(self, transport: Transport, token: str = TOKEN) -> None:
        self.requests: list[tuple[str, bytes]] = []
        self._steps = 0
        self.reach(transport, token)

    def reach(self, transport: Transport, token: str = TOKEN) -> None:
        """Go on with another service."""
        self._transport = transport
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def _ask(self, method: str, path: str, body: bytes | None = None) -> Any:
        got = self._transport.request(method, f"/v1/models{path}", body, self._headers, 120.0)
        return msgspec.json.decode(got.body)

    def create(self) -> None:
        """Create the models, and let each make a few policies."""
        for name, rule in RULES.items():
            # What is sent in time makes a few policies, and what comes after it stays in time.
            spec = {**SPEC, "staleness": {**rule, "max_policy_lag": 20}}
            body = {"model_id": name, "spec": spec}
            assert self._ask("POST", "", msgspec.json.encode(body))["model_id"] == name
        self.move()

    def move(self) -> None:
        """Make more policies of each model, and wait until the newest is served."""
        steps = range(self._steps, self._steps + 48)
        self._steps += 48
        for name in RULES:
            body = msgspec.json.encode({"transitions": [step(t, "other") for t in steps]})
            lsn = self._ask("POST", f"/{name}/experience/add", body)["lsn"]
            info = self._ask("GET", f"/{name}?applied_lsn={lsn}&wait=60")
            assert info["applied_lsn"] >= lsn
            self.version = info["policy_version"]

    def send(self) -> list[Any]:
        """Send batches that are in time, late, and both; return what was heard."""
        newest = self.version
        batches = {
            "in time": [step(t, "a", newest - 1, "fresh") for t in range(3)],
            "late": [step(t, "b", newest - 30, "late") for t in range(3)],
            "both": [step(t, "c", newest - 30 * (t % 2), f"both{t % 2}") for t in range(6)],
        }
        for name in RULES:
            for batch in batches.values():
                self.requests.append((name, msgspec.json.encode({"transitions": batch})))
        return self.again()

    def again(self) -> list[Any]:
        """Send the same bytes; return (accepted or known, dropped), or the code of a refusal."""
        heard: list[Any] = []
        for name, body in self.requests:
            answer = self._ask("POST", f"/{name}/experience/add", body)
            if "error" in answer:
                heard.append(answer["error"]["code"])
            else:
                heard.append((answer["accepted"] + answer["duplicate"], answer["stale_dropped"]))
        return heard

    def kept(self) -> dict[str, Any]:
        """Return what the ledger counts of each actor, by model."""
        kept = ("train", "validation", "stale_dropped", "newest_version")
        found = {}
        for name in RULES:
            each = self._ask("GET", f"/{name}/metrics")["actors"]["each"]
            found[name] = {
                a["actor_id"]: [a[field] for field in kept]
                for a in each
                if not a["rejected"]  # which is counted by a process
            }
        return found


HEARD = [
    *[(3, 0), (3, 0), (6, 0)],
    *[(3, 0), (0, 3), (3, 3)],
    *[(3, 0), (0, 3), (6, 0)],  # the first late stretch finds too little allowance
    *[(3, 0), "policy_version_stale", "policy_version_stale"],
]


def test_the_same_bytes_over_http(tmp_path: Path) -> None:
    """A request heard twice, before and after newer policies and a restart, has one answer."""
    with memory(tmp_path) as http:
        sent = Sent(InMemory(http))
        sent.create()
        first = sent.send()
        sent.move()
        assert sent.again() == first
        kept = sent.kept()
    with memory(tmp_path) as http:
        sent.reach(InMemory(http))
        assert sent.again() == first
        assert sent.kept() == kept

    assert first == HEARD
    assert [kept["fair"][actor][2] for actor in "abc"] == [0, 3, 0]


@pytest.mark.slow
def test_the_same_bytes_after_a_kill(tmp_path: Path) -> None:
    """After a kill -9 and newer policies the answers are the same, and the tallies too."""
    with Server(tmp_path) as server, closing(HttpTransport(server.url)) as http:
        sent = Sent(http, server.token)
        sent.create()
        first, kept = sent.send(), sent.kept()
        server.kill()
    with Server(tmp_path) as server, closing(HttpTransport(server.url)) as http:
        sent.reach(http, server.token)
        assert sent.kept() == kept
        assert sent.again() == first
        sent.move()
        assert sent.again() == first

    assert first == HEARD


def test_reading_again_decides_nothing_again() -> None:
    """What was let pass stays taken and what was dropped stays dropped, in whatever reads rows."""
    gate = Gate(RULES["fair"])
    for n in range(40):
        gate.served = 3 * n
        gate.add([step(t, "in time", gate.served, f"e{n}") for t in range(4)])
        gate.add([step(t, "late", 0, f"e{n}") for t in range(4)])
    tally = gate.store.roll.get("late")
    reading = Readmission(Created("m", 1, 0, gate.spec))

    assert 20 < tally.stale_dropped < 140
    assert all(same_rows(row, reading.add(row)) for row in gate.rows)
    kept = (tally.train, tally.stale_dropped)
    again = reading.store.roll.get("late")
    assert again is not None
    assert (again.train, again.stale_dropped) == kept


@pytest.mark.parametrize("rule", ["drop", "fair"])
def test_verify_reads_again_what_came_one_by_one(tmp_path: Path, rule: str) -> None:
    """A single transition that was dropped as stale is no damage, and salvage keeps it dropped."""
    (tmp_path / "data" / "models" / "m.1").mkdir(parents=True)
    gate = Gate(RULES[rule], tmp_path / "data" / "models" / "m.1" / "journal.db")
    gate.served = 10
    for t in range(20):
        gate.add([step(t, version=0 if t % 8 else 10)])
    counters = gate.store.counters
    gate.store.close()
    found = [*verify(tmp_path / "data", rebuild=False)]
    found += salvage(tmp_path / "data", tmp_path / "out")

    assert counters.stale_dropped > 0
    assert [str(finding) for finding in found if finding.status == "damage"] == []
    again = Journal(tmp_path / "out" / "models" / "m.1" / "journal.db")
    assert again.counters == counters
    again.close()


# -- what a journal keeps of actors ---------------------------------------------------------------


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Gate]:
    """A journal that drops a half of what is late."""
    gate = Gate(RULES["fair"], tmp_path / "journal.db")
    yield gate
    gate.store.close()


def test_more_actors_than_are_held(journal: Gate) -> None:
    """Beyond the thousand most recent ones an actor's tally is read from the disk."""
    journal.add([step(0, "first", version=0)])
    for n in range(RECENT + 5):
        assert journal.add([step(0, f"a{n}")]) == (1, 0, 0)
    for _ in range(2):
        assert len(journal.store.roll) == RECENT
        assert journal.store.roll.offered == 1
        assert journal.store.roll.get("a0") == Tally(train=1, first=3, last=3)
        assert journal.store.roll.get("nobody") is None
        journal.restart()
    journal.add([step(1, "a0")])

    assert journal.store.roll.get("a0").train == 2
    assert next(actor for actor, _ in journal.store.roll.recent()) == "a0"


def test_a_damaged_tally_is_named(journal: Gate) -> None:
    """Like every other value of the journal, a tally has a checksum."""
    journal.add([step(0)])
    journal.store.close()
    assert journal.path is not None
    connection = apsw.Connection(str(journal.path))
    connection.execute("UPDATE meta SET value = '{}' WHERE name = 'actor:a'")
    connection.close()
    with pytest.raises(DataDirError, match="actor:a"):
        Journal(journal.path)
    connection = apsw.Connection(str(journal.path))
    connection.execute("DELETE FROM meta WHERE name = 'actor:a'")  # as in an older journal
    connection.close()
    journal.store = Journal(journal.path)

    assert journal.store.roll.get("a") is None
    assert journal.add([step(0), step(1)]) == (1, 1, 0)
    assert journal.store.roll.get("a").train == 1


def test_plain_sql_can_ask(journal: Gate) -> None:
    """What each actor sent is one SELECT away."""
    journal.served = 9
    journal.add([*[step(t, "b", 0) for t in range(3)], step(0, "c", 9)])
    connection = apsw.Connection(str(journal.path), flags=apsw.SQLITE_OPEN_READONLY)
    rows = connection.execute(
        "SELECT substr(name, 7), CAST(value AS TEXT) ->> 'train',"
        " CAST(value AS TEXT) ->> 'stale_dropped' FROM meta WHERE name GLOB 'actor:*' ORDER BY 1"
    ).fetchall()
    connection.close()

    assert rows == [("b", 0, 3), ("c", 1, 0)]


# -- what is shown --------------------------------------------------------------------------------


def test_figures_are_those_of_a_learner(tmp_path: Path) -> None:
    """In process and over HTTP: the same requests, the same figures, to the last digit."""
    spec = {**SPEC, "staleness": RULES["fair"]}
    with memory(tmp_path) as http:
        learner, remote = Learner(spec), connect(http, "m")
        remote.create(spec)
        shown = []
        for endpoint in (learner, remote):
            for at in range(0, 32, 4):
                version = max(0, endpoint.info()["policy_version"] - at % 3)
                batch = [step(t, "ab"[at // 4 % 2], version) for t in range(at, at + 4)]
                endpoint.wait(endpoint.add(batch).lsn)
            late = [step(t, "late", 0) for t in range(20)]
            for part in (late[:10], late[10:], late):
                endpoint.wait(endpoint.add(part).lsn)
            actors = endpoint.metrics()["actors"]
            info = endpoint.wait(endpoint.add([step(99, "last")]).lsn)
            lsns = [each.pop("last_lsn") for each in actors["each"]]
            shown.append([actors, info["lag"], info["warnings"], len(lsns)])

    assert shown[0] == shown[1]
    actors, lag, _, _ = shown[0]
    (late_one,) = (each for each in actors["each"] if each["actor_id"] == "late")
    assert late_one["duplicate"] == 20
    assert 0 < late_one["stale_dropped"] < 20
    assert lag["max"] > 10
    assert lag["worst"][0]["actor_id"] == "late"


def test_a_refused_request_is_counted(tmp_path: Path) -> None:
    """Over HTTP too, what is refused as stale counts for its actor."""
    spec = {**SPEC, "staleness": RULES["reject"]}
    with memory(tmp_path) as http:
        remote = connect(http, "m")
        remote.create(spec)
        remote.wait(remote.add([step(t) for t in range(16)]).lsn)
        for _ in range(2):
            with pytest.raises(PolicyVersionStale):
                remote.add([step(t, "b", 0) for t in range(3)])
        each = {a["actor_id"]: a for a in remote.metrics()["actors"]["each"]}

    assert (each["b"]["rejected"], each["b"]["train"]) == (6, 0)


def test_warnings_are_shown(tmp_path: Path) -> None:
    """An operator sees who is stuck and who is starved."""
    spec = {**SPEC, "staleness": RULES["drop"]}
    with memory(tmp_path) as http:
        remote = connect(http, "m")
        remote.create(spec)
        for n in range(12):
            remote.add([step(t, "stuck", 0, f"e{n}") | {"truncated": t == 2} for t in range(3)])
            lsn = remote.add([step(t, "other") for t in range(4 * n, 4 * n + 4)]).lsn
            remote.wait(lsn)
        warnings = remote.info()["warnings"]

    for text in (
        "lag_growing: the policy of 'stuck' (version 0, ",
        "actor_starved: most of what 'stu",
    ):
        assert any(warning.startswith(text) for warning in warnings)
