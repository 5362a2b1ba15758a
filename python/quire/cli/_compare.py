"""Comparing the messages of servers: `quire replication verify`, and the commands that depend on its result."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import quire
from quire import _quire
from quire._units import counted
from quire.cli._output import note, print_json, print_table, say

#: Seconds between two questions whether a comparison has ended.
_POLL: Final = 0.05


class Compared:
    """A server whose messages are compared."""

    def __init__(self, url: str, client: quire.Client) -> None:
        self.url, self._client = url, client
        with self._without_the_question():
            self.name: str = client.server_info().name

    def answer(self, question: bytes) -> bytes:
        """The answer to a question about the messages."""
        with self._without_the_question():
            return self._client._messages_of(question)

    def repair(self) -> None:
        """Lets the server ask the instances that send to it for what it lacks. Waits until they have sent it."""
        before = self._client._replication()
        # A comparison that is under way may have begun too early.
        wanted = before["comparisons"] + (2 if before["comparing"] else 1)
        links = self._client._replicate(self.name, "compare")
        while links["comparisons"] < wanted:
            time.sleep(_POLL)
            links = self._client._replication()
        if not any(link["state"] in ("live", "gap") for link in links["sources"]):
            note(f"{self.url}: no instance sends to {self.name!r} now, so nothing can be fetched")
        if links["missing"]:
            note(
                f"{self.url}: {self.name!r} lacks {counted(links['missing'], 'message')} that no instance which "
                "sends to it has"
            )

    @contextlib.contextmanager
    def _without_the_question(self) -> Iterator[None]:
        """A server that does not know a question ends the connection."""
        try:
            yield
        except quire.ProtocolError as error:
            raise quire.QuireError(
                f"{self.url}: the server is older than this command and cannot compare messages; update it to "
                f"quire {quire.__version__} ({error.reason})"
            ) from None


@dataclass(frozen=True)
class Differences:
    """The differences between the messages of two servers."""

    #: Publisher, first and last sequence; whether the first server lacks them. `None`: another run.
    ranges: list[tuple[int, int, int, bool | None]]
    #: Publishers with differences in files that were removed.
    publishers: list[int]
    #: Not more than the limit differ.
    is_complete: bool
    #: The names and the URLs of the servers.
    names: tuple[str, str]
    urls: tuple[str, str]

    def note_removed(self) -> bool:
        """Says that messages in removed files were not compared one by one. Returns whether there are such."""
        named = {publisher for publisher, *_ in self.ranges}
        unnamed = [publisher for publisher in self.publishers if publisher not in named]
        if unnamed:
            note(
                f"{' and '.join(self.urls)}: {counted(len(unnamed), 'publisher')} had other messages in journal files "
                f"that were removed or are of an older version, such as publisher {unnamed[0]}"
            )
        return bool(unnamed)

    def show(self, limit: int, *, json: bool) -> int:
        """Prints what differs between the servers. Returns 1 when something does."""
        rows = [
            {
                "publisher": publisher,
                "first": first,
                "last": last,
                "messages": last - first + 1,
                "difference": "another run" if missing_at is None else "missing",
                "instance": self.names[not missing_at],
                "server": self.urls[not missing_at],
            }
            for publisher, first, last, missing_at in self.ranges
        ]
        if json:
            for row in rows:
                print_json(**row)
        elif rows:
            print_table(list(rows[0]), [list(row.values()) for row in rows])
        pair = " and ".join(self.urls)
        if not self.is_complete:
            note(f"{pair}: more than {limit:,} messages differ; --limit lists more")
        unnamed = self.note_removed()
        if rows or unnamed or not self.is_complete:
            return 1
        (note if json else say)(f"{pair}: no message differs")
        return 0


def compared(one: Compared, two: Compared, limit: int) -> Differences:
    """Compares the messages of two servers."""
    comparison = _quire.LogComparison(limit)
    while (question := comparison.question()) is not None:
        for is_first, server in ((True, one), (False, two)):
            try:
                comparison.answer(is_first, server.answer(question))
            except ValueError as error:
                raise quire.QuireError(f"{server.url}: {error}") from None
    names = (one.name, two.name)
    return Differences(
        comparison.ranges(), comparison.publishers(), comparison.is_complete(), names, (one.url, two.url)
    )


def described(members: list[dict[str, Any]]) -> str:
    """The names of members, and the last message of each that is known."""
    names = [
        f"{'the group ' if member['group'] else ''}{member['name']} (last known message: {member['last'] or 'none'})"
        for member in members
    ]
    return ", ".join(names) or "no instance"


__all__ = ["Compared", "Differences", "compared", "described"]
