"""`Hosts`: the names under which a service answers.

A page of another site can have a browser on this machine send requests here, under a name of its
own that it lets resolve to our address (DNS rebinding). The Host header then has that name.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from jormungandr.errors import Forbidden, InvalidValue, Malformed

__all__ = ["Hosts", "is_loopback"]

#: A name or address, an IPv6 one in brackets, and perhaps a port.
HOST = re.compile(rb"(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9._-]{1,255}))(?::[0-9]{1,5})?")

#: Headers remembered.
REMEMBERED = 64


class Hosts:
    """The names under which a service answers.

    The loopback names are always among them. A service that listens on every address of its
    machine answers under any address: no site can have a browser send one that is not its own.

    Args:
        bound: the name or address that it listens on.
        names: others, such as those that DNS or a proxy has for it; without a port.

    Raises:
        InvalidValue: one is no name.
    """

    def __init__(self, bound: str, names: Iterable[str] = ()) -> None:
        self._every = is_wildcard(bound)
        self._names = {_plain(name) for name in names}
        if not self._every:
            self._names.add(_plain(bound))
        #: Headers that were found to be fine: they are always the same few.
        self._fine: set[bytes] = set()

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Refuse a request that means another host.

        Raises:
            Malformed: it names none, or several.
            Forbidden: it names another.
        """
        given = [value for name, value in headers if name == b"host"]
        if len(given) != 1:
            raise Malformed("Host", "one name", "none" if not given else "several")
        if given[0] in self._fine:
            return
        match = HOST.fullmatch(given[0])
        if match is None:
            raise Malformed("Host", "a name or an address, and a port", given[0].decode("latin-1"))
        text = (match[1] or match[2]).decode().lower()
        address = _address(text)
        if match[1] is not None and address is None:
            raise Malformed("Host", "an IPv6 address in brackets", text)
        name = text if address is None else str(address)
        if not (name in self._names or is_loopback(name) or (self._every and address is not None)):
            remedy = "name those it has to `jormungandr serve` with --allowed-host"
            raise Forbidden("Host", "a name of this service", text, remedy)
        if len(self._fine) < REMEMBERED:
            self._fine.add(given[0])


def is_loopback(host: str) -> bool:
    """Whether a name or address is of this machine alone."""
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def is_wildcard(host: str) -> bool:
    """Whether an address stands for every one of this machine."""
    address = _address(host)
    return host == "" if address is None else address.is_unspecified


def _plain(name: str) -> str:
    """Return a name as it is compared.

    Raises:
        InvalidValue: it is none.
    """
    address = _address(name)
    if address is not None:
        return str(address)
    match = HOST.fullmatch(name.encode("utf-8", "replace"))
    if match is None or match[2] is None or match[2] != match[0]:
        raise InvalidValue("--allowed-host", "a name or an address, without a port", repr(name))
    return name.lower()


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
