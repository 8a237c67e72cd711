# SPDX-License-Identifier: Apache-2.0
"""Shell completion: the candidates for the word under the cursor, and the scripts of bash, zsh and fish that ask for them.

A script starts the program with _K8SNET_TRACE_COMPLETE=SHELL_complete; click finds the command and the option. A line of the
answer is KIND, TAB, VALUE, TAB, DESCRIPTION; of KIND `file` the shell completes a path itself. The scripts quote values.

Must not know: how values are found (candidates.py), what a command does.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click
from click.shell_completion import CompletionItem, ShellComplete, add_completion_class

from tracer.cli.completion.candidates import attach, is_printable
from tracer.cli.help import summary

__all__ = ["SCRIPTS", "attach", "register"]

SCRIPTS = {"bash": "k8snet-trace.bash", "zsh": "_k8snet-trace", "fish": "k8snet-trace.fish"}
"""The script of each shell, beside this file."""


class _Completion(ShellComplete):
    """The completion of a shell; the words of the command line come in the variables COMP_WORDS and COMP_CWORD."""

    def source(self) -> str:
        return Path(__file__).with_name(SCRIPTS[self.name]).read_text(encoding="utf-8")

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the cursor, without the program, and the word under it."""
        words, at = os.environ.get("COMP_WORDS", "").split("\n"), int(os.environ.get("COMP_CWORD", "0"))
        before, current = words[1:at], words[at] if at < len(words) else ""
        return [_unquoted(word) for word in before], _unquoted(current)

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """The candidates; none where the command line is wrong, or anything else fails: a completion never reports an error."""
        if "--" in args:
            return [CompletionItem("", type="file")]
        try:
            found = super().get_completions(list(args), incomplete)
            return [*self._commands(incomplete), *found] if not args else found
        except Exception:
            return []

    def _commands(self, incomplete: str) -> list[CompletionItem]:
        """The commands, which stand only as the first word."""
        assert isinstance(self.cli, click.Group)
        names = (name for name in self.cli.commands if name.startswith(incomplete) and name != "trace")
        return [CompletionItem(name, help=summary(self.cli.commands[name])) for name in names]

    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type}\t{item.value}\t{' '.join((item.help or '').split())}"

    def complete(self) -> str:
        args, incomplete = self.get_completion_args()
        found = self.get_completions(args, incomplete)
        return "\n".join(self.format_completion(item) for item in found if is_printable(str(item.value)))


def _unquoted(word: str) -> str:
    """The text that the shell would pass for a word; a quote may be open."""
    for closing in ("", "'", '"'):
        try:
            return "".join(shlex.split(word + closing))
        except ValueError:
            continue
    return word


def register() -> None:
    """Makes these the completions of click."""
    for shell in SCRIPTS:
        add_completion_class(type(f"_{shell.title()}", (_Completion,), {"name": shell}))
