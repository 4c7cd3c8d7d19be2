"""Puts the functions of another syntax tree into a module that has been imported: their code and their defaults.

Every name that other modules have imported stays the same object, so that the tests need to be imported once only.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, FunctionType, ModuleType

from tests.mutants.mutate import FUNCTIONS


def swap(module: ModuleType, tree: ast.Module, wanted: Callable[[str], bool] = lambda _name: True) -> int:
    """Give the module's functions whose qualified names are `wanted` the code that they have in `tree`; returns how many.

    Raises LookupError for one that is not found in the module, and ValueError for one that would need other variables of
    what is around it.
    """
    codes = {code.co_qualname: code for code in _codes(compile(tree, module.__name__, "exec"))}
    swapped = 0
    for name, node in _outermost(tree.body):
        if not wanted(name):
            continue
        function = _function(module, name)
        if function.__code__.co_freevars != codes[name].co_freevars:
            raise ValueError(f"{module.__name__}.{name} would need other variables of what is around it")
        value = partial(_value, module=module)
        function.__code__ = codes[name]
        function.__defaults__ = tuple(value(item) for item in node.args.defaults) or None
        keyword_only = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        function.__kwdefaults__ = {item.arg: value(default) for item, default in keyword_only if default} or None
        swapped += 1
    return swapped


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _outermost(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """The functions of a module and the methods of its classes, with their qualified names."""
    for node in body:
        if isinstance(node, FUNCTIONS):
            yield f"{prefix}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from _outermost(node.body, f"{prefix}{node.name}.")


def _function(module: ModuleType, name: str) -> FunctionType:
    """The function of that qualified name, below whatever decorates it."""
    found: object = module
    for part in name.split("."):
        found = vars(found)[part]
    for attribute in ("fget", "func", "__func__", "__wrapped__"):
        found = getattr(found, attribute, found)
    if not isinstance(found, FunctionType):
        raise LookupError(f"{module.__name__}.{name} is no function, nor around one in a way known here")
    return found


def _value(expression: ast.expr, module: ModuleType) -> object:
    return eval(compile(ast.Expression(expression), module.__name__, "eval"), vars(module))  # noqa: S307
