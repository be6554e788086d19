"""Growth: what an update, a request and a transition cost as there are more of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed.kit import Kit
from benchmarks.speed.peer.data import experience
from benchmarks.speed.peers import ROOT
from benchmarks.speed.rows.inference import median
from benchmarks.speed.rows.ingest import bodies
from benchmarks.speed.rows.models import learner, specification
from benchmarks.speed.service import Service
from benchmarks.speed.timing import Case, Contender, looped, timed
from jormungandr import Learner
from jormungandr.columns import columns
from jormungandr.packed import pack, unpack
from jormungandr.spec import ModelSpec
from jormungandr.typed_rows import typed_rows
from jormungandr.wire import decode_object, encode_transitions

__all__ = ["growth"]

#: Resident bytes of ten million small transitions and what they are made from.
LARGE = 4 << 30


def growth(kit: Kit) -> Iterator[Case]:
    """Yield updates by replay, requests by batch, codecs by batch, and bytes by observation."""
    yield _updates(kit)
    yield from _requests(kit)
    yield _codec(kit)
    yield _memory(kit)


def _updates(kit: Kit) -> Case:
    sizes = [10**4, 10**5, 10**6]
    absent = {}
    if not kit.quick:
        if _available() > LARGE:
            sizes.append(10**7)
        else:
            absent["ten million"] = f"less than {LARGE >> 30} GiB of memory are free"
    found = []
    for size in sizes:
        model = learner(size, specification(capacity=size))
        run = timed(model.update)
        about = "`Learner.update`, 4-64-64-3×51, batch 64, prioritized"
        found.append(looped("ours", "ours", "µs", run, kit.seconds, about, x=size))
    return Case("growth-update", "one update, by what is in replay", "µs", found, absent)


def _requests(kit: Kit) -> Iterator[Case]:
    """Yield a request for actions over HTTP and in process, by its observations."""
    model = Learner(specification())
    policy, rng = model.snapshot(), np.random.default_rng(0)
    with Service(kit.room("growth")) as service, service.connect("m") as remote:
        remote.create(specification())
        remote.act([[0.0, 0.0, 0.0, 0.0]])
        found = []
        for count in (1, 16, 256, 4096):
            shown = experience(count, 4, 3)["observation"]
            body = json.dumps({"observations": np.asarray(shown).tolist()}).encode()
            request = service.request("/v1/models/m/inference", body)
            sample = median(service.port, request, kit.long / 8)
            about = "JSON in, JSON out"
            found.append(Contender("over HTTP", "ours", sample, about, count))

            about = "`PolicySnapshot.act`"
            run = timed(partial(_again, partial(policy.act, shown, rng)))
            found.append(looped("in process", "ours", "µs", run, kit.seconds, about, x=count))
        title = "one request for actions, by its observations, 4-64-64-3×51"
        yield Case("growth-inference", title, "µs", found)


def _codec(kit: Kit) -> Case:
    """Return what lies between a body and checked arrays, and back, by its transitions."""
    spec = ModelSpec.from_dict(specification())
    found = []
    for count in (1, 16, 256, 4096):
        text, packed = bodies(count)
        rows = decode_object(text)["transitions"]
        ways: dict[str, Callable[[], object]] = {
            "JSON read": partial(_read, text, spec),
            "columns read": partial(unpack, packed, spec, 1),
            "JSON written": partial(encode_transitions, rows),
            "columns written": partial(_packed, rows, spec),
        }
        for name, way in ways.items():
            run = timed(partial(_again, way))
            found.append(
                looped(name, "ours", "transitions/s", run, kit.seconds, "", each=count, x=count)
            )
    title = "`experience/add`: bytes to checked arrays, and rows to bytes, 4 numbers"
    return Case("growth-codec", title, "transitions/s", found)


def _read(text: bytes, spec: ModelSpec) -> object:
    """Return what the service makes of JSON."""
    typed = typed_rows(text, spec)
    return columns(decode_object(text)["transitions"] if typed is None else typed, spec)


def _packed(rows: Any, spec: ModelSpec) -> object:
    return pack(columns(rows, spec), 1)


def _again(way: Callable[[], object], count: int) -> None:
    for _ in range(count):
        way()


def _memory(kit: Kit) -> Case:
    cases = [
        ("ours, 4 numbers", 4, 1_000_000, "numbers"),
        ("ours, 64 numbers", 64, 200_000, "numbers"),
        ("ours, 84×84×4 bytes", 84, 4_000, "image"),
    ]
    found = []
    for name, size, count, kind in cases:

        def sample(size: int = size, count: int = count, kind: str = kind) -> float:
            given = [str(size), str(count), kind]
            command = [sys.executable, "-m", "benchmarks.speed.memory", *given]
            done = subprocess.run(command, stdout=subprocess.PIPE, cwd=ROOT, check=True)
            told = json.loads(done.stdout)
            return float(told["bytes"] / told["raw"])

        about = "resident memory of a full, prioritized replay; raw is both observations,"
        about += " an int64 action, reward and discount; no labels"
        found.append(Contender(name, "ours", sample, about))
    title = "memory of a transition in replay"
    return Case("growth-memory", title, "of the raw bytes", found, rounds=1 if kit.quick else 3)


def _available() -> int:
    text = Path("/proc/meminfo").read_text()
    return int(text.partition("MemAvailable:")[2].split()[0]) << 10
