"""Columns ⇄ MessagePack: the bulk form of `experience/add`, as docs/protocol.md defines it.

A body is a map of names to raw little-endian columns, so that reading it costs a few checks of
whole arrays and no object per transition. What it holds passes `columns()` like everything else: a
fault has the same class and place as in JSON. B is the number of transitions.
"""

from __future__ import annotations

from math import prod
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
import numpy as np
from msgspec import Meta, Raw
from msgspec.msgpack import Decoder
from numpy.typing import NDArray

from jormungandr.columns import ARRAYS, Columns, columns
from jormungandr.columns.masks import check_given
from jormungandr.errors import (
    BodyTooLarge,
    DtypeMismatch,
    InvalidType,
    InvalidValue,
    Malformed,
    MissingField,
    ModelConflict,
    ShapeMismatch,
    TooDeep,
    UnknownField,
    shown,
)
from jormungandr.protocol import LIMITS
from jormungandr.settings import Observation
from jormungandr.spaces import Box
from jormungandr.spec import ModelSpec

__all__ = ["FORMAT", "pack", "unpack"]

FORMAT = 1

#: Columns that may be left out, and what each transition has then.
DEFAULTS: dict[str, Any] = {"behavior_prob": np.nan, "label": -1}
HEAD = ("format", "count", "dtype", "shape", "actors", "episodes")
REQUIRED = (*HEAD, *(name for name in ARRAYS if name not in (*DEFAULTS, "next_action_mask")))
#: Optional, and both or neither: the distinct tags, and a column of codes into them.
TAGS, TAG = "tags", "tag"
KNOWN = frozenset((*REQUIRED, *DEFAULTS, "next_action_mask", TAGS, TAG, "generation"))

#: What an observation may travel as. Narrower and wider than what is stored is taken, and cast.
DTYPES = {name: np.dtype(name).newbyteorder("<") for name in ("float32", "float64", "uint8")}

#: Fields of a map that are looked at; beyond those it has, to name the unknown ones.
MOST_FIELDS = 64
#: Decoding stops where a limit is passed, before there are objects of what follows.
_FIELDS = Decoder(Annotated[dict[str, Raw], Meta(max_length=MOST_FIELDS)])
_IDS = Decoder(Annotated[list[str], Meta(max_length=LIMITS["transitions_per_request"])])
_TAGS = Decoder(Annotated[list[Raw], Meta(max_length=LIMITS["transitions_per_request"])])
_ONE = Decoder(Annotated[dict[str, str], Meta(max_length=MOST_FIELDS)])
_SHAPE = Decoder(Annotated[list[int], Meta(max_length=8)])
_BYTES, _TEXT, _INTEGER = Decoder(memoryview), Decoder(str), Decoder(int)
_NULL = Raw(b"\xc0")

Fields: TypeAlias = dict[str, Raw]
T = TypeVar("T")


def pack(given: Columns, generation: int | None = None) -> bytes:
    """Return transitions as the body of a request.

    Args:
        given: checked columns, of `columns()`.
        generation: of the model that they were made for; the service refuses those of another.

    Raises:
        BodyTooLarge: more transitions, or more bytes, than a request may have.
    """
    most, count = LIMITS["transitions_per_request"], len(given)
    if count > most:
        raise BodyTooLarge("transitions", f"at most {most}", count, "send fewer at a time")
    limit = LIMITS["columns_body_bytes"]
    least = given.observation.nbytes + given.next_observation.nbytes
    if least > limit:  # before it is copied
        raise BodyTooLarge("body", f"at most {limit} bytes", least, "send fewer rows")
    observation = given.observation
    body: dict[str, Any] = {"format": FORMAT, "count": count}
    if generation is not None:
        body["generation"] = generation
    body["dtype"], body["shape"] = observation.dtype.name, observation.shape[1:]
    body["actors"], body["episodes"] = given.actors, given.episodes
    own = {"observation": observation.dtype, "next_observation": observation.dtype}
    for name, dtype in {**ARRAYS, **own}.items():
        array = getattr(given, name)
        if not _says_nothing(name, array):
            body[name] = array.astype(dtype.newbyteorder("<"), copy=False).tobytes()
    if given.tag is not None and given.tagged.size:
        body[TAGS] = [dict(tags) for tags in given.tags]
        body[TAG] = given.tag.astype("<i4", copy=False).tobytes()
    data = msgspec.msgpack.encode(body)
    if len(data) > limit:
        raise BodyTooLarge("body", f"at most {limit} bytes", len(data), "send fewer rows")
    return data


