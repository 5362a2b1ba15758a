"""The comparison with other engines: the records that it stores, and the table that it prints. No peer is needed."""

from __future__ import annotations

import json

from benches.peers import last_values, report


def test_a_record_is_json_of_the_same_size_in_every_version() -> None:
    first, second = last_values.record(7, 0), last_values.record(7, 12_345)
    assert len(first.data) == len(second.data) == last_values.RECORD_SIZE
    fields = json.loads(second.data)
    assert (fields["id"], fields["group"], fields["version"]) == (first.key, first.group, 12_345)


def test_a_group_has_one_percent_of_the_records() -> None:
    groups = [last_values.record(number, 0).group for number in range(1_000)]
    assert {groups.count(group) for group in groups} == {10}


def test_a_table_leaves_out_an_engine_without_figures_and_names_ratios() -> None:
    rounds = {"get": {"quire": [10.0, 30.0, 20.0], "Redis": [40.0, 40.0, 1.0]}}
    table = report.table("last values", ["quire", "Kafka", "Redis"], rounds, {"get": "µs"})
    assert table.splitlines() == [
        "| last values | quire | Redis |",
        "| --- | --- | --- |",
        "| get | 20 µs | 40 µs (2 x) |",
    ]
