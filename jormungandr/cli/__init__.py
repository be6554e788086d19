"""The command line: ``jormungandr serve | demo | actor | train | evaluate | export-policy``.

Each command is a module with `add_arguments` and `run`, imported when it is called: ``--help``
loads neither torch nor a server.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from jormungandr.errors import InvalidType, JormungandrError
from jormungandr.version import __version__

__all__ = ["main"]

COMMANDS = {
    "serve": "run the service: journal, learners, inference",
    "token": "make, list and revoke tokens that may do some things only",
    "demo": "the release note's experiment, from actors to a comparison with intervals",
    "actor": "run an environment against a service and submit what happens",
    "train": "train policies for any environment with discrete actions, seed by seed",
    "evaluate": "play a policy in an environment, alone or against another on the same seeds",
    "promotion": "which policy of a model is served: show, promote, roll back, refuse, pin",
    "export-policy": "write a policy as a folder for others to act with: data, ONNX, TorchScript",
    "export-data": "write what a model learned from as a table: Parquet, CSV or JSON lines",
    "import-data": "give logged transitions to a model: Parquet, CSV or JSON lines",
    "replay": "train another specification on the rows of a model, and compare",
    "fqe": "how good a policy is, estimated from held-out steps that are stored already",
    "verify": "check a data directory against itself, down to the bits of its policies",
    "backup": "copy a data directory, also while a server uses it",
    "restore": "make a data directory from a backup",
    "salvage": "copy what is whole of a damaged data directory",
    "sql": "ask the journal of a model in SQL, reading only",
    "doctor": "what is wrong with an installation, a data directory, a service or a model",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 0 done, 1 failed, 2 bad arguments."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="jormungandr",
        description="A reinforcement-learning learner that any environment can be plugged into.",
    )
    parser.add_argument("--version", action="version", version=f"jormungandr {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        if given[:1] == [name]:  # only the one that is called is imported
            _module(name).add_arguments(command)
    chosen = parser.parse_args(given)
    try:
        status = _module(chosen.command).run(chosen)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get(str(error.name).partition(".")[0])
        if extra is None:  # the package of an environment
            print(f"jormungandr {chosen.command}: {error}", file=sys.stderr)
            return 1
        wanted = f'pip install "jormungandr-rl[{extra}]"'
        print(f"jormungandr {chosen.command} needs {error.name}: {wanted}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # whoever read the output has enough of it, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if not isinstance(error, (JormungandrError, *_gymnasium_errors())):
            raise
        hint = _json_hint(error, getattr(chosen, "set", []))
        print(f"jormungandr {chosen.command}: {error}{hint}", file=sys.stderr)
        return 1
    return int(status)


def _module(command: str) -> Any:
    return importlib.import_module(f"jormungandr.cli.{command.replace('-', '_')}")


def _json_hint(error: Exception, settings: Sequence[str]) -> str:
    """Return the remedy where a value of ``--set`` was taken as text, being no JSON; else ""."""
    if not isinstance(error, InvalidType) or error.got != "str" or error.remedy:
        return ""
    given = error.where in [setting.partition("=")[0] for setting in settings]
    return "; values of --set are JSON: true, 0.5, [64,64]" if given else ""


def _gymnasium_errors() -> tuple[type[Exception], ...]:
    """Return Gymnasium's own errors, where it was imported: nobody else raises them."""
    module = sys.modules.get("gymnasium.error")
    return () if module is None else (module.Error,)


#: Which extra brings a package that a command may miss.
_EXTRAS = {
    "torch": "learner",
    "safetensors": "learner",
    "apsw": "service",
    "starlette": "service",
    "uvicorn": "service",
    "stable_baselines3": "sb3",
    "pyarrow": "data",
}
