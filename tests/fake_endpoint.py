"""An endpoint in memory, for tests of what is sent to one."""

import copy

import numpy as np

from jormungandr.protocol import ActionChoice, InferenceReply, LabelReceipt, Receipt


def singles(batch):
    """Return the observations of a batch: of an array, a list, or a dict of arrays."""
    if isinstance(batch, dict):
        return [dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True)]
    return list(batch)


def total(observation):
    """Return the sum of all its numbers."""
    parts = observation.values() if isinstance(observation, dict) else [observation]
    return sum(float(np.sum(part)) for part in parts)


class FakeEndpoint:
    """Store what it is sent, by reference, and choose action ``sum of the observation's bits % 2``.

    `failures` holds, for the next requests, None or a pair (error, whether the rows arrived first).
    """

    def __init__(self):
        self.rows, self.requests, self.failures, self.asked = [], [], [], []
        self.masks = []
        self.version, self.actions = 7, 3

    def add(self, transitions):
        """Keep the rows, unless this request is to fail before."""
        error, arrived = (self.failures.pop(0) if self.failures else None) or (None, True)
        if arrived:
            self.rows.extend(transitions)
            self.requests.append(len(transitions))
        if error is not None:
            raise error
        return Receipt(
            accepted=len(transitions),
            duplicate=0,
            stale_dropped=0,
            lsn=len(self.requests),
            policy_version=self.version,
            generation=1,
        )

    def act(self, observations, deterministic=False, epsilon=None, **masks):
        """Choose by the observation, so that a test knows what was chosen."""
        self.asked.append((copy.deepcopy(observations), deterministic, epsilon))
        self.masks.append(masks)
        indices = [int(abs(total(row)) * 1e4) % 2 for row in singles(observations)]
        return InferenceReply(
            policy_version=self.version,
            generation=1,
            actions=[ActionChoice(index=i, label=f"A{i}", value=10 * i) for i in indices],
            expected_values=[[0.0] * self.actions for _ in indices],
            behavior_prob=[0.25 + 0.5 * i for i in indices],
        )

    def label(self, labels):
        """Take no labels."""
        return LabelReceipt(attached=0, pending=0, duplicate=0, target_evicted=0, lsn=0)

    def wait(self, lsn):
        """Everything is applied."""
        return {"applied_lsn": lsn}

    def episodes(self):
        """Return the rows by episode id, in the order in which they came."""
        found = {}
        for row in self.rows:
            found.setdefault(row.episode_id, []).append(row)
        return found
