"""The document: the generated parts of docs/performance.md, its plots, and words for a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from benchmarks.learning.curves import Axis, Series, plot
from benchmarks.speed.curves import CURVES, Curve
from benchmarks.speed.overview import overview, relative
from benchmarks.speed.results import Result, known, newest
from benchmarks.speed.targets import TARGETS, Verdict, judged, number
from benchmarks.speed.timing import Measured, ratio, spread
from benchmarks.tables import rows

__all__ = ["PAGE", "document", "plots", "told", "write"]

PAGE = "performance.md"
BLOCK = re.compile(r"(<!-- speed: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
COLOURS = ("#d1342f", "#2272b2", "#3c8d3f", "#7e57a8", "#f2a33c", "#7d1d3f")
MARKS = {True: "met", False: "**missed**", None: "–"}


def write(results: Path, docs: Path) -> None:
    """Put what a file of results says into the document, and draw its plots."""
    found = newest(known(results))
    path = docs / PAGE
    path.write_text(document(path.read_text("utf-8"), found), encoding="utf-8")
    for name, text in plots(found).items():
        (docs / name).parent.mkdir(parents=True, exist_ok=True)
        (docs / name).write_text(text, encoding="utf-8")
    print(f"wrote {path}")


def document(text: str, found: Mapping[str, Result]) -> str:
    """Return the document with what lies between its marks made anew.

    Args:
        text: with blocks ``<!-- speed: NAME --> … <!-- end -->``: of a case, or ``targets``,
            ``overview`` or ``machine``.
        found: the newest result of each case.
    """

    def block(match: re.Match[str]) -> str:
        begin, name, end = match.groups()
        if name == "targets":
            made = _targets(found)
        elif name == "overview":
            there = "![Speed beside ours](plots/speed/overview.svg)\n"
            made = there if _beside(found) else "Not measured yet.\n"
        elif name == "machine":
            made = _machine(found.values())
        else:
            made = _case(found[name]) if name in found else "Not measured yet.\n"
        return f"{begin}\n{made}\n{end}"

    return BLOCK.sub(block, text)


def plots(found: Mapping[str, Result]) -> dict[str, str]:
    """Return the overview, and the plots of cases with an axis, by their path under docs/."""
    drawn = {
        f"plots/speed/{name}.svg": _plot(found[name], curve)
        for name, curve in CURVES.items()
        if name in found and _along(found[name])
    }
    if beside := _beside(found):
        drawn["plots/speed/overview.svg"] = overview(beside)
    return drawn


def _beside(found: Mapping[str, Result]) -> list[Result]:
    """Return the results that have others beside ours, in the order of the targets."""
    order = dict.fromkeys(target.case for target in TARGETS)
    return [found[name] for name in order if name in found and relative(found[name])]


def told(result: Result) -> str:
    """Return a case for a terminal."""
    lines = [f"\n{result.case}: {result.title}, {result.unit}"]
    mine = result.of("ours")
    for one in result.measured:
        name = one.name if one.x is None else f"{one.name} at {one.x:g}"
        line = f"  {name:<42}{_figure(one):<36}"
        if mine is not None and one.kind != "ours" and one.x is None:
            line += f"ours is {ratio(mine, one).median:.2f} × that"
        lines.append(line.rstrip())
        if one.kind == "limit":
            lines.append(f"    made of: {one.about}")
    lines += [f"  {name:<42}absent: {why}" for name, why in result.absent.items()]
    lines += [f"  {key}: {value}" for key, value in result.noted.items()]
    words = {True: "ok  ", False: "MISS", None: "?   "}
    for target, verdict in judged(result):
        lines.append(f"  {words[verdict.met]} {target.text(result.unit)}: {verdict.text}")
    return "\n".join(lines)


def _targets(found: Mapping[str, Result]) -> str:
    body = []
    for target in TARGETS:
        result = found.get(target.case)
        if result is None:
            body.append([target.case, target.text(""), "not measured", MARKS[None]])
            continue
        verdict: Verdict = target.judge(result)
        words = [result.title, target.text(result.unit), verdict.text, MARKS[verdict.met]]
        body.append(words)
    return rows(["what", "target", "measured [least, most]", ""], body)


def _case(result: Result) -> str:
    if _along(result):
        made = _curve_table(result)
        made += f"\n![{result.title}](plots/speed/{result.case}.svg)\n"
    else:
        made = _table(result)
    for name, why in result.absent.items():
        made += f"\nNot measured: {name}: {why}.\n"
    if result.noted:
        words = "; ".join(f"{key} {value}" for key, value in result.noted.items())
        made += f"\nBeside it: {words}.\n"
    return made


def _table(result: Result) -> str:
    mine = result.of("ours")
    body = []
    for one in result.measured:
        against = ""
        if mine is not None and one is not mine:
            found = ratio(mine, one)
            against = f"{found.median:.2f} [{found.low:.2f}, {found.high:.2f}]"
        body.append([one.name, _figure(one), against, one.about])
    heads = [result.title, f"{result.unit}, median [least, most]", "ours / it", "what it does"]
    if mine is None:
        return rows([heads[0], heads[1], heads[3]], [[a, b, d] for a, b, _, d in body])
    return rows(heads, body)


def _curve_table(result: Result) -> str:
    lines = _lines(result)
    places = sorted({one.x for one in result.measured if one.x is not None})
    body = []
    for name, line in lines.items():
        at = {one.x: number(spread(one.values).median) for one in line}
        body.append([name, *(at.get(x, "–") for x in places)])
    curve = CURVES[result.case]
    return rows([f"{result.unit}, by {curve.across}", *(f"{x:,.0f}" for x in places)], body)


def _plot(result: Result, curve: Curve) -> str:
    drawn, lines = [], _lines(result)
    for (name, line), colour in zip(lines.items(), COLOURS, strict=False):
        found = [spread(one.values) for one in line]
        middle, low, high = (
            np.array([getattr(one, part) for one in found]) for part in ("median", "low", "high")
        )
        drawn.append(Series(name, colour, [float(one.x or 0) for one in line], middle, low, high))
    most = max(float(line.high.max()) for line in drawn)
    least = min(float(line.low.min()) for line in drawn)
    view = (least / 1.3, most * 1.3) if curve.decades else (0.0, most * 1.1)
    return plot(
        f"{result.title}, {result.unit}",
        drawn,
        view,
        across=Axis(curve.across, decades=True),
        up=Axis(decades=curve.decades),
    )


def _lines(result: Result) -> dict[str, list[Measured]]:
    """Return what was measured along the axis, by name."""
    lines: dict[str, list[Measured]] = {}
    for one in result.measured:
        if one.x is not None:
            lines.setdefault(one.name, []).append(one)
    return {name: sorted(line, key=lambda one: one.x or 0) for name, line in lines.items()}


def _along(result: Result) -> bool:
    return any(one.x is not None for one in result.measured)


def _figure(one: Measured) -> str:
    found = spread(one.values)
    if len(one.values) == 1:
        return number(found.median)
    return f"{number(found.median)} [{number(found.low)}, {number(found.high)}]"


def _machine(results: Iterable[Result]) -> str:
    runs: dict[str, list[Result]] = {}
    for result in results:
        runs.setdefault(result.run, []).append(result)
    body = []
    for run, members in sorted(runs.items()):
        m = members[0].machine
        versions = {**m.get("versions", {}), "Python": m.get("python", "?")}
        peers = m.get("peers", {})
        body.append(
            [
                run,
                f"`{m.get('commit', '?')}`",
                f"{m.get('cores')} cores, {m.get('processor')}, {m.get('memory_gib')} GiB,"
                f" {m.get('system')}; load {m.get('load')} at the start",
                _versions(versions),
                _versions(peers),
                ", ".join(result.case for result in members),
            ]
        )
    return rows(["run", "commit", "machine", "ours", "peers", "cases"], body)


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
