"""Exports over HTTP: bundles made here, everything else elsewhere, and nothing that runs code."""

from __future__ import annotations

import ast
import asyncio
import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jormungandr import Learner, PolicySnapshot
from jormungandr.bundle import bundle_files, from_zip, to_zip
from jormungandr.cli import main
from jormungandr.errors import (
    CheckpointError,
    ExportError,
    InvalidValue,
    ModelUnknown,
    PackageMissing,
)
from jormungandr.service import answers, export
from jormungandr.service.export import Exporter, ExportRoute
from jormungandr.service.http.grants import OPERATOR
from jormungandr.transport import Response
from tests.service.serving import QUIET, TOKEN, InMemory, gone, until

ROOT = Path(__file__).parents[2]
EXPORT = "/v1/models/m/export"


@pytest.fixture(scope="module")
def snapshot() -> PolicySnapshot:
    """The policy that the shared application serves."""
    return Learner(QUIET).snapshot()


def child(code: str) -> Callable[[Path, str, Path], list[str]]:
    """Return a stand-in for the exporter's command: Python code with POLICY, NAME and OUT."""

    def command(policy: Path, name: str, out: Path) -> list[str]:
        given = f"POLICY, NAME, OUT = {str(policy)!r}, {name!r}, {str(out)!r}\n"
        return [sys.executable, "-c", given + code]

    return command


def test_bundle_comes_as_an_archive(shared: Any, snapshot: PolicySnapshot) -> None:
    """The answer is a zip archive of the newest policy's bundle, the same each time."""
    answer = shared.request("POST", f"{EXPORT}?format=bundle")

    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/zip")
    assert answer.headers["content-disposition"] == 'attachment; filename="m-v0-bundle.zip"'
    assert from_zip(answer.content) == bundle_files(snapshot)
    assert answer.content == to_zip(bundle_files(snapshot))
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.namelist() == ["bundle.json", "policy.safetensors"]


def test_client_writes_the_folder(shared: Any, snapshot: PolicySnapshot, tmp_path: Path) -> None:
    """`RemoteLearner.export` leaves the folder that a learner in process would."""
    shared.connect("m").export(tmp_path / "b")
    Learner(QUIET).export(tmp_path / "local")

    assert PolicySnapshot.open(tmp_path / "b").digest() == snapshot.digest()
    for file in (tmp_path / "local").iterdir():
        assert (tmp_path / "b" / file.name).read_bytes() == file.read_bytes()


def test_other_format_comes_from_a_process(
    shared: Any, snapshot: PolicySnapshot, tmp_path: Path
) -> None:
    """TorchScript is made by a real exporter, checked, and comes with its description."""
    (shared.path / "exports").mkdir()
    (shared.path / "exports" / "of an earlier server").touch()
    shared.connect("m").export(tmp_path / "e", format="torchscript")
    about = json.loads((tmp_path / "e" / "export.json").read_bytes())

    assert sorted(path.name for path in (tmp_path / "e").iterdir()) == ["export.json", "policy.ts"]
    assert about["policy_digest"] == snapshot.digest()
    assert about["parity"]["equal_actions"] == 40
    assert not (shared.path / "exports").exists()


@pytest.mark.parametrize(
    ("path", "status", "code", "where"),
    [
        (f"{EXPORT}?format=pickle", 422, "invalid_value", "query.format"),
        (f"{EXPORT}?format=", 422, "invalid_value", "query.format"),
        (EXPORT, 422, "missing_field", "query.format"),
        (f"{EXPORT}?format=bundle&env=x", 422, "unknown_field", "query.env"),
        ("/v1/models/none/export?format=bundle", 404, "model_unknown", "model_id"),
    ],
)
def test_what_is_not_acceptable(shared: Any, path: str, status: int, code: str, where: str) -> None:
    """Unknown formats, parameters and models are refused as on every other route."""
    answer = shared.request("POST", path)
    error = answer.json()["error"]

    assert (answer.status_code, error["code"], error["where"]) == (status, code, where)


def test_route_is_guarded(shared: Any) -> None:
    """It takes POST alone, and the token."""
    assert shared.request("GET", f"{EXPORT}?format=bundle").status_code == 405
    assert shared.http.post(f"{EXPORT}?format=bundle").status_code == 401


