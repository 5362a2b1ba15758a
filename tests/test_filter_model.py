"""Random expressions over random documents mean to the engine what they mean to a slow and obvious
interpreter."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import quire
import support.filter_model as model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.filter_model import Number, Truth, Value


@dataclass(frozen=True)
class Expression:
    """What is written, and what it is worth."""

    text: str
    value: Callable[[Value], Value]

    def truth(self, document: Value) -> Truth:
        return model.truth(self.value(document))


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def constant(text: str, value: Value) -> Expression:
    return Expression(text, lambda _: value)


def text_constant(text: str) -> Expression:
    return constant(quoted(text), text.encode() or None)


#: Few names and values, so that they meet; numbers in many spellings, also as texts.
INTEGERS = st.one_of(
    st.integers(-9, 9),
    st.sampled_from([10, 42, 100, 2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30]),
)
FLOATS = st.one_of(
    st.sampled_from([0.5, 1.5, 2.0, 2.5, -0.5, 0.1, 1e-7, 1e17, 1e300, 9007199254740993.0]),
    st.floats(-1e6, 1e6, allow_nan=False),
)
TEXTS = st.one_of(
    st.sampled_from(
        [
            "",
            "a",
            "ab",
            "abc",
            "IBM",
            "1",
            "2",
            "10",
            "007",
            "2.50",
            "1e5",
            "true",
            "False",
            "nan",
            " 1",
            "\ta \n",
            " \r\n",
            "it's",
            "é",
        ]
    ),
    st.text("aAbB1.é \t\n", max_size=4),
)
SINGLES = st.one_of(st.none(), st.booleans(), INTEGERS, FLOATS, TEXTS)
NAMES = st.sampled_from(["a", "b", "c"])
MEMBERS = st.one_of(
    SINGLES,
    st.recursive(
        SINGLES,
        lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(NAMES, inner, max_size=3)),
        max_leaves=6,
    ),
)
DOCUMENTS = st.fixed_dictionaries({"a": MEMBERS, "b": SINGLES}, optional={"c": MEMBERS})
#: Mean the same to both engines.
PATTERNS = st.sampled_from(["a", "^a", "b$", "[0-9]+", "^.$", "a|1", "(?i)IB", "a.?b", "^(a|b)*$", "\\.5"])


@st.composite
def fields(draw: st.DrawFn) -> Expression:
    steps = draw(st.lists(st.one_of(NAMES, st.integers(0, 2)), min_size=1, max_size=3))
    if isinstance(steps[0], int):
        steps[0] = "a"
    text = "".join(f"[{step}]" if isinstance(step, int) else f"/{step}" for step in steps)

    def value(document: Value) -> Value:
        for step in steps:
            document = model.member(document, step)
        return document

    return Expression(text, value)


def number_constant(number: int | float) -> Expression:
    text = str(number) if isinstance(number, int) else repr(number)
    # A sign is an operator in the language.
    written = model.parse_number(text.lstrip("-").encode())
    assert written is not None
    if text.startswith("-"):
        value = model.narrowed(-written.value)
        return constant(text, value if value.value != 0 or isinstance(number, float) else Number(0))
    return constant(text, written)


def leaves() -> st.SearchStrategy[Expression]:
    constants = st.sampled_from([constant("TRUE", True), constant("false", False), constant("NULL", None)])
    numbers = st.one_of(INTEGERS, FLOATS).map(number_constant)
    return st.one_of(fields(), fields(), TEXTS.map(text_constant), numbers, constants)


def function(name: str, *arguments: Expression, value: Callable[..., Value]) -> Expression:
    text = f"{name}({', '.join(argument.text for argument in arguments)})"
    return Expression(text, lambda document: value(*(argument.value(document) for argument in arguments)))


#: One argument.
UNARY: dict[str, Callable[[Value], Value]] = {
    "UPPER": lambda value: model.on_text(value, lambda text: text.upper()),
    "lower": lambda value: model.on_text(value, lambda text: text.lower()),
    "REVERSE": lambda value: model.on_text(value, lambda text: text[::-1]),
    "LENGTH": lambda value: model.on_text(value, len),
    "TRIM": lambda value: model.on_text(value, lambda text: text.strip(b" ")),
    "LTRIM": lambda value: model.on_text(value, lambda text: text.lstrip(b" ")),
    "RTRIM": lambda value: model.on_text(value, lambda text: text.rstrip(b" ")),
    "CRC32": model.crc32,
    "ARRAY_COUNT": lambda value: Number(len(model.array(value))),
    "ARRAY_MAX": lambda value: model.best(model.array(value), ">"),
    "ARRAY_MIN": lambda value: model.best(model.array(value), "<"),
    "ARRAY_SUM": model.array_sum,
    "ABS": lambda value: model.rounded_to(value, abs, abs),
    "CEILING": lambda value: model.rounded_to(value, int, lambda number: float(math.ceil(number))),
    "FLOOR": lambda value: model.rounded_to(value, int, lambda number: float(math.floor(number))),
    "TRUNC": lambda value: model.rounded_to(value, int, lambda number: float(math.trunc(number))),
    "AS_STRING": model.to_text,
    "AS_BOOLEAN": model.truth,
}


def calls(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    def substr(text: Expression, start: Expression, count: Expression | None) -> Expression:
        if count is None:
            return function("SUBSTR", text, start, value=model.substr)
        return function(
            "SUBSTR", text, start, count, value=lambda a, b, c: model.substr(a, b, c, has_count=True)
        )

    def several(name: str, value: Callable[[list[Value]], Value]) -> st.SearchStrategy[Expression]:
        arguments = st.lists(inner, min_size=1, max_size=3)
        return arguments.map(lambda them: function(name, *them, value=lambda *values: value(list(values))))

    def first_known(values: list[Value]) -> Value:
        return next((value for value in values if model.scalar(value) is not None), None)

    return st.one_of(
        st.builds(
            lambda name, argument: function(name, argument, value=UNARY[name]),
            st.sampled_from(sorted(UNARY)),
            inner,
        ),
        st.builds(lambda a, b: function("INSTR", a, b, value=model.instr), inner, inner),
        st.builds(lambda a, b, c: function("REPLACE", a, b, c, value=model.replace), inner, inner, inner),
        st.builds(
            lambda a, b, c: function("ARRAY_TO_STRING", a, b, c, value=model.joined), inner, inner, inner
        ),
        st.builds(substr, inner, INTEGERS.map(number_constant), st.one_of(st.none(), inner)),
        several("CONCAT", model.concat),
        several("LEAST", lambda values: model.best(values, "<")),
        several("GREATEST", lambda values: model.best(values, ">")),
        several("COALESCE", first_known),
    )


def operators(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    def binary(left: Expression, operator: str, right: Expression) -> Expression:
        def value(document: Value) -> Value:
            return model.arithmetic(operator, left.value(document), right.value(document))

        return Expression(f"({left.text} {operator} {right.text})", value)

    def compared(left: Expression, operator: str, right: Expression) -> Expression:
        def value(document: Value) -> Value:
            return model.compare(operator, left.value(document), right.value(document))

        return Expression(f"({left.text} {operator} {right.text})", value)

    def logical(left: Expression, operator: str, right: Expression) -> Expression:
        combine = model.both if operator == "AND" else model.either
        return Expression(
            f"({left.text} {operator} {right.text})",
            lambda document: combine(left.truth(document), right.truth(document)),
        )

    def conditional(condition: Expression, yes: Expression, no: Expression) -> Expression:
        return Expression(
            f"IF({condition.text}, {yes.text}, {no.text})",
            lambda document: (yes if condition.truth(document) else no).value(document),
        )

    return st.one_of(
        st.builds(compared, inner, st.sampled_from(sorted(model.COMPARISONS)), inner),
        st.builds(logical, inner, st.sampled_from(["AND", "OR"]), inner),
        st.builds(binary, inner, st.sampled_from(["+", "-", "*", "/", "%"]), inner),
        st.builds(lambda it: Expression(f"(NOT {it.text})", lambda doc: model.negate(it.truth(doc))), inner),
        st.builds(conditional, inner, inner, inner),
    )


def predicates(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    def tail(left: Expression, negated: bool, text: str, test: Callable[[Value, Value], Truth]) -> Expression:
        def value(document: Value) -> Value:
            found = test(left.value(document), document)
            return model.negate(found) if negated else found

        return Expression(f"({left.text} {'NOT ' if negated else ''}{text})", value)

    def like(left: Expression, negated: bool, pattern: str) -> Expression:
        return tail(
            left, negated, f"LIKE {quoted(pattern)}", lambda value, _: model.like(value, pattern.encode())
        )

    def listed(members: list[Expression]) -> str:
        return f"({', '.join(member.text for member in members)})"

    def is_in(left: Expression, negated: bool, members: list[Expression]) -> Expression:
        def test(value: Value, document: Value) -> Truth:
            result: Truth = False
            for member in members:
                result = model.either(result, model.compare("=", value, member.value(document)))
            return result

        return tail(left, negated, f"IN {listed(members)}", test)

    def between(left: Expression, negated: bool, low: Expression, high: Expression) -> Expression:
        def test(value: Value, document: Value) -> Truth:
            return model.between(value, low.value(document), high.value(document))

        return tail(left, negated, f"BETWEEN {low.text} AND {high.text}", test)

    def affix(left: Expression, negated: bool, word: str, members: list[Expression]) -> Expression:
        ends: Callable[[bytes, bytes], bool] = bytes.startswith if word == "BEGINS" else bytes.endswith

        def test(value: Value, document: Value) -> Truth:
            return model.affix(value, [member.value(document) for member in members], ends)

        return tail(left, negated, f"{word} WITH {listed(members)}", test)

    def is_state(left: Expression, negated: bool, word: str) -> Expression:
        def value(document: Value) -> Value:
            single = model.scalar(left.value(document))
            found = single is None if word == "NULL" else isinstance(single, Number) and single.is_nan
            return found is not negated

        return Expression(f"({left.text} IS {'NOT ' if negated else ''}{word})", value)

    members = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        st.builds(like, inner, st.booleans(), PATTERNS),
        st.builds(is_in, inner, st.booleans(), members),
        st.builds(between, inner, st.booleans(), inner, inner),
        st.builds(affix, inner, st.booleans(), st.sampled_from(["BEGINS", "ENDS"]), members),
        st.builds(is_state, inner, st.booleans(), st.sampled_from(["NULL", "NAN"])),
    )


def extended(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    return st.one_of(operators(inner), predicates(inner), calls(inner))


SMALL = st.one_of(leaves(), leaves(), extended(leaves()))
EXPRESSIONS = st.lists(extended(st.one_of(leaves(), SMALL, extended(SMALL))), min_size=4, max_size=4)


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(EXPRESSIONS, st.lists(DOCUMENTS, min_size=4, max_size=4))
def test_expressions_mean_what_the_model_says(
    expressions: list[Expression], documents: list[dict[str, Any]]
) -> None:
    for expression in expressions:
        check(expression, documents)


@pytest.mark.parametrize("name", sorted(UNARY))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.fixed_dictionaries({"a": st.one_of(TEXTS, MEMBERS)}), min_size=4, max_size=4))
def test_a_function_of_one_argument_means_what_the_model_says(
    name: str, documents: list[dict[str, Any]]
) -> None:
    field = Expression("/a", lambda document: model.member(document, "a"))
    check(function(name, field, value=UNARY[name]), documents)


def test_a_text_that_is_longer_than_a_filter_can_be_checked() -> None:
    field = Expression("/a", lambda document: model.member(document, "a"))
    longest = function("CONCAT", field, field, value=lambda *values: model.concat(list(values)))
    check(longest, [{"a": "x" * 600_000}])


def check(expression: Expression, documents: list[dict[str, Any]]) -> None:
    wanted = quire.Filter(expression.text)
    # Values are compared, too, and not only whether they are TRUE: as text, and whether they are
    # NULL or NaN.
    states = quire.Filter(f"({expression.text}) IS NULL"), quire.Filter(f"({expression.text}) IS NAN")
    for document in documents:
        text = json.dumps(document)
        read = model.of_json(text)
        value = model.scalar(expression.value(read))
        assert wanted.matches(text) is (model.truth(value) is True), (expression.text, text, value)
        assert states[0].matches(text) is (value is None), (expression.text, text, value)
        is_nan = isinstance(value, Number) and value.is_nan
        assert states[1].matches(text) is is_nan, (expression.text, text, value)
        shown = model.to_text(value)
        # A filter has at most 1 MiB.
        if shown is not None and len(shown) < 2**16:
            same = f"CONCAT({expression.text}) = {quoted(shown.decode(errors='replace'))}"
            if b"\xef\xbf\xbd" not in shown and shown.decode(errors="replace").encode() == shown:
                assert quire.Filter(same).matches(text), (expression.text, text, value)
