"""OpenTelemetry: clients that make spans and metrics of their messages (docs/how-to/tracing.md).

`Client` and `AsyncClient` take the place of those of `quire`. They use the providers that the
program has set, and only the API of OpenTelemetry (`quire-mq[otel]`). A message carries the context
of its span in its headers (`traceparent`), so that a trace continues where the message is handled.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from time import perf_counter, time_ns
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, cast

import quire
from quire._message import Message
from quire._units import Duration
from quire.client._driver import Handler
from quire.client._subscription import DEFAULT_BATCH_COUNT

try:
    from opentelemetry import context, metrics, propagate, trace
    from opentelemetry.propagators.textmap import Getter
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode
except ImportError as _error:
    raise quire.ConfigError("OpenTelemetry is not installed: pip install 'quire-mq[otel]'") from _error

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

    from quire.admin._observed import Observed

__all__ = [
    "AsyncClient",
    "AsyncSubscription",
    "Client",
    "Subscription",
    "context_of",
    "observe",
    "process",
]

P = ParamSpec("P")
T = TypeVar("T")

# The names of the messaging conventions, which are not final: no other place has them.
SYSTEM: Final = "messaging.system"
DESTINATION: Final = "messaging.destination.name"
OPERATION: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
MESSAGE_ID: Final = "messaging.message.id"
CONVERSATION_ID: Final = "messaging.message.conversation_id"
BODY_SIZE: Final = "messaging.message.body.size"
BATCH_COUNT: Final = "messaging.batch.message_count"
CLIENT_ID: Final = "messaging.client.id"
ERROR_TYPE: Final = "error.type"

#: The limits of the headers of a message (docs/clients.md).
HEADERS_MAX: Final = 64
HEADER_BYTES_MAX: Final = 32_768

_version = quire.__version__
_tracer = trace.get_tracer("quire", _version)
_meter = metrics.get_meter("quire", _version)
_sent = _meter.create_counter(
    "messaging.client.sent.messages", "{message}", "Messages that the program gave to the client."
)
_consumed = _meter.create_counter(
    "messaging.client.consumed.messages", "{message}", "Messages that the program got from the client."
)
_operation_duration = _meter.create_histogram(
    "messaging.client.operation.duration", "s", "How long calls that send or receive messages took."
)
_process_duration = _meter.create_histogram(
    "messaging.process.duration", "s", "How long the program worked on a message."
)


#: The instruments of servers.
_servers: Observed | None = None


class _Headers(Getter[Mapping[str, "str | bytes"]]):
    """Headers as a propagator reads them."""

    def get(self, carrier: Mapping[str, str | bytes], key: str) -> list[str] | None:
        value = carrier.get(key)
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        return None if value is None else [value]

    def keys(self, carrier: Mapping[str, str | bytes]) -> list[str]:
        return list(carrier)


_HEADERS: Final = _Headers()


def context_of(message: Message) -> Context:
    """Returns the context with which the message was sent; without one, an empty context."""
    return propagate.extract(message.headers, context.Context(), _HEADERS)


def observe(server: quire.Server) -> None:
    """Gives the figures of a server in this process to the meter provider, from now on.

        with quire.Server(config) as server:
            quire.otel.observe(server)

    Each series of `/metrics` is an instrument, such as `quire.queue.messages`, with its labels and
    `quire.instance`. The figures are read when a reader of the provider collects, and are at most 1 s
    old. When the server stops, they are no longer observed. A second call for the server does nothing.
    """
    global _servers
    from quire.admin._observed import Observed

    if _servers is None:
        _servers = Observed(_meter)
    _servers.add(server)


@contextmanager
def process(message: Message) -> Iterator[Span]:
    """Makes a span `process TOPIC` of the work on a message. Handlers of the clients run inside one.

        for message in subscription:
            with quire.otel.process(message):
                ...

    The span has a link to the span that sent the message. Where no span is current, that span is also its
    parent, so that the trace continues. An exception is noted in the span, and raised.
    """
    destination = message.queue or message.topic
    sent = context_of(message)
    parent = sent if not trace.get_current_span().get_span_context().is_valid else context.get_current()
    labels = _labels("process", destination)
    started = perf_counter()
    with _tracer.start_as_current_span(
        f"process {destination}",
        parent,
        SpanKind.CONSUMER,
        {**labels, OPERATION_TYPE: "process", **_of_message(message)},
        _links([sent]),
        # The error is noted below, in the form of the conventions.
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield span
        except BaseException as error:
            labels[ERROR_TYPE] = _note(span, error)
            raise
        finally:
            _process_duration.record(perf_counter() - started, labels)


def _labels(operation: str, destination: str | None) -> dict[str, str]:
    """The attributes that spans and metrics have in common."""
    labels = {SYSTEM: "quire", OPERATION: operation}
    if destination is not None:
        labels[DESTINATION] = destination
    return labels


def _of_message(message: Message) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {BODY_SIZE: len(message.data)}
    if message.bookmark:
        attributes[MESSAGE_ID] = message.bookmark
    if message.correlation_id:
        attributes[CONVERSATION_ID] = message.correlation_id
    return attributes


def _links(sent: Iterable[Context]) -> list[Link]:
    spans = (trace.get_current_span(each).get_span_context() for each in sent)
    return [Link(span) for span in spans if span.is_valid]


def _note(span: Span, error: BaseException) -> str:
    """Notes in the span that the operation failed. Returns the type of the error."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    span.set_attribute(ERROR_TYPE, name)
    # No text of the error: it may have data of the message.
    span.set_status(Status(StatusCode.ERROR))
    return name