def _says_nothing(name: str, array: NDArray[Any]) -> bool:
    """Whether a column holds what its absence means."""
    if name == "next_action_mask":
        return array.shape[1:] == (0,)
    if name == "behavior_prob":
        return bool(np.isnan(array).all())
    return name == "label" and not np.any(array != DEFAULTS[name])


def unpack(body: bytes, spec: ModelSpec, generation: int | None = None) -> Columns:
    """Return the transitions in the body of a request as checked columns.

    Arrays are views of the body where its alignment allows, else copies.

    Args:
        body: the bytes.
        spec: of the model.
        generation: of the model; None takes what was made for any.

    Raises:
        Malformed: it is no MessagePack map of names.
        BodyTooLarge: more transitions than a request may have.
        ModelConflict: made for another generation of the model.
        InvalidInput: (one of its classes) for the first fault found.
    """
    fields = _fields(body)
    _check_format(fields)
    made_for = _integer(fields, "generation") if "generation" in fields else generation
    if generation is not None and made_for != generation:
        remedy = "the model was created again; read its specification"
        raise ModelConflict("generation", str(generation), made_for, remedy)
    count, most = _integer(fields, "count"), LIMITS["transitions_per_request"]
    if count < 0:
        raise InvalidValue("count", f"0..{most}", count)
    if count > most:
        raise BodyTooLarge("transitions", f"at most {most}", count, "send fewer at a time")
    dtype = _dtype(fields, spec.observation)
    arrays: dict[str, NDArray[Any]] = {}
    stored = (count, *spec.observation.stored_shape)
    for name, own in ARRAYS.items():
        if name.endswith("observation"):
            arrays[name] = _array(fields, name, dtype, stored)
        elif name == "next_action_mask":
            arrays[name] = _mask(fields, spec, count)
        elif name in fields:
            arrays[name] = _array(fields, name, own, (count,))
        else:
            arrays[name] = np.full(count, DEFAULTS[name], own)
    ids = {name: _decoded(fields, name, _IDS, "a list of ids") for name in ("actors", "episodes")}
    for name, known in ids.items():
        if len(known) > count:
            raise InvalidValue(f"transitions.{name}", f"at most {count}", f"{len(known)} ids")
    tags, tag = _tags(fields, count)
    found = Columns(
        actors=tuple(ids["actors"]), episodes=tuple(ids["episodes"]), **arrays, tags=tags, tag=tag
    )
    return columns(found, spec)


def _fields(body: bytes) -> Fields:
    """Return the values of a map by their names, none of them decoded yet; null is absent."""
    try:
        found = _FIELDS.decode(body)
    except RecursionError:
        raise TooDeep("body", "a map of columns", "one nested deeply") from None
    except msgspec.DecodeError as error:
        expected = f"a MessagePack map of at most {MOST_FIELDS} fields"
        raise Malformed("body", expected, error) from None
    if len(found) != _declared(body):
        raise Malformed("body", "each name once", "one of them twice")
    for name in found:
        if name not in KNOWN:
            expected = "only known fields"
            raise UnknownField(f"transitions.{shown(name, str)}", expected, name, "see `format`")
    fields = {name: value for name, value in found.items() if value != _NULL}
    for name in REQUIRED:
        if name not in fields:
            got = "null" if name in found else "nothing"
            raise MissingField(_place(name), "a value", got)
    return fields


def _declared(body: bytes) -> int:
    """Return how many fields a map says that it has."""
    wide = {0xDE: 2, 0xDF: 4}.get(body[0], 0)
    return int.from_bytes(body[1 : 1 + wide], "big") if wide else body[0] & 0x0F


