"""`examine`: every check, in order, of what there is to look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from jormungandr.errors import JormungandrError
from jormungandr.service.diagnosis import directory, installation, running
from jormungandr.service.diagnosis.finding import EXIT_CODES, Finding, fail, skip
from jormungandr.service.diagnosis.running import RunningService

__all__ = ["examine", "examine_model", "exit_status"]


def examine(
    data_dir: Path | None, token_file: Path | None, service: RunningService | None
) -> Iterator[Finding]:
    """Yield what the ten checks find.

    Args:
        data_dir: None skips what is about it.
        token_file: the operator's; None is the one in the directory.
        service: None skips what is about it.
    """
    there = data_dir if data_dir is not None and data_dir.is_dir() else None
    yield from _guarded("packages", installation.check_packages)
    yield from _guarded("sqlite", lambda: installation.check_sqlite(there))
    yield from _guarded("torch", installation.check_torch)
    yield from _guarded("limits", installation.check_limits)
    if data_dir is None:
        for name in ("directory", "token", "disk", "journals"):
            yield skip(name, "no directory given", "give --data-dir")
    else:
        file = token_file or data_dir / "operator-token"
        yield from _guarded("directory", lambda: directory.check_directory(data_dir))
        yield from _guarded("token", lambda: directory.check_token(file))
        yield from _guarded("disk", lambda: directory.check_disk(data_dir))
        yield from _guarded("journals", lambda: directory.check_journals(data_dir))
    if service is None:
        for name in ("service", "learners"):
            yield skip(name, "no service given", "give --url")
    else:
        yield from _guarded("service", lambda: running.check_service(service))
        yield from _guarded("learners", lambda: running.check_learners(service))


def examine_model(
    model: str, data_dir: Path | None, service: RunningService | None
) -> Iterator[Finding]:
    """Yield what the checks of a model find: of its data where there is a directory.

    Raises:
        JormungandrError: there is no such model.
        OSError: the service is not reached.
    """
    from jormungandr.service.diagnosis.model_data import check_sample
    from jormungandr.service.diagnosis.model_served import check_served
    from jormungandr.service.diagnosis.sample import Sample
    from jormungandr.service.tools.stored import StoredModel, find_model

    if data_dir is not None:
        with StoredModel(find_model(data_dir, model)) as stored:
            yield from check_sample(Sample.of(stored), stored.counters)
    elif service is not None:
        yield from check_served(service, model)


def _guarded(name: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Run one check; whatever it meets is its finding, and the others go on."""
    try:
        yield from check()
    except (JormungandrError, OSError, ImportError) as error:
        yield fail(name, f"{type(error).__name__}: {error}", "see what it says")


def exit_status(findings: list[Finding]) -> int:
    """Return that of the first check that failed; 0 where none did."""
    failed = [EXIT_CODES[finding.check] for finding in findings if finding.status == "fail"]
    return failed[0] if failed else 0
