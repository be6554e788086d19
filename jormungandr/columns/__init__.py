"""`Columns`: a batch of transitions as arrays, and the one door at which input is checked.

Rows (structs, dicts, parsed JSON) and arrays both pass `columns()`; after it nothing is checked
again. B is the number of transitions, D the number of elements of an observation.
"""

from jormungandr.columns.batch import ARRAYS, TRAIN, VALIDATION, Columns
from jormungandr.columns.door import columns
from jormungandr.columns.ids import check_id, check_timestep
from jormungandr.columns.masks import action_masks
from jormungandr.columns.rows import OPTIONAL, REQUIRED, class_index

__all__ = [
    "ARRAYS",
    "OPTIONAL",
    "REQUIRED",
    "TRAIN",
    "VALIDATION",
    "Columns",
    "action_masks",
    "check_id",
    "check_timestep",
    "class_index",
    "columns",
]
