"""What a service does with ten times what it can take, and after it.

Run from the repository: ``python benchmarks/overload.py [--quick] [FOLDER]``. Starts a service
under FOLDER (default: a temporary one; name one on the disk that counts) with a model of four
numbers, and

1. measures an action's latency while nothing else happens but two well-behaved actors, and what
   those get done,
2. measures peak goodput: rows a second that are accepted, beside those actors, from 8, 32 and 128
   connections that send one request of 32 rows after another,
3. offers ten times as much for a minute (``--quick``: 15 s) from a thousand connections of one
   token, each of which comes again after a tenth of a second whatever it is told, beside the
   actors, which have tokens of their own and do as they are told, and 50 requests for an action a
   second,
4. looks how soon it is calm again.

It prints figures and, for each promise, whether it was kept; the exit status is 1 when one was not.
The generators run on the same machine and take their share of it. "offered" is what was due by the
schedule; a connection whose request is still being answered sends its next one later.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from jormungandr import RemoteLearner
from jormungandr.columns import columns
from jormungandr.packed import pack
from jormungandr.service.access.tokens import Tokens
from jormungandr.spec import ModelSpec
from tests.service.serving import Server

SPEC: dict[str, Any] = {
    "observation": {"shape": [4]},
    "actions": 3,
    "pacing": {"updates_per_transition": 0, "max_backlog": 100_000_000},
}
ROWS = 32
#: As long as a real one, which is put in its place.
EPISODE = "e" * 16
CONNECTIONS = 1_000
#: Seconds after which a connection that was refused comes again.
PATIENCE = 0.1
ACTORS, STEPS, PACE = 2, 8, 0.02
#: Seconds between two requests for an action.
PROBE = 0.02


def transitions(actor_id: str, episode_id: str, count: int) -> list[dict[str, Any]]:
    """Return the steps of one episode."""
    rng = np.random.default_rng(0)
    path = rng.standard_normal((count + 1, 4)).astype(np.float32).tolist()
    return [
        {
            "actor_id": actor_id,
            "episode_id": episode_id,
            "timestep": t,
            "split": "train",
            "policy_version": -1,
            "observation": path[t],
            "action": 0,
            "reward": 0.5,
            "next_observation": path[t + 1],
            "terminated": t == count - 1,
            "truncated": False,
        }
        for t in range(count)
    ]


# -- generators, each in a process of its own ---------------------------------------------------


class Flood:
    """Connections that send one request after another, and count what they are told."""

    def __init__(self, address: tuple[str, int], token: str, run: str) -> None:
        rows = columns(transitions("flood", EPISODE, ROWS), ModelSpec.from_dict(SPEC))
        self._body = pack(rows)
        self._address, self._run, self._number = address, run, 0
        self._head = (
            "POST /v1/models/m/experience/add HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Authorization: Bearer {token}\r\nContent-Type: application/msgpack\r\n"
            f"Content-Length: {len(self._body)}\r\n\r\n"
        ).encode()
        self.answers: Counter[int] = Counter()
        self.latencies: list[float] = []

    def request(self) -> bytes:
        """Return one that was never sent."""
        self._number += 1
        episode = f"{self._run}{self._number:x}".rjust(len(EPISODE), "0")
        return self._head + self._body.replace(EPISODE.encode(), episode.encode(), 1)

    async def connection(self, interval: float | None, start: float, end: float) -> None:
        """Send until the end, by a schedule, or the next one as soon as the last is answered."""
        writer: asyncio.StreamWriter | None = None
        due = start
        time_now = asyncio.get_running_loop().time
        while time_now() < end:
            if interval is not None:
                due = max(due + interval, time_now() - 1.0)
                await asyncio.sleep(max(0.0, due - time_now()))
            try:
                if writer is None:
                    reader, writer = await asyncio.open_connection(*self._address)
                begun = time_now()
                writer.write(self.request())
                status = await _answered(reader)
            except (OSError, asyncio.IncompleteReadError):
                self.answers[0] += 1
                if writer is not None:
                    writer.close()
                writer = None
                await asyncio.sleep(PATIENCE)
                continue
            self.answers[status] += 1
            if status == 200:
                self.latencies.append(time_now() - begun)
            else:
                await asyncio.sleep(PATIENCE)
        if writer is not None:
            writer.close()

    async def run(self, count: int, rate: float | None, seconds: float) -> dict[str, Any]:
        """Run so many connections; return what they were told."""
        now = asyncio.get_running_loop().time()
        interval = None if rate is None else count / rate
        starts = [now + (interval or 0.0) * k / count for k in range(count)]
        await asyncio.gather(*(self.connection(interval, s, now + seconds) for s in starts))
        elapsed = asyncio.get_running_loop().time() - now
        return {
            "answers": dict(self.answers),
            "seconds": elapsed,
            "goodput": self.answers[200] * ROWS / seconds,
            "p99": _percentile(self.latencies, 99),
        }


async def _answered(reader: asyncio.StreamReader) -> int:
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n")[1:]:
        if line[:15].lower() == b"content-length:":
            length = int(line[15:])
    await reader.readexactly(length)
    return int(head[9:12])


def _percentile(values: list[float], q: float) -> float:
    return float(np.percentile(values, q)) if values else float("nan")


def flood(arguments: list[str]) -> None:
    """Run as a process: address, token, run, connections, rate or 0, seconds."""
    host, port, token, run, count, rate, seconds = arguments
    flood = Flood((host, int(port)), token, run)
    found = asyncio.run(flood.run(int(count), float(rate) or None, float(seconds)))
    print(json.dumps(found))


def probe(arguments: list[str]) -> None:
    """Run as a process: url, token, seconds; asks for an action at a steady pace."""
    url, token, seconds = arguments
    latencies, errors = [], Counter[str]()
    end = time.monotonic() + float(seconds)
    with RemoteLearner(url, "m", token, patience=0.0) as client:
        while time.monotonic() < end:
            begun = time.perf_counter()
            try:
                client.act([[0.0, 1.0, 2.0, 3.0]], deterministic=True)
                latencies.append(time.perf_counter() - begun)
            except Exception as error:
                errors[type(error).__name__] += 1
            time.sleep(max(0.0, PROBE - (time.perf_counter() - begun)))
    print(json.dumps({"latencies": latencies, "errors": errors}))


def floor(arguments: list[str]) -> None:
    """Run as a process: seconds; asks a server that does nothing else for a line, at that pace."""
    (seconds,) = arguments
    latencies = []
    with multiprocessing.get_context("spawn").Pool(1) as pool, socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        echoing = pool.apply_async(_echo, (listening,))
        with socket.create_connection(listening.getsockname()) as own:
            end = time.monotonic() + float(seconds)
            while time.monotonic() < end:
                begun = time.perf_counter()
                own.sendall(b"?")
                own.recv(1)
                latencies.append(time.perf_counter() - begun)
                time.sleep(max(0.0, PROBE - (time.perf_counter() - begun)))
        echoing.get()
    print(json.dumps({"latencies": latencies[10:]}))


def _echo(listening: socket.socket) -> None:
    own, _ = listening.accept()
    with own:
        while received := own.recv(1):
            own.sendall(received)


def actor(arguments: list[str]) -> None:
    """Run as a process: url, token, name, seconds; acts, sends, and does as it is told."""
    url, token, name, seconds = arguments
    sent, begun = 0, time.monotonic()
    with RemoteLearner(url, "m", token, patience=30.0) as client:
        while time.monotonic() - begun < float(seconds):
            rows = transitions(name, f"e{sent}-{begun}", STEPS)
            for _ in rows:
                time.sleep(PACE)
                client.act([[0.0, 1.0, 2.0, 3.0]])
            sent += client.add(rows).accepted
    print(json.dumps({"rate": sent / (time.monotonic() - begun)}))


class Children:
    """Generators beside this process."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[str]] = []

    def start(self, *arguments: object) -> None:
        """Start one."""
        command = [sys.executable, __file__, *map(str, arguments)]
        self._running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))

    def results(self) -> list[Any]:
        """Return what they print, in the order in which they were started."""
        running, self._running = self._running, []
        return [json.loads(process.communicate()[0]) for process in running]


