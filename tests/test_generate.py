"""Files for running a server elsewhere: the programs accept the output of `quire generate`."""

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


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_complete_every_command(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    script = generate(capsys, "completion", shell)
    assert all(word in script for word in ("redrive", "csv-types", "downgrade"))
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_the_dockerfile_installs_the_wheel_and_serves_as_a_user(capsys: pytest.CaptureFixture[str]) -> None:
    found = instructions(generate(capsys, "dockerfile"))
    assert set(found) == {
        "FROM", "COPY", "RUN", "USER", "WORKDIR", "VOLUME", "EXPOSE", "HEALTHCHECK", "STOPSIGNAL", "ENTRYPOINT", "CMD"
    }  # fmt: skip
    assert found["FROM"] == ["python:3.13-slim"]
    assert found["USER"] == ["quire"]
    assert json.loads(found["ENTRYPOINT"][0]) == ["quire", "serve"]
    command = json.loads(found["CMD"][0])
    assert command == [
        "--insecure",
        "--address",
        "0.0.0.0:9007",
        "--data-directory",
        *json.loads(found["VOLUME"][0]),
    ]
    assert found["EXPOSE"] == ["9007"]
    assert found["HEALTHCHECK"][0].endswith('CMD ["quire", "info"]')


@pytest.fixture
def build_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_dockerfile_copies_the_configuration(
    capsys: pytest.CaptureFixture[str], build_directory: Path
) -> None:
    (build_directory / "orders.toml").write_text('[[transport]]\naddress = "0.0.0.0:9100"\ninsecure = true\n')
    found = instructions(generate(capsys, "dockerfile", "--config", "orders.toml", "--wheel", "quire.whl"))
    assert found["COPY"] == ["quire.whl /tmp/wheels/", "orders.toml /etc/quire/quire.toml"]
    assert json.loads(found["ENTRYPOINT"][0]) == ["quire", "serve", "/etc/quire/quire.toml"]
    assert json.loads(found["CMD"][0]) == ["--data-directory", "/var/lib/quire"]


def test_the_dockerfile_keeps_every_transport_of_the_configuration(
    capsys: pytest.CaptureFixture[str], build_directory: Path
) -> None:
    addresses = ("127.0.0.1:9006", "0.0.0.0:9107", "[::]:9108")
    tables = [
        f'[[transport]]\nname = "{text[-1]}"\naddress = "{text}"\ninsecure = true\n' for text in addresses
    ]
    (build_directory / "orders.toml").write_text("".join(tables))
    text = generate(capsys, "dockerfile", "--config", "orders.toml")
    found = instructions(text)
    assert "--address" not in found["CMD"][0]
    assert found["EXPOSE"] == ["9107 9108"]
    assert found["HEALTHCHECK"][0].endswith('CMD ["quire", "info", "--url", "quire://127.0.0.1:9107"]')
    assert "# Only programs in the container reach 127.0.0.1:9006." in text


def test_a_single_transport_on_loopback_listens_on_all_addresses_of_the_container(
    capsys: pytest.CaptureFixture[str], build_directory: Path
) -> None:
    (build_directory / "orders.toml").write_text('[[transport]]\naddress = "127.0.0.1:9100"\n')
    found = instructions(generate(capsys, "dockerfile", "--config", "orders.toml"))
    assert json.loads(found["CMD"][0])[:3] == ["--insecure", "--address", "0.0.0.0:9100"]
    assert found["EXPOSE"] == ["9100"]


DIRECTORIES = """\
data_directory = "/srv/orders"
[transaction_log]
journal_directory = "journal"
journal_archive_directory = "/archive/orders"
"""


def test_the_dockerfile_keeps_the_directories_of_the_configuration(
    capsys: pytest.CaptureFixture[str], build_directory: Path
) -> None:
    (build_directory / "orders.toml").write_text(DIRECTORIES)
    found = instructions(generate(capsys, "dockerfile", "--config", "orders.toml"))
    assert json.loads(found["VOLUME"][0]) == ["/srv/orders", "/archive/orders"]
    assert (
        "mkdir -p /srv/orders /archive/orders && chown quire: /srv/orders /archive/orders" in found["RUN"][0]
    )
    assert json.loads(found["CMD"][0]) == ["--insecure", "--address", "0.0.0.0:9007"]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("../orders.toml", "", "is outside of the build directory"),
        ("/etc/orders.toml", "", "is outside of the build directory"),
        ("my orders.toml", "", "has a space"),
        (
            "orders.toml",
            '[[transport]]\naddress = "0.0.0.0:0"\ninsecure = true\n',
            "a container requires a fixed port",
        ),
        ("orders.toml", "nmae = 1", 'did you mean "name"'),
        (
            "orders.toml",
            '[[transport]]\naddress = "localhost:1"\n[[transport]]\nname = "b"\naddress = "[::1]:1"\n',
            "every transport has a loopback address",
        ),
    ],
)
def test_a_dockerfile_that_would_not_serve_is_refused(
    capsys: pytest.CaptureFixture[str], build_directory: Path, name: str, text: str, reason: str
) -> None:
    if not name.startswith(("/", "..")):
        (build_directory / name).write_text(text)
    assert run(["generate", "dockerfile", "--config", name]) == 2
    shown = capsys.readouterr()
    assert reason in shown.err
    assert shown.out == ""


