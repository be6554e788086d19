"""The oracle: an actor in a process of its own that trusts nobody.

Before a request leaves, what is in it is on the disk; when an answer has come, what it said is. So
after any number of deaths of the service its log says what may be stored, and what must be. It
needs neither torch nor anything else of the tests.

Everything it sends follows from its name and its seed. It ends when its standard input does, or
when enough is acknowledged, and never before all that it has sent is.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import select
import struct
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jormungandr import RemoteLearner
from jormungandr.errors import Backlog, StorageFull, Unavailable
from jormungandr.transport import HttpTransport, Response

__all__ = ["CLASSES", "content", "label_of"]

#: Auxiliary classes of the model.
CLASSES = 2
#: What it asks the policy about, always the same: one version has one answer.
PROBE = [[0.25, -0.5]]
#: Seconds within which the service must be back.
PATIENCE = 90.0


def content(item: Mapping[str, Any]) -> str:
    """Return a digest of one transition but its label; floats as the service stores them."""
    numbers = struct.pack(
        "<qbqq??f",
        item["timestep"],
        item["split"] == "train",
        item["policy_version"],
        item["action"],
        item["terminated"],
        item["truncated"],
        item["reward"],
    )
    observed = [*item["observation"], *item["next_observation"]]
    names = f"{item['actor_id']}\0{item['episode_id']}\0".encode()
    body = names + numbers + struct.pack(f"<{len(observed)}f", *observed)
    return hashlib.sha256(body).hexdigest()[:16]


def label_of(actor_id: str, episode_id: str, timestep: int) -> int:
    """Return the class of a transition, which its name decides."""
    return hashlib.sha256(f"{actor_id} {episode_id} {timestep}".encode()).digest()[0] % CLASSES


class Log:
    """Lines of JSON, each on the disk before the next thing happens."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")

    def write(self, kind: str, **fields: Any) -> None:
        """Append one."""
        self._file.write(json.dumps({"kind": kind, **fields}).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


class Counting(HttpTransport):
    """Counts how often something was sent, for an answer or without one."""

    sent = 0

    def _send(self, *arguments: Any) -> Response:
        self.sent += 1
        return super()._send(*arguments)


class World:
    """Three actors whose episodes are played at once; a quarter of the episodes is held out."""

    def __init__(self, name: str, seed: int, width: int) -> None:
        self._rng = random.Random(f"{name} {seed}")
        self._name, self._width = name, width
        self._playing: dict[str, list[Any]] = {}  # actor: episode, timestep, length, observation
        self._episodes = 0

    def _observation(self) -> list[float]:
        numbers = [self._rng.gauss(0, 1) for _ in range(2)]
        rest = [float(self._rng.random() < 0.5) for _ in range(self._width - 2)]
        return [*struct.unpack("<2f", struct.pack("<2f", *numbers)), *rest]

    def step(self, version: int) -> dict[str, Any]:
        """Return the next transition of one of the actors."""
        actor = f"{self._name}-{self._rng.randrange(3)}"
        if actor not in self._playing:
            self._episodes += 1
            length = self._rng.randint(3, 40)
            self._playing[actor] = [self._episodes, 0, length, self._observation()]
        episode, timestep, length, observation = self._playing[actor]
        following = self._observation()
        last = timestep == length - 1
        item = {
            "actor_id": actor,
            "episode_id": f"e{episode}",
            "timestep": timestep,
            "split": "validation" if episode % 4 == 1 else "train",
            "policy_version": version,
            "observation": observation,
            "action": self._rng.randrange(3),
            "reward": struct.unpack("<f", struct.pack("<f", self._rng.gauss(0, 1)))[0],
            "next_observation": following,
            "terminated": last and episode % 3 != 0,
            "truncated": last and episode % 3 == 0,
        }
        if timestep % 3 == 0:
            item["label"] = label_of(actor, item["episode_id"], timestep)
        self._playing[actor][1:] = [timestep + 1, length, following]
        if last:
            del self._playing[actor]
        return item


class Oracle:
    """Sends what its world gives, in its order, until it is acknowledged.

    Args:
        options: of the command line.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._log = Log(options.log)
        self._transport = Counting(options.url)
        # Little, so that the pauses between its tries stay short: what follows repeats as well,
        # with the same bytes, or with another cut if so asked.
        patience = 0.0 if options.rebatch else 1.0
        token = options.token_file.read_text().strip()
        self._endpoint = RemoteLearner(
            options.url,
            options.model,
            token,
            patience=patience,
            timeout=options.timeout,
            transport=self._transport,
        )
        self._rng = random.Random(f"{options.name} {options.seed} cuts")
        self._world = World(options.name, options.seed, options.width)
        self._made: list[dict[str, Any]] = []  # from `_from` on
        self._from = 0
        self._done = 0  # so many are acknowledged
        self._unsure = 0  # so many may be known to the service
        self._version = -1
        self._requests = 0

    def run(self) -> None:
        """Send until it is enough."""
        while self._done < self._options.transitions and not _told_to_end():
            self._add()
            if self._rng.random() < 0.2:
                self._label()
            if self._rng.random() < 0.2 and not self._options.quiet:
                self._act()
        while self._done < self._unsure:
            self._add(more=False)
        self._log.write("end", acknowledged=self._done)
        self._endpoint.close()

    def _item(self, n: int) -> dict[str, Any]:
        while self._from + len(self._made) <= n:
            self._made.append(self._world.step(self._version))
        return self._made[n - self._from]

    def _cut(self, more: bool) -> tuple[int, int]:
        """Return from where to where the next request goes, counted in transitions."""
        batch = self._options.batch
        if not self._options.rebatch:
            return self._done, self._done + batch
        start = max(self._from, self._done - self._rng.randint(0, batch))
        stop = self._done + self._rng.randint(1, batch)
        return start, stop if more else min(stop, self._unsure)

    def _add(self, more: bool = True) -> None:
        """Send a request until it is answered, cut anew for each try if so asked."""
        end = time.monotonic() + PATIENCE
        while True:
            start, stop = self._cut(more)
            items = [self._item(n) for n in range(start, stop)]
            self._requests += 1
            n = self._requests
            sent = [[*_identity(item), content(item)] for item in items]
            self._log.write("send", n=n, items=sent)
            before = self._transport.sent
            try:
                receipt = self._endpoint.add(items)
            except (Unavailable, StorageFull, Backlog) as error:
                self._unsure = max(self._unsure, stop)
                if time.monotonic() > end:
                    raise
                time.sleep(0.01 + 0.2 * self._rng.random() * isinstance(error, Unavailable))
                continue
            break
        self._log.write(
            "ack",
            n=n,
            accepted=receipt.accepted,
            duplicate=receipt.duplicate,
            lsn=receipt.lsn,
            version=receipt.policy_version,
            generation=receipt.generation,
        )
        # What it knows it must call known, and what it was never sent it must not.
        known = max(0, min(stop, self._done) - start)
        once = self._transport.sent == before + 1 and not self._options.unsure
        perhaps = stop - start if not once else max(0, min(stop, self._unsure) - start)
        _require(receipt.accepted + receipt.duplicate == stop - start, f"{receipt} of {sent}")
        _require(known <= receipt.duplicate <= max(known, perhaps), f"{receipt}: {known}, {once}")
        self._see(receipt.policy_version)
        self._done = max(self._done, stop)
        self._unsure = max(self._unsure, self._done)
        keep = max(self._from, self._done - 4 * self._options.batch)
        del self._made[: keep - self._from]
        self._from = keep

    def _label(self) -> None:
        """Label what has been sent, and what comes next, by requests of their own."""
        items = [self._item(n) for n in range(max(self._from, self._done - 8), self._done + 8)]
        # The second of three has its label from here; the third has none.
        chosen = [_identity(item) for item in items if item["timestep"] % 3 == 1]
        labels = [
            {"actor_id": a, "episode_id": e, "timestep": t, "label": label_of(a, e, t)}
            for a, e, t in chosen
        ]
        if not labels:
            return
        self._requests += 1
        self._log.write("label", n=self._requests, items=chosen)
        end = time.monotonic() + PATIENCE
        while True:
            try:
                receipt = self._endpoint.label(labels)
            except (Unavailable, StorageFull):
                if time.monotonic() > end:
                    raise
                time.sleep(0.2 * self._rng.random())
            else:
                break
        total = receipt.attached + receipt.pending + receipt.duplicate + receipt.target_evicted
        _require(total == len(labels), f"{receipt} of {labels}")
        self._log.write("labelled", n=self._requests, evicted=receipt.target_evicted)

    def _act(self) -> None:
        """Ask the policy about the probe; it need not answer."""
        probe = [PROBE[0] + [0.0] * (self._options.width - 2)]
        try:
            reply = self._endpoint.act(probe, deterministic=True)
        except Unavailable:
            return
        self._log.write("act", version=reply.policy_version, values=reply.expected_values)
        self._see(reply.policy_version)

    def _see(self, version: int) -> None:
        """Note the version served: it never goes back, whatever happens to the service."""
        _require(version >= self._version, f"version {version} after {self._version}")
        self._version = version


def _identity(item: Mapping[str, Any]) -> tuple[str, str, int]:
    return item["actor_id"], item["episode_id"], item["timestep"]


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise SystemExit(f"the service contradicts itself: {what}")


def _told_to_end() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--token-file", type=Path, required=True)
    parser.add_argument("--model", default="m")
    parser.add_argument("--name", required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=2)
    parser.add_argument("--transitions", type=int, default=sys.maxsize)
    parser.add_argument("--timeout", type=float, default=30.0)
    parser.add_argument("--rebatch", action="store_true")
    parser.add_argument("--quiet", action="store_true", help="wait for no policy")
    parser.add_argument("--unsure", action="store_true", help="others may send its requests again")
    Oracle(parser.parse_args()).run()


if __name__ == "__main__":
    main()
