"""docs/journal.md is enough to read a journal with: this reader is written from it alone.

The reader imports SQLite, MessagePack, NumPy and what Python has, and nothing of ours.
"""

from __future__ import annotations

import ast
import json
import math
import zlib
from collections.abc import Callable, Iterator
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

import apsw
import msgspec.msgpack
import numpy as np
import pytest

# -- the reader ---------------------------------------------------------------------------------

VECTORS = {"actor": "<i4", "episode": "<i4", "timestep": "<i8", "split": "u1"}
VECTORS |= {"policy_version": "<i8", "action": "<i8", "reward": "<f4", "terminated": "u1"}
VECTORS |= {"truncated": "u1", "behavior_prob": "<f4", "label": "<i4", "outcome": "u1"}
SLOT = np.dtype(
    [("digest", "<u8"), ("ordinal", "<i8"), ("label", "<i4"), ("state", "u1"), ("split", "u1")]
)


class Reader:
    """Reads the journal of one model.

    Args:
        folder: ``DATA_DIR/models/<model_id>.<generation>``.
    """

    def __init__(self, folder: Path) -> None:
        path = str(folder / "journal.db")
        self.database = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
        self.meta = {}
        for name, value, check in self.database.execute("SELECT * FROM meta"):
            assert zlib.crc32(msgspec.msgpack.encode([name, value])) == check
            self.meta[name] = json.loads(value)
        assert self.meta["format"] == 1

    def rows(self) -> Iterator[tuple[int, str, Any]]:
        """Yield (lsn, kind, content) of every row, verified."""
        statement = "SELECT lsn, kind, payload, digest FROM journal ORDER BY lsn"
        for lsn, kind, payload, digest in self.database.execute(statement):
            assert sha256(f"{lsn} {kind} ".encode("ascii") + payload).digest() == digest
            data = kind in ("transitions", "labels")
            yield lsn, kind, msgspec.msgpack.decode(payload) if data else json.loads(payload)

    def skipped(self) -> set[int]:
        """Return the positions of rows that nobody applies."""
        return {content["skipped"] for _, kind, content in self.rows() if kind == "skip"}

    def transitions(self) -> Iterator[dict[str, Any]]:
        """Yield every stored transition, with the labels that are in `transitions` rows."""
        for lsn, kind, body in self.rows():
            if kind != "transitions":
                continue
            assert body["format"] in (2, 3)
            tag = [-1] * body["shape"][0]
            if body["format"] == 3:
                tag = np.frombuffer(body["tag"], "<i4").tolist()
            shape = tuple(body["shape"])
            arrays = {name: np.frombuffer(body[name], kind) for name, kind in VECTORS.items()}
            for name in ("observation", "next_observation"):
                arrays[name] = np.frombuffer(body[name], body["dtype"]).reshape(shape)
            masks = np.frombuffer(body["next_action_mask"], "u1").reshape(shape[0], -1)
            for i in range(shape[0]):
                step = {name: array[i] for name, array in arrays.items()}
                step["actor"] = body["actors"][step["actor"]]
                step["episode"] = body["episodes"][step["episode"]]
                tags = body["tags"][tag[i]] if tag[i] >= 0 else []
                yield {**step, "next_action_mask": masks[i], "tags": tags, "lsn": lsn}

    def labels(self) -> dict[tuple[str, str, int], int]:
        """Return the labels of a model by identity."""
        found = {}
        for step in self.transitions():
            if step["label"] >= 0:
                found[identity_of(step)] = int(step["label"])
        for _, kind, body in self.rows():
            if kind == "labels":
                assert body["format"] == 2
                classes = np.frombuffer(body["label"], "<i4").tolist()
                outcomes = np.frombuffer(body["outcome"], "u1").tolist()
                for (actor, episode, timestep), label, outcome in zip(
                    body["identities"], classes, outcomes, strict=True
                ):
                    if outcome == 2:
                        found[actor, episode, timestep] = label
        return found

    def slots(self) -> dict[tuple[str, str, int], Any]:
        """Return the known slots of the ledger by identity."""
        found = {}
        for *row, check in self.database.execute("SELECT * FROM ledger"):
            assert zlib.crc32(msgspec.msgpack.encode(row)) == check
            actor, episode, block, slots = row
            for i, slot in enumerate(np.frombuffer(slots, SLOT)):
                if slot["state"]:
                    found[actor, episode, 256 * block + i] = slot
        return found


