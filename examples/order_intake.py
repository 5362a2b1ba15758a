"""Order intake: publishes orders from a file, once each, however often it is run.

    python examples/order_intake.py orders.csv [URL]

The file is CSV with the header line `id,symbol,quantity`. The number of the line is the sequence of
its order, and the name of the file is the name of the publisher. A run that crashed is started
again: the log drops the orders that it already has.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import quire


def main(path: Path, url: str) -> None:
    with quire.Client(url, name=f"intake/{path.name}") as client, path.open(newline="") as file:
        before = client.persisted
        for number, row in enumerate(csv.DictReader(file), start=1):
            order = {"id": row["id"], "symbol": row["symbol"], "quantity": int(row["quantity"])}
            client.publish("orders", order, sequence=number)
        client.flush()
        print(f"{client.persisted - before} new orders, {before} were there")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "quire://127.0.0.1:9007")
