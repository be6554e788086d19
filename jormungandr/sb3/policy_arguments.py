"""What `policy` and `policy_kwargs` of `C51` may be: refused in words, not by a TypeError later."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Set
from typing import Any

from jormungandr.errors import InvalidValue
from jormungandr.sb3.policies import C51Policy

__all__ = ["check_policy"]

#: What Stable-Baselines3 itself hands to a policy, beside `policy_kwargs`.
HANDED = {"self", "observation_space", "action_space", "lr_schedule"}


def check_policy(kind: type[Any], arguments: Iterable[str], own: Set[str]) -> None:
    """Refuse a policy that has no categorical head, and arguments that it does not take.

    Args:
        kind: the class of the policy.
        arguments: names of the caller's `policy_kwargs`.
        own: names of those that are arguments of `C51` itself.

    Raises:
        InvalidValue: saying which there are.
    """
    if not issubclass(kind, C51Policy):
        raise InvalidValue(
            "policy",
            "MlpPolicy, CnnPolicy, MultiInputPolicy, or a class derived from C51Policy",
            f"{kind.__module__}.{kind.__qualname__}",
            "a .zip of another algorithm is loaded with the class that saved it, such as"
            " stable_baselines3.DQN.load",
        )
    parameters = inspect.signature(kind).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return  # a class of the caller's own, which looks at them itself
    known = [name for name in parameters if name not in HANDED and name not in own]
    for name in arguments:
        if name not in parameters and name not in own:
            near = difflib.get_close_matches(name, known, n=1)
            remedy = f"did you mean {near[0]!r}?" if near else ""
            raise InvalidValue("policy_kwargs", f"any of {known}", repr(name), remedy)
