"""The document: docs/benchmarks.md with its plots, from the runs and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.learning.contenders import CONTENDERS, seeds_of
from benchmarks.learning.curves import Series, plot
from benchmarks.learning.prose import ABOUT, EMPTY, SOLVING, WINNING
from benchmarks.learning.runs import Run
from benchmarks.learning.scores import Group, groups, interval
from benchmarks.learning.targets import TARGETS
from benchmarks.learning.tasks import TASKS, Task
from benchmarks.tables import rows
from jormungandr.numerics.improvement import improvement_of_runs

__all__ = ["brief", "document"]

#: Ours warm and drawn last, so on top; a family has a hue, its better settings the darker one.
COLOURS = {
    "SB3 PPO": "#c9b8dd",
    "SB3 PPO, RL Zoo": "#7e57a8",
    "QR-DQN": "#a9d8a4",
    "QR-DQN, RL Zoo": "#3c8d3f",
    "QR-DQN, tuned": "#3c8d3f",
    "SB3 DQN": "#9cc7e8",
    "SB3 DQN, RL Zoo": "#2272b2",
    "SB3 DQN, tuned": "#2272b2",
    "ours": "#f2a33c",
    "ours, preset, labels": "#7d1d3f",
    "ours, preset": "#d1342f",
}


def document(runs: Sequence[Run]) -> dict[str, str]:
    """Return the files of the document by their path under docs/."""
    found = groups(runs)
    files, parts = {}, [ABOUT]
    if not found:
        return {"benchmarks.md": "\n".join([ABOUT, EMPTY])}
    parts += ["## Targets\n", _targets(found)]
    for name, task in TASKS.items():
        mine = _of(found, name)
        if not mine:
            continue
        parts.append(f"## {name}: {task.env_id}, {task.steps:,} steps\n")
        if len(next(iter(mine.values())).steps) > 1:
            files[f"plots/{name}.svg"] = _plot(name, task, mine)
            parts.append(f"![Learning curves on {task.env_id}](plots/{name}.svg)\n")
        parts.append(_marks(task, mine))
        if task.solved is not None:
            parts += [SOLVING.format(solved=task.solved), _solving(task, mine)]
        if wins := _wins(task, mine):
            parts += [WINNING, wins]
    parts += ["## Settings\n", _settings(found), "## What computed\n", _versions(runs, found)]
    return {"benchmarks.md": "\n".join(parts), **files}


def brief(runs: Sequence[Run]) -> str:
    """Return the tables of the marks alone, for a terminal."""
    found = groups(runs)
    tables = [
        f"{name}\n\n{_marks(task, mine)}"
        for name, task in TASKS.items()
        if (mine := _of(found, name))
    ]
    return "\n".join(tables) or "no runs"


def _of(found: dict[tuple[str, str], Group], name: str) -> dict[str, Group]:
    """Return the groups of a task, in the order of the contenders."""
    return {who: found[name, who] for who in CONTENDERS if (name, who) in found}


def _targets(found: dict[tuple[str, str], Group]) -> str:
    body = []
    for target in TARGETS:
        others = _of(found, target.task)
        cells = [
            f"{target.judge(others[who], others)}{_so_far(who, target.task, others[who])}"
            if who in others
            else "no runs yet"
            for who in ("ours, preset, labels", "ours, preset", "ours")
        ]
        body.append([target.task, target.level, target.text, *cells])
    return rows(["task", "", "target", "preset, labels", "preset", "default"], body)


def _so_far(who: str, name: str, group: Group) -> str:
    """Return what to say of a verdict on fewer seeds than there are to be."""
    have, wanted = len(group.runs), seeds_of(CONTENDERS[who], TASKS[name])
    return f" ({have} of {wanted} seeds so far)" if have < wanted else ""


def _marks(task: Task, mine: dict[str, Group]) -> str:
    body = []
    for mark in task.marks:
        for who, group in mine.items():
            scores, found = group.at(mark), interval(group.at(mark))
            wall, cpu = (
                np.median([run.seconds[kind] for run in group.runs])
                for kind in ("training", "training_cpu")
            )
            updates = np.median([run.noted["updates"] for run in group.runs])
            body.append(
                [
                    f"{mark:,}",
                    who,
                    _with(found.estimate, found.low, found.high, len(scores)),
                    _number(scores.mean()),
                    _number(scores.min()),
                    f"{updates:,.0f}",
                    f"{wall:.0f} ({cpu:.0f})",
                    f"{len(scores)}",
                ]
            )
    head = [
        "steps",
        "contender",
        "IQM [95 %]",
        "mean",
        "worst seed",
        "updates of the run",
        "s (CPU s) of the run",
        "seeds",
    ]
    return rows(head, body)


def _solving(task: Task, mine: dict[str, Group]) -> str:
    assert task.solved is not None
    body = []
    for who, group in mine.items():
        firsts = [at for at in group.first(task.solved) if at is not None]
        later = [row for row in group.after(task.solved) if len(row)]
        cells = [f"{len(firsts)} of {len(group.runs)}"]
        if firsts:
            spread = f"{np.median(firsts):,.0f} [{min(firsts):,}, {max(firsts):,}]"
            cells += [spread, _number(min(row.min() for row in later)) if later else "–"]
        else:
            cells += ["–", "–"]
        if task.collapsed is not None:
            total = sum(len(row) for row in later)
            under = sum(int((row < task.collapsed).sum()) for row in later)
            cells.append(f"{under} of {total}" if total else "–")
        body.append([who, *cells])
    head = ["contender", "solved", "first at: median [range]", "worst evaluation after"]
    return rows(
        [*head, *([f"under {task.collapsed:g}"] if task.collapsed is not None else [])], body
    )


def _wins(task: Task, mine: dict[str, Group]) -> str:
    body = []
    for who in (name for name in mine if name.startswith("ours")):
        for other in (name for name in mine if not name.startswith("ours")):
            cells = []
            for mark in task.marks:
                found = improvement_of_runs(mine[who].at(mark), mine[other].at(mark))
                cells.append(f"{found.estimate:.2f} [{found.low:.2f}, {found.high:.2f}]")
            body.append([who, other, *cells])
    return rows(["", "over", *(f"at {mark:,}" for mark in task.marks)], body) if body else ""


def _plot(name: str, task: Task, mine: dict[str, Group]) -> str:
    lines = []
    for who, colour in COLOURS.items():
        if who in mine:
            group = mine[who]
            label = f"{who} ({len(group.runs)})"
            lines.append(Series(label, colour, group.steps, *group.curve()))
    what = "gap closed" if task.env_id == "OUSpread-v0" else "return"
    title = f"{task.env_id}: {what}, IQM over seeds with 95 % band"
    return plot(title, lines, task.view, task.solved)


def _settings(found: dict[tuple[str, str], Group]) -> str:
    body = []
    for name in TASKS:
        for who, group in _of(found, name).items():
            run = group.runs[-1]
            asked = ", ".join(f"{key}={_plain(value)}" for key, value in run.changes.items())
            body.append([name, who, f"`{run.fingerprint}`", f"`{asked}`" if asked else "defaults"])
    return rows(["task", "contender", "fingerprint", "what differs from its defaults"], body)


def _plain(value: object) -> str:
    return str(value).replace("'", "").replace("|", "/")


def _versions(runs: Sequence[Run], found: dict[tuple[str, str], Group]) -> str:
    shown = [run for group in found.values() for run in group.runs]
    names = dict.fromkeys(name for run in shown for name in run.versions)
    body = [
        [name, ", ".join(sorted({run.versions[name] for run in shown if name in run.versions}))]
        for name in names
    ]
    machines = sorted(
        {f"{run.machine['cores']} cores ({run.machine['kind']})" for run in shown if run.machine}
    )
    jobs = sorted({run.machine["jobs"] for run in shown if run.machine})
    body.append(["machine", "; ".join(machines)])
    body.append(["runs at a time", ", ".join(map(str, jobs))])
    body.append(["runs shown", f"{len(shown)}"])
    body.append(["runs with earlier settings, not shown", f"{len(runs) - len(shown)}"])
    hours = sum(_cpu(run.seconds) for run in shown) / 3600
    body.append(["core-hours of those shown", f"{hours:.1f}"])
    return rows(["", ""], body)


def _cpu(seconds: dict[str, float]) -> float:
    return seconds["training_cpu"] + seconds["evaluating_cpu"]


def _with(middle: float, low: float, high: float, seeds: int) -> str:
    if seeds < 2:
        return _number(middle)
    return f"{_number(middle)} [{_number(low)}, {_number(high)}]"


def _number(value: float) -> str:
    """Return a score for a table: gaps with two decimals, returns with one."""
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"
