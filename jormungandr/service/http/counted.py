"""`Counted`: the transport of a connection as uvicorn sees it; `address_of`: whose it is."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable
from typing import Any

__all__ = ["Counted", "address_of"]


class Counted:
    """A transport that counts what is written, and asks the connection before it closes."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self._transport, self.close, self.written, self.closed = transport, close, 0, False

    def write(self, data: bytes) -> None:
        """Write."""
        self.written += len(data)
        self._transport.write(data)

    def is_closing(self) -> bool:
        """Whether nothing more is to be written."""
        return self.closed or self._transport.is_closing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def address_of(peer: Any) -> str:
    """Return whose connection it is: an address, of IPv6 the network that one customer has."""
    if not isinstance(peer, tuple):
        return ""
    try:
        address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    except ValueError:
        return str(peer[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or ipaddress.ip_network((int(address) >> 64 << 64, 64)))
