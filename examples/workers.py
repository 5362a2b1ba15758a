"""Workers: several processes share a queue. Failed jobs are retried with pauses, then go to the dead letters.

    python examples/workers.py [PROCESSES]

The server runs in the first process, so that the example needs no other program.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time

import quire

QUEUE = {
    "name": "resize",
    "message_type": "json",
    "underlying_topic": "pictures",
    "max_deliveries": 3,
    "retry_delay": ["100ms", "500ms"],
    "dead_letter_topic": "pictures.failed",
}


def resize(message: quire.Message) -> None:
    picture = message.json()
    if picture["width"] <= 0:
        raise ValueError(f"picture {picture['id']} has no width")


def work(url: str, number: int) -> None:
    with quire.Client(url, name=f"worker-{number}") as client:
        client.process("resize", resize, concurrency=2)  # returns on SIGTERM


def main(processes: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        config = quire.Config(data_directory=directory, transport=[{"address": "127.0.0.1:0"}], queue=[QUEUE])
        with quire.Server(config) as server, quire.Client(server.url, name="uploads") as client:
            context = multiprocessing.get_context("spawn")
            workers = [context.Process(target=work, args=(server.url, number)) for number in range(processes)]
            for worker in workers:
                worker.start()
            failed = client.subscribe("pictures.failed", bookmark=quire.EPOCH)
            for number in range(100):
                client.publish("pictures", {"id": number, "width": number % 50})
            client.flush()

            letters = [failed.get(timeout=60).json() for _ in range(2)]
            while client.queue_stats("resize")["resize"]["depth"]:
                time.sleep(0.1)
            for worker in workers:
                worker.terminate()  # SIGTERM: finishes what it has begun
                worker.join()
            figures = client.queue_stats("resize")["resize"]
            print(f"done: {figures['acknowledged']}, left: {figures['depth']}")
            for letter in letters:
                print(f"failed: {letter['message']} after {letter['deliveries']} deliveries")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
