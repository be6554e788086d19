"""TorchRL's C51, written after its documentation: updates, and one action.

Replay is uniform: its prioritized sampler is in an extension that its wheel has for one version of
torch only, and not for the one that the others want.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.modules import MLP, DistributionalQValueActor
from torchrl.objectives import DistributionalDQNLoss, HardUpdate

from benchmarks.speed.peer.data import experience

torch.set_num_threads(1)


def update(
    *, size: int, actions: int, layers: list[int], atoms: int, batch: int, capacity: int
) -> Callable[[int], object]:
    """Return updates: sample, loss, clipping, step."""
    loss = DistributionalDQNLoss(_actor(size, actions, layers, atoms), gamma=0.99)
    target = HardUpdate(loss, value_network_update_interval=200)
    parameters = [p for p in loss.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=5e-4, fused=True)
    buffer = _filled(size, actions, batch, capacity)

    def call(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad(set_to_none=True)
            loss(buffer.sample())["loss"].backward()
            nn.utils.clip_grad_norm_(parameters, 10.0)
            optimizer.step()
            target.step()

    return call


def act(*, size: int, actions: int, layers: list[int], atoms: int) -> Callable[[int], object]:
    """Return the actor's forward of one observation."""
    actor = _actor(size, actions, layers, atoms)
    seen = torch.from_numpy(experience(64, size, actions)["observation"])

    def call(count: int) -> None:
        with torch.no_grad():
            for i in range(count):
                actor(TensorDict({"observation": seen[i % 64]}))

    return call


def _actor(size: int, actions: int, layers: list[int], atoms: int) -> DistributionalQValueActor:
    net = MLP(size, (atoms, actions), num_cells=list(layers), activation_class=nn.ReLU)
    return DistributionalQValueActor(
        net,
        in_keys=["observation"],
        support=torch.linspace(-10, 10, atoms),
        action_space="categorical",
    )


def _filled(size: int, actions: int, batch: int, capacity: int) -> TensorDictReplayBuffer:
    held = {name: torch.from_numpy(a) for name, a in experience(capacity, size, actions).items()}
    done = held["terminated"][:, None]
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(capacity),
        batch_size=batch,
    )
    moved = {
        "observation": held["next_observation"],
        "reward": held["reward"][:, None],
        "done": done,
        "terminated": done.clone(),
    }
    first = {"observation": held["observation"], "action": held["action"]}
    buffer.extend(TensorDict({**first, "next": moved}, batch_size=[capacity]))
    return buffer
