"""The package as a whole: light to import, and a frozen list of public names."""

import subprocess
import sys

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
        "Choice",
        "Episode",
        "EpisodeRecorder",
        "EpisodeResult",
        "Episodes",
        "Outbox",
        "ParallelRecorder",
        "RemoteActor",
        "RunResult",
        "VectorRecorder",
        "new_run",
    ]
    assert all(hasattr(jormungandr_wrappers, name) for name in jormungandr_wrappers.__all__)
