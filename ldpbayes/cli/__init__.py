"""The command line: demo, fit, bootstrap, regress, table, mechanisms and models; see docs/reference/command_line.md."""

from ldpbayes.cli._main import main

__all__ = ["main"]
