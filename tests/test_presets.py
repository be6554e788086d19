"""Presets: complete where they say what the environment shows, else completed from it."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest

import jormungandr_envs  # noqa: F401 - registers OUSpread-v0
from jormungandr import ModelSpec
from jormungandr.errors import InvalidInput, InvalidValue, MissingField
from jormungandr.presets import preset_fields
from jormungandr.spec import preset_names

GENERAL = ["default", "control", "ou-note", "ou-1344"]
ENVIRONMENTS = ["CartPole-v1", "Acrobot-v1", "MountainCar-v0", "LunarLander-v3", "OUSpread-v0"]
OPEN = [name for name in [*GENERAL, *ENVIRONMENTS] if name != "ou-note"]


def test_names() -> None:
    """The general ones come first, then those of environments, which Gymnasium knows by that."""
    assert preset_names() == [*GENERAL, *ENVIRONMENTS]
    assert set(ENVIRONMENTS) <= set(gymnasium.registry)


def test_default_fits_any_task() -> None:
    """The preset ``default`` asks for no reward scale, network or exploration of its own."""
    env = gymnasium.make("CartPole-v1")
    spec = ModelSpec.for_env(env, preset="default")

    assert spec.c51.support == "auto"
    assert set(spec.mismatches(ModelSpec.for_env(env).to_dict())) == {
        "c51.support",
        "c51.n_step",
        "c51.double",
        "c51.averaging",
        "c51.target_interval",
        "pacing.updates_per_transition",
    }


@pytest.mark.parametrize("name", OPEN)
def test_completed_from_an_environment(name: str) -> None:
    """An environment tells observation and actions; a keyword still wins, field by field."""
    env = gymnasium.make(name if name in ENVIRONMENTS[:-2] else "CartPole-v1")
    bare = ModelSpec.for_env(env).to_dict()
    spec = ModelSpec.for_env(env, preset=name, c51={"gamma": 0.5}, observation={"clip": 5.0})
    found, wanted = spec.to_dict(), preset_fields(name)

    treated = wanted.get("observation", {})
    assert found["observation"] == {**bare["observation"], **treated, "clip": 5.0}
    assert found["actions"] == bare["actions"]
    for group, fields in wanted.items():
        for field, value in fields.items():
            assert field in {"gamma", "hidden"} or found[group][field] == value
    assert spec.c51.gamma == 0.5


@pytest.mark.parametrize("name", OPEN)
def test_completed_by_hand(name: str) -> None:
    """What an environment would tell may be given instead, also in JSON."""
    told: dict[str, Any] = {"observation": {"shape": [4]}, "actions": 2}
    env = gymnasium.make("CartPole-v1")
    spec = ModelSpec.preset(name, **told)

    assert spec == ModelSpec.for_env(env, preset=name)
    assert ModelSpec.from_dict({**told, "preset": name}) == spec


@pytest.mark.parametrize("name", OPEN)
@pytest.mark.parametrize(
    ("told", "missing"),
    [({}, "observation"), ({"observation": {"shape": [4]}}, "actions")],
)
def test_told_nothing(name: str, told: dict[str, Any], missing: str) -> None:
    """Without an environment what is missing is named, and where it can come from."""
    with pytest.raises(MissingField) as error:
        ModelSpec.preset(name, **told)

    assert str(error.value) == (
        f"{missing}: expected a value beside preset {name!r}, got nothing;"
        f" ModelSpec.for_env(env, preset={name!r}) takes both from an environment"
    )


def test_what_a_preset_names_itself_stays() -> None:
    """Features and labels of ``ou-note`` are not replaced by an environment's bare space."""
    env = gymnasium.make("OUSpread-v0")

    assert ModelSpec.for_env(env, preset="ou-note", seed=3) == ModelSpec.preset("ou-note", seed=3)


def test_a_preset_of_another_environment() -> None:
    """What a preset names itself must be what the environment has."""
    with pytest.raises(InvalidValue, match=r"preset: expected one of Box.* and 2 actions"):
        ModelSpec.for_env(gymnasium.make("CartPole-v1"), preset="ou-note")


@pytest.mark.parametrize("name", ["nothing", None, 3, ["control"]])
def test_no_such_preset(name: Any) -> None:
    """Another name is refused with those that there are."""
    with pytest.raises(InvalidInput, match=r"preset: expected one of \['default', 'control'"):
        ModelSpec.for_env(gymnasium.make("CartPole-v1"), preset=name)
