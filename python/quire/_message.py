"""`Message` is made by the Rust core; here is what it needs of Python, and how data becomes one."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from quire import _quire
from quire._quire import Message as Message

#: Makes something that JSON has of something that it does not have.
Encoder = Callable[[Any], Any]

_JSON_TYPES = (dict, list, tuple, int, float, type(None))
_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def datetime_from_ns(timestamp_ns: int) -> datetime:
    """The time, to the microsecond, which is the resolution of a `datetime`."""
    return _UNIX_EPOCH + timedelta(microseconds=timestamp_ns // 1000)


def copy_of(body: bytes, command: str, sub_id: str) -> Message:
    """The message that was pickled: with all its attributes, but without the lease of the one that
    was received."""
    return _quire.copy_message(body, command, sub_id)


def to_bytes(data: Any, encoder: Encoder | None = None, topic: str | None = None) -> bytes:
    """Bytes as they are, text as UTF-8, anything else as JSON. `topic` is named in the error.

    `encoder` converts everything that JSON does not have. Without it, dataclasses, pydantic models,
    times, `Decimal`, `UUID`, `Enum`, sets and paths are written as pydantic writes them. Raises
    `TypeError` or `ValueError`.
    """
    where = "" if topic is None else f" on the topic {topic!r}"
    match data:
        case bytes():
            return data
        case str():
            try:
                return data.encode()
            except UnicodeEncodeError as error:
                raise ValueError(f"data: the text{where} is not Unicode, {_surrogate(error)}") from None
        case bytearray() | memoryview():
            return bytes(data)
    if encoder is not None and not isinstance(data, _JSON_TYPES):
        encoded = encoder(data)
        if isinstance(encoded, (bytes, str)):
            return to_bytes(encoded, topic=topic)
        data = encoded
    try:
        return _json(data, encoder)
    except (TypeError, ValueError, RecursionError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        try:
            path = _path_of(data, encoder)
        except RecursionError:  # nested too deeply, or it contains itself
            path = ""
        raise kind(f"data: cannot become JSON{where}, at {path or 'its root'}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply, or contains itself"
    return (
        f"text is not Unicode, {_surrogate(error)}" if isinstance(error, UnicodeEncodeError) else str(error)
    )


def _surrogate(error: UnicodeEncodeError) -> str:
    return f"because it has the lone surrogate {error.object[error.start]!r}"


def _json(data: Any, encoder: Encoder | None) -> bytes:
    default = encoder if encoder is not None else plain
    text = json.dumps(data, default=default, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    if isinstance(data, (dict, list, tuple)) and _quire.has_other_keys(data):
        _check_names(data)
    return text.encode()


def _check_names(data: object) -> None:
    """Raises `ValueError` for a dictionary of which two keys become the same name."""
    inner: Iterable[object] = ()
    if isinstance(data, dict):
        names: dict[str, object] = {}
        for key in data:
            name = key if isinstance(key, str) else json.dumps({key: 0})[2:-5]
            if name in names:
                raise ValueError(f"the keys {names[name]!r} and {key!r} are the same name in JSON")
            names[name] = key
        inner = data.values()
    elif isinstance(data, (list, tuple)):
        inner = data
    for value in inner:
        _check_names(value)


def plain(value: Any) -> Any:
    """A value that JSON does not have, in values that it has."""
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    kind = type(value)
    if kind.__module__.partition(".")[0] in ("numpy", "pandas"):
        value = _from_numpy(value)
        if value is None or isinstance(value, (str, bool, int, float, list, tuple)):
            return value
    match value:
        # A datetime of pandas. pydantic cuts it to the microsecond.
        case datetime() if getattr(value, "nanosecond", 0):
            return value.isoformat()
        # pydantic leaves out the seconds of an offset, which is another instant.
        case datetime() if (offset := value.utcoffset()) and offset % timedelta(minutes=1):
            value = value.astimezone(UTC)
        # pydantic counts years of 365 days. ISO 8601 does not define the length of a year.
        case timedelta() if abs(value) >= timedelta(days=365):
            days, rest = divmod(abs(value), timedelta(days=1))
            sign = "-" if value < timedelta(0) else ""
            return f"{sign}P{days}D{to_jsonable_python(rest).removeprefix('P') if rest else ''}"
        case Decimal() if not value.is_finite():
            raise ValueError(f"{value} is no number in JSON")
        # Their members are converted here, too.
        case set() | frozenset() | deque() | Generator():
            return list(value)
        case _ if is_dataclass(kind) and not hasattr(kind, "__pydantic_serializer__"):
            return {field.name: getattr(value, field.name) for field in fields(value)}
    try:
        return to_jsonable_python(value)
    except PydanticSerializationError as error:
        reason = (
            f"{kind.__qualname__} has no form in JSON: give the client an encoder=, or convert it ({error})"
        )
        raise TypeError(reason) from None


def _from_numpy(value: Any) -> Any:
    """A single value of NumPy or pandas as Python has it.

    A missing value is `None`, as in the JSON of pandas.
    """
    match type(value).__name__:
        case "NaTType" | "NAType":
            return None
        case "Timedelta" if value.nanoseconds:
            return _duration(value.value)
        case "Timedelta":
            return value.to_pytimedelta()
        case "datetime64" | "timedelta64" if value != value:
            return None
        # A `datetime` would have no nanoseconds.
        case "datetime64":
            return str(value)
        case "timedelta64" if value.dtype.name == "timedelta64[ns]":
            return _duration(value.item())
        # A month has no length in seconds, and other units are finer than nanoseconds.
        case "timedelta64" if not isinstance(value.item(), timedelta):
            return value
    # A scalar; an array has a shape, and a `longdouble` has more digits than a `float`.
    is_scalar = getattr(value, "shape", None) == () and hasattr(value, "item")
    return value.item() if is_scalar and type(value).__name__ != "longdouble" else value


def _duration(ns: int) -> str:
    """A duration in ISO 8601, as pydantic writes it, with nanoseconds."""
    days, rest = divmod(abs(ns), 86_400 * 10**9)
    hours, rest = divmod(rest, 3600 * 10**9)
    minutes, rest = divmod(rest, 60 * 10**9)
    seconds, part = divmod(rest, 10**9)
    fraction = f".{part:09}".rstrip("0") if part else ""
    time = "".join(f"{count}{unit}" for count, unit in ((hours, "H"), (minutes, "M")) if count)
    if rest or not (days or time):
        time += f"{seconds}{fraction}S"
    return f"{'-' if ns < 0 else ''}P{f'{days}D' if days else ''}{f'T{time}' if time else ''}"


def _path_of(data: object, encoder: Encoder | None) -> str:
    """The path of the first value that cannot become JSON, written like a field of a filter."""
    inner: Iterable[tuple[object, object]] = ()
    if isinstance(data, dict):
        inner = ((f"/{key}", value) for key, value in data.items())
    elif isinstance(data, (list, tuple)):
        inner = ((f"[{index}]", value) for index, value in enumerate(data))
    for step, value in inner:
        try:
            _json(value, encoder)
        except (TypeError, ValueError, RecursionError):
            return f"{step}{_path_of(value, encoder)}"
    return ""
