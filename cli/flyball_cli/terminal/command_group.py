"""Help and errors as plain text that fits 80 columns: no name is cut short, what is indented stays as it was written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperGroup

from flyball_cli.terminal.endings import Ended
from flyball_cli.terminal.wrong_values import in_plain_words


class GroupUnderHeadings(TyperGroup):
    """A group whose help lists its commands under their headings, each with the whole of its first paragraph."""

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command; what is wrong with an option's value is said in plain words, why it ended in one line."""
        try:
            return super().invoke(ctx)
        except Ended as ended:
            from flyball_cli.terminal.printing import in_one_line

            typer.echo(f"{ctx.command_path} {ctx.invoked_subcommand}: {in_one_line(ended.line)}", err=True)
            raise typer.Exit(ended.exit_code) from ended
        except typer.BadParameter as error:
            in_plain_words(error)
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write them, in the order in which they were added."""
        headings: dict[str, list[tuple[str, str]]] = {}
        for name, command in self._shown(ctx):
            heading = getattr(command, "rich_help_panel", None)
            what, _, _ = (command.help or "").strip().partition("\n\n")
            rows = headings.setdefault(heading if isinstance(heading, str) else "Commands", [])
            rows.append((name, " ".join(what.split())))
        widest = max((len(name) for rows in headings.values() for name, _ in rows), default=0)
        for heading, rows in headings.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(widest), what) for name, what in rows])

    def _shown(self, ctx: Any) -> Iterator[tuple[str, Any]]:
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                yield name, command
