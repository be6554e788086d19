"""TLS: from the client's check of the certificate to its change under a running server."""

from __future__ import annotations

import argparse
import hashlib
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from jormungandr import RemoteLearner
from jormungandr.cli.serve_arguments import add_arguments, check
from jormungandr.errors import DataDirError, InvalidValue, JormungandrError, Unavailable
from jormungandr.service.access.certificates import Certificates
from jormungandr.transport import HttpTransport
from tests.service.serving import DEADLINE, QUIET, Server

OPENSSL = shutil.which("openssl")
pytestmark = pytest.mark.skipif(OPENSSL is None, reason="the certificates are made with openssl")

Make = Callable[..., tuple[Path, Path]]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """``make()``: a self-signed certificate for this machine, and its key."""

    def build(names: str = "DNS:localhost,IP:127.0.0.1", password: str = "") -> tuple[Path, Path]:
        folder = tmp_path_factory.mktemp("pair")
        cert, key = folder / "cert.pem", folder / "key.pem"
        line = [OPENSSL or "", "req", "-x509", "-newkey", "ec", "-days", "2", "-subj", "/CN=test"]
        line += ["-pkeyopt", "ec_paramgen_curve:prime256v1", "-addext", f"subjectAltName={names}"]
        line += ["-addext", "keyUsage=critical,digitalSignature,keyCertSign"]
        line += ["-passout", f"pass:{password}"] if password else ["-nodes"]
        line += ["-keyout", str(key), "-out", str(cert)]
        subprocess.run(line, check=True, capture_output=True)
        key.chmod(0o600)
        return cert, key

    return build


def tls(cert: Path, key: Path) -> list[str]:
    """Return the arguments of a server."""
    return ["--tls-cert", str(cert), "--tls-key", str(key)]


@pytest.fixture(scope="module")
def pair(make: Make) -> tuple[Path, Path]:
    """The pair of the server that tests of this module share."""
    return make()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, pair: tuple[Path, Path]) -> Iterator[Server]:
    """A server that tests of this module share."""
    with Server(tmp_path_factory.mktemp("data"), *tls(*pair)) as running:
        yield running


@pytest.fixture(autouse=True)
def no_ca_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of whoever runs the tests is trusted."""
    monkeypatch.delenv("JORMUNGANDR_CA_FILE", raising=False)


def handshake(server: Server, **options: object) -> bytes:
    """Shake hands; return the SHA-256 of the certificate that the server showed."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    for name, value in options.items():
        setattr(context, name, value)
    address = urlsplit(server.url)
    with (
        socket.create_connection((address.hostname, address.port), DEADLINE) as plain,
        context.wrap_socket(plain, server_hostname=None) as wrapped,
    ):
        return hashlib.sha256(wrapped.getpeercert(binary_form=True) or b"").digest()


def digest(cert: Path) -> bytes:
    """Return the SHA-256 of a certificate."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(cert.read_text())).digest()


# -- clients ------------------------------------------------------------------------------------


def test_end_to_end(
    server: Server, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that trusts the certificate works with ``https``, by the environment alone."""
    monkeypatch.setenv("JORMUNGANDR_CA_FILE", str(pair[0]))

    assert server.url.startswith("https://127.0.0.1:")
    with server.connect("m") as endpoint:
        assert endpoint.create(QUIET)["model_id"] == "m"


def test_trust_by_argument(server: Server, pair: tuple[Path, Path]) -> None:
    """A transport takes the file of what it trusts as well."""
    transport = HttpTransport(server.url, ca_file=pair[0])
    with RemoteLearner(server.url, "m", server.token, transport=transport) as endpoint:
        assert endpoint.create(QUIET)["model_id"] == "m"


def test_a_certificate_that_nobody_trusts(server: Server) -> None:
    """It is an error at once: to ask again would not change it. No token has been sent."""
    with (
        server.connect("m", patience=DEADLINE * 10) as endpoint,
        pytest.raises(JormungandrError, match=r"verify failed.*JORMUNGANDR_CA_FILE"),
    ):
        endpoint.info()


def test_an_address_without_tls(server: Server) -> None:
    """A service with TLS closes on it without a word: what that may mean is said."""
    plain = server.url.replace("https://", "http://")
    with (
        RemoteLearner(plain, "m", "none", patience=0.0) as endpoint,
        pytest.raises(Unavailable, match=r"closed without an answer.*its address is https://"),
    ):
        endpoint.info()


