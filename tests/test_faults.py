"""The behavior of a server when the disk fails, fills up or hangs, when the clock steps, and when
files were changed.

The rule of every test: acknowledged messages are there afterwards, other messages are never
acknowledged later, reading continues, and the error describes the cause.
"""

from __future__ import annotations

import itertools
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import quire
from support.faulty_server import FaultyServer
from support.server_process import ServerProcess
from support.waiting import PATIENCE, Deadline, wait_until

_LOG = {"journal_size": "64KB", "topic": [{"name": ".*", "message_type": "binary"}]}
_QUICK = quire.Reconnect(initial="5ms", maximum="50ms")


def replayed(client: quire.Client, count: int) -> list[int]:
    """The messages that the server replays from the beginning: `count` messages, and none that
    follows them at once."""
    with client.subscribe("t", bookmark=quire.EPOCH) as subscription:
        deadline = Deadline()
        got: list[int] = []
        while len(got) < count:
            got += [int(bytes(m.data)) for m in next(subscription.batches(timeout=deadline.left))]
        with pytest.raises(TimeoutError):
            subscription.get(timeout=0.05)
        return got


def flip(file: Path, offset: int) -> None:
    """One bit."""
    content = bytearray(file.read_bytes())
    content[offset] ^= 4
    file.write_bytes(content)


def publish(client: quire.Client, start: int, end: int) -> None:
    for number in range(start, end):
        client.publish("t", str(number).encode())


def read_until_it_ends(subscription: quire.Subscription, got: list[quire.Message]) -> None:
    while True:
        got.append(subscription.get(timeout=PATIENCE))


def test_a_journal_whose_sync_failed_acknowledges_nothing_more_until_a_restart(tmp_path: Path) -> None:
    with (
        FaultyServer(tmp_path, transaction_log=_LOG) as server,
        quire.Client(server.url, name="p", reconnect=_QUICK) as client,
    ):
        publish(client, 0, 100)
        client.flush(timeout=PATIENCE)
        server.fail_syncs()
        publish(client, 100, 101)
        with pytest.raises(quire.StorageFailedError):
            client.flush(timeout=PATIENCE)
        with pytest.raises(quire.StorageFailedError):
            publish(client, 101, 102)
        assert client.persisted == 100
        # The disk works again, but the journal does not: the result of a failed sync is unknown.
        server.heal()
        with pytest.raises(quire.StorageFailedError):
            client.flush(timeout=PATIENCE)
        with quire.Client(server.url, name="reader") as reader:
            assert replayed(reader, 100) == list(range(100))
        server.kill()
        server.start()
        # The client still has what it took, and sends it to the server that can store it.
        wait_until(lambda: client.persisted == 101)
        publish(client, 101, 200)
        client.flush(timeout=PATIENCE)
        assert client.persisted == 200
        assert replayed(client, 200) == list(range(200))


def fill(
    client: quire.Client, start: int = 0, before: Callable[[], object] = lambda: None
) -> tuple[int, quire.QuireError]:
    """Publishes numbers until the server takes no more. Returns the number after the last one that
    the client took, and the error.

    Calls `before` before every 20 of them.
    """
    count = start
    try:
        while True:
            before()
            for _ in range(20):
                client.publish("t", str(count).encode().rjust(1000))
                count += 1
            client.flush(timeout=PATIENCE)
    except quire.QuireError as error:
        return count, error


def is_taken(client: quire.Client, number: int) -> bool:
    try:
        publish(client, number, number + 1)
    except (quire.StorageFullError, quire.StorageFailedError):
        return False
    return True


def goes_on(client: quire.Client, count: int) -> None:
    """All messages that the client took are persisted without a restart, and so are later ones:
    each once, in order."""
    was_persisted = client.persisted == count
    wait_until(lambda: client.persisted == count)
    if was_persisted:
        # A client whose publishes were all persisted before the disk was full learns later that
        # there is room.
        wait_until(lambda: is_taken(client, count))
    else:
        # The acknowledgement is the news, so the next publish is taken.
        publish(client, count, count + 1)
    publish(client, count + 1, count + 100)
    client.flush(timeout=PATIENCE)
    assert replayed(client, count + 100) == list(range(count + 100))


