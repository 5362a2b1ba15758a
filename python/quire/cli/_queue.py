"""`quire queue`: shows, creates, alters and drops queues, removes messages from them, and publishes dead letters again."""

from __future__ import annotations

import base64
import json
from typing import Annotated, Any, Final

from cyclopts import App, Parameter

import quire
from quire import _quire
from quire._units import counted
from quire.cli import default_url
from quire.cli._app import Json, JsonFormat, Url
from quire.cli._connect import connect
from quire.cli._messages import sow
from quire.cli._options import Format, SowOptions
from quire.cli._output import check_count, note, print_json, print_table, say
from quire.cli._queue_define import alter, create, drop
from quire.client._again import takes_keys

app = App(
    name="queue",
    help="Show, create, alter and drop queues, remove messages from them, and publish dead letters again.",
    help_format="plaintext",
)

#: The backlog of `redrive`, in dead letters. `redrive` holds letters without a message until it
#: ends, and stops when it holds this number of them.
REDRIVE_BACKLOG = 100

#: Refusals that are about one message.
_REFUSALS = (quire.BadMessageError, quire.BadTopicError, quire.MessageTooLargeError)

#: The columns of `ls`: figure, heading.
COLUMNS = (
    ("depth", "depth"),
    ("waiting", "waiting"),
    ("delayed", "delayed"),
    ("backlog", "leased"),
    ("subscriptions", "subscribers"),
    ("age_of_oldest_s", "oldest (s)"),
    ("expired_leases", "expired leases"),
)


@app.command
def ls(*, url: Url = None, json: Json = False) -> int:
    """List the queues of a server, with their main figures.

    For example:
      quire queue ls
      quire queue ls --json | jq .depth
    """
    with connect(url) as client:
        queues = client.queue_stats()
    if json:
        for name, figures in queues.items():
            print_json(queue=name, **figures)
        return 0
    print_table(
        ["queue", *(heading for _, heading in COLUMNS), "created at run time"],
        [
            # A server from before queues could be created at run time does not say whether this one
            # was.
            [name, *(_shown(key, figures[key]) for key, _ in COLUMNS), figures.get("created", False)]
            for name, figures in queues.items()
        ],
    )
    return 0


def _shown(key: str, value: Any) -> Any:
    """A figure as the table of `ls` shows it."""
    return f"{value:.1f}" if key == "age_of_oldest_s" and value is not None else value


@app.command
def stats(queue: str | None = None, *, url: Url = None, json: Json = False) -> int:
    """Show all figures of one queue or of all queues.

    For example:
      quire queue stats ORDERS_RISK

    Parameters
    ----------
    queue
        Name of the queue. Default: all queues.
    """
    with connect(url) as client:
        queues = client.queue_stats(queue)
    if json:
        for name, figures in queues.items():
            print_json(queue=name, **figures)
        return 0
    rows = [[name, key, value] for name, figures in queues.items() for key, value in figures.items()]
    print_table(["queue", "figure", "value"], rows)
    return 0


@app.command
def peek(
    queue: str,
    *,
    url: Url = None,
    filter: str | None = None,
    order_by: str | None = None,
    count: int = 10,
    format: Format = "json",
    json: JsonFormat = False,
) -> int:
    """Print the messages that a queue delivers next. The queue is not changed.

    `quire sow` prints the same for a queue. It is for last-value topics, and prints all messages by default.

    For example:
      quire queue peek ORDERS_RISK --count 3
      quire queue peek ORDERS_RISK --filter "/qty > 50" --order-by "/price DESC" --format table

    Parameters
    ----------
    queue
        Name of the queue.
    filter
        Content filter. Only messages that match it are printed.
    order_by
        Field to sort by, as in /price. Add DESC for descending order. Default: delivery order.
    count
        Limit of printed messages.
    format
        json: one object per line. raw: the data and a line end. table: columns.
    """
    check_count(count)
    options = SowOptions(filter=filter, order_by=order_by, top_n=count, format=format)
    return sow(queue, options, url=url, as_json=json, is_queue=True)


app.command(create)
app.command(alter)
app.command(drop)


@app.command
def purge(
    queue: str,
    *,
    url: Url = None,
    filter: str | None = None,
    all: Annotated[bool, Parameter(negative="", help="Remove all messages.")] = False,
    reason: str | None = None,
    json: Json = False,
) -> int:
    """Remove messages from a queue. The log keeps them, and the dead letter topic of the queue gets them.

    Messages of a queue with leasing = "strict" can be removed by their holder only, so purge fails there.

    For example:
      quire queue purge ORDERS_RISK --filter "/qty < 1"
      quire queue purge ORDERS_RISK --all --reason "orders of the load test"

    Parameters
    ----------
    queue
        Name of the queue.
    filter
        Content filter. Only messages that match it are removed.
    reason
        Why. The dead letters of the messages have this text, of at most 1,024 bytes.
    """
    if (filter is None) != all:
        raise quire.ConfigError("purge: say which messages, by --filter or --all")
    with connect(url) as client:
        figures = client.queue_stats(queue)[queue]
        if figures.get("strict"):
            raise quire.QuireError(
                f'purge: queue {queue} has leasing = "strict", so only the consumer that holds a message can remove it; nothing '
                f"was removed. Take the messages instead: quire subscribe {queue} --ack"
            )
        before = figures["expired"]
        client.ack(queue, filter=filter or "", expire=True, reason=reason)
        client.flush()
        count = client.queue_stats(queue)[queue]["expired"] - before
    if json:
        print_json(queue=queue, purged=count)
    else:
        say(f"{counted(count, 'message')} purged from {queue}")
    return 0