def identity_of(step: dict[str, Any]) -> tuple[str, str, int]:
    """Return actor, episode and timestep."""
    return step["actor"], step["episode"], int(step["timestep"])


def content_digest(step: dict[str, Any]) -> int:
    """Return the ledger's digest of a transition."""
    known = step["behavior_prob"]

    def plain(value: Any) -> bytes:
        number = np.asarray(value)
        zero = number + np.float32(0) if number.dtype.kind == "f" else number
        return zero.astype(number.dtype).tobytes()

    parts = [
        plain(step["observation"]),
        step["action"].tobytes(),
        plain(step["reward"]),
        plain(step["next_observation"]),
        step["terminated"].tobytes(),
        step["truncated"].tobytes(),
        (np.float32(-1) if math.isnan(known) else known).tobytes(),
        step["policy_version"].tobytes(),
        step["next_action_mask"].tobytes(),
        *([msgspec.msgpack.encode(step["tags"])] if step["tags"] else []),
    ]
    return int.from_bytes(blake2b(b"".join(parts), digest_size=8).digest(), "little")


# -- what it reads ------------------------------------------------------------------------------

from jormungandr import ModelSpec  # noqa: E402
from jormungandr.columns import columns  # noqa: E402
from jormungandr.service.journal.database import FORMAT, SCHEMA, SkipRow  # noqa: E402
from jormungandr.service.journal.decisions import DECISIONS  # noqa: E402
from jormungandr.service.journal.reader import JournalReader  # noqa: E402
from tests.cli.journals import Written  # noqa: E402
from tests.service.serving import QUIET, SPEC, Server, experience, identity  # noqa: E402

DOCUMENT = Path(__file__).parents[2] / "docs" / "journal.md"


def test_the_reader_imports_nothing_of_ours() -> None:
    """All above the line stands on its own."""
    source = Path(__file__).read_text(encoding="utf-8").partition("# -- what it reads")[0]
    names = [
        alias.name if isinstance(node, ast.Import) else node.module or ""
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    ]

    assert "apsw" in names
    assert not [name for name in names if name.startswith(("jormungandr", "tests"))]


def agrees(reader: Reader, sent: list[dict[str, Any]], spec: dict[str, Any]) -> None:
    """Check that a journal holds what was sent, in order, and that its ledger says the same."""
    c = columns(sent, ModelSpec.from_dict(spec))
    steps = list(reader.transitions())
    assert len(steps) == len(sent)
    digests = c.digests().tolist()
    slots, labels = reader.slots(), reader.labels()
    ordinals = [0, 0]
    for i, step in enumerate(steps):
        assert identity_of(step) == c.identity(i)
        for name in (
            *("split", "policy_version", "observation", "action", "reward", "next_observation"),
            *("terminated", "truncated", "behavior_prob", "next_action_mask"),
        ):
            expected = getattr(c, name)[i]
            assert np.array_equal(step[name], expected, equal_nan=name == "behavior_prob"), name
        slot = slots.pop(identity_of(step))
        assert slot["digest"] == content_digest(step) == digests[i]
        assert slot["state"] == step["outcome"]
        assert slot["split"] == step["split"]
        assert slot["label"] == labels.get(identity_of(step), -1)
        ordinal = -1
        if step["outcome"] == 1:
            ordinal = ordinals[step["split"]]
            ordinals[step["split"]] += 1
        assert slot["ordinal"] == ordinal
    assert slots == {}
    counters = reader.meta["counters"]
    assert [counters["train"], counters["validation"]] == ordinals


