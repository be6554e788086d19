"""Admission: what becomes of each transition and label, decided once, before anything is kept.

The learner in process and the service use the same `Admission`; it reads and writes a `Draft`, and
returns the rows to journal. It lives here rather than in the service because ``Learner.add`` is
admission followed by application.
"""

from __future__ import annotations

from jormungandr.admission.labels import check_labels
from jormungandr.admission.rules import Admission

__all__ = ["Admission", "check_labels"]
