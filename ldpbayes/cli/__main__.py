"""Lets ``python -m ldpbayes.cli`` run the command line."""

import sys

from ldpbayes.cli import main

sys.exit(main())
