"""One option of a command line, as click has it and as help shows it."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import click

from dragoman.cli.options import OptionRow

F = TypeVar("F", bound=Callable[..., Any])


class Option(click.Option):
    """An option; a switch has a value, and aliases are not shown."""

    def __init__(
        self,
        param_decls: Sequence[str] | None = None,
        *,
        switch: bool = False,
        aliases: Sequence[str] = (),
        row: OptionRow | None = None,
        takes_output: bool = False,
        **attributes: Any,
    ) -> None:
        kind = attributes.get("type")
        if isinstance(kind, click.Choice):
            choices = cast("click.Choice[str]", kind).choices
            attributes.setdefault("metavar", f"<{'|'.join(choices)}>")
        if switch:
            attributes.setdefault("type", click.BOOL)
            attributes.setdefault("default", False)
        super().__init__([*(param_decls or ()), *aliases], **attributes)
        self.is_switch = switch
        self.aliases = aliases
        # The row of a global option.
        self.row = row
        # It gets what -o says and is not the name of a format.
        self.takes_output = takes_output

    @property
    def shown(self) -> str:
        """Return the flags as help shows them."""
        flags = [flag for flag in self.opts if flag not in self.aliases]
        value = "" if self.is_switch else f" {self.metavar or f'<{self.name}>'}"
        return ", ".join(sorted(flags, key=len)) + value


def option(*flags: str, **attributes: Any) -> Callable[[F], F]:
    """Add an option; `switch=True` makes it a boolean."""
    return click.option(*flags, cls=Option, **attributes)
