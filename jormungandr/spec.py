"""`ModelSpec`: everything that decides what a model learns, frozen, validated, with defaults."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from jormungandr.errors import (
    InvalidInput,
    InvalidType,
    InvalidValue,
    MissingField,
    UnknownField,
    shown,
)
from jormungandr.presets import preset_fields, preset_names
from jormungandr.settings import (
    C51,
    FLOAT32_MAX,
    Action,
    ActionChoice,
    Auxiliary,
    Divergence,
    Exploration,
    Labels,
    LearningRate,
    Observation,
    Pacing,
    Part,
    Promotion,
    Replay,
    Risk,
    Staleness,
    Validation,
    require,
)
from jormungandr.spaces import from_gymnasium, image_axes

if TYPE_CHECKING:
    import gymnasium

__all__ = [
    "C51",
    "FLOAT32_MAX",
    "MODEL_ID",
    "Action",
    "Auxiliary",
    "Divergence",
    "Exploration",
    "Labels",
    "LearningRate",
    "ModelSpec",
    "Observation",
    "Pacing",
    "Promotion",
    "Replay",
    "Risk",
    "Staleness",
    "Validation",
    "preset_names",
]

#: Weights of a network, 512 MiB: training takes four times that, and a service sends it whole.
LARGEST_NETWORK = 1 << 27
#: Bytes of a replay buffer, and of the validation store: larger ones are a slip.
LARGEST_STORE = 1 << 40

#: The grammar of model ids: safe in a URL and in a folder name.
MODEL_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


class ModelSpec(Part, frozen=True, dict=True):
    """The specification of one model.

    Args:
        observation: what the environment shows.
        actions: a number of actions, or their labels and values.
        algorithm: ``c51``.
        auxiliary: a classification head, or None.
        action_masks: whether some actions are not allowed at times. Transitions then carry the
            mask of their successor, and a request for actions that of its observations.
        action_repeat: steps of the environment that one action lasts; their rewards are summed, and
            a step of the model, `gamma` too, is one decision.
        seed: of every random stream the state depends on.
        split_scope: ``transition`` lets an episode mix splits; ``episode`` keeps its first one.
        threads: that torch computes with.
        c51, replay, validation, pacing, exploration, staleness, labels, divergence, promotion,
            risk: see the groups.

    Raises:
        InvalidInput: (any of its classes) naming the field, what was expected and what was given.
    """

    observation: Observation
    actions: int | tuple[Action, ...]
    algorithm: Literal["c51"] = "c51"
    auxiliary: Auxiliary | None = None
    action_masks: bool = False
    action_repeat: int = 1
    seed: int = 0
    split_scope: Literal["transition", "episode"] = "transition"
    threads: int = 1
    c51: C51 = C51()
    replay: Replay = Replay()
    validation: Validation = Validation()
    pacing: Pacing = Pacing()
    exploration: Exploration = Exploration()
    staleness: Staleness = Staleness()
    labels: Labels = Labels()
    divergence: Divergence = Divergence()
    promotion: Promotion = Promotion()
    risk: Risk = Risk()

    def __post_init__(self) -> None:
        for name, kind in _GROUPS.items():
            if not isinstance(getattr(self, name), kind):
                got = type(getattr(self, name)).__name__
                remedy = "ModelSpec.from_dict takes plain dicts"
                raise InvalidType(name, f"a {kind.__name__}", got, remedy)
        if isinstance(self.actions, int):
            require(1 <= self.actions <= 4096, "actions", "1..4096", self.actions)
            named = tuple(Action(label=str(i), value=i) for i in range(self.actions))
            msgspec.structs.force_setattr(self, "actions", named)
        labels = [action.label for action in self.action_set]
        require(1 <= len(labels) <= 4096, "actions", "1..4096 of them", len(labels))
        require(len(set(labels)) == len(labels), "actions", "different labels", labels)
        require(1 <= self.action_repeat <= 1024, "action_repeat", "1..1024", self.action_repeat)
        if self.c51.hidden is None:
            hidden = (512,) if self.observation.is_image else (128, 128)
            resolved = msgspec.structs.replace(self.c51, hidden=hidden)
            msgspec.structs.force_setattr(self, "c51", resolved)
        image, engine = self.observation.is_image, self.c51.engine
        plain = not image or engine != "closed_form"
        require(plain, "c51.engine", "'autograd' for images, which have convolutions", engine)
        if engine is None:
            plain = not image and not self.c51.noisy
            resolved = msgspec.structs.replace(
                self.c51, engine="closed_form" if plain else "autograd"
            )
            msgspec.structs.force_setattr(self, "c51", resolved)
        require(0 <= self.seed < 2**63, "seed", "0..2**63-1", self.seed)
        require(1 <= self.threads <= 1024, "threads", "1..1024", self.threads)
        weights, here = self._weights(), "with these observations, actions and atoms"
        fits, expected = weights <= LARGEST_NETWORK, f"at most {LARGEST_NETWORK} weights {here}"
        require(fits, "c51.hidden", expected, weights)
        o = self.observation
        most = LARGEST_STORE // (2 * o.stored_dtype.itemsize * math.prod(o.stored_shape))
        for name, group in (("replay", self.replay), ("validation", self.validation)):
            expected = f"at most {most} of such observations, which is 1 TiB"
            require(group.capacity <= most, f"{name}.capacity", expected, group.capacity)

    def _weights(self) -> int:
        """Return how many weights the linear layers have; convolutions have few."""
        o, aux, c = self.observation, self.auxiliary, self.c51
        inputs = o.stored_shape[0]
        if o.is_image:  # what three convolutions leave
            height, width = (((side - 8) // 4 - 3) // 2 - 1 for side in image_axes(o.shape)[:2])
            inputs = 64 * height * width
        heads = (len(self.action_set) + c.dueling) * c.atoms
        found = sum(a * b for a, b in pairwise((inputs, *c.layers, heads)))
        # Each noisy weight is two: a mean and a deviation.
        return found * (1 + c.noisy) + (c.layers[-1] * len(aux.classes) if aux else 0)

    @property
    def action_set(self) -> tuple[Action, ...]:
        """The actions, in the order of their indices."""
        assert not isinstance(self.actions, int)  # __post_init__ resolved it
        return self.actions

    @cached_property
    def action_choices(self) -> tuple[ActionChoice, ...]:
        """The actions as choices of them."""
        return tuple(
            ActionChoice(index=i, label=a.label, value=a.value)
            for i, a in enumerate(self.action_set)
        )

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> ModelSpec:
        """Build a spec from its JSON form; ``preset`` names one that the other fields override."""
        if not isinstance(d, Mapping):
            raise InvalidType("spec", "an object", type(d).__name__)
        fields = dict(d)
        if "preset" in fields:
            name = fields.pop("preset")
            fields = _merge(preset_fields(name), fields)
            _check_told(name, fields)
        try:
            return msgspec.convert(fields, cls)
        except msgspec.ValidationError as error:
            raise _describe(error) from None
        except (LookupError, TypeError, ValueError, RecursionError) as error:  # no JSON
            raise InvalidType("spec", "values that JSON has", shown(error, str)) from None

    def to_dict(self) -> dict[str, Any]:
        """Return the resolved spec as JSON-able builtins; `from_dict` restores it."""
        encoded = msgspec.json.decode(msgspec.json.encode(self))
        assert isinstance(encoded, dict)
        return encoded

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> ModelSpec:
        """Return a named spec; keyword arguments override its fields, groups field by field.

        ``ou-note`` is the experiment of the release note: 28 training episodes of 48 steps give
        exactly 344 updates and 31 evaluations. The other ones leave the environment open:
        `for_env` takes them with what it shows, here `observation` and `actions` must be given.

        Raises:
            MissingField: the preset has no observation or actions, and none were given.
        """
        return cls.from_dict({**overrides, "preset": name})

    @classmethod
    def for_env(cls, env: gymnasium.Env[Any, Any], **overrides: Any) -> ModelSpec:
        """Build a spec from an environment's spaces; keyword arguments are further fields.

        The environment is the bare one: with ``observation={"frame_stack": 4}`` or
        ``action_repeat=4``, `jormungandr_wrappers.SpecifiedEnv` makes it what the model sees.
        ``preset="control"`` is what the other fields override; of one that names features and
        actions of its own, such as ``ou-note``, those stay.

        Raises:
            InvalidType: no environment.
            InvalidValue: a space that is not supported, actions that are no Discrete from 0, or a
                preset whose own observation and actions are not the environment's.
        """
        fields = _from_spaces(env)
        given = overrides.pop("observation", {})
        if not isinstance(given, Mapping):
            raise InvalidType("observation", "an object", shown(given))
        own = preset_fields(overrides["preset"]) if "preset" in overrides else {}
        shows = bool(_WHAT & own.get("observation", {}).keys())  # not only how that is treated
        if not shows:
            given = {**fields["observation"], **given}
        taken = {} if "actions" in own else {"actions": fields["actions"]}
        spec = cls.from_dict({**taken, **overrides, "observation": given})
        if shows or "actions" in own:
            _check_shown(overrides["preset"], spec, cls.from_dict(fields))
        return spec

    def mismatches(self, given: Mapping[str, Any]) -> list[str]:
        """Return the paths at which a partial spec differs from this one; absent ones match."""
        if not isinstance(given, Mapping):
            raise InvalidType("spec", "an object", type(given).__name__)
        mine, fields = self.to_dict(), dict(given)
        if "preset" in fields:
            fields = _merge(preset_fields(fields.pop("preset")), fields)
        # What was resolved from other fields is resolved anew, unless it is given too.
        base = {**mine, "c51": {k: v for k, v in mine["c51"].items() if k != "engine"}}
        filled = ModelSpec.from_dict(_merge(base, fields)).to_dict()
        return _differences(fields, filled, mine, "")


#: Any of these says what an observation is.
_WHAT = frozenset({"features", "shape", "space"})

_GROUPS: dict[str, type[Part]] = {
    "observation": Observation,
    "c51": C51,
    "replay": Replay,
    "validation": Validation,
    "pacing": Pacing,
    "exploration": Exploration,
    "staleness": Staleness,
    "labels": Labels,
    "divergence": Divergence,
    "promotion": Promotion,
    "risk": Risk,
}


def _differences(
    given: Mapping[str, Any], filled: Mapping[str, Any], stored: Mapping[str, Any], prefix: str
) -> list[str]:
    paths = []
    for key, value in given.items():
        new, old = filled.get(key), stored.get(key)
        if isinstance(value, Mapping) and isinstance(new, Mapping) and isinstance(old, Mapping):
            paths += _differences(value, new, old, f"{prefix}{key}.")
        elif new != old:
            paths.append(prefix + key)
    return paths


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if not (isinstance(value, Mapping) and isinstance(old, Mapping)):
            merged[key] = value
            continue
        if key == "observation" and _WHAT & value.keys():
            # A new shape must not inherit the old feature names, but how elements are treated.
            old = {name: old[name] for name in ("normalize", "clip") if name in old}
        merged[key] = _merge(old, value)
    return merged


def _check_told(preset: str, fields: Mapping[str, Any]) -> None:
    """Refuse a preset that leaves the environment open when nothing says what it shows."""
    seen = fields.get("observation", {})  # anything but an object is refused where it is read
    shown = not isinstance(seen, Mapping) or bool(_WHAT & seen.keys())
    for name, told in (("observation", shown), ("actions", "actions" in fields)):
        if not told:
            remedy = f"ModelSpec.for_env(env, preset={preset!r}) takes both from an environment"
            raise MissingField(name, f"a value beside preset {preset!r}", "nothing", remedy)


def _check_shown(preset: str, spec: ModelSpec, shown: ModelSpec) -> None:
    """Refuse a preset whose observation or actions are not what an environment has."""
    mine, theirs = ((s.observation.described, len(s.action_set)) for s in (spec, shown))
    if not spec.observation.sees(theirs[0]) or mine[1] != theirs[1]:
        expected = f"one of {theirs[0]} and {theirs[1]} actions, as the environment has"
        got = f"{preset!r}, of {mine[0]} and {mine[1]} actions"
        raise InvalidValue("preset", expected, got)


def _from_spaces(env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    from gymnasium import spaces

    seen, discrete = (
        getattr(env, f"single_{name}", getattr(env, name, None))
        for name in ("observation_space", "action_space")
    )
    if seen is None or discrete is None:  # a name, say, or an environment that is not finished
        remedy = f"gymnasium.make({env if isinstance(env, str) else 'CartPole-v1'!r}) makes one"
        expected = "an environment with an observation_space and an action_space"
        raise InvalidType("env", expected, shown(env), remedy)
    if not isinstance(discrete, spaces.Discrete) or int(discrete.start) != 0:
        raise InvalidValue("action_space", "a Discrete that starts at 0", discrete)
    space = msgspec.to_builtins(from_gymnasium(seen))
    return {"observation": {"space": space}, "actions": int(discrete.n)}


_KINDS: Sequence[tuple[str, type[InvalidInput]]] = (
    (r"Object missing required field `(?P<field>[^`]*)`", MissingField),
    (r"Object contains unknown field `(?P<field>[^`]*)`", UnknownField),
    (r"Expected (?P<expected>.*), got (?P<got>.*)", InvalidType),
    (r"Invalid (enum )?value (?P<got>.*)", InvalidValue),
)


def _describe(error: msgspec.ValidationError) -> InvalidInput:
    """Turn msgspec's message into ours: where, expected, got."""
    text, _, path = str(error).partition(" - at `$")
    path = path.rstrip("`").lstrip(".")
    where = path or "spec"
    for pattern, kind in _KINDS:
        match = re.fullmatch(pattern, text)
        if match is None:
            continue
        found = match.groupdict()
        if "field" in found:
            where = f"{path}.{found['field']}".lstrip(".")
        if kind is MissingField:
            return MissingField(where, "a value", "nothing")
        if kind is UnknownField:
            return UnknownField(where, f"one of {_fields(path)}", "another", "check its spelling")
        expected = found.get("expected") or f"one of {_choices(path)}"
        if expected == "`object`" and (names := _fields(path)):
            expected = f"an object with any of {names}"
        return kind(where, expected.replace("`", ""), found["got"].replace("`", ""))
    return InvalidValue(where, text)


