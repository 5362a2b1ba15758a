"""`quire generate`: files for running a server elsewhere, and for the shell."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from quire import __version__
from quire._errors import ConfigError
from quire.cli._config import load
from quire.config import Address, Config

app = App(
    name="generate",
    help="Print files for a server and its monitoring, or the completion of a shell.",
    help_format="plaintext",
)

#: The data directory of a server in a container or a service, unless the configuration has an
#: absolute one. It is the directory that `StateDirectory=quire` makes.
DATA_DIRECTORY = Path("/var/lib/quire")
#: The configuration file in a container.
CONFIG_FILE = Path("/etc/quire/quire.toml")


@app.command
def completion(shell: Literal["bash", "zsh", "fish"], /) -> int:
    """Print the script with which a shell completes commands and options of quire.

    For example:
      quire generate completion bash > ~/.local/share/bash-completion/completions/quire
      quire generate completion zsh > "${fpath[1]}/_quire"
      quire generate completion fish > ~/.config/fish/completions/quire.fish

    Parameters
    ----------
    shell
        Shell for which the script is.
    """
    from quire.cli._app import app as whole

    print(whole.generate_completion(shell=shell), end="")
    return 0


@app.command
def grafana() -> int:
    """Print a dashboard for Grafana with every series of /metrics.

    Import it with Dashboards, New, Import.

    For example:
      quire generate grafana > quire.json
    """
    from quire.admin._generated import dashboard

    print(dashboard(), end="")
    return 0


@app.command
def prometheus(
    *,
    rules: Annotated[bool, Parameter(negative="", help="Print the rules of alerts instead.")] = False,
    target: Annotated[str, Parameter(help="HOST:PORT of admin.address.")] = "127.0.0.1:9080",
    https: Annotated[bool, Parameter(negative="", help="The server has admin.tls.")] = False,
) -> int:
    """Print the configuration with which Prometheus reads /metrics, or the rules of alerts.

    For example:
      quire generate prometheus --target prod:9080 > prometheus.yml
      quire generate prometheus --rules > quire-rules.yml
    """
    from quire.admin._generated import prometheus as generated

    print(generated(target, "https" if https else "http")[int(rules)], end="")
    return 0


@app.command
def dockerfile(
    *,
    config: Path | None = None,
    wheel: str = f"dist/quire_mq-{__version__}-*.whl",
    python: Annotated[str, Parameter(help="Tag of the base image python:TAG.")] = "3.13-slim",
) -> int:
    """Print a Dockerfile for a server.

    The container keeps the data in the absolute data_directory of the configuration. Without one it is /var/lib/quire.
    Every directory that the server writes to is a volume.

    The ports are those of the transports.
    If a single transport has a loopback address, the server listens on all addresses of the container instead.

    For example:
      quire generate dockerfile > Dockerfile
      quire generate dockerfile --config orders.toml > Dockerfile
      docker build --tag quire . && docker run --publish 127.0.0.1:9007:9007 --volume quire:/var/lib/quire quire

    Parameters
    ----------
    config
        Configuration file to copy into the image, relative to the build directory, which is the current one.
    wheel
        Wheel of quire to install, relative to the build directory. `make wheel` builds it.
    """
    if config is not None and (config.is_absolute() or ".." in config.parts):
        reason = f"{config} is outside of the build directory; name a file below the current directory"
        raise ConfigError(reason, key="--config")
    settings, options = _settings(config)
    copied = "" if config is None else f"COPY {_word(config, '--config')} {CONFIG_FILE}\n"
    mounted = "" if config is None else _mounts(settings, config)
    command = ["quire", "serve", *([] if config is None else [str(CONFIG_FILE)])]
    directories = [_word(directory, "--config") for directory in _directories(settings)]
    made = " ".join(shlex.quote(directory) for directory in directories)
    addresses = _addresses_in_container(settings)
    if len(settings.addresses) == 1 and settings.address.is_loopback:
        options = ["--address", str(addresses[0]), *options]
        if not settings.has_users:
            options = ["--insecure", *options]
    local = "".join(
        f"# Only programs in the container reach {address}.\n"
        for address in settings.addresses
        if len(settings.addresses) > 1 and address.is_loopback
    )
    print(
        f"""\
