"""A client in a separate process, so that a test can kill it.

It reads one command per line, and answers each with one line of JSON.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from types import TracebackType
from typing import Any

import quire

from support.waiting import PATIENCE


class ClientProcess:
    """A client of `url` with the options of `quire.Client`; `kill` ends it from one instruction to
    the next."""

    def __init__(self, url: str, **options: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps({"url": url, **options})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # It imports what this process imports.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self._unread = b""

    def tell(self, call: str, *arguments: Any) -> None:
        """Says what to do, and does not wait for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([call, *arguments]).encode() + b"\n")
        self._process.stdin.flush()

    def ask(self, call: str, *arguments: Any) -> Any:
        """Says what to do; gives the answer."""
        self.tell(call, *arguments)
        return self.answer()

    def answer(self) -> Any:
        """The next answer."""
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            ready, _, _ = select.select([output], [], [], PATIENCE)
            more = os.read(output, 65536) if ready else b""
            assert more, f"the client does not answer: {self._process.poll()=}"
            self._unread += more
        line, self._unread = self._unread.split(b"\n", 1)
        return json.loads(line)

    def kill(self) -> None:
        """`kill -9`."""
        self._process.kill()
        self._end()

    def rest(self) -> list[Any]:
        """The complete answers that were not read before it was killed."""
        return [json.loads(line) for line in self._unread.split(b"\n")[:-1]]

    def close(self) -> None:
        """Closes the client; the process ends with it."""
        self.tell("close")
        self._end()

    def _end(self) -> None:
        self._process.wait(PATIENCE)
        assert self._process.stdout is not None
        self._unread += self._process.stdout.read()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def __enter__(self) -> ClientProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self.kill()


class _Served:
    """The commands that the process carries out with its client."""

    def __init__(self, url: str, **options: Any) -> None:
        reconnect = quire.Reconnect(initial="5ms", maximum="50ms")
        self._client = quire.Client(url, reconnect=reconnect, **options)
        self._subscription: quire.Subscription | None = None

    def publish(self, topic: str, first: int, count: int) -> int | None:
        """`count` messages that say their numbers from `first` on; gives the last sequence."""
        last = None
        for number in range(first, first + count):
            last = self._client.publish(topic, b"%d" % number)
        return last

    def publish_without_end(self, topic: str, first: int) -> None:
        """Says each sequence as soon as `publish` has returned it."""
        number = first
        while True:
            print(self._client.publish(topic, b"%d" % number), flush=True)
            number += 1

    def flush(self, timeout: float) -> int:
        self._client.flush(timeout)
        return self._client.persisted

    def subscribe(self, topic: str, bookmark: str, sub_id: str) -> None:
        self._subscription = self._client.subscribe(topic, bookmark=bookmark, sub_id=sub_id)

    def take(self, count: int) -> list[int]:
        """The numbers that `count` messages say, each processed when the next is asked for."""
        assert self._subscription is not None
        return [int(self._subscription.get(PATIENCE).data) for _ in range(count)]

    def take_without_end(self) -> None:
        """Says each number; what is said is processed when the next is."""
        assert self._subscription is not None
        for message in self._subscription:
            print(int(message.data), flush=True)

    def most_recent(self) -> str | None:
        assert self._subscription is not None
        return self._subscription.most_recent


def _serve(options: str) -> None:
    served = _Served(**json.loads(options))
    for line in sys.stdin:
        call, *arguments = json.loads(line)
        if call == "close":
            served._client.close()
            return
        print(json.dumps(getattr(served, call)(*arguments)), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1])
