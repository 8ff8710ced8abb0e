"""``python -m spatial.cli``: the command where the package is not installed."""

import sys

from spatial.cli.main import main

sys.exit(main())