# Sending


def _with_context(headers: Mapping[str, str | bytes] | None) -> Mapping[str, str | bytes] | None:
    """The headers with the current context. Names that the program has given stay as they are."""
    carrier: dict[str, str | bytes] = {}
    propagate.inject(carrier)
    if not carrier:
        return headers
    carrier.update(headers or {})
    size = sum(len(_encoded(name)) + len(_encoded(value)) for name, value in carrier.items())
    has_room = len(carrier) <= HEADERS_MAX and size <= HEADER_BYTES_MAX
    return carrier if has_room else headers


def _encoded(text: object) -> bytes:
    # Another type, or a lone surrogate, is an error of the call itself.
    return text if isinstance(text, bytes) else str(text).encode(errors="replace")


@contextmanager
def _sending(client: quire.Client | quire.AsyncClient, topic: object) -> Iterator[list[int]]:
    """The span of a call that sends. The caller appends the number of messages when it knows it."""
    destination = topic if isinstance(topic, str) else None
    labels = _labels("send", destination)
    counts: list[int] = []
    started = perf_counter()
    with _tracer.start_as_current_span(
        "send" if destination is None else f"send {destination}",
        kind=SpanKind.PRODUCER,
        attributes={**labels, OPERATION_TYPE: "send", CLIENT_ID: client.name},
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield counts
            if counts:
                span.set_attribute(BATCH_COUNT, sum(counts))
        except BaseException as error:
            labels[ERROR_TYPE] = _note(span, error)
            raise
        finally:
            _operation_duration.record(perf_counter() - started, labels)
            _sent.add(sum(counts) if counts else 1, labels)


def _sends(method: Callable[P, T]) -> Callable[P, T]:
    """A method that publishes one message, with a span around it and its context in the headers."""
    # The signatures of the methods begin with the topic, and have `headers` by name only.
    if inspect.iscoroutinefunction(method):

        @wraps(method)
        async def sending_later(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            with _sending(self, args[0] if args else kwargs.get("topic")):
                kwargs["headers"] = _with_context(kwargs.get("headers"))
                return await cast("Callable[..., Any]", method)(self, *args, **kwargs)

        return cast("Callable[P, T]", sending_later)

    @wraps(method)
    def sending(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        with _sending(self, args[0] if args else kwargs.get("topic")):
            kwargs["headers"] = _with_context(kwargs.get("headers"))
            return cast("Callable[..., Any]", method)(self, *args, **kwargs)

    return cast("Callable[P, T]", sending)


def _sends_batch(method: Callable[P, T]) -> Callable[P, T]:
    """A method that publishes a batch, with one span around it. Its context is in every message."""
    if inspect.iscoroutinefunction(method):

        @wraps(method)
        async def sending_later(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            with _sending(self, args[0] if args else kwargs.get("topic")) as counts:
                args = _prepare_batch(args, kwargs)
                result = await cast("Callable[..., Any]", method)(self, *args, **kwargs)
                counts.append(_count_of(result))
                return result

        return cast("Callable[P, T]", sending_later)

    @wraps(method)
    def sending(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        with _sending(self, args[0] if args else kwargs.get("topic")) as counts:
            args = _prepare_batch(args, kwargs)
            result = cast("Callable[..., Any]", method)(self, *args, **kwargs)
            counts.append(_count_of(result))
            return result

    return cast("Callable[P, T]", sending)


def _prepare_batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Puts the current context into the headers of the call, and of the items that have their own."""
    kwargs["headers"] = _with_context(kwargs.get("headers"))
    if "items" in kwargs:
        kwargs["items"] = _items(kwargs["items"])
    elif len(args) > 1:
        args = (args[0], _items(args[1]), *args[2:])
    return args


def _items(items: Any) -> Any:
    # Other types are an error of the call itself.
    if isinstance(items, (list, tuple, Iterator)):
        return (_item(item) for item in items)
    return items


def _item(item: Any) -> Any:
    if isinstance(item, quire.Publish) and item.headers is not None:
        return replace(item, headers=_with_context(item.headers))
    return item


def _count_of(result: Any) -> int:
    return len(result if isinstance(result, list) else result.sequences)


# Receiving


def _received(
    client: quire.Client | quire.AsyncClient, topic: str, messages: list[Message], start: int
) -> None:
    """Notes a call that has returned messages: one span with a link to the span that sent each of them."""
    labels = _labels("receive", topic)
    attributes: dict[str, str | int] = {**labels, OPERATION_TYPE: "receive", CLIENT_ID: client.name}
    match messages:
        case [message]:
            attributes.update(_of_message(message))
        case _:
            attributes[BATCH_COUNT] = len(messages)
    links = _links(map(context_of, messages))
    _tracer.start_span(f"receive {topic}", None, SpanKind.CLIENT, attributes, links, start).end()
    _operation_duration.record((time_ns() - start) / 1e9, labels)
    _consumed.add(len(messages), labels)


class _Iterator(Iterator[T]):
    """An iterator whose results are noted."""

    def __init__(self, results: Iterator[T], note: Callable[[T, int], None]) -> None:
        self._results = results
        self._note = note

    def __next__(self) -> T:
        start = time_ns()
        result = next(self._results)
        self._note(result, start)
        return result


class _AsyncIterator(AsyncIterator[T]):
    """As `_Iterator`."""

    def __init__(self, results: AsyncIterator[T], note: Callable[[T, int], None]) -> None:
        self._results = results
        self._note = note

    async def __anext__(self) -> T:
        start = time_ns()
        result = await anext(self._results)
        self._note(result, start)
        return result


class Subscription(quire.Subscription):
    __doc__ = quire.Subscription.__doc__

    def __iter__(self) -> Iterator[Message]:
        return _Iterator(super().__iter__(), self._note_one)

    def get(self, timeout: Duration | None = None) -> Message:
        start = time_ns()
        message = super().get(timeout)
        self._note_one(message, start)
        return message

    def batches(
        self, max_messages: int = DEFAULT_BATCH_COUNT, timeout: Duration | None = None
    ) -> Iterator[list[Message]]:
        return _Iterator(super().batches(max_messages, timeout), self._note_all)

    def _note_one(self, message: Message, start: int) -> None:
        _received(self._client, self.topic, [message], start)

    def _note_all(self, messages: list[Message], start: int) -> None:
        if messages:
            _received(self._client, self.topic, messages, start)


class AsyncSubscription(quire.AsyncSubscription):
    __doc__ = quire.AsyncSubscription.__doc__

    def __aiter__(self) -> AsyncIterator[Message]:
        return _AsyncIterator(super().__aiter__(), self._note_one)

    async def get(self, timeout: Duration | None = None) -> Message:
        start = time_ns()
        message = await super().get(timeout)
        self._note_one(message, start)
        return message

    def batches(
        self, max_messages: int = DEFAULT_BATCH_COUNT, timeout: Duration | None = None
    ) -> AsyncIterator[list[Message]]:
        return _AsyncIterator(super().batches(max_messages, timeout), self._note_all)

    def _note_one(self, message: Message, start: int) -> None:
        _received(self._client, self.topic, [message], start)

    def _note_all(self, messages: list[Message], start: int) -> None:
        if messages:
            _received(self._client, self.topic, messages, start)


def _observed(client: quire.Client | quire.AsyncClient, handler: Handler) -> Handler:
    """A handler that runs inside a span."""
    labels: dict[str | None, dict[str, str]] = {}

    def note(message: Message) -> None:
        destination = message.queue or message.topic
        _consumed.add(1, labels.setdefault(destination, _labels("process", destination)))

    if inspect.iscoroutinefunction(handler):

        @wraps(handler)
        async def handling_later(message: Message) -> None:
            note(message)
            with process(message):
                await handler(message)

        return handling_later

    @wraps(handler)
    def handling(message: Message) -> Awaitable[None] | None:
        note(message)
        with process(message):
            return handler(message)

    return handling


class Client(quire.Client):
    """A `quire.Client` that makes a span of each message that it sends, receives or handles, and counts them.

    Takes the same arguments. Raises `ConfigError` when OpenTelemetry is not installed.
    """

    _subscription_class = Subscription

    # The signatures stay those of `quire.Client`.
    if not TYPE_CHECKING:
        publish = _sends(quire.Client.publish)
        delta_publish = _sends(quire.Client.delta_publish)
        publish_receipt = _sends(quire.Client.publish_receipt)
        publish_many = _sends_batch(quire.Client.publish_many)
        publish_many_receipt = _sends_batch(quire.Client.publish_many_receipt)

    def _observed(self, handler: Handler) -> Handler:
        return _observed(self, handler)


class AsyncClient(quire.AsyncClient):
    """A `quire.AsyncClient` that makes a span of each message that it sends, receives or handles, and counts them.

    Takes the same arguments. Raises `ConfigError` when OpenTelemetry is not installed.
    """

    _subscription_class = AsyncSubscription

    # The signatures stay those of `quire.AsyncClient`.
    if not TYPE_CHECKING:
        publish = _sends(quire.AsyncClient.publish)
        delta_publish = _sends(quire.AsyncClient.delta_publish)
        publish_receipt = _sends(quire.AsyncClient.publish_receipt)
        publish_many = _sends_batch(quire.AsyncClient.publish_many)
        publish_many_receipt = _sends_batch(quire.AsyncClient.publish_many_receipt)

    def _observed(self, handler: Handler) -> Handler:
        return _observed(self, handler)
