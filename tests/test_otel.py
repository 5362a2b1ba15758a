"""Spans and metrics of the clients of `quire.otel` (docs/how-to/tracing.md)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import quire
import quire.testing
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from quire import otel
from quire.admin._metrics import every_metric
from quire.admin._observed import Observed, name_of
from support.waiting import wait_until

QUEUE = quire.Config(queue={"name": "jobs", "message_type": "json", "underlying_topic": "orders"})

# A program sets its providers once.
_spans = InMemorySpanExporter()
_metrics = InMemoryMetricReader()
_tracers = TracerProvider()
_tracers.add_span_processor(SimpleSpanProcessor(_spans))
trace.set_tracer_provider(_tracers)
metrics.set_meter_provider(MeterProvider([_metrics]))


@pytest.fixture
def spans() -> InMemorySpanExporter:
    _spans.clear()
    return _spans


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def only(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    [span] = named(spans, name)
    return span


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def span_id(span: ReadableSpan) -> tuple[int, int]:
    found = span.get_span_context()
    assert found is not None
    return found.trace_id, found.span_id


def links(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def points(name: str) -> dict[tuple[tuple[str, Any], ...], float]:
    """The points of a metric by their attributes."""
    found: dict[tuple[tuple[str, Any], ...], float] = {}
    data = _metrics.get_metrics_data()
    for resource in data.resource_metrics if data else []:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                if metric.name == name:
                    for point in metric.data.data_points:
                        value = getattr(point, "value", None)
                        labels = tuple(sorted((point.attributes or {}).items()))
                        found[labels] = point.count if value is None else value  # type: ignore[union-attr]
    return found


def grown(
    before: dict[tuple[tuple[str, Any], ...], float], name: str, operation: str, destination: str
) -> float:
    labels = (
        ("messaging.destination.name", destination),
        ("messaging.operation.name", operation),
        ("messaging.system", "quire"),
    )
    return points(name).get(labels, 0) - before.get(labels, 0)


def test_a_trace_continues_in_the_handler_of_a_queue(spans: InMemorySpanExporter) -> None:
    with otel.Client("memory:", config=QUEUE, name="shop") as client:
        handled: list[quire.Message] = []
        inner: list[int] = []

        def handle(message: quire.Message) -> None:
            handled.append(message)
            inner.append(trace.get_current_span().get_span_context().span_id)
            client.publish("shipped", b"{}")
            client.drain()

        client.publish("orders", {"id": 1}, correlation_id="c-1")
        client.process("jobs", handle)
    sent, processed = only(spans, "send orders"), only(spans, "process jobs")
    assert sent.kind is SpanKind.PRODUCER
    assert processed.kind is SpanKind.CONSUMER
    assert attributes(sent) == {
        "messaging.system": "quire",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.client.id": "shop",
    }
    assert attributes(processed) == {
        "messaging.system": "quire",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "jobs",
        "messaging.message.id": handled[0].bookmark,
        "messaging.message.body.size": 8,
        "messaging.message.conversation_id": "c-1",
    }
    # Without a current span the sender is the parent, and what the handler sends is a child.
    assert links(processed) == [span_id(sent)]
    assert processed.parent is not None
    assert (processed.parent.trace_id, processed.parent.span_id) == span_id(sent)
    assert inner == [span_id(processed)[1]]
    shipped = only(spans, "send shipped")
    assert shipped.parent is not None
    assert shipped.parent.span_id == span_id(processed)[1]
    header = handled[0].headers["traceparent"]
    assert isinstance(header, str)
    assert header.startswith("00-{:032x}-{:016x}-".format(*span_id(sent)))


def test_a_span_around_the_work_is_the_parent(spans: InMemorySpanExporter) -> None:
    with otel.Client("memory:") as client, client.subscribe("orders") as orders:
        client.publish("orders", {"id": 1})
        message = orders.get(timeout=10)
        with trace.get_tracer("test").start_as_current_span("batch") as batch, otel.process(message):
            pass
    processed = only(spans, "process orders")
    assert processed.parent is not None
    assert processed.parent.span_id == batch.get_span_context().span_id
    assert links(processed) == [span_id(only(spans, "send orders"))]


def test_messages_that_are_received_have_a_span_and_are_counted(spans: InMemorySpanExporter) -> None:
    before = {name: points(f"messaging.client.{name}") for name in ("sent.messages", "consumed.messages")}
    took = points("messaging.client.operation.duration")
    with otel.Client("memory:") as client, client.subscribe("orders") as orders:
        assert client.publish_many("orders", [{"id": id} for id in range(5)]) == [1, 2, 3, 4, 5]
        client.publish_many_receipt("orders", [{"id": 5}]).wait(timeout=10)
        orders.get(timeout=10)
        next(iter(orders))
        batches = orders.batches()
        seen = 2
        while seen < 6:
            seen += len(next(batches))
    [batch, one] = named(spans, "send orders")
    assert attributes(batch)["messaging.batch.message_count"] == 5
    assert attributes(one)["messaging.batch.message_count"] == 1
    received = named(spans, "receive orders")
    assert {span.kind for span in received} == {SpanKind.CLIENT}
    linked = [link for span in received for link in links(span)]
    assert linked == [span_id(batch)] * 5 + [span_id(one)]
    assert grown(before["sent.messages"], "messaging.client.sent.messages", "send", "orders") == 6
    assert grown(before["consumed.messages"], "messaging.client.consumed.messages", "receive", "orders") == 6
    duration = "messaging.client.operation.duration"
    assert grown(took, duration, "send", "orders") == 2
    assert grown(took, duration, "receive", "orders") == len(received)


async def test_asyncio_clients_have_the_same_spans(spans: InMemorySpanExporter) -> None:
    async with otel.AsyncClient("memory:", config=QUEUE) as client:

        async def handle(message: quire.Message) -> None:
            await client.publish("shipped", b"{}")
            await client.drain()

        shipped = await client.subscribe("shipped", bookmark=quire.EPOCH)
        await client.publish_many("orders", [{"id": 1}, quire.Publish({"id": 2}, headers={"a": "b"})])
        await client.process("jobs", handle)
    async with otel.AsyncClient("memory:") as client:
        shipped = await client.subscribe("shipped")
        await client.publish("shipped", b"{}")
        await shipped.get(timeout=10)
        await client.publish("shipped", b"{}")
        await anext(aiter(shipped))
        await client.publish("shipped", b"{}")
        await anext(shipped.batches())
    sent = only(spans, "send orders")
    processed = named(spans, "process jobs")
    assert processed
    assert {link for span in processed for link in links(span)} == {span_id(sent)}
    assert named(spans, "send shipped")[0].parent is not None
    assert len(named(spans, "receive shipped")) == 3


def test_an_error_of_a_handler_is_noted_without_its_text(
    spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    class OutOfStockError(Exception):
        pass

    with otel.Client("memory:", config=QUEUE) as client:

        def handle(message: quire.Message) -> None:
            client.drain()
            raise OutOfStockError("secret")

        client.publish("orders", {"id": 1})
        client.process("jobs", handle)
    processed = only(spans, "process jobs")
    assert processed.status.status_code is StatusCode.ERROR
    assert processed.status.description is None
    assert attributes(processed)["error.type"].endswith("OutOfStockError")
    assert not processed.events


def test_a_refused_call_is_noted_and_raises_as_before(spans: InMemorySpanExporter) -> None:
    with otel.Client("memory:") as client:
        with pytest.raises(TypeError, match="cannot become JSON"):
            client.publish("orders", object())
        with pytest.raises(quire.ConfigError, match="topic"):
            client.publish(7, b"")  # type: ignore[arg-type]
        with pytest.raises(quire.ConfigError, match="expected a list"):
            client.publish_many("orders", "text")
        with pytest.raises(TypeError):
            client.publish()  # type: ignore[call-arg]
    errors = [attributes(span)["error.type"] for span in spans.get_finished_spans()]
    assert errors == ["TypeError", "quire.ConfigError", "quire.ConfigError", "TypeError"]


def test_headers_of_the_program_stay_and_full_headers_get_no_context(spans: InMemorySpanExporter) -> None:
    full = {f"h{index}": "x" for index in range(64)}
    with otel.Client("memory:") as client, client.subscribe("orders") as orders:
        client.publish("orders", b"{}", headers={"traceparent": "mine", "source": "web"})
        assert orders.get(timeout=10).headers == {"traceparent": "mine", "source": "web"}
        client.publish("orders", b"{}", headers=full)
        assert orders.get(timeout=10).headers == full
        large = {"h": "x" * 32_767}
        client.publish("orders", b"{}", headers=large)
        assert orders.get(timeout=10).headers == large


def test_odd_headers_make_no_link(spans: InMemorySpanExporter) -> None:
    values: list[str | bytes] = ["", "00-0-0-0", b"\xff\xfe", "00-" + "f" * 300, "zz" * 40]
    with quire.Client("memory:") as plain, plain.subscribe("orders") as orders:
        for value in values:
            plain.publish("orders", b"{}", headers={"traceparent": value, "tracestate": value})
            with otel.process(orders.get(timeout=10)) as span:
                assert span.get_span_context().is_valid
    assert not any(links(span) for span in spans.get_finished_spans())


def test_a_table_makes_no_spans_of_its_messages(spans: InMemorySpanExporter) -> None:
    config = quire.Config(sow_topic={"name": "orders", "message_type": "json", "key": ["/id"]})
    with otel.Client("memory:", config=config) as client, client.table("orders") as orders:
        client.publish("orders", {"id": 1})
        orders.ready.wait(timeout=10)
    assert [span.name for span in spans.get_finished_spans()] == ["send orders"]


def test_without_opentelemetry_the_error_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import quire\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry.')]\n"
        "try:\n    import quire.otel\nexcept quire.ConfigError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "OpenTelemetry is not installed: pip install 'quire-mq[otel]'\n"


def test_nothing_is_imported_when_it_is_not_used() -> None:
    program = (
        "import sys, quire\n"
        "with quire.Client('memory:') as client:\n    client.publish('orders', b'{}')\n    client.flush()\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# The figures of servers


def of_server(name: str, instance: str) -> dict[str, float]:
    """The points of a metric of a server, by their other labels."""
    return {
        ",".join(str(value) for key, value in labels if key != "quire.instance"): value
        for labels, value in points(name).items()
        if ("quire.instance", instance) in labels
    }


def test_the_figures_of_servers_are_metrics(tmp_path: Path) -> None:
    queue = {"name": "jobs", "message_type": "json"}
    with (
        quire.testing.server(tmp_path / "one", name="one", queue=queue) as one,
        quire.testing.server(tmp_path / "two", name="two", queue=queue) as two,
        quire.Client(one.url) as client,
    ):
        for server in (one, two, two):
            otel.observe(server)
        for number in range(2):
            client.publish("jobs", {"id": number})
        client.flush()
        wait_until(lambda: of_server("quire.queue.messages", "one").get("jobs,waiting") == 2)
        assert of_server("quire.queue.messages", "two")["jobs,waiting"] == 0
        assert of_server("quire.queue.entered_messages", "one") == {"jobs": 2}
        assert of_server("quire.journal.writable", "two") == {"": 1}
    # They have stopped.
    assert of_server("quire.queue.messages", "one") == {}


def test_each_series_has_an_instrument_with_its_unit() -> None:
    made: dict[str, str] = {}

    class Meter:
        def create_observable_counter(
            self, name: str, callbacks: Any, *, unit: str, description: str
        ) -> None:
            assert description
            made[name] = unit

        create_observable_gauge = create_observable_counter

    meter: Any = Meter()
    Observed(meter)
    series = {metric.series.name for _, metric in every_metric() if metric.series is not None}
    assert made.keys() == {name_of(each) for each in series}
    assert len(made) == len(series)
    assert made["quire.filesystem.available_bytes"] == "By"
    assert made["quire.queue.oldest_message_age_seconds"] == "s"
    assert made["quire.queue.messages"] == "{messages}"


def test_a_server_loads_nothing_of_opentelemetry() -> None:
    code = "import sys, quire; quire.Server; print([name for name in sys.modules if 'opentelemetry' in name])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
