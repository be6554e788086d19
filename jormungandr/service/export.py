"""Exports over HTTP: a policy's folder as a zip archive.

A bundle is made here, off the event loop. Every other format is made by a process of its own, which
reads a policy's file and writes a folder: this one imports no torch and reads no artefact.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.types import Receive, Scope, Send

from jormungandr.bundle import bundle_files, check_format, to_zip
from jormungandr.errors import (
    ExportError,
    MissingField,
    from_dict,
)
from jormungandr.policy import PolicySnapshot
from jormungandr.policy_file import POLICY_FILE
from jormungandr.service.descriptions import EXPORT
from jormungandr.service.http.body import NO_BODY
from jormungandr.service.http.grants import Needs
from jormungandr.service.http.hearing import while_heard
from jormungandr.service.http.route import JsonRoute, Request
from jormungandr.service.model import Model

__all__ = ["ExportRoute", "Exporter"]

log = logging.getLogger("jormungandr")

#: Seconds that one exporter may take.
DEADLINE = 300


class Exporter:
    """Makes archives; at most one process at a time.

    Args:
        folder: for files on their way; what an earlier server left there is removed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._turn = asyncio.Semaphore()

    async def archive(self, snapshot: PolicySnapshot, name: str) -> bytes:
        """Return a policy in a format, as the zip archive of its folder.

        Raises:
            PackageMissing: the format needs a package that is not installed here.
            ExportError: it could not be made, or computes something else than the policy.
        """
        if name == "bundle":
            return await asyncio.to_thread(lambda: to_zip(bundle_files(snapshot)))
        async with self._turn:  # whoever holds it has the folder to itself
            await self._remove()
            try:
                self._folder.mkdir(parents=True)
                return await self._made(snapshot, name)
            except OSError as error:
                raise ExportError("export", "files that can be written", error.strerror) from error
            finally:
                await self._remove()

    async def _remove(self) -> None:
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def _made(self, snapshot: PolicySnapshot, name: str) -> bytes:
        policy, out = self._folder / POLICY_FILE, self._folder / "export"
        await asyncio.to_thread(lambda: policy.write_bytes(snapshot.to_bytes()))
        process = await asyncio.create_subprocess_exec(
            *_command(policy, name, out),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C at the terminal is the gateway's to handle
        )
        try:
            async with asyncio.timeout(DEADLINE):
                said, _ = await process.communicate()
        except TimeoutError:
            raise ExportError("export", f"an artefact within {DEADLINE} s", "none") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if process.returncode != 0:
            raise _failure(said, process.returncode)
        return await asyncio.to_thread(
            lambda: to_zip({file.name: file.read_bytes() for file in out.iterdir()})
        )


def _command(policy: Path, name: str, out: Path) -> list[str]:
    module = ["-P", "-m", "jormungandr.learner.export"]  # -P: none from the folder we started in
    return [sys.executable, *module, str(policy), name, str(out), str(DEADLINE)]


def _failure(said: bytes, status: int | None) -> Exception:
    """Return what an exporter that failed said; its last line is an error of ours."""
    try:
        return from_dict(json.loads(said.splitlines()[-1]))
    except (ValueError, IndexError):
        log.error("exporter ended with status %s: %s", status, said[-500:])
        return ExportError("export", "an artefact", f"status {status}", "see the service's log")


class ExportRoute:
    """Answers with an archive, or with the JSON of an error.

    Args:
        find: returns the model of an id.
        exporter: makes the archives.
    """

    needs: Needs = "operate"
    query = ("format",)
    accepts = NO_BODY
    doc = EXPORT

    def __init__(self, find: Callable[[str], Model], exporter: Exporter) -> None:
        self._find, self._exporter = find, exporter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; if its client goes, so does what was being made for it."""
        made: list[tuple[str, bytes]] = []

        async def call(request: Request) -> tuple[int, Any]:
            if "format" not in request.query:
                raise MissingField("query.format", "the name of a format", "nothing")
            name = check_format(request.query["format"], "query.format")
            model = self._find(request.path["model_id"])
            snapshot = await model.answers.policy_for()
            data = await while_heard(self._exporter.archive(snapshot, name), receive)
            made.append((f"{model.model_id}-v{snapshot.version}-{name}.zip", data))
            return 200, None

        async def reply(message: Any) -> None:
            if not made:  # an error; a success has another form
                await send(message)

        await JsonRoute(call, needs=self.needs, query=self.query)(scope, receive, reply)
        for file, data in made:
            headers = [
                (b"content-type", b"application/zip"),
                (b"content-length", str(len(data)).encode()),
                (b"content-disposition", f'attachment; filename="{file}"'.encode()),
            ]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": data})
