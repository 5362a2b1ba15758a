"""`quire queue …` and `quire subscribe --ack` as a person runs them, against a server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import quire
from quire.client._redrive import _next
from quire.testing import server
from support.command_line import quire as run
from support.waiting import PATIENCE, wait_until

QUEUES = (
    {
        "name": "JOBS",
        "message_type": "json",
        "underlying_topic": "tasks",
        "max_cancels": 0,
        "dead_letter_topic": "dead",
    },
    {"name": "DEAD", "message_type": "json", "underlying_topic": "dead"},
)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with server(tmp_path, queue=QUEUES) as running:
        with quire.Client(running.url) as client:
            for number in range(5):
                client.publish("tasks", {"n": number}, correlation_id=f"c{number}")
            client.flush(PATIENCE)
        yield running.url


def lines(said: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in said.splitlines()]


def depth(url: str, queue: str) -> object:
    with quire.Client(url) as client:
        return client.queue_stats(queue)[queue]["depth"]


def test_ls_and_stats_show_the_figures(url: str) -> None:
    listed = run("queue", "ls", url=url)
    assert listed.returncode == 0, listed.stderr
    table = [line.split("\t") for line in listed.stdout.splitlines()]
    assert table[0][:4] == ["queue", "depth", "waiting", "delayed"]
    assert sorted(row[:3] for row in table[1:]) == [["DEAD", "0", "0"], ["JOBS", "5", "5"]]
    figures = lines(run("queue", "stats", "JOBS", "--json", url=url).stdout)
    assert [(each["queue"], each["depth"], each["entered"]) for each in figures] == [("JOBS", 5, 5)]
    unknown = run("queue", "stats", "NONE", url=url)
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "NONE" in unknown.stderr


def test_the_table_of_queues_shows_the_age_with_one_decimal(url: str) -> None:
    head, *rows = [line.split("\t") for line in run("queue", "ls", url=url).stdout.splitlines()]
    at = head.index("oldest (s)")
    ages = {row[0]: row[at] for row in rows}
    assert re.fullmatch(r"\d+\.\d", ages["JOBS"]), ages
    assert isinstance(lines(run("queue", "ls", "--json", url=url).stdout)[0]["age_of_oldest_s"], float | None)


@pytest.mark.parametrize("name", ["NONE", "tasks"])
def test_peek_of_no_queue_has_the_error_of_stats(url: str, name: str) -> None:
    peek, stats = (run("queue", command, name, url=url) for command in ("peek", "stats"))
    assert f'no queue has the name "{name}"' in peek.stderr
    assert (peek.returncode, peek.stdout, peek.stderr) == (1, "", stats.stderr)


def test_subscribe_warns_of_a_max_backlog_without_a_queue(url: str) -> None:
    said = run("subscribe", "tasks", "--max-backlog", "10", "--bookmark", "epoch", "--count", "1", url=url)
    assert said.returncode == 0
    assert "max_backlog of the subscription to 'tasks' has no effect" in said.stderr
    said = run("subscribe", "JOBS", "--ack", "--max-backlog", "10", "--count", "1", url=url)
    assert (said.returncode, said.stderr) == (0, "")


def test_sow_prints_what_could_be_delivered(url: str) -> None:
    shown = run("sow", "JOBS", "--filter", "/n > 1", "--order-by", "/n DESC", "--top-n", "2", url=url)
    assert [each["data"] for each in lines(shown.stdout)] == [{"n": 4}, {"n": 3}], shown.stderr
    assert run("sow", "JOBS", "--format", "raw", url=url).stdout.splitlines()[0] == '{"n":0}'
    assert depth(url, "JOBS") == 5
    unknown = run("sow", "NONE", url=url)
    assert (unknown.returncode, unknown.stdout, len(unknown.stderr.splitlines())) == (1, "", 1)
    wrong = run("sow", "JOBS", "--filter", "/n >", url=url)
    assert (wrong.returncode, "column 5" in wrong.stderr) == (2, True)


def test_subscribe_acknowledges_when_it_is_asked_to(url: str) -> None:
    assert depth(url, "JOBS") == 5
    said = run("subscribe", "JOBS", "--ack", "--count", "2", url=url)
    assert [line["data"] for line in lines(said.stdout)] == [{"n": 0}, {"n": 1}]
    assert depth(url, "JOBS") == 3


def test_subscribe_without_ack_shows_and_takes_nothing(url: str) -> None:
    shown = run("subscribe", "JOBS", "--filter", "/n > 1", "--count", "2", url=url)
    assert shown.returncode == 0, shown.stderr
    assert [line["data"] for line in lines(shown.stdout)] == [{"n": 2}, {"n": 3}]
    assert "--ack" in shown.stderr
    # A pattern takes nothing from the queue either; it waits for messages of topics.
    pattern = run("subscribe", "^JOBS$", "--count", "1", "--timeout", "0.1", url=url)
    assert pattern.stdout == ""
    assert deliveries(url, "JOBS") == [({"n": n}, 1) for n in range(5)]


def test_subscribe_says_what_a_queue_requires(url: str) -> None:
    backlog = run("subscribe", "JOBS", "--max-backlog", "2", url=url)
    assert (backlog.returncode, backlog.stdout) == (2, "")
    assert "JOBS is a queue, and --max-backlog requires --ack" in backlog.stderr
    conflated = run("subscribe", "JOBS", "--conflation", "0s", "--timeout", "0.1", url=url)
    assert (conflated.returncode, conflated.stdout) == (2, "")
    assert "JOBS is a queue, and --conflation requires --ack" in conflated.stderr
    for option, value in (("--max-backlog", "0"), ("--bookmark", "epoch")):
        refused = run("subscribe", "JOBS", "--ack", option, value, url=url)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert refused.stderr.startswith(f"quire: {option}: ")
    topic = run("subscribe", "tasks", "--ack", url=url)
    assert (topic.returncode, topic.stdout) == (1, "")
    assert "no queue has the name" in topic.stderr


def test_peek_shows_and_takes_nothing(url: str) -> None:
    said = run("queue", "peek", "JOBS", "--filter", "/n > 1", "--count", "2", url=url)
    assert said.returncode == 0, said.stderr
    assert [line["data"] for line in lines(said.stdout)] == [{"n": 2}, {"n": 3}]
    for command in (("queue", "peek"), ("sow",)):
        asked = run(*command, "JOBS", "--filter", "/n IN (2, 3)", "--json", url=url)
        assert asked.stdout == said.stdout, asked.stderr
    assert depth(url, "JOBS") == 5


def test_purge_removes_the_messages_that_match(url: str) -> None:
    refused = run("queue", "purge", "JOBS", url=url)
    assert refused.returncode == 2
    assert "--all" in refused.stderr
    said = run("queue", "purge", "JOBS", "--filter", "/n < 2", "--json", url=url)
    assert lines(said.stdout) == [{"queue": "JOBS", "purged": 2}], said.stderr
    assert depth(url, "JOBS") == 3
    assert run("queue", "purge", "JOBS", "--all", url=url).stdout == "3 messages purged from JOBS\n"
    assert depth(url, "JOBS") == 0


def test_purge_gives_the_dead_letters_a_reason(url: str) -> None:
    said = run("queue", "purge", "JOBS", "--filter", "/n = 1", "--reason", "a load test", url=url)
    assert said.stdout == "1 message purged from JOBS\n", said.stderr
    wait_until(lambda: depth(url, "DEAD") == 1)
    letter = json.loads(run("queue", "peek", "DEAD", "--json", url=url).stdout)
    assert letter["data"]["consumer_reason"] == "a load test"
    refused = run("queue", "purge", "JOBS", "--all", "--reason", "x" * 1025, url=url)
    assert refused.returncode == 2
    assert "reason: the text has 1,025 bytes in UTF-8, the limit is 1,024" in refused.stderr
    assert depth(url, "JOBS") == 4


def test_redrive_puts_dead_letters_back_once(url: str) -> None:
    with quire.Client(url) as client:
        jobs = client.subscribe("JOBS", max_backlog=5)
        for _ in range(4):
            jobs.get(PATIENCE).cancel()
        client.flush(PATIENCE)
    # The server publishes a dead letter without waiting for its sync.
    wait_until(lambda: (depth(url, "JOBS"), depth(url, "DEAD")) == (1, 4))
    some = run("queue", "redrive", "DEAD", "--filter", "/message/n >= 2", "--json", url=url)
    assert lines(some.stdout) == [{"queue": "DEAD", "redriven": 2, "left": 0}], some.stderr
    # As if it had been killed between the publish and the acknowledgement: the letter is published
    # again.
    with quire.Client(url) as client:
        letter = client.subscribe("DEAD").get(PATIENCE)
        name = f"redrive DEAD {letter.bookmark}"
    with quire.Client(url, name=name) as before:
        before.publish("tasks", letter.json()["message"], sequence=1, correlation_id="c0")
        before.flush(PATIENCE)
    rest = run("queue", "redrive", "DEAD", "--json", url=url)
    assert lines(rest.stdout) == [{"queue": "DEAD", "redriven": 2, "left": 0}], rest.stderr
    assert (depth(url, "JOBS"), depth(url, "DEAD")) == (5, 0)
    with quire.Client(url) as client:
        jobs = client.subscribe("JOBS", max_backlog=5)
        messages = [jobs.get(PATIENCE) for _ in range(5)]
        assert sorted((m.json()["n"], m.correlation_id) for m in messages) == [(n, f"c{n}") for n in range(5)]


def test_redrive_puts_a_message_back_with_the_key_that_its_publisher_supplied(tmp_path: Path) -> None:
    topic = {"name": "tasks", "message_type": "json"}
    with server(tmp_path, queue=QUEUES, sow_topic=topic) as running, quire.Client(running.url) as client:
        client.publish("tasks", {"n": 1}, sow_key="first")
        client.subscribe("JOBS").get(PATIENCE).cancel()
        client.flush(PATIENCE)
        wait_until(lambda: depth(running.url, "DEAD") == 1)
        client.sow_delete("tasks", keys=["first"])
        done = run("queue", "redrive", "DEAD", "--json", url=running.url)
        assert lines(done.stdout) == [{"queue": "DEAD", "redriven": 1, "left": 0}], done.stderr
        assert [(record.sow_key, record.json()) for record in client.sow("tasks")] == [("first", {"n": 1})]


def deliveries(url: str, queue: str) -> list[tuple[object, int]]:
    """The messages of a queue, and how often they were delivered when they come now."""
    with quire.Client(url) as client, client.subscribe(queue, max_backlog=10) as messages:
        count = client.queue_stats(queue)[queue]["depth"]
        return [(m.json(), m.delivery_count) for m in (messages.get(PATIENCE) for _ in range(count))]


def test_redrive_takes_nothing_from_a_queue_that_holds_no_dead_letters(url: str) -> None:
    refused = run("queue", "redrive", "JOBS", url=url)
    assert refused.returncode == 2
    assert "'JOBS' is not over the dead_letter_topic of any queue" in refused.stderr
    assert deliveries(url, "JOBS") == [({"n": n}, 1) for n in range(5)]


@pytest.mark.parametrize("name", ["dead", "nothing"])
def test_redrive_names_the_queues_over_dead_letter_topics_before_there_is_a_letter(
    url: str, name: str
) -> None:
    refused = run("queue", "redrive", name, url=url)
    assert refused.returncode == 1
    reason = (
        f"no queue has the name '{name}'; redrive takes the name of a queue over a dead letter topic: 'DEAD'"
    )
    assert reason in refused.stderr


def test_an_unknown_option_suggests_an_option_that_begins_with_it(url: str) -> None:
    refused = run("queue", "create", "NEW", "--lease", "30s", url=url)
    assert refused.returncode == 2
    assert "Unknown option: --lease. Did you mean --lease-period?" in refused.stderr


def test_redrive_stops_at_a_message_that_is_no_dead_letter(url: str) -> None:
    with quire.Client(url) as client:
        client.publish("dead", {"topic": "tasks", "note": "not a letter"})
        client.flush(PATIENCE)
    refused = run("queue", "redrive", "DEAD", url=url)
    assert refused.returncode == 1
    assert "of DEAD is no dead letter" in refused.stderr
    assert deliveries(url, "DEAD") == [({"topic": "tasks", "note": "not a letter"}, 1)]
    assert depth(url, "JOBS") == 5


def test_redrive_leaves_the_letter_of_an_unreadable_message_and_continues(url: str) -> None:
    letter = {"queue": "JOBS", "position": 3, "reason": ["max_deliveries"], "deliveries": 2, "cancels": 0}
    letters = [letter, {**letter, "consumer_reason": "KeyError: 'id'"}]
    with quire.Client(url) as client:
        client.publish_many("dead", letters)
        client.flush(PATIENCE)
    left = run("queue", "redrive", "DEAD", url=url)
    assert left.returncode == 1
    assert left.stdout == "0 dead letters put back from DEAD, 2 hold no message\n"
    assert [data for data, _ in deliveries(url, "DEAD")] == letters


def test_redrive_puts_back_the_text_of_every_message(url: str) -> None:
    # Data that a reader in Python would change, or would not read.
    odd = [
        b'{"n":9,"price":1.10,"zero":-0,"n":10,"big":1e400}',
        b'{"n":%s}' % (b"9" * 5000),
        b"[" * 1000 + b"]" * 1000,
        b' {"message" : "x"} ',
        b'{"a":"\xff"}',
        b"not json",
    ]
    with quire.Client(url) as client:
        client.ack("JOBS", filter="")
        for data in odd:
            client.publish("tasks", data)
        client.flush(PATIENCE)
        jobs = client.subscribe("JOBS", max_backlog=10)
        for _ in odd:
            jobs.get(PATIENCE).cancel()
        client.flush(PATIENCE)
    wait_until(lambda: depth(url, "DEAD") == len(odd))
    done = run("queue", "redrive", "DEAD", url=url)
    assert (done.returncode, done.stdout) == (0, "6 dead letters put back from DEAD\n"), done.stderr
    with quire.Client(url) as client:
        jobs = client.subscribe("JOBS", max_backlog=10)
        assert [jobs.get(PATIENCE).data.strip() for _ in odd] == [data.strip() for data in odd]


def test_redrive_continues_after_a_letter_that_the_server_refuses(url: str) -> None:
    letters = [{"source_topic": topic, "reason": ["max_cancels"], "message": 1} for topic in ("", "tasks")]
    with quire.Client(url) as client:
        for letter in letters:
            client.publish("dead", letter)
        client.flush(PATIENCE)
    done = run("queue", "redrive", "DEAD", url=url)
    assert (done.returncode, done.stdout) == (1, "1 dead letter put back from DEAD, 1 was refused\n")
    assert "was not put back: " in done.stderr
    assert (depth(url, "JOBS"), depth(url, "DEAD")) == (6, 1)


@pytest.mark.parametrize(
    "command",
    [("queue", "stats"), ("queue", "peek"), ("topic", "stats"), ("replication", "stats"), ("sow",)],
)
def test_the_exit_code_is_1_for_a_name_that_the_server_does_not_have(
    url: str, command: tuple[str, ...]
) -> None:
    done = run(*command, "unknown", url=url)
    assert (done.returncode, done.stdout) == (1, "")
    assert "unknown" in done.stderr


class Silence:
    """A subscription and its client as `redrive` sees them: the messages, `None` when none arrives
    in time, and whether the filter has not checked some messages by then."""

    def __init__(self, comes: list[str | None], catching_up: list[int]) -> None:
        self.comes, self.catching_up = comes, catching_up

    def get(self, timeout: float) -> str:
        letter = self.comes.pop(0)
        if letter is None:
            raise TimeoutError
        return letter

    def queue_stats(self, queue: str) -> dict[str, dict[str, int]]:
        return {queue: {"catching_up": self.catching_up.pop(0)}}


@pytest.mark.parametrize(
    ("comes", "catching_up", "letter"),
    [
        (["letter"], [], "letter"),
        ([None, None, "letter"], [1, 1], "letter"),
        ([None, "letter"], [0], "letter"),
        ([None, None, None], [1, 0], None),
    ],
)
def test_redrive_ends_when_all_was_looked_at_not_when_nothing_comes(
    comes: list[str | None], catching_up: list[int], letter: str | None
) -> None:
    silence: Any = Silence(comes, catching_up)
    found: object = _next(silence, silence, "DEAD")
    assert found == letter
    assert not comes
    assert not catching_up