def _choices(path: str) -> list[Any]:
    """Return the values that the field at a path may have."""
    group, _, name = path.rpartition(".")
    kinds = _structs_at(group)
    if name == "type":  # what tells spaces apart
        return [kind.__struct_config__.tag for kind in kinds]
    found: list[Any] = []
    for annotation in _annotations(kinds, name):
        for inner in get_args(annotation):
            if get_origin(inner) is Literal:  # beside another form, in a union
                found += get_args(inner)
            elif get_origin(inner) is tuple:
                found.append(f"a list of {len(get_args(inner))}")
            elif inner is not type(None):
                found.append(inner)
    return found


def _fields(path: str) -> list[str]:
    """Return the names of the fields that the group at a path has, or of all that it may be."""
    return list(dict.fromkeys(n for kind in _structs_at(path) for n in kind.__struct_fields__))


def _structs_at(path: str) -> list[Any]:
    """Return what the group at a path, such as ``observation.space.spaces[...]``, may be."""
    kinds: list[Any] = [ModelSpec]
    for name in re.sub(r"\[[^]]*]", "", path).split(".") if path else ():
        kinds = [kind for found in _annotations(kinds, name) for kind in _structs(found)]
    return kinds


def _annotations(kinds: Sequence[Any], name: str) -> list[Any]:
    """Return the annotations of the field `name`; a name that is a path of its own has none."""
    return [get_type_hints(kind)[name] for kind in kinds if name in kind.__struct_fields__]


def _structs(annotation: Any) -> list[Any]:
    """Return the structs that an annotation names, inside lists and dicts too."""
    if hasattr(annotation, "__struct_fields__"):
        return [annotation]
    return [kind for inner in get_args(annotation) for kind in _structs(inner)]
