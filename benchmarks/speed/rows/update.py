"""One update: a prioritized sample, C51's loss, a step of Adam, priorities written back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.speed.kit import Kit
from benchmarks.speed.rows.kernels import ABSENT, FAST, choices, compiled, running
from benchmarks.speed.rows.models import learner, specification
from benchmarks.speed.timing import Case, Contender, Kind, looped, timed

__all__ = ["update"]

#: Name, numbers of an observation, actions, hidden layers, batch.
SIZES = (
    ("update-small", 4, 3, (64, 64), 64),
    ("update-large", 8, 4, (256, 256), 128),
)
CAPACITY, ATOMS = 100_000, 51
COMPILED = "limit: compiled torch"


def update(kit: Kit) -> Iterator[Case]:
    """Yield an update of a small network, and one of a larger."""
    for name, size, actions, layers, batch in SIZES:
        given: dict[str, Any] = {"size": size, "actions": actions, "layers": layers}
        given |= {"batch": batch, "capacity": CAPACITY}
        widths = "-".join(map(str, (size, *layers)))
        wanted = _others(given)
        if kit.quick:  # its compiler alone takes longer than a quick look may
            wanted = [one for one in wanted if one[0] != COMPILED]
        with kit.peers.contenders("updates/s", kit.seconds, wanted) as (others, absent):
            ours = list(_ours(kit, size, actions, layers, batch))
            yield Case(
                name,
                f"C51 update, {widths}-{actions}×{ATOMS}, batch {batch}, {CAPACITY:,} slots",
                "updates/s",
                [*ours, *others],
                absent if any(one.name == FAST for one in ours) else {**absent, FAST: ABSENT},
            )


def _ours(
    kit: Kit, size: int, actions: int, layers: tuple[int, ...], batch: int
) -> Iterator[Contender]:
    for name, wanted in choices().items():
        with compiled(wanted):
            core = learner(CAPACITY, specification(size, actions, layers, batch=batch))
        about = "`Learner.update`: undoing of what is not finite included"
        about += "; loops by numba" * wanted
        run = timed(running(core.update, wanted))
        yield looped(name, "ours", "updates/s", run, kit.seconds, about)


def _others(given: dict[str, Any]) -> list[tuple[str, Kind, str, dict[str, Any], str]]:
    distributional = {**given, "atoms": ATOMS}
    return [
        ("Tianshou C51 + PER", "peer", "tianshou_c51", distributional, "`C51.update`, prioritized"),
        ("TorchRL C51", "peer", "torchrl_c51", distributional, "its loss and optimizer; uniform"),
        ("SB3 DQN", "peer", "sb3_dqn", given, "`DQN.train`: uniform, one number for an action"),
        ("QR-DQN", "peer", "sb3_qrdqn", distributional, f"sb3-contrib: uniform, {ATOMS} quantiles"),
        (
            "limit: eager torch",
            "limit",
            "eager_torch",
            distributional,
            "autograd, fused Adam, a binary tree in numba",
        ),
        (
            COMPILED,
            "limit",
            "compiled_torch",
            distributional,
            "the whole step by torch.compile, a binary tree in numba",
        ),
        (
            "limit: closed form",
            "limit",
            "closed_form",
            distributional,
            "the gradient written out: products in NumPy, all between them and the tree in numba",
        ),
    ]