# -- the benchmark ------------------------------------------------------------------------------


def resident(pid: int) -> int:
    """Return the resident bytes of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) << 10


def own_time(pid: int) -> float:
    """Return the seconds that a process has computed: other work on the machine is not in them."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Watch(threading.Thread):
    """Reads the memory of a process until it is told to stop."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid, self.done, self.most = pid, threading.Event(), 0

    def run(self) -> None:
        """Read."""
        while not self.done.wait(0.25):
            self.most = max(self.most, resident(self._pid))


def calm(client: RemoteLearner, limit: float) -> float:
    """Return after how many seconds ten actions and receipts in a row are fast again."""
    begun, fast, n = time.monotonic(), 0, 0
    while fast < 10 and time.monotonic() - begun < 30:
        n += 1
        before = time.perf_counter()
        client.act([[0.0, 1.0, 2.0, 3.0]])
        client.add(transitions("calm", f"c{n}-{begun}", 1))
        fast = fast + 1 if time.perf_counter() - before < limit else 0
    return time.monotonic() - begun


def main() -> int:
    """Run it; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    seconds, short = (15.0, 4.0) if given.quick else (60.0, 10.0)
    with ExitStack() as stack:
        folder = given.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(Server(folder / "service"))
        return measure(server, seconds, short)


