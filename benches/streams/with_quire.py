"""Computes one query of Nexmark with views of quire, in this process: `with_quire.py QUERY EVENTS`.

The events are published to an engine in memory, and a subscription gets the changes of the last
view.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import quire
from program import Meter, Program, read_events

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))
from support.nexmark import FIELDS, QUERIES, settings

TIMEOUT = 600.0
WAIT = 0.01


def main() -> None:
    program = Program(sys.argv)
    query = QUERIES[program.query]
    configured = settings({program.query: query})
    for view in configured["view"]:
        # The others also hand on several changes of a record as one.
        view["inline_conflation"] = True
    named = " ".join(str(view) for view in configured["view"])
    topics = [topic for topic in FIELDS if f"'{topic}'" in named or f"[{topic}]" in named]
    configured["sow_topic"] = [it for it in configured["sow_topic"] if it["name"] in topics]
    events = read_events(program.events, topics)
    rows: dict[str, bytes] = {}
    meter = Meter()
    with quire.Client("memory:nexmark", name="n", config=quire.Config(**configured)) as client:
        names = [view["name"] for view in query.views]
        changes = client.sow_and_subscribe(names[-1], oof=True)
        publisher = threading.Thread(target=publish, args=(client, events, names))
        meter.begin()
        publisher.start()
        while True:
            try:
                change = changes.get(timeout=WAIT)
            except TimeoutError:
                if publisher.is_alive():
                    continue
                break
            if change.command == "oof":
                rows.pop(change.sow_key, None)
            elif change.sow_key is not None:
                rows[change.sow_key] = change.data
        meter.end()
        assert rows == {record.sow_key: record.data for record in client.sow(names[-1])}
    program.answer(meter, len(events), map(json.loads, rows.values()))


def publish(client: quire.Client, events: list[tuple[str, bytes]], views: list[str]) -> None:
    """Publishes all events, and waits until the views have them."""
    for topic, event in events:
        client.publish(topic, event)
    client.flush(timeout=TIMEOUT)
    while any(it["last_values"]["waiting_changes"] for it in client._described_of(views)):
        time.sleep(0.001)


if __name__ == "__main__":
    main()
