"""ou_market_v0 in the module form of PettingZoo's own environments, and in its registry.

`parallel_env` steps all traders at once, `env` one after the other (AEC), `raw_env` likewise but
without the wrapper that refuses actions outside the space. All take the arguments of `OUMarketEnv`.

Importing this module registers ``jormungandr/ou_market_v0`` with PettingZoo versions that have a
registry (1.27 and later), for ``pettingzoo.make("parallel" or "aec", "jormungandr/ou_market_v0")``.
"""

from typing import Unpack

# First, because it says what to install where PettingZoo is missing.
from jormungandr_envs.ou_market import OUMarketEnv, OUMarketFields

# isort: split
import pettingzoo  # type: ignore[import-untyped]
from pettingzoo.utils.conversions import parallel_to_aec  # type: ignore[import-untyped]
from pettingzoo.utils.wrappers import (  # type: ignore[import-untyped]
    AssertOutOfBoundsWrapper,
    OrderEnforcingWrapper,
)

__all__ = ["env", "parallel_env", "raw_env", "register"]

parallel_env = OUMarketEnv


def env(**parameters: Unpack[OUMarketFields]) -> pettingzoo.AECEnv:
    """Return the market stepped trader by trader, with PettingZoo's usual checks."""
    return OrderEnforcingWrapper(AssertOutOfBoundsWrapper(raw_env(**parameters)))


def raw_env(**parameters: Unpack[OUMarketFields]) -> pettingzoo.AECEnv:
    """Return the market stepped trader by trader; the spread moves with the last one's action."""
    return parallel_to_aec(parallel_env(**parameters))


def register() -> None:
    """Register the market unless it is registered already; PettingZoo warns at a second time."""
    if not hasattr(pettingzoo, "register"):
        return
    for kind, registry in (
        ("parallel", pettingzoo.parallel_registry),
        ("aec", pettingzoo.aec_registry),
    ):
        if "jormungandr/ou_market-v0" not in registry:  # as PettingZoo writes the id it is given
            maker = "parallel_env" if kind == "parallel" else "env"
            pettingzoo.register(kind, "jormungandr/ou_market_v0", entry_point=f"{__name__}:{maker}")


register()
