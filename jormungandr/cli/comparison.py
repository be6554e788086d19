"""How good contenders are, in print and as JSON: tables, pairs, and the yardsticks of OUSpread."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jormungandr.cli.contenders import Contender, ValueContender
from jormungandr.cli.matches import Paired, Result, Summary, act_on_batch
from jormungandr.numerics.statistics import Interval, paired_bootstrap, ratio_bootstrap
from jormungandr_envs import ACTION_LABELS, paired_returns

__all__ = ["as_json", "compare_on_ou", "print_on_ou", "print_paired", "print_probe", "print_table"]

Act = Callable[[NDArray[np.float32]], ArrayLike]


def compare_on_ou(act: Act, episodes: int, seed: int) -> bool:
    """Print policy, reference and optimum on the same held-out paths of OUSpread-v0.

    Args:
        act: maps observations (B, 4) to action indices (B,).
        episodes: paths, at least 2.
        seed: of the paths.

    Returns:
        Whether the policy is above the reference with its whole interval.
    """
    returns = paired_returns(act, episodes, seed)
    rows = {"policy": returns.policy, "reference": returns.reference, "optimum": returns.optimum}
    print(f"\n{episodes:,} held-out paths of OUSpread-v0 (seed {seed}), return per episode:")
    print(f"  {'':<12}{'mean':>8}{'minus reference':>18}   95 % interval (paired bootstrap)")
    for name, values in rows.items():
        line = f"  {name:<12}{values.mean():>8.3f}"
        if name != "reference":
            difference = paired_bootstrap(values - returns.reference, seed=seed)
            line += (
                f"{difference.estimate:>+18.3f}   [{difference.low:+.3f}, {difference.high:+.3f}]"
            )
        print(line)
    gain, room = returns.policy - returns.reference, returns.optimum - returns.reference
    try:
        gap = ratio_bootstrap(gain, room, seed=seed)
    except ValueError:  # on some resample the optimum is not above the reference
        print("  gap closed: too few paths to tell")
    else:
        print(f"  gap closed  {gap.estimate:>8.3f}{'':>21}[{gap.low:.3f}, {gap.high:.3f}]")
    return paired_bootstrap(gain, seed=seed).low > 0


def print_probe(act: Callable[[NDArray[np.float32]], tuple[ArrayLike, ArrayLike]]) -> list[int]:
    """Print what the policy does at (z, 0, flat, full time) for z = -2 … +2; return the actions.

    Args:
        act: maps observations (B, 4) to (action indices (B,), expected returns (B, 3)).
    """
    z = np.array([-2.0, -1.0, 0.0, 1.0, 2.0], dtype=np.float32)
    observations = np.stack([z, 0 * z, 0 * z, 0 * z + 1], axis=1)
    chosen, values = (np.asarray(part) for part in act(observations))
    print("\nprobe at (z, 0, flat, full time):")
    print("  z      action   expected return of " + ", ".join(ACTION_LABELS))
    for i, spread in enumerate(z):
        numbers = "  ".join(f"{v:+.2f}" for v in values[i])
        print(f"  {spread:+.0f}     {ACTION_LABELS[chosen[i]]:<7}  {numbers}")
    return [int(index) for index in chosen]


def print_on_ou(contender: Contender, paths: int, seed: int) -> None:
    """Print what is known of OUSpread-v0 beside a contender: the probe, reference and optimum."""
    if isinstance(contender, ValueContender):
        print_probe(lambda x: (act_on_batch(contender, seed)(x), contender.values(x)))
    compare_on_ou(act_on_batch(contender, seed), paths, seed)


def print_table(title: str, results: Mapping[str, Result], max_steps: int) -> None:
    """Print each contender's returns in one line, and what it is.

    Args:
        title: of the table.
        results: by the letter each goes by.
        max_steps: at which episodes were cut.
    """
    digits = _digits([value for result in results.values() for value in result.played.returns])

    def number(value: float) -> str:
        return f"{value:.{digits}f}"

    def interval(interval: Interval) -> str:
        return f"[{number(interval.low)}, {number(interval.high)}]"

    cells = [["", "mean", "95 %", "IQM", "95 %", "median", "lowest", "highest", "steps"]]
    for letter, result in results.items():
        s = result.summary
        cells.append(
            [
                letter,
                *(number(s.mean.estimate), interval(s.mean)),
                *(number(s.iqm.estimate), interval(s.iqm)),
                *(number(value) for value in (s.median, s.lowest, s.highest)),
                f"{s.length:.1f}",
            ]
        )
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    print(title)
    for line in cells:
        print("  " + "  ".join(text.rjust(w) for text, w in zip(line, widths, strict=True)))
    for letter, result in results.items():
        print(f"  {letter}: {result.contender.name} ({result.contender.description})")
        cut = result.played.cut
        if cut.any():
            print(
                f"     {cut.sum()} of its {cut.size} episodes truncated after"
                f" {max_steps:,} steps (--max-steps)"
            )


def print_paired(paired: Paired) -> None:
    """Print what A does over B on the same seeds."""
    digits = _digits([*paired.mean, *paired.iqm])

    def line(name: str, interval: Interval, sign: str, digits: int, note: str) -> None:
        low, high = (f"{end:{sign}.{digits}f}" for end in interval[1:])
        print(f"  {name:<20}{interval.estimate:>{sign}10.{digits}f}   [{low}, {high}]{note}")

    better = paired.improvement
    counts = f"   {better.wins} won, {better.ties} tied, {better.losses} lost"
    print("A minus B, paired by seed, with 95 % intervals:")
    line("mean difference", paired.mean, "+", digits, "")
    line("IQM of differences", paired.iqm, "+", digits, "")
    line("P(A > B)", better.probability, "", 3, counts)


def as_json(
    head: Mapping[str, Any], results: Mapping[str, Result], paired: Paired | None
) -> dict[str, Any]:
    """Return everything that was printed, and every episode, as JSON-able values.

    Args:
        head: fields in front.
        results: as for `print_table`.
        paired: A against B, if there is a B.
    """
    return {
        **head,
        "contenders": {
            letter: {
                "policy": result.contender.name,
                "description": result.contender.description,
                **_fields(result.summary),
                "returns": result.played.returns.tolist(),
                "lengths": result.played.lengths.tolist(),
                "cut": result.played.cut.tolist(),
            }
            for letter, result in results.items()
        },
        "paired": None if paired is None else _fields(paired),
    }


def _fields(part: Summary | Paired) -> dict[str, Any]:
    return {name: _plain(value) for name, value in vars(part).items()}


def _plain(value: Any) -> Any:
    """Turn named tuples into dictionaries, which JSON would make lists of."""
    if not isinstance(value, tuple):
        return value
    names = value._asdict()  # type: ignore[attr-defined]  # all of ours are named
    return {name: _plain(part) for name, part in names.items()}


def _digits(values: list[float]) -> int:
    """Return the decimals that show four digits of the largest value."""
    largest = max(abs(value) for value in values)
    return 3 if largest == 0 else min(6, max(0, 3 - math.floor(math.log10(largest))))
