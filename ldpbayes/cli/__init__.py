"""The command line: demo, fit, bootstrap, regress, table, mechanisms and models; see docs/reference/command_line.md."""

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line with the words `argv` (default: the process's). Return an exit code, 130 after Ctrl-C."""
    try:
        from ldpbayes.cli import _main  # which takes seconds, in which a user may interrupt

        return _main.main(argv)
    except KeyboardInterrupt:
        print("ldpbayes: error: interrupted", file=sys.stderr)
        return 130
