"""Mutants of one module: copies of its syntax tree with one small mistake each, such as a guard that is missing.

The mistakes are those that a hand makes in power-safety code: a condition deleted or inverted, an operand of `and`, `or`,
`max`, `min` or of an elementwise maximum (`|`) left out, a comparison off by one or inverted, `+` for `-`, a truth value
flipped, and a statement forgotten. Annotations, docstrings, logging and `strict=` are left alone.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE,),
    ast.LtE: (ast.Lt,),
    ast.Gt: (ast.GtE,),
    ast.GtE: (ast.Gt,),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Edit = Callable[[ast.AST], None]  # changes the copy of the node that it was made for


@dataclass(frozen=True)
class Mutant:
    """One mistake: the function and line it is in, what is there, and what it becomes."""

    module: str
    function: str
    line: int
    statement: int  # the line of the statement that it is in
    original: str
    change: str
    source: str
    node: int  # which one of the tree's nodes
    edit: Edit
    which: int  # of those that read the same

    @property
    def key(self) -> str:
        """Names the mutant whatever lines are added above it."""
        again = "" if self.which == 1 else f" ({self.which})"
        return f"{self.module}:{self.function}: {self.original} -> {self.change}{again}"

    def tree(self) -> ast.Module:
        """The module's syntax tree with the mistake."""
        tree = ast.parse(self.source)
        self.edit(next(item for index, item in enumerate(ast.walk(tree)) if index == self.node))
        return ast.fix_missing_locations(tree)


def mutants(module: str, source: str) -> Iterator[Mutant]:
    """Every mutant of a module, outer statements first."""
    tree = ast.parse(source)
    places = {node: (name, statement) for node, name, statement in _functions(tree)}
    read: Counter[tuple[str, str, str]] = Counter()
    for index, node in enumerate(ast.walk(tree)):
        if node in places:
            name, statement = places[node]
            for change, edit in _edits(node):
                line, original = getattr(node, "lineno", statement), _one_line(node)
                read[(name, original, change)] += 1
                which = read[(name, original, change)]
                yield Mutant(module, name, line, statement, original, change, source, index, edit, which)


def recorded(source: str, record: str) -> ast.Module:
    """The module where each statement of a function first calls `record` with its line."""
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, FUNCTIONS)]
    blocks = {
        id(block): block
        for function in functions
        for node in ast.walk(function)
        for _, block in ast.iter_fields(node)
        if isinstance(block, list) and block and isinstance(block[0], ast.stmt)
    }
    for block in blocks.values():
        block[:] = [item for statement in block for item in (_call(record, statement.lineno), statement)]
    return ast.fix_missing_locations(tree)


def _call(function: str, argument: int) -> ast.stmt:
    return ast.Expr(ast.Call(ast.Name(function, ast.Load()), [ast.Constant(argument)], []))


def _one_line(node: ast.AST) -> str:
    """The first line of a node's source, without what it contains."""
    text = ast.unparse(node)
    return text.splitlines()[0][:100]


def _functions(tree: ast.Module) -> Iterator[tuple[ast.AST, str, int]]:
    """Every node inside a function that may be changed, with the function's qualified name and the statement's line.

    What a function's arguments are by default belongs to its first statement.
    """

    def walk(node: ast.AST, name: str, statement: int) -> Iterator[tuple[ast.AST, str, int]]:
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if not isinstance(child, ast.AST):
                    continue
                if isinstance(child, (*FUNCTIONS, ast.ClassDef)):
                    first = statement if isinstance(child, ast.ClassDef) else child.body[0].lineno
                    yield from walk(child, f"{name}.{child.name}".lstrip("."), first)
                    continue
                if isinstance(child, ast.expr) and isinstance(node, ast.Expr) and isinstance(child, ast.Constant):
                    continue  # a docstring
                if _is_logging(child) or (isinstance(child, ast.keyword) and child.arg == "strict"):
                    continue
                line = child.lineno if statement and isinstance(child, ast.stmt) else statement
                if line:
                    yield child, name, line
                yield from walk(child, name, line)

    yield from walk(tree, "", 0)


def _is_logging(node: ast.AST) -> bool:
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return False
    called = ast.unparse(node.value.func)
    return called.startswith(("logger.", "self._log."))


def _edits(node: ast.AST) -> Iterator[tuple[str, Edit]]:
    """What can be done wrong at a node, each in words and as a change of its copy."""
    match node:
        case ast.If(test=test):
            yield f"if not ({_short(test)})", _invert("test")
            yield "if True", _put("test", ast.Constant(True))
            yield "if False", _put("test", ast.Constant(False))
        case ast.IfExp(test=test):
            yield f"if not ({_short(test)})", _invert("test")
        case ast.comprehension(ifs=[_, *_] as ifs):
            for index, test in enumerate(ifs):
                yield f"without 'if {_short(test)}'", _drop("ifs", index)
        case ast.BoolOp(values=values):
            for index, value in enumerate(values):
                yield f"without '{_short(value)}'", _drop("values", index)
        case ast.Compare(ops=[operator]):
            for other in COMPARISONS.get(type(operator), ()):
                yield other.__name__, _put("ops", [other()])
        case ast.Call(func=ast.Name(id="max" | "min"), args=[_, _, *_] as args):
            for index, argument in enumerate(args):
                yield f"without '{_short(argument)}'", _drop("args", index)
        case ast.BinOp(op=ast.BitOr()):
            yield "without the right side", _replace_by("left")
            yield "without the left side", _replace_by("right")
        case ast.BinOp(op=operator) if type(operator) in ARITHMETIC:
            yield ARITHMETIC[type(operator)].__name__, _put("op", ARITHMETIC[type(operator)]())
        case ast.Constant(value=True | False as value):
            yield str(not value), _put("value", not value)
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign() | ast.Delete():
            yield "forgotten", _forget
        case ast.Expr(value=ast.Call() as call) if not _calls_base_class(call):
            yield "forgotten", _forget
        case ast.Continue() | ast.Break():
            yield "forgotten", _forget


def _calls_base_class(call: ast.Call) -> bool:
    """Whether this is `super().some_method(...)`: without it a function would no longer refer to its class, and such a
    function cannot take the other's place in the module."""
    return ast.unparse(call.func).startswith("super().")


def _short(node: ast.AST) -> str:
    return ast.unparse(node)[:80]


def _put(field: str, value: object) -> Edit:
    return lambda node: setattr(node, field, copy.deepcopy(value))


def _invert(field: str) -> Edit:
    return lambda node: setattr(node, field, ast.UnaryOp(ast.Not(), getattr(node, field)))


def _drop(field: str, index: int) -> Edit:
    def drop(node: ast.AST) -> None:
        values = getattr(node, field)
        del values[index]
        if isinstance(node, ast.BoolOp) and len(values) == 1:
            # `and` of one operand is that operand.
            node.values = [values[0], values[0]]

    return drop


def _replace_by(side: str) -> Edit:
    """A binary operation that gives one of its sides: `side if True else ...`."""

    def replace(node: ast.AST) -> None:
        assert isinstance(node, ast.BinOp)
        kept = getattr(node, side)
        node.op, node.left, node.right = ast.BitOr(), kept, copy.deepcopy(kept)

    return replace


def _forget(node: ast.AST) -> None:
    """A statement that does nothing, in the place of this one."""
    node.__class__ = ast.Pass  # type: ignore[assignment]
    node._fields = ()  # type: ignore[misc]
