"""The last look at a written module: it defines types and calls its agent, and nothing else.

What is written of a card is quoted where it is written. This is a second, independent check: it
reads the module as Python does, and knows nothing of how it came about.
"""

import ast

from dragoman.generation.python_text import TAKEN

_MODULES = frozenset({"collections.abc", "typing", "dragoman", "dragoman.client.typed"})
_KINDS = (
    *(ast.Module, ast.ImportFrom, ast.alias, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef),
    *(ast.arguments, ast.arg, ast.keyword, ast.Return, ast.Assign, ast.AnnAssign, ast.Expr),
    *(ast.Await, ast.Call, ast.Attribute, ast.Name, ast.Constant, ast.Dict, ast.List, ast.Tuple),
    *(ast.Subscript, ast.BinOp, ast.BitOr, ast.Load, ast.Store, ast.Pass, ast.UnaryOp, ast.USub),
)
# What may be called by its name, and as a method of the client or of its twin.
_FUNCTIONS = frozenset({"TypedDict"})
_METHODS = frozenset({"call", "ask", "stream", "stream_text", "arguments", "run", "iterate"})


class NotHarmless(Exception):
    """The module does something that no module of a card does. It is an error of ours."""


def check(source: str) -> None:
    """Raise `NotHarmless` unless a module is one that may be written."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotHarmless(f"it is no Python: {error}") from None
    defined = {node.name for node in ast.walk(tree) if isinstance(node, _DEFINING)}
    for node in ast.walk(tree):
        if not isinstance(node, _KINDS):
            raise NotHarmless(f"it has {type(node).__name__}")
        if isinstance(node, ast.ImportFrom) and (node.module not in _MODULES or node.level):
            raise NotHarmless(f"it imports {node.module}")
        if isinstance(node, ast.Call) and not _is_ours(node.func, defined):
            raise NotHarmless(f"it calls {ast.unparse(node.func)}")
        if isinstance(node, ast.Attribute) and not _is_of_self(node):
            raise NotHarmless(f"it reads {ast.unparse(node)}")
        if isinstance(node, ast.Name) and node.id.startswith("__"):
            raise NotHarmless(f"it names {node.id}")
        if isinstance(node, _DEFINING) and node.name in TAKEN:
            raise NotHarmless(f"it hides {node.name}")


_DEFINING = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _is_ours(function: ast.expr, defined: set[str]) -> bool:
    if isinstance(function, ast.Name):
        return function.id in _FUNCTIONS or function.id in defined
    is_of_twin = isinstance(function, ast.Attribute) and isinstance(function.value, ast.Attribute)
    return isinstance(function, ast.Attribute) and (
        function.attr in _METHODS or (is_of_twin and function.attr in defined)
    )


def _is_of_self(node: ast.Attribute) -> bool:
    """Tell whether something is read of `self`, or of `self.agent`."""
    inner = node.value
    if isinstance(inner, ast.Attribute):
        return inner.attr == "agent" and _is_of_self(inner)
    return isinstance(inner, ast.Name) and inner.id == "self"
