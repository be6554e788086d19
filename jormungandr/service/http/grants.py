"""`Grant`: what the bearer of a token may do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias, get_args

from jormungandr.columns import Columns
from jormungandr.errors import Forbidden
from jormungandr.protocol import SPLITS, Split

__all__ = ["NOBODY", "OPERATOR", "SCOPES", "Grant", "Needs", "Scope"]

Scope: TypeAlias = Literal["act", "ingest", "policy", "label", "observe", "operate"]

#: ``act`` asks for actions, ``ingest`` sends transitions, ``policy`` fetches weights, ``label``
#: sends labels, ``observe`` reads figures, ``operate`` creates, deletes, exports.
SCOPES: tuple[Scope, ...] = get_args(Scope)

#: What a route asks for: a scope, ``any`` of them, or nothing at all.
Needs: TypeAlias = Scope | Literal["any"] | None


@dataclass(frozen=True, slots=True)
class Grant:
    """What the bearer of a token may do.

    Args:
        name: of the token, for logs and figures; never the token.
        scopes: what it allows.
        models: patterns (``*`` and ``?``) of the ids it allows this on.
        actor_prefix: with which every actor id it sends begins.
        split: the one split it may send; None is both.
    """

    name: str
    scopes: frozenset[Scope]
    models: tuple[str, ...] = ("*",)
    actor_prefix: str = ""
    split: Split | None = None

    def check(self, needs: Scope | Literal["any"], model_id: str | None = None) -> None:
        """Refuse what is not allowed; `model_id` is None where no model is asked for.

        Raises:
            Forbidden: naming what is missing.
        """
        if needs not in self.scopes and not (needs == "any" and self.scopes):
            raise Forbidden("token", f"one with the scope {needs!r}", sorted(self.scopes))
        if model_id is not None and not self.allows_model(model_id):
            raise Forbidden("token", f"one for models like {list(self.models)}", model_id)

    def check_every_model(self) -> None:
        """Refuse a token that is for some models only.

        Raises:
            Forbidden: it is.
        """
        if "*" not in self.models:
            raise Forbidden("token", "one for every model", list(self.models))

    def allows_model(self, model_id: str) -> bool:
        """Whether it is for this model."""
        return "*" in self.models or any(fnmatchcase(model_id, p) for p in self.models)

    def check_rows(self, columns: Columns) -> None:
        """Refuse transitions of other actors, or of another split.

        Raises:
            Forbidden: naming the first one.
        """
        self.check_actors(columns.actors)
        if self.split is not None and bool((columns.split != SPLITS.index(self.split)).any()):
            raise Forbidden("transitions.split", f"{self.split!r} alone, with this token", "others")

    def check_actors(self, actors: Iterable[str]) -> None:
        """Refuse actor ids that do not begin as they should.

        Raises:
            Forbidden: naming the first one.
        """
        for actor_id in actors:
            if not actor_id.startswith(self.actor_prefix):
                expected = f"ids that begin with {self.actor_prefix!r}, with this token"
                raise Forbidden("actor_id", expected, actor_id)


#: The operator's own token, or a service that asks for none.
OPERATOR = Grant("operator", frozenset(SCOPES))
#: What a request has before anybody has looked at its token.
NOBODY = Grant("nobody", frozenset())
