"""`python -m jormungandr` is the command line."""

import sys

from jormungandr.cli import main

sys.exit(main())