def test_a_server_whose_writes_fail_for_want_of_space_goes_on_by_itself_when_there_is_room(
    tmp_path: Path,
) -> None:
    with (
        FaultyServer(tmp_path, transaction_log=_LOG) as server,
        quire.Client(server.url, name="p", reconnect=_QUICK) as client,
    ):
        publish(client, 0, 100)
        client.flush(timeout=PATIENCE)
        server.fail_writes()
        publish(client, 100, 101)
        with pytest.raises(
            quire.StorageFullError, match=r"\.journal: no space left while writing; it needs \d+ bytes"
        ):
            client.flush(timeout=PATIENCE)
        with pytest.raises(quire.StorageFullError):
            publish(client, 101, 102)
        assert client.persisted == 100
        with quire.Client(server.url, name="reader") as reader:
            assert replayed(reader, 100) == list(range(100))
        server.heal()
        goes_on(client, 101)
        # And after a restart.
        server.kill()
        server.start()
        assert replayed(client, 201) == list(range(201))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("file systems cannot be mounted here")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_server_on_a_full_disk_goes_on_by_itself_when_there_is_room(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(3 << 20))
    with (
        ServerProcess(small_disk / "data", transaction_log=_LOG) as server,
        quire.Client(server.url, name="p", reconnect=_QUICK) as client,
    ):
        count, error = fill(client)
        assert isinstance(error, quire.StorageFullError)
        assert re.search(r"\.journal: no space left while .*; it needs \d+ bytes, \d+ are free", str(error))
        with quire.Client(server.url, name="reader") as reader:
            persisted = client.persisted
            assert replayed(reader, persisted) == list(range(persisted))
        ballast.unlink()
        goes_on(client, count)
        assert server.terminate() == 0
        server.start()
        assert replayed(client, count + 100) == list(range(count + 100))


def test_the_error_of_a_publish_store_on_a_full_disk_names_the_file_and_the_bytes(small_disk: Path) -> None:
    store = small_disk / "store"
    with quire.Client("memory:", name="p", publish_store=store) as client:
        _, error = fill(client)
        assert isinstance(error, quire.StorageFullError)
        assert re.match(rf"{re.escape(str(store))}: writing \d+ bytes: No space left on device", str(error))
        client.close(0)


def test_a_server_without_a_file_left_goes_on_by_itself_when_there_is_one(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path, transaction_log=_LOG) as server,
        quire.Client(server.url, name="p", reconnect=_QUICK) as client,
    ):
        publish(client, 0, 1)
        client.flush(timeout=PATIENCE)
        wait_until(lambda: len(list((tmp_path / "journal").glob("*.journal"))) >= 2)
        limits = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)

        def deny_files() -> None:
            # A number that a file had for a moment at the last look is free now, and is denied this
            # time.
            used = {int(number) for number in os.listdir(f"/proc/{server.pid}/fd")}
            unused = next(number for number in itertools.count() if number not in used)
            denied, _ = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (min(unused, denied), limits[1]))

        count, error = fill(client, 1, deny_files)
        assert isinstance(error, quire.StorageFailedError)
        assert "too many open files" in str(error)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, limits)
        goes_on(client, count)


def test_a_sync_that_hangs_delays_acknowledgements_and_nothing_else(tmp_path: Path) -> None:
    with (
        FaultyServer(tmp_path, transaction_log=_LOG) as server,
        quire.Client(server.url, name="p") as client,
        quire.Client(server.url, name="live") as other,
    ):
        ordinary = other.subscribe("t")
        publish(client, 0, 10)
        client.flush(timeout=PATIENCE)
        server.hang_syncs()
        publish(client, 10, 20)
        server.wait_until_a_sync_hangs()
        with pytest.raises(TimeoutError):
            client.flush(timeout=0.1)
        assert client.persisted == 10
        assert [int(bytes(ordinary.get(timeout=PATIENCE).data)) for _ in range(20)] == list(range(20))
        assert replayed(other, 10) == list(range(10)), "a bookmark subscription shows what is persisted"
        assert client.state == other.state == "connected"
        server.heal()
        client.flush(timeout=PATIENCE)
        assert client.persisted == 20


