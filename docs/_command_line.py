"""The parser of the command line, as docs/reference/command_line.md lists its options."""

import re
import textwrap

from ldpbayes.cli import _main, _parser


def parser():
    """The parser, with its texts in reStructuredText: options and examples as code; exit codes are on the page."""
    top = _main.parser()
    top.epilog = None
    for name, command in top._subparsers._group_actions[0].choices.items():
        examples = textwrap.indent(_parser.COMMANDS[name].examples, "  ")
        command.epilog = f"Examples::\n\n{examples}\n\n"
        for each in command._actions:
            each.help = as_code(each.help)
        for each in command._action_groups:
            each.description = as_code(each.description)
    return top


def as_code(text):
    """A text with its options as code, since two hyphens are a dash in prose."""
    return text and re.sub(r"--[a-z][\w-]*", r"``\g<0>``", text)
