"""Messages for the console: browsed, followed, peeked at and published, with the rights of the user."""

from __future__ import annotations

import asyncio
import base64
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from quire._errors import QuireError
from quire._message import Message
from quire._units import seconds
from quire.admin._app import AdminApp, members_of, text_of
from quire.admin._clients import Clients, address_of, refusal
from quire.admin._console_stream import stream
from quire.admin._errors import bad_value
from quire.client._aio import AsyncClient

#: Messages in one answer.
LIMIT_MAX: Final = 500
#: Bytes of one message that an answer has, and of all messages.
DATA_MAX: Final = 64 * 1024
ANSWER_MAX: Final = 8 << 20
#: Bytes of one message that a page gets which follows a topic.
FOLLOWED_DATA_MAX: Final = 16 * 1024
#: Seconds that browsing may take.
BROWSE_TIME: Final = 4.0
#: Messages that a page gets at a time while it follows a topic, and seconds between two times.
FOLLOWED_MAX: Final = 40
FOLLOW_INTERVAL: Final = 0.1
#: Records of a last-value topic that a page follows.
RECORDS_MAX: Final = 1000
#: The search for the newest messages begins this number of seconds before now. Each step begins
#: earlier by a factor, until enough messages are found.
_FIRST_STEP: Final = 1.0
_STEP_FACTOR: Final = 8.0
_STEPS: Final = 8

#: A message as the pages get it.
Shown = dict[str, Any]


class MessageRoutes:
    """The paths of messages."""

    def __init__(self, app: AdminApp, clients: Clients) -> None:
        self._app = app
        self._clients = clients

    def add(self) -> None:
        """Adds the paths."""
        app = self._app
        app.add_route("/console/api/messages", self._browse)
        app.add_route("/console/api/peek", self._peek)
        app.add_route("/console/api/follow", self._follow)
        app.add_route("/console/api/records", self._records)
        app.add_route("/console/api/publish", self._publish, methods=["POST"])

    async def _browse(self, request: Request) -> Response:
        query = request.query_params
        topic, filter, limit = text_of(query, "topic"), query.get("filter") or None, _limit(query)
        begin = query.get("from", "newest")
        try:
            async with self._clients.request(self._app.identity(request), address_of(request)) as client:
                if begin == "newest":
                    found, is_complete = await _newest(client, topic, filter, limit)
                else:
                    found, is_complete = await _oldest(client, topic, filter, limit, _begin(begin))
        except (QuireError, TimeoutError) as error:
            raise refusal(error) from None
        return JSONResponse({"messages": found, "complete": is_complete})

    async def _peek(self, request: Request) -> Response:
        query = request.query_params
        queue, filter, limit = text_of(query, "queue"), query.get("filter") or None, _limit(query)
        try:
            async with self._clients.request(self._app.identity(request), address_of(request)) as client:
                found = [
                    shown(each, _data_max(limit))
                    async for each in client.sow(queue, filter=filter, top_n=limit)
                ]
        except (QuireError, TimeoutError) as error:
            raise refusal(error) from None
        return JSONResponse({"messages": found})

    async def _publish(self, request: Request) -> Response:
        body = await members_of(request, ("topic", "data", "sow_key", "correlation_id"))
        topic, data = text_of(body, "topic"), body.get("data")
        if not isinstance(data, str):
            raise bad_value("data: it is required, and is a text")
        key, correlation = _optional(body, "sow_key"), _optional(body, "correlation_id")
        try:
            async with self._clients.request(self._app.identity(request), address_of(request)) as client:
                # Without a sequence, the server keeps no state for the name of the client.
                await client.publish(
                    topic, data.encode(), sequence=None, sow_key=key, correlation_id=correlation
                )
                await client.flush()
        except (QuireError, TimeoutError) as error:
            raise refusal(error) from None
        return JSONResponse({"topic": topic})

    async def _follow(self, request: Request) -> Response:
        topic, filter = text_of(request.query_params, "topic"), request.query_params.get("filter") or None
        return stream(self._app, request, self._followed(request, topic, filter), "read", topic)

    async def _followed(
        self, request: Request, topic: str, filter: str | None
    ) -> AsyncGenerator[list[dict[str, Any]]]:
        """The messages of a topic as they come. At a high rate, a page gets some of them and the number of the others."""
        async with self._clients.stream(self._app.identity(request), address_of(request)) as client:
            subscription = await client.subscribe(topic, filter=filter)
            missed = 0
            async for messages in subscription.batches():
                now_missed = _missed(client)
                skipped = max(0, len(messages) - FOLLOWED_MAX) + now_missed - missed
                missed = now_missed
                lines: list[dict[str, Any]] = [
                    {"message": shown(each, FOLLOWED_DATA_MAX)} for each in messages[-FOLLOWED_MAX:]
                ]
                yield [*lines, {"skipped": skipped}] if skipped else lines
                await asyncio.sleep(FOLLOW_INTERVAL)

    async def _records(self, request: Request) -> Response:
        query = request.query_params
        topic, filter = text_of(query, "topic"), query.get("filter") or None
        limit = min(RECORDS_MAX, _limit(query))
        return stream(self._app, request, self._live_records(request, topic, filter, limit), "query", topic)

    async def _live_records(
        self, request: Request, topic: str, filter: str | None, limit: int
    ) -> AsyncGenerator[list[dict[str, Any]]]:
        """The records of a last-value topic, and then their changes, each record at most once at a time."""
        async with self._clients.stream(self._app.identity(request), address_of(request)) as client:
            subscription = await client.sow_and_subscribe(topic, filter=filter, top_n=limit, oof=True)
            is_loaded = False
            # An empty batch after a while: a topic without records has none to begin with.
            async for messages in subscription.batches(timeout=FOLLOW_INTERVAL):
                newest = {(each.topic, each.sow_key): each for each in messages}
                lines = [_change(each) for each in newest.values()]
                if not is_loaded and subscription.snapshot.is_set():
                    is_loaded = True
                    lines.append({"loaded": True})
                if lines:
                    yield lines
                await asyncio.sleep(FOLLOW_INTERVAL)


