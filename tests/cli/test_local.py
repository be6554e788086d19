"""The service that a command runs for itself: it ends with the command, however that ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from jormungandr.cli.local import service
from jormungandr.errors import DataDirError
from jormungandr.service.lock import reading
from tests.service.serving import until

COMMAND = """
import sys, time
from pathlib import Path
from jormungandr.cli.local import service
with service(Path(sys.argv[1])) as (url, _):
    print(url, flush=True)
    time.sleep(600)
"""


def free(data_dir: Path) -> bool:
    """Whether no server holds a directory."""
    try:
        with reading(data_dir):
            return True
    except DataDirError:
        return False


def test_killed_with_its_command(tmp_path: Path) -> None:
    """Of a command that is killed no server is left that holds the directory."""
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as command:
        assert command.stdout is not None
        assert command.stdout.readline().startswith("http://")
        assert not free(tmp_path)
        command.kill()
    until(lambda: free(tmp_path), "the end of the server")

    with service(tmp_path) as (url, token):
        assert url.startswith("http://")
        assert token
    assert free(tmp_path)
