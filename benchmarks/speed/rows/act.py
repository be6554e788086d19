"""One action in this process: one observation in, one greedy action out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.speed.kit import Kit
from benchmarks.speed.peer.data import experience
from benchmarks.speed.rows.models import learner, specification
from benchmarks.speed.timing import Case, Contender, Kind, looped, timed
from jormungandr import Learner, PolicySnapshot

__all__ = ["act", "forward"]

SIZE, ACTIONS, LAYERS, ATOMS = 4, 3, (64, 64), 51


def act(kit: Kit) -> Iterator[Case]:
    """Yield it."""
    model = learner(1_000, specification(SIZE, ACTIONS, LAYERS))
    model.update(10)
    given = {"size": SIZE, "actions": ACTIONS, "layers": LAYERS}
    wanted: list[tuple[str, Kind, str, dict[str, Any], str]] = [
        ("SB3 DQN", "peer", "sb3_act", given, "`DQN.predict`, one number for an action"),
        ("TorchRL", "peer", "torchrl_act", {**given, "atoms": ATOMS}, "its C51 actor's forward"),
        ("Tianshou", "peer", "tianshou_act", {**given, "atoms": ATOMS}, "its C51 policy's forward"),
    ]
    with kit.peers.contenders("µs", kit.seconds, wanted) as (others, absent):
        mine, lacks = _ours(kit, model)
        yield Case(
            "act",
            f"one action in process, {SIZE}-64-64-{ACTIONS}×{ATOMS}",
            "µs",
            [*mine, *others],
            {**absent, **lacks},
        )


def forward(policy: PolicySnapshot) -> Callable[[Any], Any]:
    """Return a limit: a policy's greedy actions (B,) of (B, D), in NumPy and without a check."""
    hidden = [
        (policy.weights[f"hidden.{i}.weight"].T.copy(), policy.weights[f"hidden.{i}.bias"])
        for i in range(len(LAYERS))
    ]
    weight, bias = policy.weights["value.weight"].T.copy(), policy.weights["value.bias"]
    mean = policy.mean.astype(np.float32)
    scale = (1 / np.sqrt(policy.var + 1e-8)).astype(np.float32)
    support = policy.support.astype(np.float32)

    def greedy(x: Any) -> Any:
        x = (x - mean) * scale
        for w, b in hidden:
            x = x @ w
            x += b
            np.maximum(x, 0, out=x)
        p = np.exp((x @ weight + bias).reshape(-1, ACTIONS, ATOMS))
        return ((p @ support) / p.sum(axis=-1)).argmax(axis=-1)

    return greedy


def _ours(kit: Kit, model: Learner) -> tuple[list[Contender], dict[str, str]]:
    seen = experience(64, SIZE, ACTIONS)["observation"]
    policy, rng = model.snapshot(), np.random.default_rng(0)
    greedy = forward(policy)

    def learners(count: int) -> None:
        for i in range(count):
            model.act(seen[i % 64], deterministic=True)

    def snapshots(count: int) -> None:
        for i in range(count):
            policy.act(seen[i % 64], rng, deterministic=True)

    def bare(count: int) -> None:
        for i in range(count):
            greedy(seen[i % 64])

    made: list[tuple[str, Kind, Callable[[int], object], str]] = [
        ("ours", "ours", learners, "`Learner.act`: checked; the action, its value and probability"),
        ("ours, a snapshot", "ours", snapshots, "`PolicySnapshot.act`, which an actor has"),
        ("limit: NumPy", "limit", bare, "normalising, three products, the expectation, argmax"),
    ]
    found = [looped(n, k, "µs", timed(f), kit.seconds, a) for n, k, f, a in made]
    name = "limit: onnxruntime"
    try:
        run = _onnx(kit, model, seen)
    except ImportError as error:
        return found, {name: f"not installed: {error.name}"}
    about = "our export to ONNX, one thread"
    return [*found, looped(name, "limit", "µs", timed(run), kit.seconds, about)], {}


def _onnx(kit: Kit, model: Learner, seen: Any) -> Callable[[int], object]:
    import onnxruntime

    folder = kit.room("onnx")
    model.export(folder, "onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    path = next(folder.glob("*.onnx"))
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def call(count: int) -> None:
        for i in range(count):
            session.run(None, {name: seen[i % 64 : i % 64 + 1]})

    return call
