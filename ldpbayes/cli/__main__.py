"""``python -m ldpbayes.cli``."""

import sys

from ldpbayes.cli._main import main

sys.exit(main())
