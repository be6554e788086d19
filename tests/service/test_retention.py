"""A journal's budget: what goes, what stays, who is asked for what, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jormungandr import Learner, errors
from jormungandr.cli import main
from jormungandr.service import retention as module
from jormungandr.service.journal.reader import JournalReader
from jormungandr.service.retention import Keeping
from tests.service.conftest import App
from tests.service.serving import QUIET, experience

BUDGET = 256 << 10
WIDTH = 128
#: A model whose rows are large beside their ledger.
WIDE: dict[str, Any] = {**QUIET, "observation": {"shape": [WIDTH]}}


def rows(n: int, count: int = 16) -> list[dict[str, Any]]:
    """Return one request of about 16 KiB of rows."""
    wide = [0.5] * WIDTH
    found = experience(1, count, actor_id=f"a{n}")
    return [{**row, "observation": wide, "next_observation": wide} for row in found]


@pytest.fixture
def small(open_app: Callable[..., Any], tmp_path: Path) -> Any:
    """An application whose journals may take 256 KiB, with a model ``m``."""
    with open_app(tmp_path, keeping=Keeping(journal_max_bytes=BUDGET)) as app:
        app.connect("m").create(WIDE)
        app.publish("m", Learner(WIDE))
        yield app


def report(app: App, lsn: int) -> None:
    """Let the learner say that it has applied everything up to a position."""
    app.publish("m", Learner(WIDE), lsn)


def keep(app: App, *positions: int | str) -> None:
    """Leave just these checkpoints in the model's folder."""
    folder = app.path / "models" / "m.1" / "checkpoints"
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.rmdir()
    for lsn in positions:
        name = f"{lsn:020d}" if isinstance(lsn, int) else f"{lsn.partition('.')[0]:0>20}.again"
        (folder / name).mkdir()


def kept(app: App) -> list[int]:
    """Return the positions of the data rows that are in the journal."""
    reader = JournalReader(app.path / "models" / "m.1" / "journal.db")
    found = [row.lsn for row in reader.rows(0, 10_000)]
    reader.close()
    return found


def fill(app: App, start: int = 0) -> list[Any]:
    """Send requests until one is refused; return the receipts of those before it."""
    receipts = []
    endpoint = app.connect("m", patience=0)
    for n in range(start, start + 200):
        try:
            receipts.append(endpoint.add(rows(n)))
        except errors.StorageFull:
            return receipts
    return receipts


def figures(app: App) -> dict[str, Any]:
    """Return what the service says of the journal."""
    found: dict[str, Any] = app.connect("m").info()["journal"]
    return found


def test_nothing_goes_before_the_budget_presses(small: App) -> None:
    """Rows that every checkpoint has seen stay as long as there is room."""
    endpoint = small.connect("m")
    receipts = [endpoint.add(rows(n)) for n in range(5)]
    keep(small, receipts[1].lsn, receipts[3].lsn)
    report(small, receipts[4].lsn)
    receipts.append(endpoint.add(rows(5)))

    assert kept(small) == [receipt.lsn for receipt in receipts]
    assert figures(small)["first_lsn"] == 1
    assert 0 < figures(small)["bytes"] < figures(small)["max_bytes"] == BUDGET


def test_full(small: App) -> None:
    """With nothing that may go, data is refused by the name of the budget; the rest goes on."""
    receipts = fill(small)
    endpoint = small.connect("m", patience=0)
    with pytest.raises(errors.StorageFull, match=r"journal_max_bytes.*raise --journal-max-bytes"):
        endpoint.add(rows(1_000))

    assert 5 < len(receipts) < 20
    assert kept(small) == [receipt.lsn for receipt in receipts]
    assert endpoint.act([[0.0] * WIDTH]).policy_version == 0
    assert endpoint.add(rows(0)).duplicate == 16  # what is known needs no room
    assert any("storage_full" in warning for warning in endpoint.info()["warnings"])
    refused = small.request("POST", "/v1/models/m/experience/add", {"transitions": rows(1_000)})
    assert refused.status_code == 503
    assert "retry-after" in refused.headers


def test_rows_before_the_older_checkpoint_go(small: App) -> None:
    """Oldest first, no more than presses, never a row that the older checkpoint has not seen."""
    receipts = fill(small)
    keep(small, receipts[4].lsn, receipts[-1].lsn)
    report(small, receipts[-1].lsn)  # the service looks at once
    small.run(small.model("m").commits.join)

    left = kept(small)
    assert left == [receipt.lsn for receipt in receipts][-len(left) :]
    assert receipts[0].lsn < left[0] <= receipts[5].lsn
    assert figures(small)["bytes"] <= BUDGET
    assert figures(small)["first_lsn"] == left[0]
    more = fill(small, 200)
    assert more
    assert kept(small)[0] == receipts[5].lsn  # all that may go, and no more
    assert small.connect("m").add(rows(0)).duplicate == 16  # of a row long gone


def test_one_checkpoint_is_not_enough(small: App) -> None:
    """With a single checkpoint nothing goes: it may turn out to be damaged."""
    receipts = fill(small)
    keep(small, receipts[-1].lsn)
    report(small, receipts[-1].lsn)
    small.run(small.model("m").commits.join)

    assert len(kept(small)) == len(receipts)
    keep(small, receipts[-1].lsn, f"{receipts[-1].lsn}.again")
    report(small, receipts[-1].lsn)
    small.run(small.model("m").commits.join)
    assert len(kept(small)) < len(receipts)


