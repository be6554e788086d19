"""`RemoteLearner.snapshot`: the policy that is handed out, whole, or nothing."""

from __future__ import annotations

import pytest

from jormungandr import Learner, PolicySnapshot, RemoteLearner
from jormungandr.errors import CheckpointError
from jormungandr.transport import Response
from tests.service.serving import SPEC


class Hands:
    """A service that hands out one policy, and remembers what it was asked for."""

    def __init__(self, policy: PolicySnapshot, digest: str) -> None:
        self.asked: list[str] = []
        self._answer = Response(200, {"jormungandr-policy-digest": digest}, policy.to_bytes())

    def request(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout: float
    ) -> Response:
        """Hand it out."""
        self.asked.append(f"{method} {path}")
        return self._answer

    def close(self) -> None:
        """Nothing is open."""


def test_it_is_the_one_that_was_announced() -> None:
    """By its digest, in the role that was asked for; another one is refused."""
    policy = Learner(SPEC).snapshot()
    hands = Hands(policy, policy.digest())
    with RemoteLearner(None, "m", "t", transport=hands) as model:
        for role in (None, "latest"):
            assert model.snapshot(role).to_bytes() == policy.to_bytes()
    assert hands.asked == ["GET /v1/models/m/policy", "GET /v1/models/m/policy?policy=latest"]

    another = RemoteLearner(None, "m", "t", transport=Hands(policy, "0" * 64))
    with another, pytest.raises(CheckpointError, match="the digest it was announced with"):
        another.snapshot()
