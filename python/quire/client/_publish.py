"""The items of a batch, and the form that the core takes them in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Any, NamedTuple

from quire import _quire
from quire._arguments import (
    AUTO,
    CoreDelay,
    SequenceArgument,
    check_type,
    correlation_to_core,
    delay_to_core,
    expiration_to_core,
    sequence_to_core,
)
from quire._errors import ConfigError, QuireError
from quire._message import Encoder, to_bytes
from quire._units import Duration

#: Topic, data, sequence (0: the next one, `None`: without one), expiration in seconds, correlation
#: id, headers, delay, key, whether it is a delta, whether it only updates a record.
CoreMessage = tuple[
    str,
    bytes,
    int | None,
    int | None,
    str | None,
    Mapping[str, str | bytes] | None,
    CoreDelay | None,
    str | None,
    bool,
    bool,
]


@dataclass(frozen=True)
class Publish:
    """An item of `publish_many` with options. Options that are left out are those of the call."""

    data: Any
    _: KW_ONLY
    topic: str | None = None
    sequence: SequenceArgument = AUTO
    expiration: Duration | None = None
    correlation_id: str | None = None
    headers: Mapping[str, str | bytes] | None = None
    delay: Duration | None = None
    deliver_at: datetime | None = None
    sow_key: str | None = None

    def to_core(self, encoder: Encoder | None) -> CoreMessage:
        """Raises the errors of `message_to_core`, and `ConfigError` for what no batch can have."""
        if self.topic is None:
            raise ConfigError("it is left out in the call and in the item", key="topic")
        message = message_to_core(
            self.topic,
            self.data,
            self.sequence,
            self.expiration,
            self.correlation_id,
            self.headers,
            self.delay,
            self.deliver_at,
            self.sow_key,
            encoder,
        )
        check_followed(message)
        return message


def message_to_core(
    topic: str,
    data: Any,
    sequence: SequenceArgument,
    expiration: Duration | None,
    correlation_id: str | None,
    headers: Mapping[str, str | bytes] | None,
    delay: Duration | None,
    deliver_at: datetime | None,
    sow_key: str | None,
    encoder: Encoder | None,
    *,
    is_delta: bool = False,
    is_update: bool = False,
) -> CoreMessage:
    """The arguments of a publish in the form that the core takes.

    Raises `ConfigError`, and `TypeError` or `ValueError` for data that cannot become JSON.
    """
    # Most publishes have few options. Each call of a check would cost them a twentieth of a
    # microsecond.
    if type(topic) is not str or not topic.isascii():
        check_type(topic, str, "topic")
    if sow_key is not None:
        check_type(sow_key, str, "sow_key")
    lifetime = None if expiration is None else expiration_to_core(expiration)
    is_later = delay is not None or deliver_at is not None
    return (
        topic,
        data if type(data) is bytes else to_bytes(data, encoder, topic),
        0 if sequence is AUTO else sequence_to_core(sequence),
        lifetime,
        None if correlation_id is None else correlation_to_core(correlation_id),
        headers,
        delay_to_core(delay, deliver_at, lifetime) if is_later else None,
        sow_key,
        is_delta,
        is_update,
    )


def check_followed(message: CoreMessage) -> None:
    """Raises `ConfigError` for a message that cannot be followed or be part of a batch."""
    if message[2] is None:
        raise ConfigError(
            "a message without a sequence is not acknowledged, so it cannot be followed or be part of a batch",
            key="sequence",
        )
    if message[5] is not None:
        _quire.check_headers(message[5])


class Batch(NamedTuple):
    """The messages of a batch as the core takes them."""

    #: Each is complete, or only data.
    messages: list[bytes | CoreMessage]
    #: The topic and the options of the messages that are only data. Its own data is empty.
    common: CoreMessage | None = None

    def topics(self) -> list[str]:
        """The topic of each message."""
        common = "" if self.common is None else self.common[0]
        return [common if isinstance(message, bytes) else message[0] for message in self.messages]


def batch_to_core(
    topic: str | None,
    items: Iterable[object],
    expiration: Duration | None,
    correlation_id: str | None,
    headers: Mapping[str, str | bytes] | None,
    delay: Duration | None,
    deliver_at: datetime | None,
    encoder: Encoder | None,
) -> Batch:
    """The items of a batch. An error has a note that says which item it is about."""
    check_type(topic, str, "topic", optional=True)
    given: object = items
    if isinstance(given, (str, bytes, bytearray, memoryview, Mapping)) or not isinstance(given, Iterable):
        raise ConfigError(f"expected a list of messages, got `{type(given).__name__}`", key="items")
    # Iterating over a table gives the names of its columns, or the columns.
    if hasattr(given, "columns") and hasattr(given, "shape"):
        reason = (
            f"expected a list of messages, got a table (`{type(given).__name__}`): pass its rows, for example"
        )
        raise ConfigError(f'{reason} `frame.to_dict("records")` of pandas', key="items")
    messages: list[bytes | CoreMessage] = []
    common = None
    for index, item in enumerate(items):
        try:
            if not isinstance(item, Publish):
                # The options of the call are looked at once: for each message they would cost more
                # than everything else.
                if common is None:
                    common = Publish(
                        b"",
                        topic=topic,
                        expiration=expiration,
                        correlation_id=correlation_id,
                        headers=headers,
                        delay=delay,
                        deliver_at=deliver_at,
                    ).to_core(encoder)
                messages.append(item if type(item) is bytes else to_bytes(item, encoder, topic))
                continue
            is_later = item.delay is not None or item.deliver_at is not None
            whole = Publish(
                item.data,
                topic=topic if item.topic is None else item.topic,
                sequence=item.sequence,
                expiration=expiration if item.expiration is None else item.expiration,
                correlation_id=correlation_id if item.correlation_id is None else item.correlation_id,
                headers=headers if item.headers is None else item.headers,
                delay=item.delay if is_later else delay,
                deliver_at=item.deliver_at if is_later else deliver_at,
                sow_key=item.sow_key,
            )
            messages.append(whole.to_core(encoder))
        except (QuireError, TypeError, ValueError) as error:
            error.add_note(f"item {index} of the batch; nothing was published")
            raise
    return Batch(messages, common)


def check_not_empty(batch: Batch) -> None:
    """Raises `ConfigError` for a batch of which there would be nothing to wait for."""
    if not batch.messages:
        raise ConfigError("the list is empty", key="items")


def note_of_batch(index: int | None, taken: list[int]) -> str:
    """The note of an error about a batch that was not taken whole."""
    item = "the batch" if index is None else f"item {index} of the batch"
    if not taken:
        return f"{item}; nothing was published"
    return f"{item}; the {len(taken)} items before it were published, with the sequences {taken[0]} to {taken[-1]}"
