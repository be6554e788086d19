"""Checkpoints as a client sees them: which there are, and one on request."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jormungandr.service.child.recovery import checkpoints, position

if TYPE_CHECKING:
    from jormungandr.service.model import Model

__all__ = ["ask_for_checkpoint", "stored_checkpoints"]


def stored_checkpoints(folder: Path, *, sizes: bool = True) -> list[dict[str, Any]]:
    """Return what is known of a model's checkpoints, oldest first.

    The learner may drop the oldest meanwhile: then it is not among them.

    Args:
        folder: of the model.
        sizes: whether to add up the bytes of their files.

    Returns:
        Of each ``lsn``, the last row it has applied; ``time``, when it was complete, in Unix time;
        and ``bytes`` where asked for.
    """
    found = []
    for path in checkpoints(folder):
        try:
            about = {
                "lsn": position(path),
                "time": round((path / "manifest.json").stat().st_mtime, 3),
            }
            if sizes:
                about["bytes"] = sum(file.stat().st_size for file in path.iterdir())
        except FileNotFoundError:
            continue
        found.append(about)
    return found


async def ask_for_checkpoint(model: Model, seconds: float) -> tuple[bool, str | None]:
    """Have a model's learner write down where it is, between two rows.

    Args:
        model: it is started if it does not run.
        seconds: to wait for it; the learner writes it also when nobody waits any more.

    Returns:
        Whether all that the learner had applied when it was asked is in a checkpoint, and why it
        cannot be.

    Raises:
        Draining, ModelUnknown: the service or the model comes to its end.
    """
    learning, time = model.learning, asyncio.get_running_loop().time
    end = time() + seconds
    learning.process.start()
    await learning.until(lambda: learning.process.state in ("running", "idle"), seconds)
    applied = learning.info.get("applied_lsn")

    def written() -> bool:
        newest = max((position(path) for path in checkpoints(model.folder)), default=0)
        return applied is not None and newest >= applied

    def over() -> bool:
        return written() or learning.checkpoint_error is not None

    if applied is not None and not written():
        learning.tell("checkpoint")
        await learning.until(over, max(0.0, end - time()))
    if model.commits.refusal is not None:
        raise model.commits.refusal.with_traceback(None)
    return written(), learning.checkpoint_error or learning.process.error
