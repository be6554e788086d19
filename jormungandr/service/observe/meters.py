"""`Meters`: what a service counts as it works; one for all its models.

Whatever can be read off when somebody asks is not counted here, but collected then (`scrape`).
Lives on the event loop, like those who count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from jormungandr.columns import TRAIN, Columns
from jormungandr.protocol import LabelReceipt, Receipt
from jormungandr.service.observe.exposition import Family, Histogram, Values

__all__ = ["Meters"]

#: Seconds: from a cached answer to a barrier that was held open for a minute.
LATENCY = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
#: Seconds of a commit: a disk cache syncs in a fifth of a millisecond, a busy disk in many.
SYNC = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
#: Requests of a commit, observations of a forward pass.
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
#: Transitions and labels of a commit.
ITEMS = (1, 4, 16, 64, 256, 1_024, 4_096, 16_384)
#: Policy versions.
LAGS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000)


class Meters:
    """Counters and histograms of one service, from its start."""

    def __init__(self) -> None:
        self.requests = Histogram(
            "jormungandr_http_request_duration_seconds",
            "Time from the head of a request to the end of its answer.",
            LATENCY,
            ("method", "route", "status"),
        )
        self.response_bytes = Values(
            "counter",
            "jormungandr_http_response_bytes_total",
            "Bytes of answers, without their heads.",
            ("route",),
        )
        self.in_flight = Values(
            "gauge", "jormungandr_http_requests_in_flight", "Requests that are being answered."
        )
        self.transitions = Values(
            "counter",
            "jormungandr_transitions_total",
            "Transitions of acknowledged requests, by what became of them.",
            ("model", "outcome"),
        )
        self.labels = Values(
            "counter",
            "jormungandr_labels_total",
            "Labels of acknowledged requests, by what became of them.",
            ("model", "outcome"),
        )
        self.lag = Histogram(
            "jormungandr_policy_lag_versions",
            "Newest policy served less the one that chose a training transition's action.",
            LAGS,
            ("model",),
        )
        self.commit_requests = Histogram(
            "jormungandr_commit_group_requests", "Requests joined into one commit.", SIZES
        )
        self.commit_items = Histogram(
            "jormungandr_commit_group_items", "Transitions and labels in one commit.", ITEMS
        )
        self.commit_seconds = Histogram(
            "jormungandr_commit_duration_seconds",
            "Time in which a commit is written and synced.",
            SYNC,
        )
        self.forward_rows = Histogram(
            "jormungandr_inference_forward_rows",
            "Observations in one forward pass; its count is the number of passes.",
            SIZES,
        )
        self.inferences = Values(
            "counter", "jormungandr_inference_requests_total", "Requests for actions answered."
        )
        self.evaluations = Values(
            "counter",
            "jormungandr_evaluations_total",
            "Evaluations on held-out transitions reported by learners.",
            ("model",),
        )
        #: Returns how many connections are open; None where no server says so.
        self.connections: Callable[[], int] | None = None
        #: Returns how many connections and requests were turned away before any route saw them, by
        #: reason; None likewise.
        self.turned_away: Callable[[], Mapping[str, int]] | None = None

    def received(self, model_id: str, columns: Columns, receipt: Receipt) -> None:
        """Count a request of transitions.

        Args:
            model_id: of the model.
            columns: what was sent.
            receipt: what became of it, and the newest policy served when it was admitted.
        """
        for outcome in ("accepted", "duplicate", "stale_dropped"):
            many = getattr(receipt, outcome)
            if many:
                self.transitions.add(many, model_id, outcome)
        served = receipt.policy_version
        if len(columns) == 1:  # without the ten microseconds of NumPy
            version = int(columns.policy_version[0])
            if version >= 0 and columns.split[0] == TRAIN:
                self.lag.observe(max(served - version, 0), model_id)
            return
        counted = (columns.policy_version >= 0) & (columns.split == TRAIN)
        if counted.any():
            self.lag.observe_all(np.maximum(served - columns.policy_version[counted], 0), model_id)

    def labelled(self, model_id: str, receipt: LabelReceipt) -> None:
        """Count a request of labels."""
        for outcome in ("attached", "pending", "duplicate", "target_evicted"):
            many = getattr(receipt, outcome)
            if many:
                self.labels.add(many, model_id, outcome)

    def committed(self, requests: int, items: int, seconds: float) -> None:
        """Count a commit."""
        self.commit_requests.observe(requests)
        self.commit_items.observe(items)
        self.commit_seconds.observe(seconds)

    def forward(self, rows: int, requests: int = 1) -> None:
        """Count a forward pass over `rows` observations that answers `requests`."""
        self.forward_rows.observe(rows)
        self.inferences.add(requests)

    def forget(self, model_id: str) -> None:
        """Drop what was counted of a model that is gone."""
        for family in (self.transitions, self.labels, self.evaluations, self.lag):
            family.forget(model_id)

    def families(self) -> Iterator[Family]:
        """Yield everything counted."""
        yield from (value for value in vars(self).values() if isinstance(value, Values | Histogram))
