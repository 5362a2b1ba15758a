"""The comparison with other engines: the stored files, the start of servers, and the printed table.
No peer is needed."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest

from benches.peers import last_values, replicated, report, server, sums, work
from benches.peers.engine import Broker, LastValues, Replicated

_LISTEN = "import socket, sys, threading; listener = socket.create_server(('127.0.0.1', int(sys.argv[1]))); "
_WAIT_FOR_THE_OTHER = """
import contextlib, socket, sys
while True:
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", int(sys.argv[2])))
        break
"""
_SERVE = "threading.Event().wait()"


def test_a_record_is_json_of_the_same_size_in_every_version() -> None:
    first, second = last_values.record(7, 0), last_values.record(7, 12_345)
    assert len(first.data) == len(second.data) == last_values.RECORD_SIZE
    fields = json.loads(second.data)
    assert (fields["id"], fields["group"], fields["version"]) == (first.key, first.group, 12_345)


def test_a_group_has_one_percent_of_the_records() -> None:
    groups = [last_values.record(number, 0).group for number in range(1_000)]
    assert {groups.count(group) for group in groups} == {10}


def test_an_amount_moves_to_the_next_group_with_each_version() -> None:
    first, second = sums.amount(999, 0), sums.amount(999, 1)
    assert len(first.data) == len(second.data) == sums.RECORD_SIZE
    fields = json.loads(second.data)
    assert (fields["id"], fields["group"], fields["amount"]) == (first.key, second.group, second.amount)
    assert (first.group, second.group, second.amount - first.amount) == ("g0999", "g0000", 1)


def test_a_table_leaves_out_an_engine_without_figures_and_names_ratios() -> None:
    rounds = {"get": {"quire": [10.0, 30.0, 20.0], "Redis": [40.0, 40.0, 1.0]}}
    table = report.table("last values", ["quire", "Kafka", "Redis"], rounds, {"get": "µs"})
    assert table.splitlines() == [
        "| last values | quire | Redis |",
        "| --- | --- | --- |",
        "| get | 20 µs | 40 µs (2 x) |",
    ]


def test_a_result_file_has_the_medians_with_their_units() -> None:
    rounds = {"publish": {"quire": [300.4, 100.0, 200.6], "Kafka": []}, "get, p50": {"quire": [2.04]}}
    assert report.rows(rounds, {"publish": "/s", "get, p50": "µs"}) == {
        "publish, messages/s": {"quire": 201},
        "get, p50, µs": {"quire": 2.0},
    }


def test_an_engine_does_the_lines_of_its_families() -> None:
    class Both(Broker, LastValues):
        name = "both"

    class Copies(Replicated):
        name = "copies"

    wanted = ["replicated-1", "get", "replay"]
    assert work.lines_of(Both, wanted) == ["replay", "get"]
    assert work.lines_of(Copies, wanted) == ["replicated-1"]
    assert work.lines_of(Copies, ["get"]) == []


def test_a_line_runs_after_the_line_that_writes_what_it_reads() -> None:
    assert work.with_bases(["get", "publish-1"]) == ["publish-1", "insert", "get"]
    assert work.with_bases(["query-indexed", "replay"]) == [
        "publish-1",
        "replay",
        "insert-indexed",
        "query-indexed",
    ]
    assert work.with_bases(list(work.LINES)) == list(work.LINES)


def test_servers_that_wait_for_each_other_are_started_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "START_TIMEOUT_S", 30.0)
    ports = [server.free_port(), server.free_port()]
    programs = [_WAIT_FOR_THE_OTHER + _LISTEN + _SERVE, _LISTEN + _SERVE]
    servers = []
    for number, program in enumerate(programs):
        (directory := tmp_path / str(number)).mkdir()
        command = [sys.executable, "-c", program, *map(str, (ports[number], ports[1 - number]))]
        servers.append(server.Server(command, {}, directory, ports[number]))
    with server.started(servers):
        for port in ports:
            socket.create_connection(("127.0.0.1", port)).close()
    assert [one.processes() for one in servers] == [[], []]


def test_a_lone_publish_is_timed_without_the_first_one() -> None:
    latencies_ns: list[int] = []
    messages = list(replicated.messages_alone(512, 0.0, latencies_ns))
    assert {len(message) for message in messages} == {512}
    assert len(latencies_ns) == len(messages) - 1 >= 2
