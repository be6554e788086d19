"""`Outboxes`: which agent's transitions go to which endpoint, and an `Outbox` for each of these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic

from gymnasium import spaces

from jormungandr.errors import InvalidValue
from jormungandr.outbox import Outbox, check_endpoint
from jormungandr.protocol import Endpoint, Receipt, Transition
from jormungandr.spaces import Space
from jormungandr_wrappers.checks import check_spaces
from jormungandr_wrappers.parallel_environment import Agent

__all__ = ["Outboxes"]


class Outboxes(Generic[Agent]):
    """The outboxes of agents, some or all of whom may share one.

    Args:
        endpoints: one for all agents, or one for each by name; there a str stands for another
            entry of the mapping.
        batch_size: transitions to gather for an endpoint before they are sent, at least 1.

    Raises:
        InvalidType: what is no endpoint.
        InvalidValue: another batch size.
    """

    def __init__(
        self, endpoints: Endpoint | Mapping[Agent, Endpoint | str], batch_size: int
    ) -> None:
        self._endpoints, self._batch_size = endpoints, batch_size
        self._by_endpoint: dict[int, Outbox] = {}  # by the endpoint's identity
        self._by_agent: dict[Agent, Outbox] = {}
        #: By the outbox's identity: the spaces of whoever was first, and what to call them.
        self._spaces: dict[int, tuple[tuple[Space, int], str]] = {}
        if not isinstance(endpoints, Mapping):
            self._outbox(endpoints, "endpoints")
            return
        for name, endpoint in endpoints.items():
            if not isinstance(endpoint, str):
                self._outbox(endpoint, f"endpoints[{name!r}]")

    @property
    def all(self) -> tuple[Outbox, ...]:
        """One per endpoint, in the order in which they were given."""
        return tuple(self._by_endpoint.values())

    def admit(self, agent: Agent, observation: spaces.Space[Any], action: spaces.Space[Any]) -> int:
        """Give an agent its outbox, and return how many actions it has.

        Args:
            agent: who.
            observation: the space of what its model observes.
            action: its space.

        Raises:
            InvalidValue: spaces that no transition can hold, or other ones than those of the agents
                it would share a model with; or no endpoint for it.
        """
        described = check_spaces(observation, action, f"({agent!r})")
        outbox = self._find(agent)
        words = f"observations {observation.shape or observation} and {described[1]} actions"
        first, first_words = self._spaces.setdefault(id(outbox), (described, words))
        if first != described:
            raise InvalidValue(
                f"the spaces of {agent!r}",
                f"{first_words}, as others have who share its endpoint",
                words,
                "give it another endpoint",
            )
        self._by_agent[agent] = outbox
        return described[1]

    def groups(self, agents: Iterable[Agent]) -> list[tuple[Endpoint, list[Agent]]]:
        """Return each endpoint that any of these agents has, with those who share it."""
        found: dict[int, tuple[Endpoint, list[Agent]]] = {}
        for agent in agents:
            endpoint = self._by_agent[agent].endpoint
            found.setdefault(id(endpoint), (endpoint, []))[1].append(agent)
        return list(found.values())

    def keep(self, transitions: Mapping[Agent, Transition]) -> None:
        """Take one transition of each of these agents, and send nothing yet."""
        for agent, transition in transitions.items():
            self._by_agent[agent].keep([transition])

    def send_full(self) -> None:
        """Send to every endpoint for which there is a batch.

        Raises:
            JormungandrError: an endpoint's own, after all others were sent theirs.
        """
        self._each(lambda outbox: outbox.put(()))

    def send(self) -> None:
        """Send all there are; an endpoint with a spool takes them without waiting.

        Raises:
            JormungandrError: an endpoint's own, after all others were sent theirs.
        """
        self._each(Outbox.send)

    def flush(self) -> tuple[Receipt, ...]:
        """Send all there are, and return what became of all that was sent, in the order of `all`.

        Raises:
            JormungandrError: an endpoint's own, after all others were sent theirs.
        """
        self._each(Outbox.flush)
        return tuple(outbox.receipt for outbox in self.all)

    def _each(self, send: Callable[[Outbox], object]) -> None:
        """Let every outbox send, whether or not another one fails, and raise the first error."""
        first: Exception | None = None
        for outbox in self.all:
            try:
                send(outbox)
            except Exception as error:
                if first is None:
                    first = error
                else:
                    first.add_note(f"Another endpoint failed too: {error}")
        if first is not None:
            raise first

    def _find(self, agent: Agent) -> Outbox:
        """Return the outbox of an agent's endpoint."""
        if not isinstance(self._endpoints, Mapping):
            return self.all[0]
        entry: Any = agent
        try:
            found = self._endpoints[entry]
            if isinstance(found, str):
                entry = found
                found = self._endpoints[entry]
        except KeyError:
            where = f"endpoints[{entry!r}]"
            raise InvalidValue(where, f"the endpoint of {agent!r}", "nothing") from None
        return self._outbox(found, f"endpoints[{entry!r}]")

    def _outbox(self, endpoint: Endpoint | str, where: str) -> Outbox:
        """Return the outbox of an endpoint, a new one when it is met first."""
        check_endpoint(endpoint, where)
        assert not isinstance(endpoint, str)  # which has no `add`
        if id(endpoint) not in self._by_endpoint:
            self._by_endpoint[id(endpoint)] = Outbox(endpoint, self._batch_size)
        return self._by_endpoint[id(endpoint)]
