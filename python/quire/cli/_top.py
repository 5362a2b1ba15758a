"""`quire top`: the figures of a server, live."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

import quire
from quire._units import Duration, seconds
from quire.cli import default_url
from quire.cli._connect import connect
from quire.cli._output import print_json, visible
from quire.cli._samples import COLUMNS, TABLES, Sample, Sampler, View, cell, head, table_for_sort

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

#: A shorter interval would measure the questions of this command.
INTERVAL_MIN = 0.1

#: Keys that were pressed since the last read. An arrow sends several bytes together.
_KEY_BYTES_MAX = 16

#: Seconds without an answer, after the interval, that the screen mentions.
SILENCE_SHOWN = 1.0

_HELP = "q quit   s sort   / filter   Tab next table"


def top(
    url: str | None, *, interval: Duration, sort: str | None, count: int | None, once: bool, as_json: bool
) -> int:
    pause = seconds(interval, "--interval")
    if pause < INTERVAL_MIN:
        raise quire.ConfigError(f"{interval} is below {INTERVAL_MIN:g} s", key="--interval")
    if count is not None and count < 1:
        raise quire.ConfigError(f"{count} is not at least 1", key="--count")
    if once:
        count = 1
    view = View()
    if sort is not None:
        table, key = table_for_sort(sort)
        view.table, view.sort[table] = table, key
    is_screen = sys.stdout.isatty() and sys.stdin.isatty() and not as_json and count is None
    with connect(url) as client:
        sampler = Sampler(client)
        if is_screen and sys.platform != "win32":
            _Screen(view, sampler, pause, url or default_url()).run()
            return 0
        _print_samples(sampler, view, pause, count, as_json)
    return 0


def _print_samples(sampler: Sampler, view: View, pause: float, count: int | None, as_json: bool) -> None:
    never = threading.Event()
    number = 0
    while count is None or number < count:
        if number:
            never.wait(pause)
        number += 1
        sample = sampler.take()
        if as_json:
            print_json(**sample.to_json())
            continue
        for line in (f"{sample.time:%Y-%m-%d %H:%M:%S}", *head(sample)):
            print(visible(line))
        for table in TABLES:
            shown = View(table, view.sort, view.filter)
            if reason := sample.refused.get(table):
                print(f"{table}: {visible(reason)}")
            elif rows := shown.rows(sample):
                print(*(column.heading for column in COLUMNS[table]), sep="\t")
                for row in rows:
                    print(*(visible(cell(row[column.key])) for column in COLUMNS[table]), sep="\t")
        print(flush=True)


@dataclass
class _Latest:
    """The newest sample, or why there is none. The thread that asks the server replaces it."""

    sample: Sample | None = None
    failure: str | None = None
    answered: float = field(default_factory=monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)


class _Screen:
    """The live screen: a thread asks the server, so that keys work while it does not answer."""

    def __init__(self, view: View, sampler: Sampler, pause: float, url: str) -> None:
        self._view = view
        self._sampler = sampler
        self._pause = pause
        self._url = url
        self._latest = _Latest()
        self._is_over = threading.Event()
        #: The text that is typed after `/`; `None`: no text is typed.
        self._typed: str | None = None

    def run(self) -> None:
        from rich.console import Console
        from rich.live import Live

        # Names of the server are printed as they are.
        console = Console(markup=False, emoji=False, highlight=False)
        woken, wake = os.pipe()
        asking = threading.Thread(target=self._ask, args=(wake,), daemon=True, name="quire-top")
        try:
            with (
                _keys() as keys,
                Live(console=console, screen=True, auto_refresh=False, transient=True) as live,
            ):
                asking.start()
                while not self._is_over.is_set():
                    live.update(self._drawn(console), refresh=True)
                    ready, _, _ = select.select([keys, woken], [], [], 1.0)
                    if woken in ready:
                        os.read(woken, 1024)
                    if keys in ready and not all(map(self._take, _pressed(os.read(keys, _KEY_BYTES_MAX)))):
                        break
        finally:
            self._is_over.set()
            # It may wait for an answer. Closing the client ends that.
            self._sampler._client.close()
            asking.join()
            os.close(woken)
            os.close(wake)

    def _ask(self, wake: int) -> None:
        while not self._is_over.is_set():
            try:
                sample = self._sampler.take()
            except (quire.QuireError, TimeoutError) as error:
                with self._latest.lock:
                    self._latest.failure = str(error)
            else:
                with self._latest.lock:
                    self._latest.sample, self._latest.failure = sample, None
                    self._latest.answered = monotonic()
            os.write(wake, b".")
            self._is_over.wait(self._pause)

    def _take(self, text: str) -> bool:
        """Handles a key. Returns `False` for one that ends the command."""
        if self._typed is not None:
            match text:
                case "\r" | "\n":
                    self._typed = None
                case "\x1b":
                    self._typed, self._view.filter = None, ""
                case "\x7f" | "\b":
                    self._typed = self._view.filter = self._typed[:-1]
                case "\x03" | "\x04":
                    return False
                case _ if text.isprintable():
                    self._typed = self._view.filter = self._typed + text
            return True
        match text:
            case "q" | "Q" | "\x03" | "\x04":
                return False
            case "s":
                self._view.next_sort()
            case "/":
                self._typed = self._view.filter = ""
            case "\x1b":
                self._view.filter = ""
            case "\t":
                self._turn(1)
            case "\x1b[Z":
                self._turn(-1)
        return True

    def _turn(self, step: int) -> None:
        self._view.table = TABLES[(TABLES.index(self._view.table) + step) % len(TABLES)]

    def _drawn(self, console: Console) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        with self._latest.lock:
            sample, failure = self._latest.sample, self._latest.failure
            silence = monotonic() - self._latest.answered
        lines: list[Text] = []
        if failure is None and silence > self._pause + SILENCE_SHOWN:
            failure = f"no answer for {silence:.0f} s"
        if failure is not None:
            lines.append(Text(visible(f"{self._url}: {failure}"), style="bold red", overflow="ellipsis"))
        if sample is None:
            return Group(*(lines or [Text(f"asking {self._url}")]))
        lines += [Text(visible(line), no_wrap=True, overflow="ellipsis") for line in head(sample)]
        names = Text()
        for name in TABLES:
            is_shown = name == self._view.table
            names.append(
                f" {name} {cell(len(sample.tables.get(name, ())))} ", "reverse bold" if is_shown else ""
            )
        lines.append(names)
        below = Text(_HELP, style="dim", no_wrap=True, overflow="ellipsis")
        if self._typed is not None:
            below = Text(f"/{self._typed}_   Enter keep   Escape remove", no_wrap=True)
        elif self._view.filter:
            below = Text(f"filter: {self._view.filter}   Escape remove   {_HELP}", no_wrap=True)
        if reason := sample.refused.get(self._view.table):
            return Group(*lines, Text(visible(reason)), below)
        rows = self._view.rows(sample)
        room = max(console.height - len(lines) - 4, 1)
        return Group(*lines, _drawn_table(self._view, rows[:room]), _left_out(len(rows) - room, below))


def _drawn_table(view: View, rows: list[dict[str, object]]) -> RenderableType:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    sort = view.sort.get(view.table, "")
    for place, column in enumerate(COLUMNS[view.table]):
        mark = {column.key: " ▲", f"-{column.key}": " ▼"}.get(sort, "") if sort else ""
        is_figure = place > 0 and all(isinstance(row[column.key], (int, float, type(None))) for row in rows)
        table.add_column(
            column.heading + mark,
            justify="right" if is_figure else "left",
            no_wrap=True,
            overflow="ellipsis",
            style="bold" if place == 0 else "",
        )
    for row in rows:
        table.add_row(*(Text(visible(cell(row[column.key]))) for column in COLUMNS[view.table]))
    return table


def _left_out(count: int, below: RenderableType) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    return below if count <= 0 else Group(Text(f"{count:,} more", style="dim"), below)


def _pressed(read: bytes) -> Iterable[str]:
    """The keys of one read: an escape sequence is one. A terminal that is gone gives the key that ends the command."""
    text = read.decode(errors="ignore") or "\x04"
    return [text] if text.startswith("\x1b") else text


@contextmanager
def _keys() -> Iterator[int]:
    """The terminal, which gives each key at once and shows none."""
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield terminal
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


__all__ = ["top"]
