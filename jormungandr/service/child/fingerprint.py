"""What decides the bits of a learner besides its rows, its spec and its seed.

Computed by the gateway when a model is created and by its learner process at every start; torch is
not imported for it.
"""

from __future__ import annotations

import os
import platform
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

__all__ = ["fingerprint"]

#: Raised with every change of ours after which the same rows give other bits.
NUMERICS = 5
#: Variables with which one chooses among the kernels of the libraries.
CHOICES = (
    "ATEN_CPU_CAPABILITY",
    "DNNL_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "NPY_DISABLE_CPU_FEATURES",
    "NPY_ENABLE_CPU_FEATURES",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
)


def fingerprint(threads: int) -> dict[str, str]:
    """Return what must be equal for the same rows to give the same bits.

    Args:
        threads: that the learner computes on.
    """
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return {
        "numerics": str(NUMERICS),
        "torch": _version("torch"),
        "numpy": np.__version__,
        "blas": f"{blas.get('name')} {blas.get('version')}",
        "libc": " ".join(platform.libc_ver()),  # its exp and pow, where NumPy has none of its own
        "cpu": _processor(),
        "kernels": " ".join(f"{name}={os.environ[name]}" for name in CHOICES if name in os.environ),
        "threads": str(threads),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _processor() -> str:
    """Return the processor's name and a digest of its instruction sets, by which kernels go."""
    name, flags = platform.processor() or platform.machine(), ""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:  # no Linux: the name has to do
        text = ""
    for line in text.partition("\n\n")[0].splitlines():
        field, _, value = (part.strip() for part in line.partition(":"))
        if field == "model name":
            name = value
        elif field in ("flags", "Features"):
            flags = " ".join(sorted(value.split()))
    return f"{name} {platform.machine()} {sha256(flags.encode()).hexdigest()[:12]}"