def test_a_clock_that_steps_back_does_not_turn_the_log_around(tmp_path: Path) -> None:
    with (
        FaultyServer(tmp_path, transaction_log=_LOG) as server,
        quire.Client(server.url, name="p", reconnect=_QUICK) as client,
    ):
        for number, shift in enumerate([0, 86_400, -86_400, 3_600, -3_600]):
            server.shift_clock(shift)
            publish(client, number, number + 1)
            client.flush(timeout=PATIENCE)
            if shift == -86_400:
                server.kill()
                server.start()
                client.flush(timeout=PATIENCE)
        subscription = client.subscribe("t", bookmark=quire.EPOCH)
        messages = [subscription.get(timeout=PATIENCE) for _ in range(5)]
        times = [message.timestamp for message in messages]
        assert times == sorted(times)
        assert times[-1] - times[0] >= timedelta(hours=23)
        # By time it finds the messages in the order of the log.
        later = client.subscribe("t", bookmark=times[1] - timedelta(seconds=1))
        first = later.get(timeout=PATIENCE)
        assert first.bookmark == messages[1].bookmark


class TestChangedFiles:
    """A journal of several files; each test does something to one and starts the server on it."""

    @pytest.fixture(scope="class")
    @staticmethod
    def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
        directory = tmp_path_factory.mktemp("sound") / "data"
        with ServerProcess(directory, transaction_log=_LOG) as server:
            with quire.Client(server.url, name="p") as client:
                for number in range(4000):
                    client.publish("t", b"%d" % number)
                    if number % 1000 == 0:
                        client.flush(timeout=PATIENCE)
                client.flush(timeout=PATIENCE)
            assert server.terminate() == 0
        return directory

    @pytest.fixture
    def directory(self, sound: Path, tmp_path: Path) -> Path:
        shutil.copytree(sound, tmp_path / "data")
        return tmp_path / "data"

    @staticmethod
    def segments(directory: Path) -> list[Path]:
        files = sorted((directory / "journal").glob("*.journal"))
        assert len(files) >= 3, sorted((directory / "journal").iterdir())
        return files

    @staticmethod
    def serve(directory: Path) -> tuple[int, str]:
        """`quire serve` on the directory: its exit status and what it says."""
        config = directory.parent / "quire.toml"
        config.write_text(
            f'data_directory = "{directory}"\n[[transport]]\nname = "t"\naddress = "127.0.0.1:0"\n'
            '[transaction_log]\njournal_size = "64KB"\n[[transaction_log.topic]]\nname = ".*"\nmessage_type = "binary"\n'
        )
        done = subprocess.run(
            [sys.executable, "-m", "quire", "serve", str(config)],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            stdin=subprocess.DEVNULL,
        )
        return done.returncode, done.stderr

    def refused(self, directory: Path, *words: str) -> None:
        before = {path.name: path.read_bytes() for path in self.segments(directory)}
        status, text = self.serve(directory)
        assert status != 0
        assert "Traceback" not in text
        for word in words:
            assert word in text
        assert before == {path.name: path.read_bytes() for path in self.segments(directory)}, (
            "it changed files"
        )

    def test_a_flipped_bit_in_a_sealed_file_ends_the_replay_that_meets_it(self, directory: Path) -> None:
        first = self.segments(directory)[0]
        flip(first, 20_000)
        with (
            ServerProcess(directory, transaction_log=_LOG) as server,
            quire.Client(server.url, name="p") as client,
        ):
            subscription = client.subscribe("t", bookmark=quire.EPOCH)
            got: list[quire.Message] = []
            with pytest.raises(quire.JournalCorruptError, match=rf"{first.name}.*damaged at byte \d+"):
                read_until_it_ends(subscription, got)
            values = [int(bytes(message.data)) for message in got]
            assert values == list(range(len(got))), "what came before the damage is right"
            # After the damage, and at the live tail, reading works.
            behind = client.subscribe("t", bookmark=f"{got[0].publisher}|3000|")
            first_behind = behind.get(timeout=PATIENCE)
            assert int(bytes(first_behind.data)) == 3000
            assert client.publish("t", b"4000") == 4001
            client.flush(timeout=PATIENCE)

    def test_a_flipped_bit_in_the_last_file_is_refused_with_file_and_offset(self, directory: Path) -> None:
        last = [file for file in self.segments(directory) if any(file.read_bytes())][-1]
        flip(last, len(last.read_bytes().rstrip(b"\0")) - 100)
        self.refused(directory, last.name, "damaged at byte")

    def test_a_file_that_is_cut_beside_the_server_ends_the_replay_that_meets_its_end(
        self, directory: Path
    ) -> None:
        first = self.segments(directory)[0]
        with (
            ServerProcess(directory, transaction_log=_LOG) as server,
            quire.Client(server.url, name="p") as client,
        ):
            os.truncate(first, 20_000)
            subscription = client.subscribe("t", bookmark=quire.EPOCH)
            got: list[quire.Message] = []
            with pytest.raises(quire.JournalCorruptError, match=rf"{first.name}.*damaged at byte \d+"):
                read_until_it_ends(subscription, got)
            assert [int(bytes(message.data)) for message in got] == list(range(len(got)))
            assert client.publish("t", b"4000") == 4001
            client.flush(timeout=PATIENCE)
            assert server.is_running
            with pytest.raises(quire.JournalCorruptError, match=first.name):
                quire.Journal(directory / "journal", read_only=True)

    def test_files_that_the_disk_cannot_read_are_errors_that_name_them(self, directory: Path) -> None:
        shutil.move(directory, directory.parent / "faulty" / "data")
        with (
            FaultyServer(directory.parent / "faulty", transaction_log=_LOG) as server,
            quire.Client(server.url, name="p", reconnect=_QUICK) as client,
        ):
            journal = directory.parent / "faulty" / "data" / "journal"
            server.fail_reads()
            subscription = client.subscribe("t", bookmark=quire.EPOCH)
            with pytest.raises(
                quire.JournalCorruptError, match=r"\.journal cannot be read at byte \d+: Input"
            ):
                read_until_it_ends(subscription, [])
            assert client.publish("t", b"4000") == 4001
            client.flush(timeout=PATIENCE)
            done = subprocess.run(
                [sys.executable, "-m", "quire", "journal", "verify", str(journal)],
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                env={**os.environ, **server.environment},
            )
            assert done.returncode == 1
            assert "cannot be read" in done.stdout + done.stderr
            assert "Traceback" not in done.stderr
            server.kill()
            with pytest.raises(quire.QuireError, match="did not start"):
                server.start()
            server.heal()
            server.start()
            wait_until(lambda: client.state == "connected")
            assert replayed(client, 4001) == list(range(4001))

    def test_a_file_cut_short_is_refused(self, directory: Path) -> None:
        first = self.segments(directory)[0]
        os.truncate(first, 10_000)
        self.refused(directory, first.name)

    def test_a_file_missing_in_the_middle_is_refused(self, directory: Path) -> None:
        second = self.segments(directory)[1]
        second.rename(directory / "taken-away")
        status, text = self.serve(directory)
        assert status != 0
        assert "missing" in text
        assert "Traceback" not in text

    def test_two_files_with_each_others_names_are_refused(self, directory: Path) -> None:
        first, second = self.segments(directory)[:2]
        first.rename(directory / "swap")
        second.rename(first)
        (directory / "swap").rename(second)
        self.refused(directory, first.name)

    def test_a_file_of_zeros_is_refused(self, directory: Path) -> None:
        second = self.segments(directory)[1]
        second.write_bytes(bytes(second.stat().st_size))
        self.refused(directory, second.name)

    def test_a_lost_or_damaged_index_is_made_again(self, directory: Path) -> None:
        indexes = sorted((directory / "journal").glob("*.index"))
        assert len(indexes) >= 2
        indexes[0].unlink()
        indexes[1].write_bytes(b"not an index")
        with (
            ServerProcess(directory, transaction_log=_LOG) as server,
            quire.Client(server.url, name="p") as client,
        ):
            assert replayed(client, 4000) == list(range(4000))
            assert client.publish("t", b"4000") == 4001


def test_a_second_server_on_a_directory_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, transaction_log=_LOG) as server:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "quire",
                "serve",
                "--data-directory",
                str(tmp_path),
                "--address",
                "127.0.0.1:0",
            ],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode != 0
        assert "another process" in done.stderr
        assert "Traceback" not in done.stderr
        with quire.Client(server.url, name="p") as client:
            publish(client, 0, 10)
            client.flush(timeout=PATIENCE)
            assert replayed(client, 10) == list(range(10))
