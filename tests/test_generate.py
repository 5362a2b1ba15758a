"""Files for running a server elsewhere: what `quire generate` prints is accepted by the programs that it is for."""

from __future__ import annotations

import configparser
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from quire.cli import run


def generate(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["generate", *arguments]) == 0
    return capsys.readouterr().out


def instructions(dockerfile: str) -> dict[str, list[str]]:
    """The arguments of each instruction of a Dockerfile, in order."""
    lines = "\n".join(line for line in dockerfile.splitlines() if not line.startswith("#"))
    found: dict[str, list[str]] = {}
    for line in lines.replace("\\\n", " ").splitlines():
        name, _, arguments = line.partition(" ")
        found.setdefault(name, []).append(arguments)
    return found


def unit_of(text: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    parser.read_string(text)
    return parser


def test_the_dockerfile_installs_the_wheel_and_serves_as_a_user(capsys: pytest.CaptureFixture[str]) -> None:
    found = instructions(generate(capsys, "dockerfile"))
    assert set(found) == {
        "FROM", "COPY", "RUN", "USER", "WORKDIR", "VOLUME", "EXPOSE", "HEALTHCHECK", "STOPSIGNAL", "ENTRYPOINT", "CMD"
    }  # fmt: skip
    assert found["FROM"] == ["python:3.13-slim"]
    assert found["USER"] == ["quire"]
    assert json.loads(found["ENTRYPOINT"][0]) == ["quire", "serve"]
    command = json.loads(found["CMD"][0])
    assert command == ["--address", "0.0.0.0:9007", "--data-directory", found["VOLUME"][0]]


def test_the_dockerfile_copies_the_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    found = instructions(generate(capsys, "dockerfile", "--config", "orders.toml", "--wheel", "quire.whl"))
    assert found["COPY"] == ["quire.whl /tmp/wheels/", "orders.toml /etc/quire/quire.toml"]
    assert json.loads(found["ENTRYPOINT"][0]) == ["quire", "serve", "/etc/quire/quire.toml"]


def test_the_systemd_unit_serves_the_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--executable", "/opt/quire/bin/quire", "--config", "/etc/quire 100%/quire.toml")
    service = unit_of(generate(capsys, "systemd", *arguments))["Service"]
    assert service["ExecStart"] == (
        '/opt/quire/bin/quire serve "/etc/quire 100%%/quire.toml" --data-directory /var/lib/quire'
    )
    assert service["StateDirectory"] == "quire"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    unit = tmp_path / "quire.service"
    unit.write_text(generate(capsys, "systemd"))
    command = ["systemd-analyze", "verify", "--recursive-errors=no", "--man=no", str(unit)]
    verified = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (verified.returncode, verified.stderr) == (0, "")


@pytest.mark.parametrize("option", ["--config", "--executable"])
def test_a_unit_with_a_relative_path_is_refused(capsys: pytest.CaptureFixture[str], option: str) -> None:
    assert run(["generate", "systemd", option, "quire.toml"]) == 2
    assert f"quire: {option}: quire.toml is not an absolute path" in capsys.readouterr().err
