"""`together=`, `where=`, `lengths=`: which points a grid has. They are words of a command alone."""

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sweeper.spec.sentences import did_you_mean

TOGETHER, WHERE = "together=", "where="
LENGTH_WORDS = ("lengths=", "lengths_unit=", "cooldown=")

_ARITHMETIC: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.Pow: math.pow,  # of floats, which overflow where whole numbers would fill the memory
}  # fmt: skip
_COMPARISONS: Mapping[type[ast.AST], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.In: lambda item, held: item in held, ast.NotIn: lambda item, held: item not in held,
}  # fmt: skip
_CONSTANTS = {"null": None, "true": True, "false": False}


def split_grid_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of a command that are no overrides, such as `where=`, and its overrides.

    ValueError if its sweeper has no grid.
    """
    ours = [word for word in words if word.startswith((TOGETHER, WHERE, *LENGTH_WORDS))]
    others = [word for word in words if re.match(r"hydra/sweeper=(?!grid$|sequential$)", word)]
    if ours and others:
        msg = f"{' '.join(ours)} must be left out with {others[0]}, which has no grid. Remove it."
        raise ValueError(msg)
    return ours, [word for word in words if word not in ours]


class Where:
    """The expression that is true for the points of a grid that stay; it is never executed.

    ValueError if it has more than config keys, values, arithmetic, comparisons and logic.
    """

    def __init__(self, word: str) -> None:
        self.word, text = word, word.removeprefix(WHERE).strip()
        is_quoted = text[:1] in ("'", '"') and text.find(text[0], 1) == len(text) - 1
        try:
            self._tree = ast.parse(text[1:-1] if is_quoted else text, mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
            raise self._refused(getattr(error, "msg", "it is too deep")) from error

    def __call__(self, options: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
        """Whether a point stays, by the options of groups that it chooses and by its config."""

        def find(key: str) -> Any:
            if key in _CONSTANTS or key in options:
                return options.get(key, _CONSTANTS.get(key))
            node: Any = config
            for name in key.split("."):
                if not isinstance(node, Mapping) or name not in node:
                    msg = f"{key} is no config key. {did_you_mean(key, [*config])}".rstrip(". ")
                    raise ValueError(msg)
                node = node[name]
            if isinstance(node, Mapping) and "name" not in node:
                msg = f"{key} is a group, with {', '.join(f'{key}.{name}' for name in node)}"
                raise ValueError(msg)
            return node["name"] if isinstance(node, Mapping) else node

        try:
            return bool(_evaluate(self._tree, find))
        except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
            raise self._refused(str(error)) from error

    def _refused(self, why: str) -> ValueError:
        return ValueError(
            "where must consist of config keys, numbers, texts in quotes, + - * / // % **, "
            f"comparisons, in, and, or, not; got {self.word}: {why}"
            f"{'' if why.endswith('?') else '. Correct it.'}"
        )


def _evaluate(node: ast.AST, find: Callable[[str], Any]) -> Any:  # noqa: PLR0911
    """The value of a part of an expression, whose keys `find` knows; ValueError for other parts."""

    def values(*nodes: ast.AST) -> list[Any]:
        return [_evaluate(part, find) for part in nodes]

    match node:
        case ast.Constant(value=int() | float() | str() as value):
            return value
        case ast.Name() | ast.Attribute() if all(
            map(str.isidentifier, ast.unparse(node).split("."))
        ):
            return find(ast.unparse(node))
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return values(*items)
        case ast.UnaryOp(op=ast.Not(), operand=inside):
            return not _evaluate(inside, find)
        case ast.UnaryOp(op=ast.USub(), operand=inside):
            return -_evaluate(inside, find)
        case ast.BoolOp(op=op, values=parts):  # what decides ends it, as in Python
            decided = (bool(_evaluate(part, find)) for part in parts)
            return all(decided) if isinstance(op, ast.And) else any(decided)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            pair = values(left, right)
            if all(isinstance(number, int | float) for number in pair):
                return _ARITHMETIC[type(op)](*pair)
        case ast.Compare(left=left, ops=ops, comparators=others) if all(
            type(op) in _COMPARISONS for op in ops
        ):
            found = values(left, *others)
            trios = zip(ops, found, found[1:], strict=False)
            return all(_COMPARISONS[type(op)](one, other) for op, one, other in trios)
        case _:
            pass
    msg = f"{ast.unparse(node)} is none of these"
    raise ValueError(msg)
