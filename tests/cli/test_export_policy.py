"""``jormungandr export-policy``: from any saved policy to a folder, and clear refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jormungandr import Learner, ModelSpec, PolicySnapshot
from jormungandr.bundle import write_bundle
from jormungandr.cli import main


@pytest.fixture(scope="module")
def learner() -> Learner:
    """A learner that sees what OUSpread-v0 shows."""
    return Learner(ModelSpec.preset("ou-note"))


@pytest.fixture(scope="module")
def checkpoint(learner: Learner, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its checkpoint folder."""
    learner.save(tmp_path_factory.mktemp("saved") / "c")
    return next(tmp_path_factory.getbasetemp().glob("saved*/c"))


def about(folder: Path) -> Any:
    """Return the description in a folder."""
    return json.loads(next(folder.glob("*.json")).read_bytes())


def test_bundle_is_written_without_torch(
    checkpoint: Path, learner: Learner, tmp_path: Path
) -> None:
    """From a checkpoint to a bundle with an environment in it, where there is no torch."""
    code = "import sys; sys.modules['torch'] = None; from jormungandr.cli import main; main()"
    done = subprocess.run(
        [
            *(sys.executable, "-W", "error", "-c", code, "export-policy", str(checkpoint)),
            *("--out", str(tmp_path / "b"), "--env", "OUSpread-v0"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("policy version 0, after 0 updates, in ")
    assert "bundle.json" in done.stdout
    assert PolicySnapshot.open(tmp_path / "b").digest() == learner.snapshot().digest()
    assert about(tmp_path / "b")["env_spec"]["id"] == "OUSpread-v0"


def test_every_kind_of_source(learner: Learner, checkpoint: Path, tmp_path: Path) -> None:
    """A policy's file, a bundle and a model's folder of a service are sources too."""
    write_bundle(tmp_path / "bundle", learner.snapshot())
    policies = tmp_path / "m.1" / "policies"
    policies.mkdir(parents=True)
    file = policies / f"{0:020d}.safetensors"
    file.write_bytes(learner.snapshot().to_bytes())
    for i, source in enumerate((tmp_path / "bundle", tmp_path / "m.1", file)):
        assert main(["export-policy", str(source), "--out", str(tmp_path / f"out{i}")]) == 0
        assert about(tmp_path / f"out{i}")["policy_digest"] == learner.snapshot().digest()
        assert about(tmp_path / f"out{i}")["env_spec"] is None


def test_other_format(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A format of torch, with the features asked for in their order."""
    features = ["--features", "z,dz,position,time_left"]
    out = ["--out", str(tmp_path / "e"), "--format", "pt2", "--env", "OUSpread-v0"]

    assert main(["export-policy", str(checkpoint), *out, *features]) == 0
    assert "policy.pt2" in capsys.readouterr().out
    assert about(tmp_path / "e")["env_spec"]["id"] == "OUSpread-v0"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--features", "dz,z,position,time_left"], "features[0]: expected 'z', got 'dz'"),
        (["--env", "CartPole-v1"], "SOURCE: expected"),
        (["--env", "Nowhere-v0"], "Nowhere"),
    ],
)
def test_what_does_not_fit_is_refused(
    checkpoint: Path,
    tmp_path: Path,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Other features, another environment and an unknown one: one line, status 1, no folder."""
    out = tmp_path / "b"

    assert main(["export-policy", str(checkpoint), "--out", str(out), *arguments]) == 1
    assert message in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    "source", ["http://host:1/v1/models", "http://host:1/", "ftp://host/v1/models/m", "/nowhere"]
)
def test_no_source(source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What names no policy is refused with what does."""
    assert main(["export-policy", source, "--out", str(tmp_path / "b")]) == 1
    assert "jormungandr export-policy: " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_errors_name_the_source(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is no policy, and an export that only acts, are called by their paths."""
    (tmp_path / "notes").write_text("…")
    assert main(["export-policy", str(tmp_path / "notes"), "--out", str(tmp_path / "b")]) == 1
    assert f"{tmp_path / 'notes'}: policy: expected safetensors" in capsys.readouterr().err

    out = str(tmp_path / "ts")
    given = ["export-policy", str(checkpoint), "--format", "torchscript", "--out", out]
    assert main(given) == 0
    assert main(["export-policy", out, "--out", str(tmp_path / "b")]) == 1
    assert f"{out}: expected a checkpoint" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


def test_nothing_is_overwritten_unasked(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An earlier export needs --overwrite; anything else is never replaced."""
    command = ["export-policy", str(checkpoint), "--out"]
    assert main([*command, str(tmp_path / "b")]) == 0
    assert main([*command, str(tmp_path / "b")]) == 1
    assert "--overwrite" in capsys.readouterr().err
    assert main([*command, str(tmp_path / "b"), "--overwrite"]) == 0

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("…")
    assert main([*command, str(tmp_path / "mine"), "--overwrite"]) == 1
    assert (tmp_path / "mine" / "thesis.tex").exists()
    assert main([*command, str(tmp_path / "b" / "bundle.json" / "c")]) == 1
    assert "a folder that can be written" in capsys.readouterr().err


def test_missing_package_is_one_line(
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without the package of a format, the message is the pip line."""
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    out = ["--out", str(tmp_path / "e"), "--format", "onnx"]

    assert main(["export-policy", str(checkpoint), *out]) == 1
    assert 'pip install "jormungandr-rl[export]"' in capsys.readouterr().err
