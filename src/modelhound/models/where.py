"""`--where`: keep the models for which a condition on their cards holds.

In:  a condition as a person types it, such as  params < 30e6 and family == 'resnet'
Out: a Condition, which says of a ModelCard yes or no, and of a part of one perhaps that it cannot tell
Nothing here runs what was typed: it is parsed by Python's own parser and only comparisons, and, or, not, in, numbers,
texts and the names below are taken from the tree. Anything else is refused with a caret under it.
"""

import ast
import difflib
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from modelhound.errors import RequestError
from modelhound.models.source import ModelCard

__all__ = ["Condition", "parse_where"]

_FIELDS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "name": ("model", lambda model: model.partition(":")[2]),
    "source": ("model", lambda model: model.partition(":")[0]),
    "family": ("family", lambda family: family),
    "params": ("num_parameters", lambda count: count),
    "modality": ("input_size", lambda size: "text" if size is None else "image"),
    "input_size": ("input_size", lambda size: max(size or (0,))),
    "max_tokens": ("max_tokens", lambda count: count or 0),
    "trained_on": ("trained_on", lambda name: name),
    "licence": ("licence", lambda name: name),
    "downloads": ("downloads", lambda count: count or 0),
}
"""What a condition may speak of -> the field of a card that it is read from, and how."""

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

_Facts = Mapping[str, Any]
_Value = Callable[[_Facts], Any]
_UNKNOWN = object()
"""What a value is that rests on a fact nobody has looked up yet."""


class Condition:
    """What was typed, as something to hold against models."""

    def __init__(self, text: str, evaluate: _Value) -> None:
        self._text, self._evaluate = text, evaluate

    def __call__(self, card: ModelCard) -> bool:
        """Whether it holds for a model of which all is known."""
        return bool(self.decide({name: getattr(card, name) for name in ModelCard.__struct_fields__}))

    def decide(self, facts: _Facts) -> bool | None:
        """Whether it holds, by some fields of a card; None where that depends on the others."""
        try:
            value = self._evaluate(facts)
            return None if value is _UNKNOWN else bool(value)
        except TypeError as error:
            raise RequestError(
                f"cannot apply --where {self._text!r} to {facts['model']}: {error}; params, input_size, "
                "max_tokens and downloads are numbers, the other names are texts"
            ) from None


def parse_where(condition: str) -> Condition:
    """The condition; one that cannot be understood is a RequestError that points at the place."""
    try:
        tree = ast.parse(condition.strip(), mode="eval")
    except SyntaxError as error:
        # An end that comes too early is reported at line 2 or column 0.
        at_end = (error.lineno or 1) > 1 or not error.offset
        column = len(condition.strip()) if at_end else (error.offset or 1) - 1
        raise _refuse(condition, column, f"expected a condition{_hint(condition)}") from None
    return Condition(condition, _understand(tree.body, condition.strip()))


def _understand(node: ast.expr, text: str) -> _Value:
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            parts = [_understand(each, text) for each in values]
            return lambda facts: _all(part(facts) for part in parts)
        case ast.BoolOp(op=ast.Or(), values=values):
            parts = [_understand(each, text) for each in values]
            return lambda facts: _not(_all(_not(part(facts)) for part in parts))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = _understand(operand, text)
            return lambda facts: _not(inner(facts))
        case ast.Compare():
            return _understand_comparison(node, text)
        case ast.Constant(value=str() | int() | float() as value):
            return lambda facts: value
        case ast.Tuple(elts=items) | ast.List(elts=items):
            members = [_understand(each, text) for each in items]
            return lambda facts: _gather([member(facts) for member in members])
        case ast.Name(id=name) if name in _FIELDS:
            field, read = _FIELDS[name]
            return lambda facts: read(facts[field]) if field in facts else _UNKNOWN
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
    return lambda facts: _all(
        _compare(compare, left(facts), right(facts))
        for compare, left, right in zip(operators, values, values[1:], strict=False)
    )


def _compare(compare: Callable[[Any, Any], bool], left: Any, right: Any) -> Any:
    return _UNKNOWN if left is _UNKNOWN or right is _UNKNOWN else compare(left, right)


def _all(parts: Iterable[Any]) -> Any:
    """One that does not hold decides, whatever is not known of the others; what stands behind it is not looked at."""
    is_known = True
    for part in parts:
        if part is _UNKNOWN:
            is_known = False
        elif not part:
            return False
    return True if is_known else _UNKNOWN


def _not(value: Any) -> Any:
    return value if value is _UNKNOWN else not value


def _gather(members: list[Any]) -> Any:
    return _UNKNOWN if any(member is _UNKNOWN for member in members) else tuple(members)


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
