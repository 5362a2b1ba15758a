"""Migration: moves the messages of another broker into a log, and can be interrupted at any point.

    python examples/migrate.py

`source` represents the consumer of the other broker: any iterator over numbered messages, such as
the offsets of a partition or the ids of a stream. The offset is the sequence, so a second run adds
only what is missing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import quire


def source(start: int) -> Iterator[tuple[int, dict[str, int]]]:
    """The messages of the other broker from an offset on."""
    return ((offset, {"n": offset}) for offset in range(start, 1_000))


def migrate(client: quire.Client, stop_after: int | None = None) -> None:
    # Sequences begin at 1, and offsets at 0.
    for count, (offset, message) in enumerate(source(client.persisted), start=1):
        client.publish("orders", message, sequence=offset + 1)
        if count == stop_after:
            break
    client.flush()


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        for stop_after in (400, None):  # the first run is interrupted
            with quire.Client(f"file:{directory}", name="migration/orders/0") as client:
                migrate(client, stop_after)
                print(f"{client.persisted} messages are in the log")


if __name__ == "__main__":
    main()
