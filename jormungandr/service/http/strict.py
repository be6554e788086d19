"""`StrictHttp`: uvicorn's HTTP protocol, for requests that nobody could take for something else."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from jormungandr.errors import JormungandrError, Malformed, shown

__all__ = ["StrictHttp"]


class StrictHttp(HttpToolsProtocol):
    """Refuses heads that are large, ambiguous, or no HTTP/1.1 of ours, as they come in.

    The parser, httptools, refuses most of what is not strict by itself: a length in two headers or
    in two kinds of them, odd line ends, control characters.

    Args:
        head_bytes: most bytes of request line and headers.
        most_headers: most headers.
        options: uvicorn's own.
    """

    def __init__(self, head_bytes: int, most_headers: int, **options: Any) -> None:
        super().__init__(**options)
        self._head_bytes, self._most_headers = head_bytes, most_headers
        self._head, self._in_head = 0, True
        #: Why the parser was stopped: an error that is raised inside it does not come out as it is.
        self.refusal: JormungandrError | None = None

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._head, self._in_head = 0, True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Take a piece of the request line."""
        self._head += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; what uvicorn does with it is here too, for it comes so often."""
        if not self._in_head:
            raise self.stop("request", "a body without trailers", name[:60])
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        headers = self.headers
        headers.append((name, value))
        self._head += len(name) + len(value) + 4
        if len(headers) > self._most_headers:
            raise self.stop("request", f"at most {self._most_headers} headers", "more")
        if self._head > self._head_bytes:
            self.check_head(self._head)

    def check_head(self, size: int) -> None:
        """Refuse a head of so many bytes.

        Raises:
            Malformed: it is too large.
        """
        if size > self._head_bytes:
            raise self.stop("request", f"at most {self._head_bytes} bytes of headers", "more")

    def check_request(self) -> None:
        """Look at a head that is complete.

        Raises:
            Malformed: naming what is wrong with it.
        """
        self._in_head = False
        self.check_head(self._head)
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1") or not self.url.startswith(b"/"):
            got = f"HTTP/{version} and {shown(self.url[:60])}"
            raise self.stop("request", "HTTP/1.1, and a target that begins with /", got)
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts != 1:
            raise self.stop("Host", "this header, once", f"{hosts} of it")

    def stop(self, where: str, expected: str, got: object) -> Malformed:
        """Return an error to be raised inside the parser, and keep it."""
        error = Malformed(where, expected, got)
        self.refusal = error
        return error
