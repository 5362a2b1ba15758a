"""The log of a server: its targets, the form and the ids of its lines, files that follow one
another, and changes while it runs."""

from __future__ import annotations

import ast
import gzip
import json
import logging
import os
import re
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import log_page
import pytest
import quire
import quire.config
import quire.testing
from quire._log_lines import LINES, PARTS
from quire._quire import Engine
from quire.cli import run
from quire.config import Logging
from quire.server import _log
from quire.server._log import LogTargets, json_line, line, text_line
from quire.server._log_files import LogFiles
from support.server_process import ServerProcess
from support.waiting import PATIENCE, wait_until

METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
SOURCES = Path(quire.__file__).parent
START = datetime(2026, 11, 27, 11, 22, 33, 123456, UTC)


def record(text: str, *arguments: object, level: int = logging.INFO, **attributes: Any) -> logging.LogRecord:
    made = logging.LogRecord("quire.server", level, "", 0, text, arguments, None)
    made.created, made.threadName = START.timestamp(), "quire-server"
    made.__dict__.update(attributes)
    return made


# Lines


def test_a_line_has_its_time_thread_level_id_and_no_controls() -> None:
    odd = "a\nb\x1b[2J\u2028\x85"
    made = record("client %s", odd, level=logging.WARNING, **line("10-0004"))
    assert text_line(made) == (
        r"2026-11-27T11:22:33.123456Z [quire-server] warning 10-0004 client a\nb\x1b[2J\u2028\x85"
    )


def test_a_line_as_json_has_the_fields_of_its_event_and_none_of_them_replaces_another() -> None:
    fields = line("10-0005", connection=7, text="of the field", odd={"a": {1}})
    assert json.loads(json_line(record("gone\n"), "east-1")) == {
        "timestamp": "2026-11-27T11:22:33.123456Z",
        "level": "info",
        "id": "00-0000",
        "thread": "quire-server",
        "instance": "east-1",
        "text": "gone\n",
    }
    made = json.loads(json_line(record("gone", **fields), "east-1"))
    assert (made["id"], made["connection"], made["text"], made["odd"]) == ("10-0005", 7, "gone", {"a": "{1}"})


