"""A proxy that mistreats what passes it: answers are lost, requests are late and come twice.

It knows as much of HTTP/1.1 as our clients and the service use: messages with a Content-Length.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections import Counter

__all__ = ["Proxy"]

#: Seconds that a request is held back at most.
LONGEST_DELAY = 0.05
#: Seconds to wait for the service.
TIMEOUT = 60.0


class Proxy:
    """Listens on a free port of this machine, and passes requests on to a service.

    Of each request it is drawn whether it is held back, whether it is sent a second time at once on
    another connection, and whether its answer is thrown away after the service has given it.

    Args:
        url: of the service.
        seed: of what is drawn.
        drop: share of answers thrown away.
        delay: share of requests held back.
        duplicate: share of requests sent twice.
    """

    def __init__(
        self, url: str, seed: int, *, drop: float = 0.3, delay: float = 0.2, duplicate: float = 0.2
    ) -> None:
        host, _, port = url.removeprefix("http://").rpartition(":")
        self._service = host, int(port)
        self._rng, self._lock = random.Random(seed), threading.Lock()
        self._shares = {"dropped": drop, "delayed": delay, "duplicated": duplicate}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: set[socket.socket] = set()
        self._ending = threading.Event()
        #: What it did: requests passed on, and each mistreatment of them.
        self.done: Counter[str] = Counter()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                self._connections.add(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _drawn(self) -> tuple[set[str], float]:
        """Return what happens to a request, and how long it is held back."""
        with self._lock:
            chosen = {name for name, share in self._shares.items() if self._rng.random() < share}
            self.done.update(["requests", *chosen])
            return chosen, self._rng.uniform(0, LONGEST_DELAY)

    def _serve(self, client: socket.socket) -> None:
        """Pass on the requests of one connection until its end, or until an answer is dropped."""
        with client, contextlib.suppress(OSError):
            client.settimeout(TIMEOUT)
            while request := _message(client):
                chosen, delay = self._drawn()
                if "delayed" in chosen:
                    self._ending.wait(delay)
                if "duplicated" in chosen:
                    twin = threading.Thread(target=self._forget, args=(request,), daemon=True)
                    twin.start()
                answer = self._asked(request)
                if "dropped" in chosen:
                    break
                client.sendall(answer)
        self._connections.discard(client)

    def _asked(self, request: bytes) -> bytes:
        with socket.create_connection(self._service, TIMEOUT) as service:
            service.sendall(request)
            return _message(service)

    def _forget(self, request: bytes) -> None:
        with contextlib.suppress(OSError):
            self._asked(request)

    def close(self) -> None:
        """Listen no longer, and hang up."""
        self._ending.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _message(connection: socket.socket) -> bytes:
    """Return one message, head and body; nothing at the end of the stream.

    Raises:
        ConnectionError: the stream ends inside a message.
    """
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(1 << 16)
        if not more:
            if data:
                raise ConnectionError("the end, inside a head")
            return b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            length = int(value)
    parts, left = [head, b"\r\n\r\n", body], length - len(body)
    while left > 0:
        more = connection.recv(min(left, 1 << 16))
        if not more:
            raise ConnectionError("the end, inside a body")
        parts.append(more)
        left -= len(more)
    return b"".join(parts)