def _place(name: str) -> str:
    mine = name in ARRAYS or name in ("actors", "episodes", TAGS, TAG)
    return f"transitions.{name}" if mine else name


def _decoded(fields: Fields, name: str, decoder: Decoder[T], expected: str) -> T:
    """Return a field's value, of the decoder's type."""
    try:
        return decoder.decode(fields[name])
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidType(_place(name), expected, error) from None


def _integer(fields: Fields, name: str) -> int:
    return _decoded(fields, name, _INTEGER, "an integer")


def _check_format(fields: Fields) -> None:
    version = _integer(fields, "format")
    if version != FORMAT:
        raise InvalidValue("format", str(FORMAT), version, "see docs/protocol.md of the service")


def _dtype(fields: Fields, o: Observation) -> np.dtype[Any]:
    """Return what the observations travel as; their shape is the stored one, or that of a Box."""
    given = _decoded(fields, "shape", _SHAPE, "a list of integers")
    shape = tuple(given)
    natural = o.shown_shape if isinstance(o.described, Box) else o.stored_shape
    if shape not in (o.stored_shape, natural):
        raise ShapeMismatch("shape", str(list(o.stored_shape)), list(shape))
    name = _decoded(fields, "dtype", _TEXT, "the name of a dtype")
    known = ("uint8",) if o.is_image else tuple(DTYPES)
    if name not in known:
        raise DtypeMismatch("dtype", f"one of {list(known)}", shown(name))
    return DTYPES[name]


def _array(fields: Fields, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return a column; one of booleans holds bytes of 0 and 1."""
    data = _decoded(fields, name, _BYTES, "raw bytes")
    size = prod(shape) * dtype.itemsize
    if data.nbytes != size:
        expected = f"{size} bytes, of {dtype.name} {shape}"
        raise ShapeMismatch(f"transitions.{name}", expected, f"{data.nbytes} bytes")
    if dtype != np.bool_:
        array = np.frombuffer(data, dtype).reshape(shape)
        # Floats are copied in any case, where they are checked.
        return array if array.flags.aligned or dtype.kind == "f" else array.copy()
    bytes_ = np.frombuffer(data, np.uint8)
    if size and bytes_.max() > 1:
        at = int(np.argmax(bytes_ > 1))
        where = f"transitions[{at // (size // shape[0])}].{name}"
        raise InvalidType(where, "a byte of 0 or 1", int(bytes_[at]))
    return bytes_.view(np.bool_).reshape(shape)


def _tags(fields: Fields, count: int) -> tuple[Any, NDArray[np.int32] | None]:
    """Return the distinct tags, for the door to check, and the codes into them."""
    found = [] if TAGS not in fields else _maps(fields, count)
    tag = None if TAG not in fields else _array(fields, TAG, np.dtype("<i4"), (count,))
    for name, other in ((TAGS, TAG), (TAG, TAGS)):
        if name in fields and other not in fields:
            raise MissingField(f"transitions.{other}", "a value", "nothing")
    return found, tag


def _maps(fields: Fields, count: int) -> list[dict[str, str]]:
    """Return the distinct tags; each has a key once."""
    given = _decoded(fields, TAGS, _TAGS, "a list of maps")
    if len(given) > count:
        raise InvalidValue(f"transitions.{TAGS}", f"at most {count}", f"{len(given)} of them")
    found = []
    for one in given:
        tags = _decoded({TAGS: one}, TAGS, _ONE, "maps of strings")
        if len(tags) != _declared(bytes(one)):
            raise Malformed("body", "each tag once", "one of them twice")
        found.append(tags)
    return found


def _mask(fields: Fields, spec: ModelSpec, count: int) -> NDArray[Any]:
    """Return the masks of the successors, (B, A), or (B, 0) of a model without."""
    name = "next_action_mask"
    check_given(fields.get(name), spec, _place(name))
    if not spec.action_masks:
        return np.zeros((count, 0), np.bool_)
    return _array(fields, name, ARRAYS[name], (count, len(spec.action_set)))
