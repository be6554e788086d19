"""Durable ingest: transitions a second that are acknowledged, each after its sync."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw

from benchmarks.speed.kit import Kit
from benchmarks.speed.load import MARK, loaded
from benchmarks.speed.rows.models import columns_of, specification
from benchmarks.speed.service import Service
from benchmarks.speed.timing import Case, Contender, looped, timed
from jormungandr import Learner, RemoteLearner
from jormungandr.columns import columns
from jormungandr.packed import pack
from jormungandr.spec import ModelSpec
from jormungandr.wire import encode_transitions

__all__ = ["bodies", "ingest"]

ROWS, CONNECTIONS = 256, 8
#: Bytes of a commit of the bare SQLite, about what 256 transitions take.
BLOB = 16 << 10
#: Transitions that a learner which works may be behind: it is waited for at the end.
BACKLOG = 20_000
STILL = {"updates_per_transition": 0, "max_backlog": 1 << 40}
JSON, COLUMNS = "application/json", "application/msgpack"


def bodies(count: int) -> tuple[bytes, bytes]:
    """Return so many transitions as JSON and as columns, with `MARK` as their episode."""
    rows = [
        {
            "actor_id": "a",
            "episode_id": MARK.decode(),
            "timestep": t,
            "split": "train",
            "policy_version": -1,
            "observation": shown.tolist(),
            "action": int(action),
            "reward": float(reward),
            "next_observation": after.tolist(),
            "terminated": t == count - 1,
            "truncated": False,
        }
        for t, (shown, action, reward, after) in enumerate(_steps(count))
    ]
    spec = ModelSpec.from_dict(specification())
    return encode_transitions(rows), pack(columns(rows, spec))


def _steps(count: int) -> Iterator[tuple[Any, Any, Any, Any]]:
    part = columns_of(4, 3, count)
    return zip(part.observation, part.action, part.reward, part.next_observation, strict=True)


def ingest(kit: Kit) -> Iterator[Case]:
    """Yield large requests, single transitions, and a learner that has to keep up."""
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(Service(kit.room("ingest")))
        model = _model(service, stack, "m", STILL)
        text, packed = bodies(ROWS)
        path = "/v1/models/m/experience/add"
        yield Case(
            "ingest-256",
            f"durable ingest, {CONNECTIONS} connections, {ROWS} transitions a request",
            "transitions/s",
            [
                _ours("columns", service, service.request(path, packed, COLUMNS), ROWS, kit),
                _ours("JSON", service, service.request(path, text), ROWS, kit),
                _bare(kit, ROWS, ledger=False),
                _bare(kit, ROWS, ledger=True),
            ],
            noted=lambda: _noted(model),
        )
        single = service.request(path, bodies(1)[0])
        yield Case(
            "ingest-1",
            "durable ingest, 64 connections, one transition a request",
            "requests/s",
            [_ours("", service, single, 1, kit, connections=64), _bare(kit, 1, ledger=False)],
            noted=lambda: _noted(model),
        )
        yield _sustained(kit, service, stack, packed)


def _model(
    service: Service, stack: contextlib.ExitStack, name: str, pacing: dict[str, Any]
) -> RemoteLearner:
    model = stack.enter_context(service.connect(name))
    model.create(specification(pacing=pacing))
    model.act([[0.0, 0.0, 0.0, 0.0]])
    return model


def _noted(model: RemoteLearner) -> dict[str, Any]:
    info = model.info()
    rate = info["spec"]["pacing"]["updates_per_transition"]
    behind = info["journal_lsn"] - info["applied_lsn"]
    return {"updates_per_transition": rate, "journal rows behind at the end": behind}


def _ours(
    what: str, service: Service, request: bytes, rows: int, kit: Kit, connections: int = CONNECTIONS
) -> Contender:
    def sample() -> float:
        told = loaded(service.port, request, kit.long, connections=connections)
        if set(told.answers) - {"200", "429"}:
            raise RuntimeError(f"answered {told.answers}")
        return rows * told.rate

    about = "`jormungandr serve`: checks, identities, labels, journal; answered after the sync"
    return Contender(f"ours, {what}" if what else "ours", "ours", sample, about)


def _bare(kit: Kit, rows: int, *, ledger: bool) -> Contender:
    """Return a limit: a blob, and maybe an identity for each row, in a commit of its own."""
    name = "limit: SQLite" + ", with identities" * ledger
    commit = commits(kit.room(f"bare-{rows}-{ledger}.db"), rows if ledger else 0)
    kept = "a row for the identity of each, " * ledger
    about = f"one writer, WAL, synchronous=FULL, {BLOB >> 10} KiB a commit, {kept}nothing else"
    unit = "transitions/s" if rows > 1 else "requests/s"
    run = timed(commit, time.perf_counter)
    return looped(name, "limit", unit, run, kit.long / 2, about, each=rows)


def commits(path: Path, identities: int) -> Callable[[int], object]:
    """Return what makes so many commits, each synced."""
    database = apsw.Connection(str(path))
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE journal (lsn INTEGER PRIMARY KEY, payload BLOB)")
    database.execute(
        "CREATE TABLE ledger (episode INTEGER, t INTEGER, digest INTEGER,"
        " PRIMARY KEY (episode, t)) WITHOUT ROWID"
    )
    payload, episode = bytes(BLOB), 0

    def commit(count: int) -> None:
        nonlocal episode
        for _ in range(count):
            database.execute("BEGIN IMMEDIATE")
            database.execute("INSERT INTO journal (payload) VALUES (?)", (payload,))
            if identities:
                episode += 1
                known = [(episode, t, t) for t in range(identities)]
                database.executemany("INSERT INTO ledger VALUES (?, ?, ?)", known)
            database.execute("COMMIT")

    return commit


def _sustained(kit: Kit, service: Service, stack: contextlib.ExitStack, packed: bytes) -> Case:
    """Return ingest with a quarter of an update for each transition, until all is applied."""
    pacing = {"updates_per_transition": 0.25, "learning_starts": 1_000, "max_backlog": BACKLOG}
    model = _model(service, stack, "n", pacing)
    request = service.request("/v1/models/n/experience/add", packed, COLUMNS)
    seen: dict[str, Any] = {}

    def sample() -> float:
        began = time.perf_counter()
        told = loaded(service.port, request, kit.long, connections=CONNECTIONS)
        behind = model.info()
        seen["journal rows behind when sending stopped"] = (
            behind["journal_lsn"] - behind["applied_lsn"]
        )
        seen["answers"] = told.answers
        model.wait(behind["journal_lsn"], timeout=120)
        return ROWS * told.answers["200"] / (time.perf_counter() - began)

    alone = Learner(ModelSpec.from_dict(specification(pacing=pacing)))
    part, first = columns_of(4, 3, ROWS), 0

    def learn(count: int) -> None:
        nonlocal first
        for _ in range(count):
            alone.add(replace(part, timestep=part.timestep + first))
            first += ROWS

    run = timed(learn, time.perf_counter)
    return Case(
        "ingest-sustained",
        f"durable ingest, {CONNECTIONS} connections, {ROWS} a request, until the learner has it",
        "transitions/s",
        [
            Contender("ours", "ours", sample, "sent for a while, then waited for"),
            looped(
                "the learner alone",
                "limit",
                "transitions/s",
                run,
                kit.long / 2,
                "`Learner.add` in one process, the same updates",
                each=ROWS,
            ),
        ],
        noted=lambda: {**_noted(model), **seen},
    )