async def _newest(
    client: AsyncClient, topic: str, filter: str | None, limit: int
) -> tuple[list[Shown], bool]:
    """Returns the newest messages, newest first, and whether the log has no others."""
    end = time.monotonic() + BROWSE_TIME
    found: list[Shown] = []
    step = _FIRST_STEP
    for number in range(_STEPS + 1):
        begin: str | datetime = "epoch"
        if number < _STEPS:
            begin = datetime.now(UTC) - timedelta(seconds=step)
        last, count, is_whole = await _read(client, topic, filter, begin, limit, end, keeps_last=True)
        found = last or found
        if count >= limit or not is_whole:
            return found[::-1], count <= limit and begin == "epoch" and is_whole
        step *= _STEP_FACTOR
    return found[::-1], True


async def _oldest(
    client: AsyncClient, topic: str, filter: str | None, limit: int, begin: str | datetime
) -> tuple[list[Shown], bool]:
    """Returns the first messages from `begin`, oldest first, and whether the log has no others after them."""
    end = time.monotonic() + BROWSE_TIME
    found, count, is_whole = await _read(client, topic, filter, begin, limit, end, keeps_last=False)
    return found, is_whole and count <= limit


async def _read(
    client: AsyncClient,
    topic: str,
    filter: str | None,
    begin: str | datetime,
    limit: int,
    end: float,
    *,
    keeps_last: bool,
) -> tuple[list[Shown], int, bool]:
    """Reads the log of a topic from `begin` to its present end, for a limited time.

    Returns the last or the first `limit` messages, the number of those that were read, and whether
    the end was reached.
    """
    kept: deque[Shown] = deque(maxlen=limit)
    count = 0
    subscription = await client.subscribe(topic, filter=filter, bookmark=begin, until="now")
    async with subscription:
        async for messages in subscription.batches(timeout=max(0.05, end - time.monotonic())):
            count += len(messages)
            if keeps_last:
                kept.extend(shown(each, _data_max(limit)) for each in messages[-limit:])
            else:
                kept.extend(shown(each, _data_max(limit)) for each in messages[: limit - len(kept)])
                if count > limit:
                    return list(kept), count, False
            if not messages or time.monotonic() > end:
                return list(kept), count, False
    return list(kept), count, True


def _data_max(limit: int) -> int:
    """The bytes of each message that an answer with `limit` messages may have."""
    return min(DATA_MAX, ANSWER_MAX // limit)


def _begin(text: str) -> str | datetime:
    """Where browsing begins: `beginning`, `-15m`, or a time or bookmark."""
    if text == "beginning":
        return "epoch"
    if text.startswith("-"):
        try:
            return datetime.now(UTC) - timedelta(seconds=seconds(text[1:], "from"))
        except (QuireError, OverflowError):
            raise bad_value(f"from: {text[:40]!r} is no duration") from None
    return text


def shown(message: Message, data_max: int) -> dict[str, Any]:
    """A message as the pages get it. `data_max`: the bytes of its data that they get."""
    data = message.data
    part = data[:data_max]
    found: dict[str, Any] = {
        "topic": message.source_topic,
        "bookmark": message.bookmark,
        "timestamp": message.timestamp_ns / 1e9,
        "size": len(data),
        "sow_key": message.sow_key,
        "correlation_id": message.correlation_id,
        "headers": {
            name: value if isinstance(value, str) else base64.b64encode(value).decode()
            for name, value in message.headers.items()
        },
    }
    if len(part) < len(data):
        found["truncated"] = True
    try:
        # A character that was cut in two does not make the data binary.
        found["data"] = part.decode("utf-8", "ignore" if len(part) < len(data) else "strict")
    except UnicodeDecodeError:
        found["base64"] = base64.b64encode(part).decode()
    return found


def _change(message: Message) -> dict[str, Any]:
    """A record that is new or has changed, or one that has left."""
    if message.command == "oof":
        return {"removed": {"topic": message.topic, "sow_key": message.sow_key}}
    return {"record": shown(message, FOLLOWED_DATA_MAX) | {"is_new": message.command == "sow"}}


def _missed(client: AsyncClient) -> int:
    """Messages that were dropped because the page has not read earlier ones."""
    return sum(each.missed for each in client.health().subscriptions)


def _optional(values: Mapping[str, Any], name: str) -> str | None:
    return None if values.get(name) is None else text_of(values, name)


def _limit(query: Mapping[str, str]) -> int:
    text = query.get("limit", "100")
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= LIMIT_MAX:
        raise bad_value(f"limit: expected 1 to {LIMIT_MAX}, got {text[:40]!r}")
    return int(text)
