"""What a recorder asks about each episode that begins: its split, and its tags."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from jormungandr.episode import check_split
from jormungandr.errors import InvalidType, shown
from jormungandr.protocol import Split

__all__ = ["SplitRule", "TagRule", "check_rules", "info_of", "split_of", "tags_of"]

#: The split of an episode, by the info of its reset; None: it is not recorded, only counted.
SplitRule: TypeAlias = Callable[[Mapping[str, Any]], Split | None]
#: The tags of every episode, or of one, by the info of its reset and its number.
TagRule: TypeAlias = (
    Mapping[str, str] | Callable[[Mapping[str, Any], int], Mapping[str, str] | None]
)


def check_rules(tags: TagRule | None) -> None:
    """Refuse what neither has nor gives tags.

    Raises:
        InvalidType: naming it.
    """
    if tags is not None and not callable(tags) and not isinstance(tags, Mapping):
        raise InvalidType("tags", "a mapping, or a callable that returns one", shown(tags))


def split_of(rule: SplitRule, info: Mapping[str, Any]) -> Split | None:
    """Return the split of an episode that begins with `info`.

    Raises:
        UnknownSplit: the rule names another one.
    """
    found = rule(info)
    return None if found is None else check_split(found)[0]


def tags_of(rule: TagRule | None, info: Mapping[str, Any], number: int) -> Mapping[str, str] | None:
    """Return the tags of episode `number`, which begins with `info`."""
    return rule(info, number) if callable(rule) else rule


def info_of(infos: Mapping[str, Any], i: int) -> dict[str, Any]:
    """Return the info of sub-environment i, of those that Gymnasium batches."""
    found = {}
    for key, value in infos.items():
        present = infos.get(f"_{key}")
        if key.startswith("_") or (present is not None and not present[i]):
            continue
        if isinstance(value, Mapping):
            found[key] = info_of(value, i)
        else:
            found[key] = value[i] if hasattr(value, "__getitem__") else value
    return found
