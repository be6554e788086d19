"""Answers lost on the way, requests late and twice, clients that cut anew: all is stored once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.checker import (
    SPEC,
    Actors,
    Servers,
    bits,
    check_service,
    check_stored,
    differing,
    newest_checkpoint,
    rebuild,
)
from tests.faults.proxy import Proxy

SEED = 30


@pytest.mark.parametrize(
    ("names", "transitions"),
    [
        pytest.param(("cut",), 400, id="short"),
        pytest.param(("one", "cut-1", "cut-2"), 2_500, id="long", marks=pytest.mark.slow),
    ],
)
def test_a_proxy_that_drops_delays_and_duplicates(
    tmp_path: Path, names: tuple[str, ...], transitions: int
) -> None:
    """The service says of each what became of it the first time, and learns from each once."""
    data_dir = tmp_path / "data"
    folder = data_dir / "models" / "m.1"
    with Servers(data_dir) as servers:
        server = servers.start()
        with server.connect("m") as endpoint, Proxy(server.url, SEED) as proxy:
            endpoint.create(SPEC)
            options = ("--unsure", "--timeout", "20", "--transitions", str(transitions))
            with Actors(data_dir, proxy.url, names, *options) as actors:
                said = actors.finish()
            print(SEED, dict(proxy.done), len(said.sent))
            check_service(endpoint, said, folder)
        assert server.terminate() == 0
    assert proxy.done["dropped"] > 0.2 * proxy.done["requests"] > 4
    assert proxy.done["delayed"] > 0 < proxy.done["duplicated"]
    assert said.duplicate > 0
    check_stored(folder, said)
    assert differing(bits(rebuild(folder)), bits(newest_checkpoint(folder))) == []
