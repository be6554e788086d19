"""What the NumPy half of the package may load."""

import subprocess
import sys


def test_numpy_modules_do_not_load_torch() -> None:
    """Trees, moments and statistics serve processes that have no torch."""
    code = (
        "import sys\n"
        "import jormungandr.numerics.moments\n"
        "import jormungandr.numerics.statistics\n"
        "import jormungandr.numerics.sum_tree\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
