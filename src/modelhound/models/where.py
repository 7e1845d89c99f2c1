"""`--where`: keep the models for which a condition on their cards holds.

In:  a condition as a person types it, such as  params < 30e6 and family == 'resnet'
Out: a function from a ModelCard to yes or no
Nothing here runs what was typed: it is parsed by Python's own parser and only comparisons, and, or, not, in, numbers,
texts and the names below are taken from the tree. Anything else is refused with a caret under it.
"""

import ast
import difflib
import operator
import re
from collections.abc import Callable
from typing import Any

from modelhound.errors import RequestError
from modelhound.models.source import ModelCard

__all__ = ["parse_where"]

_FIELDS: dict[str, Callable[[ModelCard], Any]] = {
    "name": lambda card: card.model.partition(":")[2],
    "source": lambda card: card.model.partition(":")[0],
    "family": lambda card: card.family,
    "params": lambda card: card.num_parameters,
    "modality": lambda card: card.modality,
    "input_size": lambda card: max(card.input_size or (0,)),
    "max_tokens": lambda card: card.max_tokens or 0,
    "trained_on": lambda card: card.trained_on,
    "licence": lambda card: card.licence,
    "downloads": lambda card: card.downloads or 0,
}
"""What a condition may speak of."""

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda item, container: item in container,
    ast.NotIn: lambda item, container: item not in container,
}

_Value = Callable[[ModelCard], Any]


def parse_where(condition: str) -> Callable[[ModelCard], bool]:
    """The condition as a function of a card; one that cannot be understood is a RequestError that points at the place."""
    try:
        tree = ast.parse(condition.strip(), mode="eval")
    except SyntaxError as error:
        # An end that comes too early is reported at line 2 or column 0.
        at_end = (error.lineno or 1) > 1 or not error.offset
        column = len(condition.strip()) if at_end else (error.offset or 1) - 1
        raise _refuse(condition, column, f"expected a condition{_hint(condition)}") from None
    evaluate = _understand(tree.body, condition.strip())

    def holds(card: ModelCard) -> bool:
        try:
            return bool(evaluate(card))
        except TypeError as error:
            raise RequestError(
                f"cannot apply --where {condition!r} to {card.model}: {error}; params, input_size, "
                "max_tokens and downloads are numbers, the other names are texts"
            ) from None

    return holds


def _understand(node: ast.expr, text: str) -> _Value:
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            parts = [_understand(each, text) for each in values]
            return lambda card: all(part(card) for part in parts)
        case ast.BoolOp(op=ast.Or(), values=values):
            parts = [_understand(each, text) for each in values]
            return lambda card: any(part(card) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = _understand(operand, text)
            return lambda card: not inner(card)
        case ast.Compare():
            return _understand_comparison(node, text)
        case ast.Constant(value=str() | int() | float() as value):
            return lambda card: value
        case ast.Tuple(elts=items) | ast.List(elts=items):
            members = [_understand(each, text) for each in items]
            return lambda card: tuple(member(card) for member in members)
        case ast.Name(id=name) if name in _FIELDS:
            return _FIELDS[name]
        case ast.Name(id=name):
            close = difflib.get_close_matches(name, _FIELDS, n=1)
            advice = (
                f"did you mean {close[0]}?" if close else f"expected one of {', '.join(_FIELDS)}, or a text in quotes"
            )
            raise _refuse(text, _column(node, text), f"there is no {name!r}, {advice}")
        case _:
            raise _refuse(text, _column(node, text), "expected comparisons joined by and, or, not")


def _understand_comparison(node: ast.Compare, text: str) -> _Value:
    """a < b < c holds if a < b and b < c."""
    values = [_understand(each, text) for each in (node.left, *node.comparators)]
    operators = []
    for each in node.ops:
        if type(each) not in _COMPARISONS:
            raise _refuse(text, _column(node, text), "expected one of < <= > >= == != in, not in")
        operators.append(_COMPARISONS[type(each)])
    return lambda card: all(
        compare(left(card), right(card)) for compare, left, right in zip(operators, values, values[1:], strict=False)
    )


def _hint(condition: str) -> str:
    """What was meant, where that can be guessed."""
    if short := re.search(r"\b([0-9.]+)\s*([kmgb])\b", condition, flags=re.IGNORECASE):
        zeros = {"k": 3, "m": 6, "g": 9, "b": 9}[short[2].lower()]
        return f", write {short[1]}e{zeros} for {short[0]}"
    if re.search(r"(?<![=<>!])=(?!=)", condition):
        return ", write == for ="
    return ""


def _column(node: ast.expr, text: str) -> int:
    """Where a part begins, in characters; the parser counts bytes."""
    return len(text.encode()[: node.col_offset].decode())


def _refuse(condition: str, column: int, why: str) -> RequestError:
    """The condition on a line of its own, with a caret below the place."""
    return RequestError(f"cannot understand --where: {why}\n  {condition.strip()}\n  {' ' * column}^")
