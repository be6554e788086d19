"""The specification of a model that a command makes for an environment."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import gymnasium

from jormungandr.cli.opening import check_fits, name_of
from jormungandr.errors import InvalidValue
from jormungandr.presets import preset_fields
from jormungandr.spec import ModelSpec, preset_names

__all__ = ["DEFAULT", "add_preset", "preset_of", "spec_for"]

Env = gymnasium.Env[Any, Any]

#: The preset that a specification starts from unasked.
DEFAULT = "default"


def add_preset(parser: argparse.ArgumentParser) -> None:
    """Declare ``--preset``."""
    parser.add_argument(
        "--preset",
        choices=["auto", *preset_names()],
        help=f"specification to start from (default: {DEFAULT}); auto is the one named like the"
        " environment",
    )


def preset_of(given: str | None, env: Env) -> str:
    """Return the preset that ``--preset`` names for an environment.

    Raises:
        InvalidValue: ``auto``, and none is named like it.
    """
    if given != "auto":
        return given or DEFAULT
    name = name_of(env)
    if name not in preset_names():
        remedy = "--preset control is for any small control task"
        expected = f"an environment with a preset, one of {preset_names()}"
        raise InvalidValue("--preset auto", expected, name, remedy)
    return name


def spec_for(env: Env, preset: str | None, settings: Mapping[str, Any]) -> ModelSpec:
    """Return the specification of a model for an environment.

    Args:
        env: the environment.
        preset: as ``--preset`` has it.
        settings: fields that override those of the preset.

    Raises:
        InvalidInput: (one of its classes) a preset or a setting that does not fit the environment.
    """
    if "preset" in settings:
        raise InvalidValue("--set", "no preset", settings["preset"], "--preset names it")
    name = preset_of(preset, env)
    if "actions" not in preset_fields(name):
        return ModelSpec.for_env(env, preset=name, **settings)
    spec = ModelSpec.preset(name, **settings)  # it says itself what it sees and does
    check_fits(spec, env, "--preset")
    return spec