@app.command
def redrive(
    queue: str,
    *,
    url: Url = None,
    to: str | None = None,
    filter: str | None = None,
    count: int | None = None,
    json: Json = False,
) -> int:
    """Publish dead letters again to the topics of their messages.

    The queue must be over the dead letter topic of another queue.
    The command stops at the first message that is not a dead letter.
    Each letter is published under a separate client name, and acknowledged when it is persisted.
    Run the command again after an interruption: no letter is lost or published twice.

    For example:
      quire queue redrive DEAD_ORDERS --filter "/reason = 'max_cancels'"
      quire queue redrive DEAD_ORDERS --to orders/retry --count 100

    Parameters
    ----------
    queue
        Name of a queue over the dead letter topic.
    to
        Topic or queue to publish to. Default: the topic that the letter names.
    filter
        Content filter. Only letters that match it are published.
    count
        Limit of letters to publish. Default: all letters that are in the queue at the start.
    """
    check_count(count)
    place = url or default_url()
    done = left = refused = 0
    with connect(place) as client:
        # Limited to the letters in the queue now: a message that fails again would otherwise be
        # published endlessly.
        depth = _count_of_letters(client, queue)
        most = depth if count is None else min(depth, count)
        # Reads the letters without taking them: a message that is taken and returned counts as
        # delivered.
        for waiting in client.sow(queue, filter=filter, top_n=min(most, REDRIVE_BACKLOG)):
            _content(waiting)
        put_back = _Publishing(client, place, queue, to)
        with client.subscribe(queue, filter=filter, max_backlog=REDRIVE_BACKLOG) as letters:
            while done < most and left + refused < REDRIVE_BACKLOG:
                letter = _next(client, letters, queue)
                if letter is None:
                    break
                found = _content(letter)
                if found is None:
                    left += 1  # It is released when the subscription ends.
                    continue
                try:
                    put_back(letter, *found)
                except _REFUSALS as error:
                    # The others do not wait for a letter whose message the server does not take.
                    note(f"letter {letter.bookmark} was not put back: {error}")
                    refused += 1
                    continue
                letter.ack()
                done += 1
            client.flush()
    if json:
        print_json(queue=queue, redriven=done, left=left + refused)
    else:
        unusable = f", {counted(left, 'holds', 'hold')} no message" if left else ""
        unwanted = f", {counted(refused, 'was', 'were')} refused" if refused else ""
        say(f"{counted(done, 'dead letter')} put back from {queue}{unusable}{unwanted}")
    return 1 if left or refused else 0


def _count_of_letters(client: quire.Client, queue: str) -> int:
    """Returns the number of messages of a queue. Raises an error when they are not dead letters."""
    try:
        figures = client.queue_stats(queue)[queue]
    except quire.UnknownQueueError:
        over = [name for name, each in client.queue_stats().items() if each.get("takes_dead_letters")]
        if not over:
            raise
        names = ", ".join(map(repr, over))
        reason = f"no queue has the name {queue!r}; redrive takes the name of a queue over a dead letter topic: {names}"
        raise quire.UnknownQueueError(reason) from None
    if not figures.get("takes_dead_letters", True):
        raise quire.ConfigError(
            f"{queue!r} is not over the dead_letter_topic of any queue: its messages are not dead letters; nothing was taken"
        )
    depth: int = figures["depth"]
    return depth


class _Publishing:
    """Publishes the messages of dead letters again, and waits until each of them is persisted."""

    def __init__(self, client: quire.Client, place: str, queue: str, to: str | None) -> None:
        self._client = client
        self._place = place
        self._queue = queue
        self._to = to
        #: The topics that are published to, and whether their publishers supply keys.
        self._topics: dict[str, bool] = {}

    def __call__(self, letter: quire.Message, topic: str, data: bytes, key: str | None) -> None:
        target = topic if self._to is None else self._to
        if target not in self._topics:
            self._topics[target] = takes_keys(self._client, target)
        # The name is that of the letter, so the server drops the message when it has it already.
        name = f"redrive {self._queue} {letter.bookmark}"
        with quire.Client(self._place, name=name) as publisher:
            publisher.publish(
                target,
                data,
                sequence=1,
                correlation_id=letter.correlation_id,
                headers=letter.headers,
                sow_key=key if self._topics[target] else None,
            )
            publisher.flush()


def _next(client: quire.Client, letters: quire.Subscription, queue: str) -> quire.Message | None:
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


def _content(letter: quire.Message) -> tuple[str, bytes, str | None] | None:
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
    raise quire.QuireError(
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
