"""The rows, by the names that `--only` takes."""

from __future__ import annotations

from benchmarks.speed.kit import Row
from benchmarks.speed.rows.act import act
from benchmarks.speed.rows.actors import actors
from benchmarks.speed.rows.crowd import crowd
from benchmarks.speed.rows.environment import environment
from benchmarks.speed.rows.growth import growth
from benchmarks.speed.rows.inference import inference
from benchmarks.speed.rows.ingest import ingest
from benchmarks.speed.rows.replay import replay
from benchmarks.speed.rows.start import start
from benchmarks.speed.rows.update import update

__all__ = ["ROWS"]

ROWS: dict[str, Row] = {
    "update": update,
    "replay": replay,
    "act": act,
    "environment": environment,
    "actors": actors,
    "inference": inference,
    "ingest": ingest,
    "start": start,
    "growth": growth,
    "crowd": crowd,
}
