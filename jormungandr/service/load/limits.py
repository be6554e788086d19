"""`Limits`: how much a service takes on."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from math import prod

from jormungandr.errors import ModelQuota
from jormungandr.service.child.places import MOST
from jormungandr.service.load.rates import RateLimit
from jormungandr.spec import ModelSpec

__all__ = ["MAX_MODELS", "Limits", "declared_bytes"]

#: Models by default.
MAX_MODELS = 256
#: Bytes of a transition in a replay beside its two observations.
BESIDE = 64


@dataclass(frozen=True, slots=True)
class Limits:
    """What is refused before it costs anything.

    Args:
        max_models: models that live at once.
        max_learners: learner processes that run at once; a model that has to wait loses nothing.
        replay_bytes: of the full replays and validation stores of all models together; None is the
            memory of the machine.
        rate: of one token.
    """

    max_models: int = MAX_MODELS
    max_learners: int = MOST
    replay_bytes: int | None = None
    rate: RateLimit = field(default_factory=RateLimit)

    def check(self, living: list[ModelSpec], spec: ModelSpec) -> None:
        """Refuse a model too many.

        Args:
            living: specifications of the models that there are.
            spec: of the one to be created.

        Raises:
            ModelQuota: naming what there is too much of.
        """
        if len(living) >= self.max_models:
            expected = f"at most {self.max_models} models (--max-models)"
            raise ModelQuota("model_id", expected, "one more", "delete one that is not needed")
        budget = self.replay_bytes or _memory()
        declared = sum(map(declared_bytes, living))
        left, wanted = max(0, budget - declared), declared_bytes(spec)
        if wanted > left:
            raise ModelQuota(
                "spec.replay.capacity",
                f"replays of at most {budget} bytes in all (--replay-bytes), {left} of them left",
                wanted,
                "choose a smaller capacity, or delete a model that is not needed",
            )


def declared_bytes(spec: ModelSpec) -> int:
    """Return the bytes that a model's stored transitions take when its stores are full."""
    o = spec.observation
    width = 1 if o.is_image else 4
    one = 2 * width * prod(o.stored_shape) + BESIDE
    return one * (spec.replay.capacity + spec.validation.capacity)


def _memory() -> int:
    """Return the bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
