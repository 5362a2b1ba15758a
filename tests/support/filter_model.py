"""The filter language as a slow and obvious interpreter, to hold the engine's against (docs/filters.md).

A value is None (NULL), a bool, a `Number`, bytes (never empty), a list (an array) or a dict (an
object). A condition is True, False or None (unknown). Nothing here is shared with the engine.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

_U64_MAX = 2**64 - 1
_I64_MIN = -(2**63)
#: A computed text with more bytes is NULL.
TEXT_SIZE_MAX = 2**24
_NUMBER = re.compile(rb"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class Number:
    """A number, and the text that it had in the message."""

    value: int | float
    raw: bytes = b""

    @property
    def is_nan(self) -> bool:
        return isinstance(self.value, float) and math.isnan(self.value)


Value: TypeAlias = "bool | Number | bytes | list[Any] | dict[str, Any] | None"
Truth: TypeAlias = "bool | None"

NAN = Number(math.nan)


def of_json(text: str) -> Value:
    """A document, numbers with their text."""

    def whole(raw: str) -> Number:
        return Number(narrowed(int(raw)).value, raw.encode())

    return json.loads(text, parse_int=whole, parse_float=lambda raw: Number(float(raw), raw.encode()))  # type: ignore[no-any-return]


def member(value: Any, step: str | int) -> Value:
    """One step of a path: a name, also through an array of objects, or an index."""
    if isinstance(step, int):
        if isinstance(value, list):
            return plain(value[step]) if step < len(value) else None
        return plain(value) if step == 0 else None
    if isinstance(value, dict):
        return plain(value.get(step))
    if isinstance(value, list):
        found = [plain(element[step]) for element in value if isinstance(element, dict) and step in element]
        return found or None
    return None


def plain(value: Any) -> Value:
    """Text as bytes, where empty is NULL."""
    if isinstance(value, str):
        return value.encode() or None
    if isinstance(value, list):
        return [plain(element) for element in value]
    return value  # type: ignore[no-any-return]


def narrowed(number: int | float) -> Number:
    """Integers up to 64 bits stay integers."""
    if isinstance(number, int) and not _I64_MIN <= number <= _U64_MAX:
        return Number(float(number) if abs(number) < 2**1024 - 2**970 else math.copysign(math.inf, number))
    return Number(number)


def parse_number(text: bytes) -> Number | None:
    if not _NUMBER.fullmatch(text):
        return None
    if text.lstrip(b"+-").isdigit():
        return narrowed(int(text))
    return Number(float(text))


def scalar(value: Value) -> Value:
    while isinstance(value, list):
        value = value[0] if value else None
    return value


def to_number(value: Value) -> Number | None:
    value = scalar(value)
    if isinstance(value, bool):
        return Number(int(value))
    if isinstance(value, bytes):
        return parse_number(value) or NAN
    return value if isinstance(value, Number) else None


def to_text(value: Value) -> bytes | None:
    value = scalar(value)
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, Number):
        return None if value.is_nan else value.raw or number_text(value.value)
    return value if isinstance(value, bytes) else None


def number_text(number: int | float) -> bytes:
    """The shortest that reads back; an exponent where plain digits would be many. A zero has no sign."""
    if number == 0:
        return b"0"
    if isinstance(number, int):
        return str(number).encode()
    if math.isinf(number):
        return b"inf" if number > 0 else b"-inf"
    exact = Decimal(repr(number))
    if 1e-5 <= abs(number) < 1e17:
        text = format(exact, "f")
        return (text.rstrip("0").rstrip(".") if "." in text else text).encode()
    sign, digits, _ = exact.as_tuple()
    text = "".join(map(str, digits)).rstrip("0")
    mantissa = text[0] + ("." + text[1:] if len(text) > 1 else "")
    return f"{'-' if sign else ''}{mantissa}e{exact.adjusted()}".encode()


def boolean_name(text: bytes) -> bool | None:
    return {b"true": True, b"false": False}.get(text.lower())


def truth(value: Value) -> Truth:
    value = scalar(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, bytes):
        named = boolean_name(value)
        if named is not None:
            return named
        value = parse_number(value)
    if isinstance(value, Number) and not value.is_nan:
        return value.value != 0
    return None


def order(left: Value, right: Value) -> int | None:
    """Below, equal or above; None = unknown."""
    left, right = scalar(left), scalar(right)
    for side in (left, right):
        if side is None or isinstance(side, dict) or (isinstance(side, Number) and side.is_nan):
            return None
    if isinstance(left, bytes) and isinstance(right, bytes):
        return (left > right) - (left < right)
    if isinstance(left, bytes):
        flipped = order(right, left)
        return None if flipped is None else -flipped
    if isinstance(right, bytes):
        named = boolean_name(right) if isinstance(left, bool) else None
        other = Number(int(named)) if named is not None else parse_number(right)
        return -1 if other is None else order(left, other)
    one, two = to_number(left), to_number(right)
    assert one is not None
    assert two is not None
    first, second = one.value, two.value
    if isinstance(first, float) or isinstance(second, float):
        # An integer meets a float as a float.
        first, second = float(first), float(second)
    return (first > second) - (first < second)


COMPARISONS: dict[str, Callable[[int], bool]] = {
    "=": lambda order: order == 0,
    "==": lambda order: order == 0,
    "!=": lambda order: order != 0,
    "<>": lambda order: order != 0,
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
}


def elements(value: Value) -> list[Any]:
    """The meaning of "any element": for a value that is not an array, the value itself."""
    return value if isinstance(value, list) else [value]


def any_of(results: Iterator[Truth]) -> Truth:
    """TRUE if any is; else unknown if any is, or there is none."""
    known = list(results)
    if any(result is True for result in known):
        return True
    return None if not known or any(result is None for result in known) else False


def compare(operator: str, left: Value, right: Value) -> Truth:
    def one(a: Value, b: Value) -> Truth:
        found = order(a, b)
        return None if found is None else COMPARISONS[operator](found)

    return any_of(one(a, b) for a in elements(left) for b in elements(right))


def like(value: Value, pattern: bytes) -> Truth:
    # In Python, `$` also matches before a line end at the end of the text.
    wanted = pattern.replace(b"$", rb"\Z")

    def one(element: Value) -> Truth:
        text = to_text(element)
        return None if text is None else re.search(wanted, text) is not None

    return any_of(one(element) for element in elements(value))


def between(value: Value, low: Value, high: Value) -> Truth:
    def one(element: Value) -> Truth:
        return both(compare(">=", scalar(element), scalar(low)), compare("<=", scalar(element), scalar(high)))

    return any_of(one(element) for element in elements(value))


def affix(value: Value, wanted: list[Value], test: Callable[[bytes, bytes], bool]) -> Truth:
    def one(element: Value, part: Value) -> Truth:
        text, known = to_text(element), to_text(part)
        return None if text is None or known is None else test(text, known)

    result: Truth = False
    for part in wanted:
        result = either(result, any_of(one(element, part) for element in elements(value)))
    return result


def negate(value: Truth) -> Truth:
    return None if value is None else not value


def both(left: Truth, right: Truth) -> Truth:
    if left is False or right is False:
        return False
    return True if left and right else None


def either(left: Truth, right: Truth) -> Truth:
    return negate(both(negate(left), negate(right)))


def arithmetic(operator: str, left: Value, right: Value) -> Value:
    one, two = to_number(left), to_number(right)
    if one is None or two is None:
        return None
    a, b = one.value, two.value
    if isinstance(a, int) and isinstance(b, int):
        exact = _exactly(operator, a, b)
        if exact is not None:
            return exact
    return Number(_as_floats(operator, float(a), float(b)))


def _exactly(operator: str, a: int, b: int) -> Number | None:
    if operator in "+-*":
        result = {"+": a + b, "-": a - b, "*": a * b}[operator]
        return narrowed(result) if abs(result) < 2**127 else None
    if b == 0:
        return NAN
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    if operator == "%":
        return narrowed(a - quotient * b)
    return narrowed(quotient) if quotient * b == a else None


def _as_floats(operator: str, a: float, b: float) -> float:
    if operator == "+":
        return a + b
    if operator == "-":
        return a - b
    if operator == "*":
        return a * b
    if operator == "%":
        return math.nan if b == 0 or math.isinf(a) or math.isnan(b) else math.fmod(a, b)
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1, b)
    return a / b


def best(values: list[Value], operator: str) -> Value:
    """The first of those that stand furthest to one side."""
    known = [scalar(value) for value in values if order(value, value) is not None]
    if not known:
        return None
    result = known[0]
    for value in known[1:]:
        if compare(operator, value, result):
            result = value
    return result


def array(value: Value) -> list[Any]:
    """The whole array; a single value is one of one element, NULL one of none."""
    return [] if value is None else elements(value)


def array_sum(value: Value) -> Value:
    numbers = [number for number in map(to_number, array(value)) if number is not None]
    exact = sum(number.value for number in numbers if isinstance(number.value, int))
    floats = [number.value for number in numbers if isinstance(number.value, float)]
    if not numbers:
        return None
    if not floats:
        return narrowed(exact)
    total = 0.0
    for number in floats:
        total += number
    return Number(total + float(exact))


def joined(value: Value, delimiter: Value, replacement: Value) -> Value:
    parts = [to_text(element) or to_text(replacement) or b"" for element in array(value)]
    return (to_text(delimiter) or b"").join(parts) or None


def on_text(value: Value, change: Callable[[bytes], Any]) -> Value:
    """A function of one text; NULL stays NULL, and the empty text is NULL."""
    text = to_text(value)
    if text is None:
        return None
    result = change(text)
    return Number(result) if isinstance(result, int) else result or None


def instr(text: Value, part: Value) -> Value:
    one, two = to_text(text), to_text(part)
    return None if one is None or two is None else Number(one.find(two) + 1)


def substr(text: Value, start: Value, count: Value = None, *, has_count: bool = False) -> Value:
    whole, first = to_text(text), cut(start)
    length = cut(count) if has_count else len(whole or b"")
    if whole is None or first is None or length is None:
        return None
    begin = max(len(whole) + first, 0) if first < 0 else max(first - 1, 0)
    return whole[begin : begin + max(length, 0)] or None


def cut(value: Value) -> int | None:
    """A whole number, cut towards zero."""
    number = to_number(value)
    if number is None or number.is_nan:
        return None
    if isinstance(number.value, float) and math.isinf(number.value):
        return 2**63 if number.value > 0 else _I64_MIN
    return int(number.value)


def replace(text: Value, old: Value, new: Value) -> Value:
    one, two = to_text(text), to_text(old)
    return None if one is None or two is None else one.replace(two, to_text(new) or b"") or None


def concat(values: list[Value]) -> Value:
    return b"".join(to_text(value) or b"" for value in values) or None


def rounded_to(value: Value, whole: Callable[[int], int], part: Callable[[float], float]) -> Value:
    """Exactly on an integer, else on the float; NaN and the infinities stay what they are."""
    number = to_number(value)
    if number is None:
        return None
    if isinstance(number.value, int):
        return narrowed(whole(number.value))
    return Number(part(number.value) if math.isfinite(number.value) else number.value)


def crc32(value: Value) -> Value:
    return on_text(value, zlib.crc32)