def test_model_without_a_policy(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The learner of a new model is started for its first policy; one that does not come is 503."""
    monkeypatch.setattr(answers, "FIRST_POLICY", 0.01)
    app.connect("new").create(QUIET)
    answer = app.request("POST", "/v1/models/new/export?format=bundle")

    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "policy_not_ready")
    assert answer.headers["retry-after"] in ("1", "2", "3")
    assert app.model("new").learning.process.state == "running"


def test_client_raises_what_a_learner_would(
    shared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unknown model or format and a missing package are the learner's own errors."""
    with pytest.raises(InvalidValue, match="one of"):
        shared.connect("m").export(tmp_path / "e", "pickle")
    with pytest.raises(ModelUnknown):
        shared.connect("none").export(tmp_path / "e")
    with pytest.raises(InvalidValue, match="a new folder"):  # before anything is asked for
        shared.connect("none").export(Path(__file__))
    error = PackageMissing("format 'onnx'", "the package onnx", "none", "pip install it").to_dict()
    monkeypatch.setattr(
        export, "_command", child(f"print('noise'); print({json.dumps(error)!r}); exit(1)")
    )
    with pytest.raises(PackageMissing, match="the package onnx, got none; pip install it"):
        shared.connect("m").export(tmp_path / "e", "onnx")

    assert not (tmp_path / "e").exists()
    assert not (shared.path / "exports").exists()


@pytest.mark.parametrize(
    "code", ["exit(3)", "print('no JSON'); exit(1)", "print('[]'); exit(1)", "print(); exit(1)"]
)
def test_exporter_that_dies(shared: Any, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """One that ends without saying why is our fault, and the service goes on."""
    monkeypatch.setattr(export, "_command", child(code))
    answer = shared.request("POST", f"{EXPORT}?format=onnx")

    assert answer.status_code == 500
    assert answer.json()["error"]["code"] in ("export_failed", "internal_error")


def test_exporter_that_hangs(shared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is not done at the deadline is killed, and the answer says so."""
    start, pids = asyncio.create_subprocess_exec, []

    async def noted(*arguments: Any, **options: Any) -> Any:
        process = await start(*arguments, **options)
        pids.append(process.pid)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)
    monkeypatch.setattr(export, "_command", child("import time; time.sleep(60)"))
    monkeypatch.setattr(export, "DEADLINE", 0)
    answer = shared.request("POST", f"{EXPORT}?format=onnx")

    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "export_failed")
    assert "within 0 s" in answer.json()["error"]["message"]
    assert [gone(pid) for pid in pids] == [True]
    assert not (shared.path / "exports").exists()


def test_exporter_without_room(shared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that takes no files is an answer, and no trace of ours."""

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    answer = shared.request("POST", f"{EXPORT}?format=onnx")

    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "export_failed")
    assert answer.json()["error"]["got"] == "No space left on device"


class Found:
    """Stands for a model that serves a policy."""

    model_id = "m"

    def __init__(self, policy: PolicySnapshot) -> None:
        self.policy, self.answers = policy, self

    async def policy_for(self) -> PolicySnapshot:
        """Return it."""
        return self.policy


def test_client_that_goes_takes_its_export_along(
    snapshot: PolicySnapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exporter of a client that hung up is killed at once, and its files are removed."""
    pid = tmp_path / "pid"
    code = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    monkeypatch.setattr(export, "_command", child(code))
    route = ExportRoute(lambda _: Found(snapshot), Exporter(tmp_path / "exports"))  # type: ignore[arg-type, return-value]
    scope = {
        "type": "http",
        "method": "POST",
        "path": EXPORT,
        "path_params": {"model_id": "m"},
        "query_string": b"format=onnx",
        "headers": [],
        "grant": OPERATOR,
    }
    sent: list[Any] = []

    async def scenario() -> None:
        messages = iter([{"type": "http.request"}, {"type": "http.disconnect"}])

        async def receive() -> Any:
            message = next(messages)
            if message["type"] == "http.disconnect":
                await asyncio.to_thread(until, lambda: pid.exists() and pid.read_text(), "start")
            return message

        async def send(message: Any) -> None:
            sent.append(message)

        await route(scope, receive, send)

    asyncio.run(scenario())

    assert gone(int(pid.read_text()))
    assert not (tmp_path / "exports").exists()
    assert sent[0]["status"] == 503  # heard by nobody


def test_one_exporter_at_a_time(
    snapshot: PolicySnapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exports wait for each other, and one that fails or is given up lets the next one in."""
    inside, most, order = 0, 0, []

    async def made(_: Exporter, __: PolicySnapshot, name: str) -> bytes:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        order.append(name)
        try:
            for _turn in range(10):
                await asyncio.sleep(0)
            if name == "pt2":
                raise ExportError("export", "an artefact")
        finally:
            inside -= 1
        return name.encode()

    monkeypatch.setattr(Exporter, "_made", made)

    async def scenario() -> list[Any]:
        exporter = Exporter(tmp_path / "exports")
        names = ["onnx", "pt2", "sb3", "torchscript"]
        tasks = [asyncio.ensure_future(exporter.archive(snapshot, name)) for name in names]
        await asyncio.sleep(0)
        tasks[2].cancel()  # while it waits for its turn
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(scenario())

    assert most == 1
    assert order == ["onnx", "pt2", "torchscript"]
    assert (results[0], results[3]) == (b"onnx", b"torchscript")
    assert isinstance(results[1], ExportError)
    assert isinstance(results[2], asyncio.CancelledError)


def test_damage_on_the_way(shared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive that changed on the way is refused, and nothing of it is written."""
    remote = shared.connect("m")
    request = remote._calls.request

    def changed(*arguments: Any, **options: Any) -> Response:
        response = request(*arguments, **options)
        data = bytearray(response.body)
        data[len(data) // 2] ^= 1
        return Response(response.status, response.headers, bytes(data))

    monkeypatch.setattr(remote._calls, "request", changed)
    with pytest.raises(CheckpointError):
        remote.export(tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


def test_command_line_takes_a_served_model(
    shared: Any, snapshot: PolicySnapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``jormungandr export-policy URL`` fetches the bundle, and makes the format here."""
    monkeypatch.setattr("jormungandr.client.calls.HttpTransport", lambda url: InMemory(shared.http))
    monkeypatch.setenv("JORMUNGANDR_TOKEN", TOKEN)
    url = "http://service:8000/prefix/v1/models/m"

    assert main(["export-policy", url, "--out", str(tmp_path / "b")]) == 0
    assert PolicySnapshot.open(tmp_path / "b").digest() == snapshot.digest()
    out = ["--out", str(tmp_path / "e"), "--format", "torchscript"]
    assert main(["export-policy", url, *out]) == 0
    assert (tmp_path / "e" / "policy.ts").exists()


# -- the service reads no code --------------------------------------------------------------------

#: Modules that make objects from files by running what is in them, and calls that use them.
PICKLES = {"pickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
LOADS = {"torch.load", "torch.jit.load", "torch.export.load", "np.load", "numpy.load"}
GATEWAY = """
import json, sys
from pathlib import Path
import numpy as np
from starlette.testclient import TestClient
from jormungandr import ModelSpec, PolicySnapshot
from jormungandr.weights import layer_shapes
from jormungandr.service import app

gateways = []
class Seen(app.Gateway):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        gateways.append(self)
app.Gateway = Seen

spec = {"observation": {"shape": [2]}, "actions": 3}
resolved = ModelSpec.from_dict(spec)
weights = {n: np.ones(s, np.float32) for n, s in layer_shapes(resolved).items()}
policy = PolicySnapshot(resolved, 0, 0, 0, weights, np.zeros(2), np.ones(2))
with TestClient(app.create_app(sys.argv[1], token=None)) as http:
    http.post("/v1/models", json={"model_id": "m", "spec": spec}).raise_for_status()
    gateways[0].model("m").publication.policy = policy
    for name in ("bundle", "torchscript"):
        http.post(f"/v1/models/m/export?format={name}").raise_for_status()
    reply = http.post("/v1/models/m/inference", json={"observations": [[0, 0]]})
    reply.raise_for_status()
print(json.dumps(sorted(sys.modules)))
"""


def calls_and_imports(path: Path) -> set[str]:
    """Return the modules a source imports anywhere, and the names of attributes it calls."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module).partition(".")[0])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            found.add(ast.unparse(node.func))
    return found


def test_gateway_loads_no_torch_and_no_pickle(tmp_path: Path) -> None:
    """A gateway that served a bundle, TorchScript and an action can run no code from a file.

    It imported neither torch nor the learner, and none of our modules in it reads pickle.
    """
    done = subprocess.run(
        [sys.executable, "-c", GATEWAY, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout))

    assert not {"torch", "onnx", "onnxruntime", "stable_baselines3"} & loaded
    ours = {name for name in loaded if name.partition(".")[0] == "jormungandr"}
    assert "jormungandr.service.export" in ours
    assert not {n for n in ours if n.startswith(("jormungandr.learner", "jormungandr.sb3"))}
    for name in ours:
        path = ROOT / Path(*name.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        used = calls_and_imports(path)
        assert not (PICKLES | LOADS) & used, name


@pytest.mark.parametrize("path", sorted((ROOT / "jormungandr" / "service").glob("*.py")))
def test_service_sources_read_no_code(path: Path) -> None:
    """No source of the service reads pickle or a torch file, in the learner's process neither."""
    assert not (PICKLES | LOADS) & calls_and_imports(path)
