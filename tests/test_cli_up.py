"""`quire up`: instances that replicate to each other, from one line."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import quire
from quire.cli import _up
from support import command_line
from support.waiting import PATIENCE, wait_until


@contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """The command, and what it prints as JSON."""
    command = [sys.executable, "-m", "quire", "up", *arguments, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                process.wait(PATIENCE)
                assert process.stderr is not None
                raise AssertionError(process.stderr.read())
            yield process, json.loads(line)
        finally:
            process.kill()


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_pair_is_started_stopped_and_started_again_with_its_data(
    number: signal.Signals, tmp_path: Path
) -> None:
    directory = str(tmp_path / "trial")
    with running(directory, "--instances", "2", "--port", "0") as (process, said):
        urls = list(said["urls"].values())
        with quire.Client(urls, name="p") as client:
            client.publish("t", {"n": 1})
            client.flush(PATIENCE)
        process.send_signal(number)
        assert process.wait(PATIENCE) == 0
        assert not any(map(is_there, said["pids"].values()))
    assert sorted(path.name for path in (tmp_path / "trial").glob("*.toml")) == [
        "instance-1.toml",
        "instance-2.toml",
    ]
    with running(directory) as (_, again):
        assert again["urls"] == said["urls"]
        for url in urls:
            with quire.Client(url) as client:
                subscription = client.subscribe("t", bookmark=quire.EPOCH)
                assert subscription.get(PATIENCE).json() == {"n": 1}


def test_the_same_options_start_the_same_instances_again(tmp_path: Path) -> None:
    options = (str(tmp_path / "trial"), "--instances", "2", "--port", "0", "--sync-type", "async")
    with running(*options) as (process, said):
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    with running(*options) as (process, again):
        assert again["urls"] == said["urls"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    port = again["urls"]["instance-1"].rpartition(":")[2]
    with running(*options[:3], "--port", port) as (_, again):
        assert again["urls"] == said["urls"]


def test_an_instance_that_ends_is_reported_and_the_others_continue(tmp_path: Path) -> None:
    with running(str(tmp_path / "trial"), "--port", "0") as (process, said):
        os.kill(said["pids"]["instance-1"], signal.SIGKILL)
        assert process.stderr is not None
        assert process.stderr.readline().startswith("quire: instance-1 ended with status -9; start it again")
        with quire.Client(list(said["urls"].values()), name="p") as client:
            client.publish("t", {"n": 1})
            client.flush(PATIENCE)  # after the downgrade
        os.kill(said["pids"]["instance-2"], signal.SIGKILL)
        assert process.wait(PATIENCE) == 1


def test_the_instances_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    with running(str(tmp_path / "trial"), "--port", "0") as (process, said):
        process.kill()
        wait_until(lambda: not any(map(is_there, said["pids"].values())))


def test_the_text_says_how_to_connect(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "quire",
        "up",
        str(tmp_path / "trial"),
        "--port",
        "0",
        "--instances",
        "3",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(7)]
        process.terminate()
        assert process.wait(PATIENCE) == 0
    assert lines[0].startswith("instance-1: quire://127.0.0.1:")
    assert lines[3].startswith('connect: quire.Client(["quire://127.0.0.1:')
    assert lines[6] == "stop: Ctrl-C\n"


def test_a_directory_or_a_port_that_is_in_use_is_named(tmp_path: Path) -> None:
    directory = tmp_path / "trial"
    with running(str(directory), "--port", "0") as (process, _):
        refused = command_line.quire("up", str(directory))
        assert refused.returncode == 1
        assert "another quire up runs the instances in" in refused.stderr
        # Its instances have ended when it has.
        process.terminate()
        assert process.wait(PATIENCE) == 0
    port = quire.Config.load(directory / "instance-2.toml").address.port
    with socket.create_server(("127.0.0.1", port)):
        refused = command_line.quire("up", str(directory))
    assert refused.returncode == 1
    assert (
        f"cannot listen on 127.0.0.1:{port} for instance-2: another program listens there" in refused.stderr
    )
    assert "Traceback" not in refused.stderr


def test_an_instance_that_does_not_start_ends_the_others_and_says_why(tmp_path: Path) -> None:
    directory = tmp_path / "trial"
    with running(str(directory), "--port", "0") as (process, _):
        process.terminate()
        assert process.wait(PATIENCE) == 0
    config = quire.Config.load(directory / "instance-2.toml").replace(address="127.0.0.1:0")
    with quire.Client(f"file:{config.journal_directory}"):
        refused = command_line.quire("up", str(directory))
    assert refused.returncode == 1
    assert "instance-2 did not start: " in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--instances", "1"], "--instances: 1 is not between 2 and 9"),
        (["--instances", "10"], "--instances: 10 is not between 2 and 9"),
        (["--port", "65500"], "--port: 65500 is not between 0 and 65426"),
    ],
)
def test_a_wrong_number_is_refused(arguments: list[str], reason: str, tmp_path: Path) -> None:
    refused = command_line.quire("up", str(tmp_path / "trial"), *arguments)
    assert (refused.returncode, refused.stderr) == (2, f"quire: {reason}\n")
    assert not (tmp_path / "trial").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--instances", "3"], "has 2 instances: leave the option out"),
        (["--port", "9501"], "instance-1.toml has the port 9500: change the files"),
        (["--sync-type", "async"], "instance-1.toml has sync: change the files"),
    ],
)
def test_an_option_that_contradicts_the_files_is_refused(
    arguments: list[str], reason: str, tmp_path: Path
) -> None:
    _up._write(tmp_path, 2, 9500, "sync")
    refused = command_line.quire("up", str(tmp_path), *arguments)
    assert refused.returncode == 2
    assert reason in refused.stderr


def test_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    refused = command_line.quire("up", str(tmp_path))
    assert refused.returncode == 2
    assert "has other files, and no instances" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trial").touch()
    refused = command_line.quire("up", str(tmp_path / "trial"))
    assert refused.returncode == 2
    assert "trial is a file: name a directory" in refused.stderr


def test_up_says_which_links_are_not_live(tmp_path: Path) -> None:
    directory = tmp_path / "trial"
    with running(str(directory), "--port", "0", "--sync-type", "async") as (process, said):
        assert {link["state"] for link in said["links"]} == {"live"}
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    # A queue over the topics of an async pair: only the link finds out.
    for file in directory.glob("*.toml"):
        file.write_text(file.read_text() + '\n[[queue]]\nname = "jobs"\nmessage_type = "json"\n')
    with running(str(directory)) as (process, said):
        assert "live" not in {link["state"] for link in said["links"]}
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        assert process.stderr is not None
        told = process.stderr.read()
    assert "the link from instance-1 to instance-2 is not live" in told
    assert "[[local_queue]]" in told


def test_up_refuses_a_queue_in_a_sync_pair_before_anything_starts(tmp_path: Path) -> None:
    directory = tmp_path / "trial"
    with running(str(directory), "--port", "0") as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    for file in directory.glob("*.toml"):
        file.write_text(file.read_text() + '\n[[queue]]\nname = "jobs"\nmessage_type = "json"\n')
    said = command_line.quire("up", str(directory))
    assert said.returncode == 2
    assert "queue[0].name" in said.stderr
