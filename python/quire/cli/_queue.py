"""`quire queue`: shows, creates and drops queues, removes messages from them, and publishes dead letters again."""

from __future__ import annotations

import base64
import json
import sys
from typing import Annotated, Any, Final, Literal

from cyclopts import App, Parameter

import quire
from quire.cli import default_url
from quire.cli._app import Json, JsonFormat, Url
from quire.cli._messages import sow
from quire.cli._output import Format, print_json, print_table

app = App(
    name="queue",
    help="Show, create and drop queues, remove messages from them, and publish dead letters again.",
    help_format="plaintext",
)

#: The backlog of `redrive`, in dead letters. `redrive` holds letters without a message until it ends, and
#: stops when it holds this number of them.
REDRIVE_BACKLOG = 100

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
    with quire.Client(url or default_url()) as client:
        queues = client.queue_stats()
    if json:
        for name, figures in queues.items():
            print_json(queue=name, **figures)
        return 0
    print_table(
        ["queue", *(heading for _, heading in COLUMNS), "created"],
        [
            # A server from before queues could be created at run time does not say whether this one was.
            [
                name,
                *(figures[key] for key, _ in COLUMNS),
                "run time" if figures.get("created") else "configuration",
            ]
            for name, figures in queues.items()
        ],
    )
    return 0


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
    with quire.Client(url or default_url()) as client:
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
        json: one object per line. raw: only the data. table: columns.
    """
    style = "json" if json else format
    return sow(queue, url=url or default_url(), filter=filter, order_by=order_by, top_n=count, style=style)


@app.command
def create(
    queue: str,
    *,
    url: Url = None,
    underlying_topic: Annotated[str | None, Parameter(name=["--underlying-topic", "--topic"])] = None,
    message_type: str | None = None,
    default_publish_target: str | None = None,
    semantics: Literal["at-least-once", "at-most-once"] | None = None,
    fairness_model: Literal["fast", "round-robin", "proportional"] | None = None,
    lease_period: str | None = None,
    leasing: Literal["strict", "sublease"] | None = None,
    max_backlog: int | None = None,
    max_per_subscription_backlog: int | None = None,
    max_deliveries: int | None = None,
    max_cancels: int | None = None,
    retry_delay: Annotated[list[str] | None, Parameter(consume_multiple=True, negative="")] = None,
    expiration: str | None = None,
    expiration_model: Literal["message", "queue", "minimum"] | None = None,
    filter: str | None = None,
    priority: str | None = None,
    barrier_expression: str | None = None,
    target_queue_depth: int | None = None,
    dead_letter_topic: str | None = None,
    file_backed_metadata: Annotated[bool, Parameter(negative="")] = False,
    record_leases: Annotated[bool, Parameter(negative="")] = False,
    json: Json = False,
) -> int:
    """Create a queue on a running server. It begins with the next message, and it survives a restart.

    When the queue exists with the same settings, nothing changes.
    The options are the keys of [[queue]] in a configuration.

    For example:
      quire queue create RISK --topic orders --lease-period 30s --max-deliveries 5
      quire queue create RISK --topic orders --retry-delay 1s 10s 1m --dead-letter-topic dead

    Parameters
    ----------
    queue
        Name of the queue.
    underlying_topic
        Topic whose messages enter, or a pattern. Default: the topic with the name of the queue.
    message_type
        Type of the messages. Default: the message type that the log has for the topic.
    default_publish_target
        Topic of messages that are published to the queue. Default: the underlying topic.
    semantics
        at-least-once or at-most-once.
    fairness_model
        Rule that chooses the consumer of a message: fast, round-robin or proportional.
    lease_period
        Time for which a consumer may hold a message, such as 30s. Default: without end.
    leasing
        With strict, only the holder of a message can acknowledge it. With sublease, every consumer can.
    max_backlog
        Limit of leased messages of the queue.
    max_per_subscription_backlog
        Limit of leased messages of one subscription.
    max_deliveries
        Limit of deliveries of a message. Then the message expires.
    max_cancels
        Limit of cancels of a message. One more, and the message expires.
    retry_delay
        Times that a message waits after its first cancel, its second, and so on.
    expiration
        Lifetime of a message in the queue, such as 1h.
    expiration_model
        Rule for a message that has its own expiration.
    filter
        Content filter. Only messages that match it enter.
    priority
        Expression that gives the priority of a message. Higher values come first.
    barrier_expression
        Filter. A message that matches waits until all messages before it are settled.
    target_queue_depth
        Limit of messages that the queue looks at. The others wait in the log.
    dead_letter_topic
        Topic, or queue, that gets the messages that expire.
    file_backed_metadata
        Keep the state in a file, for a faster restart.
    record_leases
        Record in the log which consumer had which message.
    """
    options: dict[str, Any] = {
        "underlying_topic": underlying_topic,
        "message_type": message_type,
        "default_publish_target": default_publish_target,
        "semantics": semantics,
        "fairness_model": fairness_model,
        "lease_period": lease_period,
        "leasing": leasing,
        "max_backlog": max_backlog,
        "max_per_subscription_backlog": max_per_subscription_backlog,
        "max_deliveries": max_deliveries,
        "max_cancels": max_cancels,
        "retry_delay": retry_delay,
        "expiration": expiration,
        "expiration_model": expiration_model,
        "filter": filter,
        "priority": priority,
        "barrier_expression": barrier_expression,
        "target_queue_depth": target_queue_depth,
        "dead_letter_topic": dead_letter_topic,
        "file_backed_metadata": "enabled" if file_backed_metadata else None,
        "record_leases": record_leases or None,
    }
    settings: Any = {key: value for key, value in options.items() if value is not None}
    with quire.Client(url or default_url()) as client:
        created = client.create_queue(queue, **settings)
    if json:
        print_json(queue=queue, created=created)
    else:
        print(f"queue {queue} created" if created else f"queue {queue} exists with these settings")
    return 0


@app.command
def drop(
    queue: str,
    *,
    url: Url = None,
    yes: Annotated[bool, Parameter(negative="", help="Drop the queue also when it has messages.")] = False,
    json: Json = False,
) -> int:
    """Drop a queue that was created with create. Its subscriptions end, and its messages stay in the log.

    For example:
      quire queue drop RISK
      quire queue drop RISK --yes

    Parameters
    ----------
    queue
        Name of the queue.
    """
    with quire.Client(url or default_url()) as client:
        figures = client.queue_stats(queue)[queue]
        count = figures["depth"] + figures["inactive"]
        if figures.get("created", True) and count and not yes:
            noun = "message" if count == 1 else "messages"
            raise quire.ConfigError(
                f"drop: queue {queue} has {count:,} {noun}; add --yes to drop it with them"
            )
        report = client.drop_queue(queue)
    if json:
        print_json(queue=queue, dropped=report.messages, warnings=list(report.warnings))
        return 0
    print(f"queue {queue} dropped, {report.messages:,} messages")
    for warning in report.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return 0


@app.command
def purge(
    queue: str,
    *,
    url: Url = None,
    filter: str | None = None,
    all: Annotated[bool, Parameter(negative="", help="Remove all messages.")] = False,
    json: Json = False,
) -> int:
    """Remove messages from a queue. The log keeps them, and the dead letter topic of the queue gets them.

    For example:
      quire queue purge ORDERS_RISK --filter "/qty < 1"
      quire queue purge ORDERS_RISK --all

    Parameters
    ----------
    queue
        Name of the queue.
    filter
        Content filter. Only messages that match it are removed.
    """
    if (filter is None) != all:
        raise quire.ConfigError("purge: say which messages, by --filter or --all")
    with quire.Client(url or default_url()) as client:
        before = client.queue_stats(queue)[queue]["expired"]
        client.ack(queue, filter=filter or "", expire=True)
        client.flush()
        count = client.queue_stats(queue)[queue]["expired"] - before
    if json:
        print_json(queue=queue, purged=count)
    else:
        print(f"{count:,} messages thrown out of {queue}")
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
    place = url or default_url()
    done, left = 0, 0
    with quire.Client(place) as client:
        # Limited to the letters in the queue now: a message that fails again would otherwise be published endlessly.
        figures = client.queue_stats(queue)[queue]
        if not figures.get("takes_dead_letters", True):
            raise quire.ConfigError(
                f"{queue!r} is not over the dead_letter_topic of any queue: its messages are no dead letters; nothing was taken"
            )
        most = figures["depth"] if count is None else min(figures["depth"], count)
        # Reads the letters without taking them: a message that is taken and returned counts as delivered.
        for waiting in client.sow(queue, filter=filter, top_n=min(most, REDRIVE_BACKLOG)):
            _content(waiting)
        with client.subscribe(queue, filter=filter, max_backlog=REDRIVE_BACKLOG) as letters:
            while done < most and left < REDRIVE_BACKLOG:
                letter = _next(client, letters, queue)
                if letter is None:
                    break
                found = _content(letter)
                if found is None:
                    left += 1  # It goes back when the subscription ends.
                    continue
                topic, data = found
                with quire.Client(place, name=f"redrive {queue} {letter.bookmark}") as publisher:
                    publisher.publish(
                        to or topic,
                        data,
                        sequence=1,
                        correlation_id=letter.correlation_id,
                        headers=letter.headers,
                    )
                    publisher.flush()
                letter.ack()
                done += 1
            client.flush()
    if json:
        print_json(queue=queue, redriven=done, left=left)
    else:
        print(f"{done:,} dead letters of {queue} put back" + (f", {left:,} hold no message" if left else ""))
    return 0 if not left else 1


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


#: The members of the dead letter of an unreadable message.
UNREADABLE: Final = {"queue", "position", "reason", "deliveries", "cancels"}


def _content(letter: quire.Message) -> tuple[str, bytes] | None:
    """Returns the topic and data in a dead letter (docs/queues.md section 9), or `None` for a letter without its message: the
    message was too large for the letter, or could not be read.

    Raises `QuireError` for a message that is not a dead letter."""
    try:
        envelope: Any = letter.json()
    except ValueError:
        envelope = None
    if isinstance(envelope, dict) and envelope.keys() == UNREADABLE:
        return None
    # Letters in older journals name it `topic`.
    topic = envelope.get("source_topic", envelope.get("topic")) if isinstance(envelope, dict) else None
    if not isinstance(topic, str) or "reason" not in envelope:
        raise quire.QuireError(
            f"message {letter.bookmark} of {letter.topic} is no dead letter; redrive stops here. Use --filter to leave it out"
        )
    if "message" in envelope:
        return topic, _member(letter.data, envelope["message"])
    if "text" in envelope:
        return topic, envelope["text"].encode()
    if "base64" in envelope:
        return topic, base64.b64decode(envelope["base64"])
    return None


def _member(letter: bytes, message: Any) -> bytes:
    """The message as it was published where the letter holds it letter by letter at its end, else as equal JSON."""
    head, found, tail = letter.partition(b'"message":')
    data = tail.rstrip().removesuffix(b"}")
    try:
        if found and head and json.loads(data) == message:
            return data
    except ValueError:
        pass
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode()