def test_each_line_of_a_server_has_an_id_that_is_explained() -> None:
    missing = []
    for path in (*SOURCES.glob("server/*.py"), *SOURCES.glob("admin/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "_log"):
                continue
            if node.func.attr not in METHODS:
                continue
            extra = next((each.value for each in node.keywords if each.arg == "extra"), None)
            if extra is None:
                missing.append(f"{path.name}:{node.lineno}")
            elif isinstance(extra, ast.Call):
                assert isinstance(extra.args[0], ast.Constant)
                assert extra.args[0].value in LINES, path
    assert missing == []
    assert set(Engine.LOG_IDS) <= set(LINES)
    assert {id[:2] for id in LINES} == set(PARTS)


def test_the_page_of_lines_is_up_to_date() -> None:
    """After a change: `python tests/log_page.py`."""
    assert log_page.PAGE.read_text(encoding="utf-8") == log_page.text()


def test_the_command_line_explains_an_id_and_a_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["errors", "20-0002"]) == 0
    assert capsys.readouterr().out.splitlines() == [*LINES["20-0002"]]
    assert run(["errors", "name_in_use", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == "name_in_use"
    assert run(["errors", "name_in_usee"]) == 1
    assert "did you mean name_in_use?" in capsys.readouterr().err
    assert run(["errors"]) == 0
    assert len(capsys.readouterr().out.splitlines()) > len(LINES)


# The configuration


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"target": "file"}, "requires file"),
        ({"file": "a.log"}, "requires target"),
        ({"target": "file", "file": "a", "ident": "x"}, "requires target"),
        ({"target": "file", "file": "%q.log"}, "is none of"),
        ({"target": "file", "file": "%Y/a.log"}, "only the name"),
        ({"target": "file", "file": "a.log", "rotate": "1MB"}, "requires %n"),
        ({"target": "file", "file": "100%%n", "rotate": "1MB"}, "requires %n"),
        ({"target": "file", "file": "%n", "rotate": "1B"}, "1KB"),
        ({"include": ["("]}, "pattern"),
        ({"level": "loud"}, "level"),
        ({"target": "syslog", "facility": "nothing"}, "one of"),
        ({"target": "syslog", "ident": "two words"}, "ident"),
    ],
)
def test_a_mistake_in_the_configuration_names_its_key(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(quire.ConfigError, match=re.escape(reason)) as raised:
        quire.Config(logging=settings)
    assert "logging" in str(raised.value)


def test_levels_and_patterns_choose_lines() -> None:
    def taken(**settings: Any) -> list[str]:
        target = Logging(**settings)
        lines = [(10, "20-0001"), (20, "10-0004"), (20, "12-0001"), (30, "12-0003"), (50, "00-0008")]
        return [id for level, id in lines if target.takes(level, id)]

    assert taken() == ["10-0004", "12-0001", "12-0003", "00-0008"]
    assert taken(level="warning", levels=["debug"]) == ["20-0001", "12-0003", "00-0008"]
    assert taken(level="none") == []
    assert taken(include="^12-", exclude="3$") == ["12-0001"]
    assert taken(exclude=["^12-", "^10-"]) == ["00-0008"]


# Files


def files_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def made(directory: Path, **settings: Any) -> LogFiles:
    return LogFiles(Logging(target="file", **settings), directory)


def test_the_next_file_begins_when_a_file_would_be_larger(tmp_path: Path) -> None:
    files = made(tmp_path, file="log/a-%n.log", rotate="1KB")
    for _ in range(5):
        files.write("x" * 399, START)
    assert files_in(tmp_path / "log") == ["a-1.log", "a-2.log", "a-3.log"]
    # A line that is larger than a file is whole.
    files.write("y" * 3000, START)
    files.write("z", START)
    assert (tmp_path / "log/a-4.log").read_text() == "y" * 3000 + "\n"
    assert (tmp_path / "log/a-5.log").read_text() == "z\n"
    files.close()
    # The next start continues with the last file.
    files = made(tmp_path, file="log/a-%n.log", rotate="1KB")
    files.write("w", START)
    assert (tmp_path / "log/a-5.log").read_text() == "z\nw\n"
    files.close()
    mode = stat.S_IMODE((tmp_path / "log/a-1.log").stat().st_mode)
    assert (mode, stat.S_IMODE((tmp_path / "log").stat().st_mode)) == (0o600, 0o700)


def test_the_time_of_the_first_line_is_in_the_name_of_a_file(tmp_path: Path) -> None:
    files = made(tmp_path, file="%Y-%m-%d 100%%.log")
    for hours in (0, 1, 24):
        files.write(str(hours), START + timedelta(hours=hours))
    files.close()
    contents = {name: (tmp_path / name).read_text() for name in files_in(tmp_path)}
    now = f"{datetime.now(UTC):%Y-%m-%d} 100%.log"
    assert contents == {now: "", "2026-11-27 100%.log": "0\n1\n", "2026-11-28 100%.log": "24\n"}


def test_older_files_are_compressed_and_removed(tmp_path: Path) -> None:
    other = tmp_path / "a-1.log.bak"
    other.write_text("of somebody else")
    files = made(tmp_path, file="a-%n.log", rotate="1KB", keep=2, compress=True)
    for number in range(6):
        files.write(f"{number}" * 1000, START)
        os.utime(files.path, (number, number))
        files.tidy()
    assert files_in(tmp_path) == ["a-1.log.bak", "a-4.log.gz", "a-5.log.gz", "a-6.log"]
    assert gzip.decompress((tmp_path / "a-4.log.gz").read_bytes()) == b"3" * 1000 + b"\n"
    assert stat.S_IMODE((tmp_path / "a-4.log.gz").stat().st_mode) == 0o600
    files.close()
    # After a crash in the middle of a compression there are both; the number is not used again.
    (tmp_path / "a-6.log").rename(tmp_path / "a-7.log")
    (tmp_path / "a-7.log.gz.part").write_text("unfinished")
    (tmp_path / "a-8.log.gz").write_text("")
    files = made(tmp_path, file="a-%n.log", rotate="1KB", compress=True)
    assert files.path.name == "a-9.log"
    files.tidy()
    assert "a-7.log" not in files_in(tmp_path)
    assert gzip.decompress((tmp_path / "a-7.log.gz").read_bytes()) == b"5" * 1000 + b"\n"
    files.close()


def test_a_file_whose_number_has_other_digits_is_not_of_the_log(tmp_path: Path) -> None:
    (tmp_path / "a-٣.log").write_text("of another program")
    files = made(tmp_path, file="a-%n.log", rotate="1KB", keep=0)
    assert files.path.name == "a-1.log"
    files.tidy()
    assert files_in(tmp_path) == ["a-1.log", "a-٣.log"]
    files.close()


def test_without_a_number_a_rotation_opens_the_file_again(tmp_path: Path) -> None:
    files = made(tmp_path, file="a.log")
    files.write("before", START)
    (tmp_path / "a.log").rename(tmp_path / "moved")
    files.rotate()
    files.write("after", START)
    files.close()
    assert (tmp_path / "moved").read_text() == "before\n"
    assert (tmp_path / "a.log").read_text() == "after\n"


def test_a_per_cent_sign_in_the_directory_is_no_placeholder(tmp_path: Path) -> None:
    directory = tmp_path / "%Y%n"
    made(directory, file="a-%n.log").close()
    assert files_in(directory) == ["a-1.log"]


# Targets


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    yield logging.getLogger("quire.server")
    assert logging.getLogger("quire").level == logging.NOTSET


def test_a_thread_that_logs_does_not_wait_for_a_slow_target(
    tmp_path: Path, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_log, "_WAITING_MAX", 100)
    may_write, is_writing = threading.Event(), threading.Event()
    targets = LogTargets([Logging(target="file", file="a.log")], tmp_path, "quire", "quire")
    write = LogFiles.write

    def slow(self: LogFiles, text: str, at: datetime) -> None:
        is_writing.set()
        assert may_write.wait(PATIENCE)
        write(self, text, at)

    monkeypatch.setattr(LogFiles, "write", slow)
    targets.start()
    logger.info("first")
    assert is_writing.wait(PATIENCE)
    for number in range(150):
        logger.info("line %d", number)
    may_write.set()
    targets.flush()
    targets.close()
    lines = (tmp_path / "a.log").read_text().splitlines()
    assert len(lines) == 102
    assert lines[-1].endswith("warning 00-0006 50 lines were left out, because 100 waited to be written")


def test_a_target_that_cannot_be_written_is_reported_and_the_others_have_the_line(
    tmp_path: Path,
    logger: logging.Logger,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = [Logging(target="file", file="full"), Logging(target="file", file="good")]
    targets = LogTargets(settings, tmp_path, "quire", "quire")
    targets.start()
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("/full"):
            raise OSError(28, "No space left on device")
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", full)
    for number in range(3):
        logger.info("line %d", number)
    targets.flush()
    monkeypatch.undo()
    logger.info("line 3")
    targets.close()
    assert len((tmp_path / "good").read_text().splitlines()) == 4
    assert (tmp_path / "full").read_text().endswith("line 3\n")
    said = capsys.readouterr().err.splitlines()
    assert said == ["quire: 1 lines of the log were not written to full: [Errno 28] No space left on device"]


def test_lines_go_to_syslog(tmp_path: Path, logger: logging.Logger) -> None:
    place = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as syslog:
        syslog.bind(str(place))
        syslog.settimeout(PATIENCE)
        settings = Logging(target="syslog", address=str(place), ident="shop", facility="local3")
        targets = LogTargets([settings], tmp_path, "quire", "quire")
        targets.start()
        logger.error("disk\nfull", extra=line("20-0002"))
        text = syslog.recv(1000).rstrip(b"\0").decode()
        targets.close()
    # local3 is 19, and an error is 3.
    assert re.fullmatch(r"<155>shop: \S+Z \[MainThread\] error 20-0002 disk\\nfull", text)


def test_a_target_that_cannot_be_opened_is_a_mistake_of_its_entry(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = [Logging(), Logging(target="file", file="file/a.log")]
    with pytest.raises(quire.ConfigError, match=r"logging\[1\].*cannot be opened"):
        LogTargets(settings, tmp_path, "quire", "quire")


# Servers


def test_a_server_in_a_program_writes_to_its_targets(tmp_path: Path, logger: logging.Logger) -> None:
    settings = [
        {"target": "file", "file": "log/%n.log", "exclude": "^02-"},
        {"target": "file", "file": "log/clients.json", "format": "json", "include": "^10-"},
    ]
    with (
        quire.testing.server(tmp_path, logging=settings) as server,
        quire.Client(server.url, name="loader-1"),
    ):
        pass
    lines = (tmp_path / "log/1.log").read_text().splitlines()
    form = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z \[\S+\] [a-z]+ \d\d-\d{4} .+")
    assert all(form.fullmatch(line) for line in lines)
    assert {"00-0001", "10-0004", "00-0002"} <= {line.split()[3] for line in lines}
    objects = [json.loads(line) for line in (tmp_path / "log/clients.json").read_text().splitlines()]
    on = next(each for each in objects if each["id"] == "10-0004")
    assert (on["client_name"], on["instance"], on["level"]) == ("loader-1", server.config.name, "info")
    assert isinstance(on["connection"], int)


def test_the_log_of_quire_serve_goes_to_standard_error(tmp_path: Path) -> None:
    with (tmp_path / "err").open("wb") as err, ServerProcess(tmp_path / "data", standard_error=err):
        pass
    config = tmp_path / "quire.toml"
    config.write_text('[transport]\naddress = "127.0.0.1:0"\n')
    process = subprocess.Popen(
        [sys.executable, "-m", "quire", "serve", str(config), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    url = json.loads(process.stdout.readline())["url"]
    process.terminate()
    _, said = process.communicate(timeout=PATIENCE)
    ids = [line.split()[3] for line in said.splitlines()]
    assert (ids[0], ids[-1]) == ("00-0001", "00-0002"), said
    assert f"listening at {url}" in said


def test_a_reload_changes_the_targets_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    config = tmp_path / "quire.toml"
    head = '[transport]\naddress = "127.0.0.1:0"\n'
    config.write_text(head + '[[logging]]\ntarget = "file"\nfile = "a.log"\n')
    with quire.Server(quire.Config.load(config)) as server:
        config.write_text(head + '[[logging]]\ntarget = "file"\nfile = "quire.toml/a.log"\n')
        (server.config.data_directory / "quire.toml").write_text("")
        with pytest.raises(quire.ConfigError, match="cannot be opened"):
            server.reload()
        config.write_text(head + '[[logging]]\ntarget = "file"\nfile = "b.log"\nlevel = "warning"\n')
        assert server.reload() == ["logging"]
        logging.getLogger("quire.server").warning("after the reload")
        config.write_text(head)
        assert server.reload() == ["logging"]
        logging.getLogger("quire.server").warning("no target")
    first, second = ((server.config.data_directory / name).read_text() for name in ("a.log", "b.log"))
    assert 'result="refused"' in first
    assert "after the reload" not in first
    assert [line.split()[2:4] for line in second.splitlines()] == [["warning", "00-0000"]]


def test_a_critical_line_is_written_before_its_thread_goes_on(tmp_path: Path, logger: logging.Logger) -> None:
    targets = LogTargets([Logging(target="file", file="a.log")], tmp_path, "quire", "quire")
    targets.start()
    logger.critical("the end")
    assert "critical 00-0000 the end" in (tmp_path / "a.log").read_text()
    targets.close()
    logger.critical("nobody writes it")
    wait_until(lambda: not any(each.name == "quire-log" for each in threading.enumerate()))
    assert "nobody" not in (tmp_path / "a.log").read_text()


def test_the_log_is_rotated_and_its_level_is_changed_by_requests(tmp_path: Path) -> None:
    log = {"target": "file", "file": "log/%n.log"}
    with quire.testing.server(tmp_path, admin={"address": "127.0.0.1:0"}, logging=log) as server:
        url = f"{server.admin_url}/quire/administrator/logging"
        assert httpx.post(f"{url}/rotate", json={}).json() == {"rotated": True}
        assert len(list((tmp_path / "log").iterdir())) == 2
        assert httpx.post(f"{url}/level", json={"target": 0, "level": "debug"}).status_code == 200
        logging.getLogger("quire.server").debug("very fine")
        for body in (
            {},
            {"target": 1, "level": "info"},
            {"target": 0, "level": "fine"},
            {"target": True, "level": "info"},
        ):
            assert httpx.post(f"{url}/level", json=body).status_code == 400
    assert "very fine" in (tmp_path / "log/2.log").read_text()
