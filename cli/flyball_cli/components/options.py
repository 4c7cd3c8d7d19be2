"""Typer options made from settings dataclasses: one a field, with its type, default, unit, limits and variables."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable
from typing import Annotated, Any

import typer
from flyball_kube.process.options import OptionText, options

ENVIRONMENT = (
    "Each option may come from the environment too: --log-level as FLYBALL_LOG_LEVEL, the others likewise. The command "
    "line goes before the environment."
)


def takes(*settings: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function of settings objects: its options are the fields of their dataclasses, in order.

    Where a dataclass raises ValueError, the command ends with its message and status 2, as for any wrong option.
    """

    def decorate(run: Callable[..., None]) -> Callable[..., None]:
        parameters = {kind: _parameters(kind) for kind in settings}

        def command(**values: Any) -> None:
            try:
                made = [kind(**{field: _value(values[field]) for field in parameters[kind]}) for kind in settings]
            except ValueError as error:
                raise typer.BadParameter(str(error)) from error
            run(*made)

        every = [parameter for fields in parameters.values() for parameter in fields.values()]
        command.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
        command.__name__, command.__doc__ = run.__name__, run.__doc__
        return command

    return decorate


def _parameters(kind: type[Any]) -> dict[str, inspect.Parameter]:
    hints = typing.get_type_hints(kind)
    found = {}
    for field in dataclasses.fields(kind):
        annotation: Any = hints[field.name]
        default: Any = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
        if typing.get_origin(annotation) is tuple:  # of any length: an option that may be repeated
            annotation, default = list[typing.get_args(annotation)[0]], list(default)  # type: ignore[misc]
        found[field.name] = inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=Annotated[annotation, _typer_option(annotation, options(kind)[field.name])],
        )
    return found


def _typer_option(annotation: Any, given: OptionText) -> Any:
    # Of what may be repeated, the help would else have Python's type of the whole.
    repeated = typing.get_args(annotation)[0].__name__.lower() if typing.get_origin(annotation) is list else ""
    flags = f"{given.flag}/--no-{given.flag[2:]}" if annotation is bool else given.flag
    return typer.Option(
        flags,
        help=given.help,
        envvar=list(given.variables),
        show_envvar=given.variables != (given.own_variable,),
        metavar=f"<{given.unit or repeated}>" if given.unit or repeated else None,
        min=given.minimum,
        max=given.maximum,
    )


def _value(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
