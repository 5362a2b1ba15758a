"""Publishing dead letters again, for the command line and the console."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from quire import _quire
from quire._errors import (
    BadMessageError,
    BadTopicError,
    ConfigError,
    MessageTooLargeError,
    QuireError,
    UnknownQueueError,
)
from quire._quire import Message
from quire.client._again import takes_keys
from quire.client._blocking import Client, Subscription

#: The backlog of `redrive`, in dead letters. `redrive` holds letters without a message until it
#: ends, and stops when it holds this number of them.
REDRIVE_BACKLOG: Final = 100

#: Refusals that are about one message.
_REFUSALS: Final = (BadMessageError, BadTopicError, MessageTooLargeError)

#: Connects a client with this name; `None`: any name.
Connect = Callable[[str | None], Client]


@dataclass
class Redriven:
    """The outcome of `redrive`: letters that were published, held no message, or were refused."""

    done: int = 0
    left: int = 0
    refused: int = 0


def redrive(
    connect: Connect,
    queue: str,
    *,
    to: str | None = None,
    filter: str | None = None,
    count: int | None = None,
    note: Callable[[str], object],
) -> Redriven:
    """Publishes the dead letters of a queue again. `note`: takes a sentence about a letter that was refused.

    Each letter is published under a separate client name, and acknowledged when it is persisted.
    So no letter is lost or published twice, whenever the call is interrupted.

    - `to`: the topic. Default: the topic that the letter names
    - `count`: limit of letters. Default: all letters that are in the queue at the start

    Raises `QuireError` at the first message that is not a dead letter.
    """
    redriven = Redriven()
    with connect(None) as client:
        # Limited to the letters in the queue now: a message that fails again would otherwise be
        # published endlessly.
        depth = _count_of_letters(client, queue)
        most = depth if count is None else min(depth, count)
        # Reads the letters without taking them: a message that is taken and returned counts as
        # delivered.
        for waiting in client.sow(queue, filter=filter, top_n=min(most, REDRIVE_BACKLOG)):
            _content(waiting)
        put_back = _Publishing(client, connect, queue, to)
        with client.subscribe(queue, filter=filter, max_backlog=REDRIVE_BACKLOG) as letters:
            while redriven.done < most and redriven.left + redriven.refused < REDRIVE_BACKLOG:
                letter = _next(client, letters, queue)
                if letter is None:
                    break
                found = _content(letter)
                if found is None:
                    redriven.left += 1  # It is released when the subscription ends.
                    continue
                try:
                    put_back(letter, *found)
                except _REFUSALS as error:
                    # The others do not wait for a letter whose message the server does not take.
                    note(f"letter {letter.bookmark} was not put back: {error}")
                    redriven.refused += 1
                    continue
                letter.ack()
                redriven.done += 1
            client.flush()
    return redriven


def purge(client: Client, queue: str, filter: str | None, reason: str | None) -> int:
    """Removes messages from a queue, unprocessed, and returns their number.

    Raises `QuireError` for a queue whose messages only their holder can remove.
    """
    figures = client.queue_stats(queue)[queue]
    if figures.get("strict"):
        raise QuireError(
            f'purge: queue {queue} has leasing = "strict", so only the consumer that holds a message can remove it; nothing '
            f"was removed. Take the messages instead: quire subscribe {queue} --ack"
        )
    before: int = figures["expired"]
    client.ack(queue, filter=filter or "", expire=True, reason=reason)
    client.flush()
    after: int = client.queue_stats(queue)[queue]["expired"]
    return after - before


def _count_of_letters(client: Client, queue: str) -> int:
    """Returns the number of messages of a queue. Raises an error when they are not dead letters."""
    try:
        figures = client.queue_stats(queue)[queue]
    except UnknownQueueError:
        over = [name for name, each in client.queue_stats().items() if each.get("takes_dead_letters")]
        if not over:
            raise
        names = ", ".join(map(repr, over))
        reason = f"no queue has the name {queue!r}; redrive takes the name of a queue over a dead letter topic: {names}"
        raise UnknownQueueError(reason) from None
    if not figures.get("takes_dead_letters", True):
        raise ConfigError(
            f"{queue!r} is not over the dead_letter_topic of any queue: its messages are not dead letters; nothing was taken"
        )
    depth: int = figures["depth"]
    return depth


class _Publishing:
    """Publishes the messages of dead letters again, and waits until each of them is persisted."""

    def __init__(self, client: Client, connect: Connect, queue: str, to: str | None) -> None:
        self._client = client
        self._connect = connect
        self._queue = queue
        self._to = to
        #: The topics that are published to, and whether their publishers supply keys.
        self._topics: dict[str, bool] = {}

    def __call__(self, letter: Message, topic: str, data: bytes, key: str | None) -> None:
        target = topic if self._to is None else self._to
        if target not in self._topics:
            self._topics[target] = takes_keys(self._client, target)
        # The name is that of the letter, so the server drops the message when it has it already.
        name = f"redrive {self._queue} {letter.bookmark}"
        with self._connect(name) as publisher:
            publisher.publish(
                target,
                data,
                sequence=1,
                correlation_id=letter.correlation_id,
                headers=letter.headers,
                sow_key=key if self._topics[target] else None,
            )
            publisher.flush()


def _next(client: Client, letters: Subscription, queue: str) -> Message | None:
    """Returns the next dead letter, or `None` after the last one.

    A timeout alone does not mean the end: the filter may still be searching a long queue. When the search has
    ended, the last letter that it found may still be on its way, so one more timeout is needed.
    """
    has_seen_all = False
    while True:
        try:
            return letters.get(timeout=1.0)
        except TimeoutError:
            if has_seen_all:
                return None
            has_seen_all = client.queue_stats(queue)[queue]["catching_up"] == 0


#: The members of the dead letter of an unreadable message, besides the reason of a consumer.
UNREADABLE: Final = {"queue", "position", "reason", "deliveries", "cancels"}


def _content(letter: Message) -> tuple[str, bytes, str | None] | None:
    """Returns the topic, the data and the key in a dead letter (docs/queues.md section 9).

    Returns `None` for a letter without its message: the message was too large for the letter, or could not be
    read. Raises `QuireError` for a message that is not a dead letter.
    """
    try:
        members = dict(_quire.json_members(letter.data.decode()) or ())
    except UnicodeDecodeError:
        members = {}
    if members.keys() - {"consumer_reason"} == UNREADABLE:
        return None
    # Letters in older journals name it `topic`.
    topic = _text_of(members.get("source_topic", members.get("topic")))
    try:
        if topic is not None and "reason" in members:
            data = _data_of(members)
            return None if data is None else (topic, data, _text_of(members.get("sow_key")))
    except ValueError:  # no base64, or text that is not Unicode
        pass
    raise QuireError(
        f"message {letter.bookmark} of {letter.topic} is no dead letter; redrive stops here. Use --filter to leave it out"
    )


def _data_of(letter: dict[str, str]) -> bytes | None:
    """The message in the members of a letter. Raises `ValueError` for members that no letter has."""
    if "message" in letter:
        # Cut out as it was published: decoded and encoded again, a number could be another one.
        return letter["message"].encode()
    if (text := _text_of(letter.get("text"))) is not None:
        return text.encode()
    if (text := _text_of(letter.get("base64"))) is not None:
        return base64.b64decode(text, validate=True)
    return None


def _text_of(member: str | None) -> str | None:
    """The text that a member of an object is; `None` for any other value."""
    if member is None or not member.startswith('"'):
        return None
    text: str = json.loads(member)
    return text
