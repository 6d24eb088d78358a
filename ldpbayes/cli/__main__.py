"""Lets ``python -m ldpbayes.cli`` run the command line."""

import sys

from ldpbayes.cli._main import main

sys.exit(main())