def test_checkpoints_that_no_learner_vouches_for(small: App) -> None:
    """Before a learner has recovered, a folder's name is not taken for a checkpoint."""
    receipts = fill(small)
    small.model("m").learning.info = {}
    keep(small, receipts[-2].lsn, receipts[-1].lsn)

    assert fill(small, 200) == []
    assert len(kept(small)) == len(receipts)


def test_quiet_model_is_asked(small: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that hold back a quarter of the budget are released by checkpoints asked for, twice."""
    monkeypatch.setattr(module, "PATIENCE", 1e9)
    heard = small.model("m").learning.process.heard
    endpoint = small.connect("m")
    last = 0
    for n in range(200):
        last = endpoint.add(rows(n)).lsn
        report(small, last)
        if "release" in heard:
            break
    assert figures(small)["bytes"] < BUDGET  # before it is full
    for n in range(3):
        endpoint.add(rows(300 + n))
    small.run(small.model("m").commits.join)
    assert heard.count("release") == 1  # until there is something new
    keep(small, last)
    report(small, last)
    small.run(small.model("m").commits.join)
    assert heard.count("release") == 2
    keep(small, last, f"{last}.again")
    report(small, last)
    small.run(small.model("m").commits.join)

    assert heard.count("release") == 2
    assert len(fill(small, 400)) > 5
    assert kept(small)[0] > 2


def test_asked_again(small: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner that did nothing about it is asked again after a while, a new one at once."""
    now = [0.0]
    model = small.model("m")
    monkeypatch.setattr(model.retention, "_clock", lambda: now[0])
    receipts = fill(small)
    report(small, receipts[-1].lsn)
    small.run(model.commits.join)
    heard = model.learning.process.heard
    assert heard.count("release") == 1
    assert fill(small, 200) == []
    assert heard.count("release") == 1
    now[0] += module.PATIENCE
    assert fill(small, 200) == []
    assert heard.count("release") == 2
    model.learning.process.pid = 2
    assert fill(small, 200) == []
    assert heard.count("release") == 3


def test_kept_for_ever(open_app: Callable[..., Any], tmp_path: Path) -> None:
    """Without a budget no row ever goes, and no checkpoint is asked for."""
    with open_app(tmp_path, keeping=Keeping(journal_max_bytes=None)) as app:
        app.connect("m").create(WIDE)
        app.publish("m", Learner(WIDE))
        endpoint = app.connect("m")
        receipts = [endpoint.add(rows(n)) for n in range(30)]
        keep(app, receipts[-2].lsn, receipts[-1].lsn)
        report(app, receipts[-1].lsn)
        endpoint.add(rows(30))

        assert len(kept(app)) == 31
        assert "release" not in app.model("m").learning.process.heard
        assert figures(app)["max_bytes"] is None


def test_freed_pages_are_used_again(small: App) -> None:
    """However much comes, the database does not grow beyond its budget and one group."""
    endpoint = small.connect("m")
    path = small.path / "models" / "m.1" / "journal.db"
    sizes, at = [], 0
    for n in range(120):
        lsn = endpoint.add(rows(n)).lsn
        if n % 3 == 0:
            keep(small, at, lsn) if at else keep(small, lsn)
            report(small, lsn)
            at = lsn
        sizes.append(path.stat().st_size)
        assert figures(small)["bytes"] <= BUDGET + (28 << 10)
    small.run(small.model("m").commits.on_writer, small.model("m").journal._writer.wal_checkpoint)
    sizes.append(path.stat().st_size)

    assert max(sizes) <= BUDGET + (28 << 10)
    assert endpoint.add(rows(0)).duplicate == 16


def test_restart_over_the_budget(open_app: Callable[..., Any], tmp_path: Path) -> None:
    """A journal that is larger than its new budget takes nothing until some of it may go."""
    with open_app(tmp_path) as app:
        app.connect("m").create(WIDE)
        receipts = [app.connect("m").add(rows(n)) for n in range(30)]
    with open_app(tmp_path, keeping=Keeping(journal_max_bytes=BUDGET)) as app:
        assert fill(app, 100) == []
        keep(app, receipts[-2].lsn, receipts[-1].lsn)
        app.publish("m", Learner(WIDE), receipts[-1].lsn)
        app.run(app.model("m").commits.join)
        assert len(fill(app, 100)) > 5
        assert kept(app)[0] > receipts[0].lsn
        assert figures(app)["first_lsn"] == kept(app)[0]
    with open_app(tmp_path) as app:
        assert figures(app)["first_lsn"] == kept(app)[0] > 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--journal-max-bytes", "0"), "--journal-max-bytes: expected 1 or more bytes, got 0"),
        (("--recovery-budget", "0"), "--recovery-budget: expected more than 0 seconds, got 0"),
        (("--recovery-budget", "nan"), "--recovery-budget: expected more than 0 seconds, got nan"),
    ],
)
def test_options_out_of_range(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str
) -> None:
    """A budget of nothing is refused before anything is made."""
    data_dir = tmp_path / "data"

    assert main(["serve", "--data-dir", str(data_dir), "--port", "0", *options]) == 1
    assert message in capsys.readouterr().err
    assert not data_dir.exists()


def test_options_that_exclude_each_other(tmp_path: Path) -> None:
    """To keep every row within a budget is two things."""
    with pytest.raises(SystemExit):
        main(["serve", "--data-dir", str(tmp_path), "--keep-journal", "--journal-max-bytes", "9"])
