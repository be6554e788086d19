"""The package as a whole: light to import, and a frozen list of public names."""

import subprocess
import sys

import pytest

import jormungandr_wrappers


def test_neither_torch_nor_a_server_is_loaded():
    """An actor's process stays light."""
    code = (
        "import sys, jormungandr_wrappers\n"
        "heavy = {'torch', 'safetensors', 'starlette', 'uvicorn', 'apsw', 'stable_baselines3'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


def test_public_names():
    """The list is explicit, and every name is there."""
    assert jormungandr_wrappers.__all__ == [
        "EpisodeResult",
        "Episodes",
        "OverlappedRecorder",
        "Pair",
        "PairedActor",
        "PairedResult",
        "ParallelRecorder",
        "RemoteActor",
        "RunResult",
        "SpecifiedEnv",
        "VecEnvRecorder",
        "VectorRecorder",
    ]
    assert all(hasattr(jormungandr_wrappers, name) for name in jormungandr_wrappers.__all__)


@pytest.mark.parametrize("missing", ["stable_baselines3", "torch"])
def test_without_stable_baselines3_one_recorder_names_the_pip_line(missing):
    """The package works without it; `VecEnvRecorder` says what to install when it is asked for."""
    code = (
        "import sys\n"
        f"sys.modules[{missing!r}] = None\n"
        "import jormungandr_wrappers\n"
        "assert jormungandr_wrappers.VectorRecorder\n"
        "try:\n"
        "    jormungandr_wrappers.VecEnvRecorder\n"
        "except ModuleNotFoundError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        check=True,
        timeout=60,
        capture_output=True,
        text=True,
    )
    message = 'VecEnvRecorder needs Stable-Baselines3: pip install "jormungandr-rl[sb3]"'
    assert done.stdout.strip() == message


def test_an_unknown_name_is_an_attribute_error():
    """The lazy name does not hide typos."""
    with pytest.raises(AttributeError, match="has no attribute 'VecEnvRecoder'"):
        jormungandr_wrappers.VecEnvRecoder  # noqa: B018
