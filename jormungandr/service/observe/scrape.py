"""What `GET /metrics` reads off at the moment it is asked: models, their journals, the volume."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw

from jormungandr.service.checkpoints import stored_checkpoints
from jormungandr.service.gateway import Gateway
from jormungandr.service.model import Model
from jormungandr.service.observe.exposition import Family, Values, exposition
from jormungandr.service.observe.meters import Meters
from jormungandr.service.observe.process import process_families
from jormungandr.version import __version__

__all__ = ["LEARNER_STATES", "scrape"]

#: Every state that a learner's report may name.
LEARNER_STATES = (
    *("idle", "starting", "running", "parked", "hung"),
    *("restarting", "diverged", "failed", "stopped"),
)
#: States of the service.
STATES = ("starting", "ready", "draining", "stopped")


def scrape(gateway: Gateway, meters: Meters, data_dir: Path) -> bytes:
    """Return everything that there is to say, as Prometheus reads it.

    Args:
        gateway: whose models are looked at.
        meters: what was counted.
        data_dir: of the service.
    """
    families = [*_service(gateway, meters, data_dir), *_ModelFigures(gateway).families()]
    return exposition([*families, *meters.families(), *process_families()])


def _gauge(name: str, text: str, *labels: str) -> Values:
    return Values("gauge", f"jormungandr_{name}", text, labels)


def _counter(name: str, text: str, *labels: str) -> Values:
    return Values("counter", f"jormungandr_{name}_total", text, labels)


def _service(gateway: Gateway, meters: Meters, data_dir: Path) -> Iterator[Family]:
    build = _gauge("build_info", "Versions, as labels.", "version", "python", "sqlite")
    build.set(1, __version__, platform.python_version(), apsw.sqlite_lib_version())
    yield build
    state = _gauge("state", "1 for the state the service is in.", "state")
    for name in STATES:
        state.set(name == gateway.state, name)
    yield state
    models = _gauge("models", "Models that live.")
    models.set(len(gateway.models()))
    yield models
    volume = os.statvfs(data_dir)
    free = _gauge("free_bytes", "Free bytes of the data directory's volume.")
    free.set(volume.f_bavail * volume.f_frsize)
    yield free
    waiting = _gauge("queue_requests", "Requests that are read, wait, or are being done.", "lane")
    bodies = _gauge("queue_bytes", "Bytes of the bodies of those requests.", "lane")
    refused = _counter("queue_refused", "Requests for which there was no room.", "lane")
    for name, lane in (
        ("ingestion", gateway.lanes.ingestion),
        ("inference", gateway.lanes.inference),
    ):
        waiting.set(lane.requests, name)
        bodies.set(lane.bytes, name)
        refused.set(lane.refused, name)
    yield from (waiting, bodies, refused)
    if meters.connections is not None:
        connections = _gauge("http_connections", "Connections that are open.")
        connections.set(meters.connections())
        yield connections
    if meters.turned_away is not None:
        turned_away = _counter(
            "http_turned_away",
            "Connections and requests turned away before any route saw them.",
            "reason",
        )
        for reason, many in sorted(meters.turned_away().items()):
            turned_away.set(many, reason)
        yield turned_away


class _ModelFigures:
    """The families that have one sample or more of each model."""

    def __init__(self, gateway: Gateway) -> None:
        self.state = _gauge("learner_state", "1 for the state a learner is in.", "model", "state")
        self.age = _gauge(
            "learner_progress_age_seconds",
            "Time since a learner's heartbeat moved; none without a process.",
            "model",
        )
        self.ends = _counter(
            "learner_ends", "Ends of learner processes that nobody asked for.", "model"
        )
        self.version = _gauge("policy_version", "Newest policy served.", "model")
        self.updates = _counter("updates", "Updates completed.", "model")
        self.not_done = _counter(
            "updates_not_done", "Updates that were due and made no policy.", "model", "reason"
        )
        self.accepted = _counter(
            "journal_transitions", "Transitions in the journal since creation.", "model", "split"
        )
        self.rows = _gauge("journal_lsn", "Position of the last data row.", "model")
        self.applied = _gauge("applied_lsn", "Last row whose policy is served.", "model")
        self.behind_rows = _gauge(
            "backlog_rows", "Positions between the last row and the last one applied.", "model"
        )
        self.behind = _gauge(
            "backlog_transitions", "Training transitions that a learner has not applied.", "model"
        )
        self.queue = _gauge(
            "commit_queue_requests", "Requests that wait for the next commit.", "model"
        )
        self.journal = _gauge("journal_bytes", "Bytes used in the journal's database.", "model")
        self.wal = _gauge("wal_bytes", "Size of the journal's write-ahead log.", "model")
        self.replay = _gauge("replay_items", "Items in replay.", "model")
        self.held_out = _gauge("validation_items", "Held-out transitions kept.", "model")
        self.pending = _gauge("labels_pending", "Labels that wait for a transition.", "model")
        self.loss = _gauge("loss", "Loss of the last update.", "model")
        self.held_out_loss = _gauge(
            "validation_loss", "Loss over all held-out transitions, when last evaluated.", "model"
        )
        self.clipped = _gauge(
            "clipped_mass_ratio", "Part of the target mass beyond the support.", "model", "end"
        )
        self.checkpoints = _counter(
            "checkpoints", "Checkpoints written by a learner since it started.", "model"
        )
        self.checkpoint_lsn = _gauge("checkpoint_lsn", "Position of the newest one.", "model")
        self.checkpoint_time = _gauge(
            "checkpoint_timestamp_seconds", "When the newest was written, in Unix time.", "model"
        )
        self.episodes = _counter("episodes", "Whole episodes.", "model", "split")
        self.returns = _gauge(
            "episode_return", "Mean return of the newest hundred of them.", "model", "split"
        )
        labels = ("model", "split", "tag", "value")
        self.tag_episodes = _counter("tag_episodes", "The same by their tags.", *labels)
        self.tag_returns = _gauge("tag_episode_return", "Likewise.", *labels)
        self.champion = _gauge("champion_version", "Policy that is promoted.", "model")
        self.candidate = _gauge("candidate_version", "Policy that is tried.", "model")
        self.decisions = _counter(
            "promotion_decisions", "Decisions about promotions.", "model", "decision"
        )
        self.warnings = _gauge("warnings", "Warnings in a model's figures.", "model")
        for info in gateway.models():
            self._add(info["model_id"], info, gateway.model(info["model_id"]))

    def families(self) -> Iterator[Family]:
        """Yield them."""
        yield from vars(self).values()

    def _add(self, name: str, info: dict[str, Any], model: Model) -> None:
        learner, metrics = info["learner"], model.metrics()
        for state in LEARNER_STATES:
            self.state.set(state == learner["state"], name, state)
        self.age.set(learner.get("progress_age"), name)
        self.ends.set(learner["ends"], name)
        self.version.set(info["policy_version"], name)
        self.updates.set(info["update_count"], name)
        for reason, many in info["updates"].items():
            self.not_done.set(many, name, reason)
        for split, many in info["accepted"].items():
            self.accepted.set(many, name, split)
        self.rows.set(info["journal_lsn"], name)
        self.applied.set(info["applied_lsn"], name)
        self.behind_rows.set(max(info["journal_lsn"] - info["applied_lsn"], 0), name)
        self.behind.set(max(info["accepted"]["train"] - info["transitions"]["train"], 0), name)
        self.queue.set(model.commits.waiting, name)
        self.journal.set(info["journal"]["bytes"], name)
        self.wal.set(_size(model.folder / "journal.db-wal"), name)
        self.replay.set(info["replay"]["size"], name)
        self.held_out.set(info["validation"]["size"], name)
        self.pending.set(info["labels"]["pending"], name)
        self.loss.set(metrics["update"].get("loss"), name)
        if info["evaluation"] is not None:
            self.held_out_loss.set(info["evaluation"].get("validation_loss"), name)
        for end in ("low", "high"):
            self.clipped.set(metrics["update"].get(f"clipped_{end}"), name, end)
        self.checkpoints.set(model.learning.checkpoints, name)
        found = stored_checkpoints(model.folder, sizes=False)
        if found:
            self.checkpoint_lsn.set(found[-1]["lsn"], name)
            self.checkpoint_time.set(found[-1]["time"], name)
        for split, found in metrics["returns"].items():
            self.episodes.set(found["episodes"], name, split)
            self.returns.set(found.get("mean_return"), name, split)
            for tag, values in found["by_tag"].items():
                for value, mine in values.items():
                    self.tag_episodes.set(mine["episodes"], name, split, tag, value)
                    self.tag_returns.set(mine["mean_return"], name, split, tag, value)
        promotion = info["promotion"]
        if promotion["serve"] == "champion":
            self.champion.set(promotion["champion"], name)
            self.candidate.set(promotion["candidate"], name)
            for decision, many in promotion["decisions"].items():
                self.decisions.set(many, name, decision)
        self.warnings.set(len(info["warnings"]), name)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