def test_the_systemd_unit_serves_the_configuration(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "etc 100%" / "quire.toml"
    config.parent.mkdir()
    # Below the file a service may not write.
    config.write_text('data_directory = "quire-data"\n')
    arguments = ("--executable", "/opt/quire/bin/quire", "--config", str(config))
    service = unit_of(generate(capsys, "systemd", *arguments))["Service"]
    path = str(config).replace("%", "%%")
    assert service["ExecStart"] == f'/opt/quire/bin/quire serve "{path}" --data-directory /var/lib/quire'
    assert service["StateDirectory"] == "quire"
    assert service["DynamicUser"] == "yes"


def test_the_systemd_unit_keeps_the_directories_of_the_configuration(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "quire.toml"
    config.write_text(DIRECTORIES)
    text = generate(capsys, "systemd", "--executable", "/bin/quire", "--config", str(config))
    service = unit_of(text)["Service"]
    assert service["ExecStart"] == f"/bin/quire serve {config}"
    assert service["ReadWritePaths"] == "/srv/orders /archive/orders"
    assert service["User"] == "quire"
    assert "DynamicUser" not in service
    assert (
        "#   install --directory --owner quire --group quire --mode 0700 /srv/orders /archive/orders" in text
    )


def test_an_archive_inside_of_the_state_directory_needs_no_user(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "quire.toml"
    config.write_text('[transaction_log]\njournal_archive_directory = "/var/lib/quire/archive"\n')
    service = unit_of(generate(capsys, "systemd", "--config", str(config)))["Service"]
    assert service["DynamicUser"] == "yes"
    assert "ReadWritePaths" not in service


TLS_AND_USERS = """
[[transport]]
address = "0.0.0.0:9007"
tls = { certificate = "server.pem", private_key = "/keys/server.key" }
[authentication]
method = "users"
users_file = "users.toml"
"""


@pytest.fixture
def secured(build_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration of a server with TLS and users."""
    # The files are those of the machine that runs the server.
    monkeypatch.setattr("quire.config.Config.check", lambda _: [])
    config = build_directory / "quire.toml"
    config.write_text(TLS_AND_USERS)
    return config


def test_the_unit_of_a_server_with_tls_and_users_has_a_user_that_reads_their_files(
    capsys: pytest.CaptureFixture[str], secured: Path
) -> None:
    text = generate(capsys, "systemd", "--config", str(secured))
    service = unit_of(text)["Service"]
    assert (service["User"], service["StateDirectory"]) == ("quire", "quire")
    assert "DynamicUser" not in service
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    files = f"{secured.parent}/server.pem /keys/server.key {secured.parent}/users.toml"
    assert f"#   chown quire {files}\n#   chmod 0600 {files}\n" in text
    secured.write_text(f'data_directory = "/srv/quire"\n{TLS_AND_USERS}')
    text = generate(capsys, "systemd", "--config", str(secured))
    assert unit_of(text)["Service"]["ReadWritePaths"] == "/srv/quire"
    assert f"#   chown quire {files}\n" in text


def test_the_image_of_a_server_with_tls_and_users_has_no_secrets(
    capsys: pytest.CaptureFixture[str], secured: Path
) -> None:
    text = generate(capsys, "dockerfile", "--config", "quire.toml")
    found = instructions(text)
    # The packages for users are installed.
    assert '"$(ls /tmp/wheels/*.whl)[auth]"' in found["RUN"][0]
    assert [line.split()[-1] for line in found["COPY"]] == ["/tmp/wheels/", "/etc/quire/quire.toml"]
    for source, place in (
        ("$PWD/server.pem", "/etc/quire/server.pem"),
        ("/keys/server.key", "/keys/server.key"),
        ("$PWD/users.toml", "/etc/quire/users.toml"),
    ):
        assert f'#   --volume "{source}:{place}:ro"\n' in text
    secured.write_text("")
    assert "--volume" not in generate(capsys, "dockerfile", "--config", "quire.toml")


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
    reason = (
        f"quire: {option}: quire.toml is not an absolute path, and systemd does not run the service in this"
    )
    assert f"{reason} directory: use {Path.cwd()}/quire.toml" in capsys.readouterr().err