@pytest.mark.slow
def test_a_journal_that_a_service_wrote(tmp_path: Path) -> None:
    """Beside the running service: every transition, label, policy and decision is read."""
    sent = experience(6, 11)
    with Server(tmp_path) as server, server.connect("m") as endpoint:
        endpoint.create(SPEC)
        endpoint.label([{**identity("a", "e5", 10), "label": 1}])
        for i in range(0, len(sent), 8):
            endpoint.add(sent[i : i + 8])
        assert endpoint.add(sent[:8]).duplicate == 8
        last = endpoint.label([{**identity("a", "e4", 8), "label": "UP"}]).lsn
        info = endpoint.wait(last)
        reader = Reader(tmp_path / "models" / "m.1")
        agrees(reader, sent, SPEC)
        assert reader.labels()["a", "e5", 10] == reader.labels()["a", "e4", 8] == 1
    rows = list(reader.rows())

    assert [kind for _, kind, _ in rows].count("labels") == 2
    created, versions = rows[0][2], [body for _, kind, body in rows if kind == "version"]
    assert (rows[0][0], rows[0][1], created["model_id"], created["generation"]) == (
        1,
        "create",
        "m",
        1,
    )
    assert ModelSpec.from_dict(created["spec"]) == ModelSpec.from_dict(SPEC)
    assert (created["first_version"], created["origin"]) == (0, "")
    assert versions[-1]["version"] == info["policy_version"] == info["update_count"]
    # It may have been published in the middle of the last row that made an update due.
    final_train = max(step["lsn"] for step in reader.transitions() if step["split"] == 0)
    assert final_train - 1 <= versions[-1]["applied_lsn"] <= last
    policy = tmp_path / "models" / "m.1" / "policies" / f"{info['policy_version']:020d}.safetensors"
    assert sha256(policy.read_bytes()).hexdigest() == versions[-1]["file"]
    checkpoint = tmp_path / "models" / "m.1" / "checkpoints"
    (folder,) = checkpoint.iterdir()
    manifest = json.loads((folder / "manifest.json").read_bytes())
    digest = manifest.pop("sha256")
    assert sha256(json.dumps(manifest).encode()).hexdigest() == digest
    assert manifest["format"] == "jormungandr-checkpoint-1"
    assert {path.name for path in folder.iterdir()} == {"manifest.json", *manifest["files"]}
    for name, recorded in manifest["files"].items():
        data = (folder / name).read_bytes()
        assert (len(data), sha256(data).hexdigest()) == (recorded["bytes"], recorded["sha256"])
    assert int(folder.name) == last


def varied(spec: dict[str, Any], count: int, observation: Callable[[int], Any]) -> list[Any]:
    """Return steps of two episodes and both splits, with all that is optional here and there."""
    steps = []
    for t in range(count):
        step = {
            **identity("ψ" if t % 3 else "a", "e", 250 + t),
            "split": "validation" if t % 4 == 1 else "train",
            "policy_version": t % 3 - 1,
            "observation": observation(t),
            "action": t % 2,
            "reward": -0.0 if t % 2 else 0.1 * t,
            "next_observation": observation(t + 1),
            "terminated": False,
            "truncated": False,
        }
        if t % 2:
            step["behavior_prob"] = 0.25
        if spec.get("action_masks"):
            step["next_action_mask"] = [t % 2 == 0, True]
        steps.append(step)
    return steps


STALE = {
    "staleness": {"max_policy_lag": 1, "mode": "drop", "stale_share": 0.0},
    "pacing": {"learning_starts": 10**6},
}
SPACES: dict[str, tuple[dict[str, Any], Callable[[int], Any]]] = {
    "vector": ({"observation": {"shape": [3]}}, lambda t: [-0.0, 0.1 * t, 2.0]),
    "masks": (
        {"observation": {"shape": [1]}, "action_masks": True},
        lambda t: [float(t)],
    ),
    "image": (
        {"observation": {"shape": [40, 36, 3], "dtype": "uint8"}},
        lambda t: np.random.default_rng(t).integers(0, 256, (40, 36, 3), dtype=np.uint8),
    ),
    "stacked images": (
        {"observation": {"shape": [40, 36], "dtype": "uint8", "frame_stack": 2}},
        lambda t: np.random.default_rng(t).integers(0, 256, (2, 40, 36), dtype=np.uint8),
    ),
    "dict": (
        {
            "observation": {
                "space": {
                    "type": "dict",
                    "spaces": {
                        "b": {"type": "discrete", "n": 3, "start": 1},
                        "a": {"type": "multi_binary", "shape": [2]},
                    },
                }
            }
        },
        lambda t: {"b": 1 + t % 3, "a": [t % 2, 1]},
    ),
}


