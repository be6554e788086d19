"""`Addition`: transitions on their way into a model's journal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jormungandr.columns import Columns
from jormungandr.errors import PolicyVersionStale
from jormungandr.ledger import Draft
from jormungandr.protocol import Receipt
from jormungandr.rows import Row
from jormungandr.service.asker import Asker
from jormungandr.tally import Arrival

if TYPE_CHECKING:
    from jormungandr.service.intake import Intake

__all__ = ["Addition"]


class Addition:
    """What one request sends, and who waits for its receipt.

    Args:
        intake: of the model that it is for.
        columns: checked transitions.
        asker: who waits.
    """

    __slots__ = ("_asker", "_came", "_columns", "_intake", "done")

    def __init__(self, intake: Intake, columns: Columns, asker: Asker) -> None:
        self._intake, self._columns, self._asker = intake, columns, asker
        self._came: Arrival | None = None
        self.done = asker.done

    def admit(self, draft: Draft) -> tuple[Receipt, Sequence[Row]]:
        """Admit them into a draft of the ledger; see `Admission.transitions`."""
        answer = self._intake.admit(self._columns, draft)
        self._came = draft.arrival
        return answer

    def set_result(self, result: Receipt, /) -> None:
        """Count them, now that they are durable, and hand over the receipt."""
        self._intake.admitted(self._columns, result, self._came)
        self._asker.set_result(result)

    def set_exception(self, exception: Exception, /) -> None:
        """Hand over why they were not admitted."""
        if isinstance(exception, PolicyVersionStale):
            self._intake.actors.refused(self._columns)
        self._asker.set_exception(exception)
