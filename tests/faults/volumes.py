"""Small file systems of their own, where tests may mount some."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

__all__ = ["Volume"]


class Volume:
    """A small file system of its own.

    Args:
        path: where it is mounted.
        size: in MiB.
    """

    def __init__(self, path: Path, size: int) -> None:
        if shutil.which("mount") is None:
            pytest.skip("no mount command")
        self.path = path
        path.mkdir()
        self._mount("-t", "tmpfs", "-o", f"size={size}m", "tmpfs", str(path))

    def _mount(self, *arguments: str) -> None:
        done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")

    def resize(self, size: int) -> None:
        """Give it another size, in MiB."""
        self._mount("-o", f"remount,size={size}m", str(self.path))

    def unmount(self) -> None:
        """Take it away, also when somebody still uses it."""
        subprocess.run(["umount", "-l", str(self.path)], check=True)