def test_a_certificate_of_another_name(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A certificate that is trusted, and of another service, is none."""
    cert, key = make("DNS:elsewhere.example")
    monkeypatch.setenv("JORMUNGANDR_CA_FILE", str(cert))
    with (
        Server(tmp_path, *tls(cert, key)) as server,
        server.connect("m", patience=DEADLINE * 10) as endpoint,
        pytest.raises(JormungandrError, match=r"certificate is not valid for '127\.0\.0\.1'"),
    ):
        endpoint.info()


@pytest.mark.parametrize("content", [None, "", "no certificate"])
def test_a_file_of_authorities_that_is_none(
    tmp_path: Path, content: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trust is not guessed: a file that has none is refused by its variable's name."""
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("JORMUNGANDR_CA_FILE", str(path))

    with pytest.raises(InvalidValue, match="JORMUNGANDR_CA_FILE: expected a readable file"):
        HttpTransport("https://127.0.0.1:1")


def test_old_versions(server: Server) -> None:
    """TLS 1.2 and 1.3 are spoken, nothing older."""
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        assert handshake(server, minimum_version=version, maximum_version=version)
    # With a client that would: SECLEVEL=0 is what OpenSSL asks of one today.
    with pytest.raises(ssl.SSLError), pytest.warns(DeprecationWarning, match="TLSv1_1"):
        handshake(
            server,
            minimum_version=ssl.TLSVersion.TLSv1_1,
            maximum_version=ssl.TLSVersion.TLSv1_1,
        )


def test_plain_http(server: Server) -> None:
    """A request in clear is not answered."""
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), DEADLINE) as plain:
        plain.sendall(b"GET /v1/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200" not in plain.recv(1_000)


# -- rotation -----------------------------------------------------------------------------------


def test_rotation(tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """New connections get the new certificate, open ones go on; half a change changes nothing."""
    first, second = make(), make()
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    shutil.copy(first[0], cert)
    shutil.copy(first[1], key)
    monkeypatch.setenv("JORMUNGANDR_CA_FILE", str(cert))
    with Server(tmp_path / "data", *tls(cert, key)) as server, server.connect("m") as endpoint:
        endpoint.create(QUIET)
        assert handshake(server) == digest(first[0])
        shutil.copy(second[0], cert)  # its key is still the old one
        assert handshake(server) == digest(first[0])
        shutil.copy(second[1], key)
        assert handshake(server) == digest(second[0])
        key.write_text("broken")
        cert.write_text("broken")
        assert handshake(server) == digest(second[0])
        key.unlink()
        assert handshake(server) == digest(second[0])
        shutil.copy(first[0], cert)
        shutil.copy(first[1], key)
        key.chmod(0o644)
        assert handshake(server) == digest(second[0])
        key.chmod(0o600)
        assert handshake(server) == digest(first[0])
        endpoint.info()  # on the connection that it has had from the beginning
    said = (tmp_path / "data" / "stderr").read_text()
    for why in ("KEY_VALUES_MISMATCH", "No such file", "expected mode 0640 or less, got 0o644"):
        assert why in said
    assert "PRIVATE KEY" not in said


def test_one_pair_for_all_connections(pair: tuple[Path, Path]) -> None:
    """While nothing changes, nothing is read again."""
    certificates = Certificates(*pair)

    assert certificates._pair.get() is certificates.context


# -- the start ----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["encrypted", "swapped", "no cert", "no key", "open key"])
def test_a_pair_that_cannot_be_used(tmp_path: Path, make: Make, case: str) -> None:
    """The start is refused, and nobody is asked for a password."""
    cert, key = make(password="swordfish" if case == "encrypted" else "")
    if case == "swapped":
        key = make()[1]
    elif case.startswith("no"):
        (cert if case == "no cert" else key).unlink()
    elif case == "open key":
        key.chmod(0o604)

    with pytest.raises(DataDirError) as raised:
        Certificates(cert, key)
    assert str(key if case in ("no key", "open key") else cert) in str(raised.value)


def test_a_key_for_a_group(pair: tuple[Path, Path], make: Make) -> None:
    """A key that a group may read is taken: some systems hand keys to services that way."""
    cert, key = make()
    key.chmod(0o640)

    assert Certificates(cert, key).context.minimum_version == ssl.TLSVersion.TLSv1_2


def arguments(*given: str) -> argparse.Namespace:
    """Return the arguments of ``serve``."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(["--data-dir", "d", *given])


@pytest.mark.parametrize("given", [["--tls-cert", "c"], ["--tls-key", "k"]])
def test_half_a_pair(given: list[str]) -> None:
    """A certificate without a key, or the other way round, is a mistake, not plain HTTP."""
    with pytest.raises(InvalidValue, match="go together"):
        check(arguments(*given))


def test_other_addresses() -> None:
    """Beyond this machine, there is TLS or an explicit word."""
    for host in ("0.0.0.0", "::", "10.0.0.1", "learner.example.org"):
        check(arguments("--host", host, "--tls-cert", "c", "--tls-key", "k"))
        check(arguments("--host", host, "--insecure"))
        with pytest.raises(InvalidValue, match="--tls-cert and --tls-key, or accept that"):
            check(arguments("--host", host))