# A quire server.{"" if settings.has_users else " Clients are not authenticated: publish the port only to networks that you trust."}
FROM python:{_word(python, "--python")}
COPY {_word(wheel, "--wheel")} /tmp/wheels/
RUN pip install --no-cache-dir {_wheel_in_container(settings)} && rm -r /tmp/wheels \\
    && useradd --system --uid 10001 --home-dir {directories[0]} quire \\
    && mkdir -p {made} && chown quire: {made} && chmod 700 {made}
{copied}{mounted}USER quire
WORKDIR {directories[0]}
VOLUME {_json(directories)}
{local}EXPOSE {" ".join(f"{address.port}" for address in addresses)}
# The first start may read a long journal.
HEALTHCHECK --interval=30s --timeout=20s --start-period=5m CMD {_json(_health_check(settings, addresses[0]))}
# The server then persists every message that it has accepted, and marks a clean stop.
STOPSIGNAL SIGTERM
ENTRYPOINT {_json(command)}
CMD {_json(options)}"""
    )
    return 0


def _wheel_in_container(config: Config) -> str:
    """The wheel as an argument of pip, with what the configuration needs."""
    extras = [
        name
        for name, is_needed in (("admin", config.admin is not None), ("auth", config.has_users))
        if is_needed
    ]
    return f'"$(ls /tmp/wheels/*.whl)[{",".join(extras)}]"' if extras else "/tmp/wheels/*.whl"


@app.command
def systemd(*, config: Path | None = None, executable: Path | None = None) -> int:
    """Print a systemd unit for a server.

    The service keeps the data in the absolute data_directory of the configuration. Without one it is /var/lib/quire.
    If the server writes to other directories than /var/lib/quire, create the user quire and these directories first.
    The unit has the commands in a comment.

    For example:
      quire generate systemd --config /etc/quire/quire.toml | sudo tee /etc/systemd/system/quire.service
      sudo systemctl enable --now quire

    Parameters
    ----------
    config
        Configuration file of the server, as an absolute path. The command reads it.
        Without it the server records every topic, and listens on 127.0.0.1:9007.
    executable
        The command `quire`, as an absolute path. Other users must be allowed to execute it.
        Default: the command that is running.
    """
    if config is not None and not config.is_absolute():
        raise ConfigError(_relative(config), key="--config")
    command = _executable() if executable is None else executable
    if not command.is_absolute():
        raise ConfigError(_relative(command), key="--executable")
    arguments = [_quoted(command, "--executable"), "serve"]
    if config is not None:
        arguments.append(_quoted(config, "--config"))
    settings, options = _settings(config)
    arguments += options
    reload = ""
    if config is not None:
        reload = (
            "# `systemctl reload quire` reads the configuration again.\nExecReload=/bin/kill -HUP $MAINPID\n"
        )
    print(
        f"""\
[Unit]
Description=quire messaging server
Wants=network-online.target
# A clock that is set while the server runs changes the ages of queued messages.
After=network-online.target time-sync.target

[Service]
Type=exec
ExecStart={" ".join(arguments)}
{_user(_directories(settings), _files(settings))}
{reload}Restart=on-failure
RestartSec=1s
# SIGTERM: the server persists every message that it has accepted, and marks a clean stop.
KillSignal=SIGTERM
TimeoutStopSec=60s
# One for each connection, and some for journal files.
LimitNOFILE=65536
# Only the user of the service reads the messages.
UMask=0077
NoNewPrivileges=yes
ProtectSystem=strict
ProtectKernelTunables=yes
ProtectControlGroups=yes
PrivateTmp=yes
PrivateDevices=yes

[Install]
WantedBy=multi-user.target"""
    )
    return 0


def _relative(path: Path) -> str:
    """The reason why a path is refused: systemd starts a service in another directory, and without a shell."""
    return f"{path} is not an absolute path, and systemd does not run the service in this directory: use {Path.cwd() / path}"


def _settings(file: Path | None) -> tuple[Config, list[str]]:
    """The configuration as the server has it, and the options of `quire serve` that make it so.

    A relative data directory is one below the configuration file, where a service may not write.
    """
    config = Config() if file is None else load(file)
    if file is not None:
        config.check()
        written = tomllib.loads(file.read_text(encoding="utf-8")).get("data_directory", "")
        if Path(written).is_absolute():
            return config, []
    return config.replace(data_directory=DATA_DIRECTORY), ["--data-directory", str(DATA_DIRECTORY)]


def _directories(config: Config) -> list[Path]:
    """The directories that the server writes to, without those inside of others. The data directory is the first."""
    found: list[Path] = []
    for directory in (config.data_directory, config.journal_directory, config.journal_archive_directory):
        if directory is not None and not any(directory.is_relative_to(other) for other in found):
            found.append(directory)
    return found


def _files(config: Config) -> list[Path]:
    """The files about TLS and users that the server reads."""
    replication = config.replication
    tables = [
        *(transport.tls for transport in config.transport),
        *(config.authentication_of(transport) for transport in config.transport),
        replication.tls,
        None if replication.address is None else config.authentication_of_links,
    ]
    found = [value for table in tables if table is not None for _, value in table if isinstance(value, Path)]
    found += [file for destination in replication.destination for file in destination.files]
    return list(dict.fromkeys(found))


def _mounts(config: Config, file: Path) -> str:
    """The lines of a Dockerfile about the files that must not be in an image."""
    lines = []
    directory = file.absolute().parent
    for path in map(Path.absolute, _files(config)):
        is_beside = path.is_relative_to(directory)
        place = CONFIG_FILE.parent / path.relative_to(directory) if is_beside else path
        source = f"$PWD/{os.path.relpath(path)}" if is_beside else str(path)
        lines.append(f'#   --volume "{_one_line(source, "--config")}:{place}:ro"\n')
    if not lines:
        return ""
    return (
        "# The files of TLS and users are not in the image, because they have secrets. Mount them. The user 10001\n"
        "# reads them, and no other user can have access to private keys and to users:\n" + "".join(lines)
    )


def _user(directories: list[Path], files: list[Path]) -> str:
    """The lines of a unit about the user of the service, and the directories that it writes to. `files`: those that it
    reads."""
    is_below = all(directory.is_relative_to(DATA_DIRECTORY) for directory in directories)
    if is_below and not files:
        return f"""\