@pytest.mark.parametrize("name", SPACES)
def test_every_kind_of_observation(tmp_path: Path, name: str) -> None:
    """Vectors, masks, images, stacked ones and dicts are where the document says."""
    fields, observation = SPACES[name]
    spec = {**fields, "actions": 2, "replay": {"capacity": 64}, **STALE}
    spec["validation"] = {"capacity": 8}
    steps = varied(spec, 13, observation)
    with Written(tmp_path, spec) as journal:
        for i in range(0, 13, 4):
            journal.add(steps[i : i + 4], served=1 if i < 8 else 2)
        journal.control(SkipRow(3, "a reason"))
        reader = Reader(journal.folder)
        agrees(reader, steps, spec)

    assert {int(step["outcome"]) for step in reader.transitions()} == {1, 2}
    assert reader.skipped() == {3}
    if name == "dict":
        first = next(reader.transitions())
        assert first["observation"].tolist() == [0.0, 1.0, 1.0, 0.0, 0.0]


def test_tags(tmp_path: Path) -> None:
    """They are in the row of the first step, and in its digest."""
    rows = experience(3, 2)
    rows[2]["tags"], rows[4]["tags"] = {"map": "ψ", "date": "2020-01-01"}, {"map": "x"}
    with Written(tmp_path, QUIET) as journal:
        journal.add(rows[:3])
        journal.add(rows[3:4])
        journal.add(rows[4:])
        reader = Reader(journal.folder)
        agrees(reader, rows, QUIET)
        tags = [dict(step["tags"]) for step in reader.transitions()]
        formats = [body["format"] for _, kind, body in reader.rows() if kind == "transitions"]

    assert tags == [row.get("tags", {}) for row in rows]
    assert formats == [3, 2, 3]


def test_waiting_labels_and_ends(tmp_path: Path) -> None:
    """The other tables of the ledger are as described."""
    with Written(tmp_path, QUIET) as journal:
        rows = experience(2, 3)
        journal.add(rows[:2])
        journal.label([{**identity("z", "later", t), "label": 1} for t in (1, 0)])
        journal.add(rows[2:5])
        reader = Reader(journal.folder)
        labels = list(reader.database.execute("SELECT * FROM pending_label ORDER BY position"))
        episodes = list(reader.database.execute("SELECT * FROM episode ORDER BY episode"))

    for *row, check in (*labels, *episodes):
        assert zlib.crc32(msgspec.msgpack.encode(row)) == check
    assert [label[:5] for label in labels] == [("z", "later", 1, 1, 2), ("z", "later", 0, 1, 2)]
    assert [e[:6] for e in episodes] == [("a", "e0", 0, 1, 2, 2), ("a", "e1", 1, 2, -1, 1)]


def test_the_document_names_what_there_is() -> None:
    """Tables and columns, formats and kinds: a change to one of them is a change to the page."""
    text = DOCUMENT.read_text(encoding="utf-8")
    memory = apsw.Connection(":memory:")
    memory.execute(SCHEMA)
    for (table,) in memory.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'table'"
    ).fetchall():
        described = text.partition(f"\n{table}(")[2].partition(")\n")[0]
        found = [" ".join(part.split()[:2]) for part in described.split(",")]
        there = memory.execute(f"SELECT name, type FROM pragma_table_info('{table}')").fetchall()
        assert found == [f"{name} {kind}" for name, kind in there]

    assert f"format {FORMAT} of the\ndatabase, formats 2 and 3 of the payloads" in text
    kinds = {"create", "version", "skip", "lineage", "delete", *DECISIONS}
    assert all(f"| `{kind}` | `" in text for kind in kinds)


def test_our_reader_agrees(tmp_path: Path) -> None:
    """What the learner reads of the same journal is the same."""
    with Written(tmp_path, SPEC) as journal:
        journal.add(experience(2, 5))
        reader, ours = Reader(journal.folder), JournalReader(journal.folder / "journal.db")
        (row,) = ours.rows(0)
        steps = list(reader.transitions())
        ours.close()

    assert [row.columns.identity(i) for i in range(10)] == list(map(identity_of, steps))