def measure(server: Server, seconds: float, short: float) -> int:
    """Measure one service; return the exit status."""
    tokens = Tokens(server.data_dir)
    names = ["flood", "probe", *(f"actor{n}" for n in range(ACTORS))]
    token = {name: tokens.create(name, ("act", "ingest")) for name in names}
    host, port = server.url.removeprefix("http://").split(":")
    children, run, pid = Children(), 0, server.process.pid

    def flooded(count: int, rate: float, lasting: float) -> None:
        nonlocal run
        run += 1
        children.start("flood", host, port, token["flood"], f"{run:x}-", count, rate, lasting)

    def others(lasting: float) -> None:
        children.start("floor", lasting)
        children.start("probe", server.url, token["probe"], lasting)
        for n in range(ACTORS):
            name = f"actor{n}"
            children.start("actor", server.url, token[name], name, lasting)

    with server.connect("m") as operator:
        operator.create(SPEC)
        operator.act([[0.0, 1.0, 2.0, 3.0]])  # its first policy is there
        time.sleep(1.5)  # tokens are read again every second
        others(short)
        bare, quiet, *paced = children.results()
        p50, p99 = (_percentile(quiet["latencies"], q) for q in (50, 99))
        print(f"unloaded: action p50 {1e3 * p50:.2f} ms, p99 {1e3 * p99:.2f} ms", flush=True)
        peaks = {}
        worth: list[float] = []  # rows for a second of the server's own time
        for count in (8, 32, 128):
            spent = own_time(pid)
            flooded(count, 0.0, short)
            others(short)
            peaks[count] = children.results()[0]["goodput"]
            worth.append(peaks[count] * short / (own_time(pid) - spent))
        peak = max(peaks.values())
        figures = ", ".join(f"{rows:,.0f} from {count}" for count, rows in peaks.items())
        print(f"peak goodput, rows a second: {figures} connections", flush=True)

        before, watch, spent = resident(pid), Watch(pid), own_time(pid)
        watch.start()
        flooded(CONNECTIONS, 10 * peak / ROWS, seconds)
        others(seconds)
        load, jostled, probed, *acted = children.results()
        watch.done.set()
        worth.append(load["goodput"] * seconds / (own_time(pid) - spent))
        settled = calm(operator, max(4 * (p99 + 0.005), 0.1))
        after = resident(pid)
        text = _metrics(server)

    busy = _percentile(probed["latencies"], 99)
    sent = sum(load["answers"].values()) * ROWS / seconds
    shares = [
        one["rate"] / max(alone["rate"], 1e-9) for one, alone in zip(acted, paced, strict=True)
    ]
    print(
        f"overload: {sent:,.0f} rows a second sent of {10 * peak:,.0f} that were due,"
        f" answers {load['answers']}, accepted requests p99 {load['p99']:.2f} s\n"
        f"overload: action p50 {1e3 * _percentile(probed['latencies'], 50):.2f} ms, p99"
        f" {1e3 * busy:.2f} ms, errors {probed['errors']}\n"
        f"{_machine(bare, jostled)}\n"
        f"overload: actors got {', '.join(f'{share:.0%}' for share in shares)} of what they get"
        " alone\n"
        f"rows for a second of the server's own time: {max(worth[:-1]):,.0f} at the peak,"
        f" {worth[-1]:,.0f} in the overload\n"
        f"memory: {before >> 20} MiB before, {watch.most >> 20} at most, {after >> 20} after\n"
        f"passes: {text}"
    )
    odd = set(load["answers"]) - {"200", "429", "503"}
    promises = {
        "only 200, 429 and 503": not odd and not probed["errors"],
        # A thousand connections have their buffers, and the ledger's cache fills.
        "memory flat (within 96 MiB, 64 after)": watch.most - before < 96 << 20
        and after - before < 64 << 20,
        f"action p99 at most five times as long ({busy / p99:.1f})": busy <= 5 * p99,
        f"goodput at least 80 % of the peak ({load['goodput'] / peak:.0%})": load["goodput"]
        >= 0.8 * peak,
        # Each step waits for its action, which may take longer; none waits for the flood.
        "actors get at least half of what they get alone": min(shares) >= 0.5,
        f"calm within 5 s ({settled:.1f} s)": settled <= 5,
    }
    for promise, kept in promises.items():
        print(f"{'ok  ' if kept else 'MISS'} {promise}")
    return 0 if all(promises.values()) else 1


def _machine(*probes: dict[str, Any]) -> str:
    """Return what the machine itself takes, when it is idle and when it is not."""
    quiet, busy = (1e3 * _percentile(one["latencies"], 99) for one in probes)
    what = "a byte to an idle process and back, the machine's own share: p99"
    return f"{what} {quiet:.2f} ms unloaded, {busy:.2f} ms in the overload"


def _metrics(server: Server) -> str:
    """Return how many forward passes were made for how many requests."""
    import urllib.request

    request = urllib.request.Request(f"{server.url}/metrics")
    request.add_header("Authorization", f"Bearer {server.token}")
    found = {}
    for line in urllib.request.urlopen(request).read().decode().splitlines():
        name, _, value = line.rpartition(" ")
        found[name] = value
    passes = found["jormungandr_inference_forward_rows_count"]
    return f"{passes} for {found['jormungandr_inference_requests_total']} requests for actions"


if __name__ == "__main__":
    parts = {"flood": flood, "probe": probe, "actor": actor, "floor": floor}
    if len(sys.argv) > 1 and sys.argv[1] in parts:
        parts[sys.argv[1]](sys.argv[2:])
    else:
        sys.exit(main())
