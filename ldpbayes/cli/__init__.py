"""The command line: ``ldpbayes demo``, ``ldpbayes fit`` and ``ldpbayes mechanisms``."""

from ldpbayes.cli._main import main

__all__ = ["main"]
