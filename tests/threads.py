"""One thread for each BLAS and OpenMP, of the tests and of the processes that they start.

Imported before NumPy, which reads this once. Two workers with two threads each are four on two
cores, and a thread of OpenBLAS that waits for another one spins: a minute of work took twenty.
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