# systemd makes the user and {DATA_DIRECTORY}.
DynamicUser=yes
StateDirectory=quire
StateDirectoryMode=0700"""
    if is_below:
        read = " ".join(shlex.quote(_one_line(file, "--config")) for file in files)
        return f"""\
# Create the user before the first start, and let it read the files of TLS and users:
#   useradd --system --shell /usr/sbin/nologin quire
#   chown quire {read}
#   chmod 0600 {read}
User=quire
Group=quire
# systemd makes {DATA_DIRECTORY}.
StateDirectory=quire
StateDirectoryMode=0700"""
    let = ""
    if files:
        read = " ".join(shlex.quote(_one_line(file, "--config")) for file in files)
        let = f"""
# Let the user read the files of TLS and users:
#   chown quire {read}
#   chmod 0600 {read}"""
    made = " ".join(shlex.quote(_one_line(directory, "--config")) for directory in directories)
    paths = " ".join(_quoted(directory, "--config", is_command=False) for directory in directories)
    return f"""\
# Create the user and the directories before the first start:
#   useradd --system --shell /usr/sbin/nologin quire
#   install --directory --owner quire --group quire --mode 0700 {made}{let}
User=quire
Group=quire
ReadWritePaths={paths}"""


def _addresses_in_container(config: Config) -> list[Address]:
    """The addresses that programs outside of the container reach. A single address of loopback becomes all addresses."""
    addresses = list(config.addresses)
    if len(addresses) == 1 and addresses[0].is_loopback:
        addresses = [Address("0.0.0.0", addresses[0].port)]
    reachable = [address for address in addresses if not address.is_loopback]
    if not reachable:
        reason = "every transport has a loopback address, which only programs in the container reach"
        raise ConfigError(f'{reason}; give one of them an address such as "0.0.0.0:9007"', key="--config")
    if any(address.port == 0 for address in reachable):
        raise ConfigError("a transport has port 0; a container requires a fixed port", key="--config")
    return reachable


def _health_check(config: Config, address: Address) -> list[str]:
    """The command in the container that asks the server at an address, or as its administrator."""
    if config.has_users or any(transport.tls is not None for transport in config.transport):
        directory = config.journal_directory
        return [
            "quire",
            "info",
            "--url",
            f"local:{directory if directory.is_absolute() else DATA_DIRECTORY / directory}",
        ]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)
    url = f"quire://{Address(host, address.port)}"
    return ["quire", "info", *([] if url == "quire://127.0.0.1:9007" else ["--url", url])]


def _executable() -> Path:
    """The command of the installation that this process runs from."""
    beside = Path(sys.executable).with_name("quire")
    found = str(beside) if beside.is_file() else shutil.which("quire")
    if found is None:
        raise ConfigError("there is no command quire beside the Python that runs this", key="--executable")
    return Path(found)


def _quoted(path: Path, key: str, *, is_command: bool = True) -> str:
    """As one word of a setting: `%` has another meaning there, and in a command also `$`."""
    text = _one_line(path, key).replace("\\", "\\\\").replace('"', '\\"')
    if not set(text) & set(" \"\\%$';"):
        return text
    text = f'"{text}"'.replace("%", "%%")
    return text.replace("$", "$$") if is_command else text


def _word(value: object, key: str) -> str:
    """A word of a Dockerfile, where spaces, quotes and `$` have other meanings."""
    text = _one_line(value, key)
    if set(text) & set(" \"'\\$#"):
        raise ConfigError(f"{text!r} has a space, or a character that a Dockerfile reads as markup", key=key)
    return text


def _one_line(value: object, key: str) -> str:
    text = str(value)
    if not text.isprintable():
        raise ConfigError(f"{text!r} has characters that cannot be in such a file", key=key)
    return text


def _json(words: list[str]) -> str:
    return "[" + ", ".join(f'"{word}"' for word in words) + "]"
