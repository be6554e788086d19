"""`Certificates`: TLS of the service, with a certificate that may change while it runs."""

from __future__ import annotations

import ssl
from pathlib import Path

from jormungandr.errors import DataDirError
from jormungandr.service.access.private import read_private
from jormungandr.service.access.watched import Watched

__all__ = ["Certificates"]

#: Of a private key, a group may read it: that is how some systems let services have theirs.
OTHERS = 0o037
LONGEST = 1 << 20


class Certificates:
    """A certificate and its key; every handshake uses what the files say at that moment.

    A new pair is tried in a context of its own: while one of the two files is new and the other
    old, or one cannot be read, connections go on being made with the last good pair.

    Args:
        cert: the certificate and those up to its authority, as PEM.
        key: of it, as PEM, not encrypted; not for others' eyes.

    Raises:
        DataDirError: they cannot be used.
    """

    def __init__(self, cert: Path, key: Path) -> None:
        self._cert, self._key = cert, key
        self._pair = Watched(cert, key, read=self._load)
        #: With which the server listens.
        self.context = self._pair.get()
        self.context.sni_callback = self._newest

    def _newest(self, connection: ssl.SSLSocket | ssl.SSLObject, *_: object) -> None:
        """Called by OpenSSL at the start of each handshake, also when it names no server."""
        connection.context = self._pair.get()

    def _load(self) -> ssl.SSLContext:
        read_private(self._key, LONGEST, OTHERS)  # for its checks; OpenSSL reads it by name
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            # An empty password: OpenSSL would ask the terminal for one otherwise, and wait.
            context.load_cert_chain(self._cert, self._key, password="")
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise DataDirError(
                f"{self._cert}, {self._key}",
                "a certificate and its own key, as PEM, the key not encrypted",
                reason,
            ) from None
        return context
