"""`quire generate`: files for running a server elsewhere."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from quire import __version__
from quire._errors import ConfigError

app = App(
    name="generate",
    help="Print a Dockerfile or a systemd unit for a server.",
    help_format="plaintext",
)

#: The data directory of a server in a container or a service: the directory that `StateDirectory=quire` makes.
DATA_DIRECTORY = Path("/var/lib/quire")
#: The configuration file in a container.
CONFIG_FILE = Path("/etc/quire/quire.toml")


@app.command
def dockerfile(
    *,
    config: Path | None = None,
    wheel: str = f"dist/quire-{__version__}-*.whl",
    python: Annotated[str, Parameter(help="Tag of the base image python:TAG.")] = "3.13-slim",
) -> int:
    """Print a Dockerfile for a server.

    For example:
      quire generate dockerfile > Dockerfile
      quire generate dockerfile --config orders.toml > Dockerfile
      docker build --tag quire . && docker run --publish 127.0.0.1:9007:9007 --volume quire:/var/lib/quire quire

    Parameters
    ----------
    config
        Configuration file to copy into the image, relative to the build directory.
    wheel
        Wheel of quire to install, relative to the build directory. `make wheel` builds it.
    """
    copied = "" if config is None else f"COPY {_one_line(config, '--config')} {CONFIG_FILE}\n"
    command = ["quire", "serve", *([] if config is None else [str(CONFIG_FILE)])]
    options = ["--address", "0.0.0.0:9007", "--data-directory", str(DATA_DIRECTORY)]
    print(
        f"""\
# A quire server. Clients are not authenticated: publish the port only to networks that you trust.
FROM python:{_one_line(python, "--python")}
COPY {_one_line(wheel, "--wheel")} /tmp/wheels/
RUN pip install --no-cache-dir /tmp/wheels/*.whl && rm -r /tmp/wheels \\
    && useradd --system --uid 10001 --home-dir {DATA_DIRECTORY} --create-home quire
{copied}USER quire
WORKDIR {DATA_DIRECTORY}
VOLUME {DATA_DIRECTORY}
EXPOSE 9007
# The first start may read a long journal.
HEALTHCHECK --interval=30s --timeout=20s --start-period=5m CMD ["quire", "info"]
# The server then makes everything persistent that it took, and marks a clean stop.
STOPSIGNAL SIGTERM
ENTRYPOINT {_json(command)}
CMD {_json(options)}"""
    )
    return 0


@app.command
def systemd(*, config: Path | None = None, executable: Path | None = None) -> int:
    """Print a systemd unit for a server.

    For example:
      quire generate systemd --config /etc/quire/quire.toml | sudo tee /etc/systemd/system/quire.service
      sudo systemctl enable --now quire

    Parameters
    ----------
    config
        Configuration file of the server, as an absolute path.
        Without it the server records every topic, and listens on 127.0.0.1:9007.
    executable
        The command `quire`, as an absolute path. Other users must be allowed to execute it.
        Default: the command that is running.
    """
    if config is not None and not config.is_absolute():
        raise ConfigError(f"{config} is not an absolute path", key="--config")
    command = _executable() if executable is None else executable
    if not command.is_absolute():
        raise ConfigError(f"{command} is not an absolute path", key="--executable")
    arguments = [_quoted(command, "--executable"), "serve"]
    if config is not None:
        arguments.append(_quoted(config, "--config"))
    arguments += ["--data-directory", str(DATA_DIRECTORY)]
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
# systemd makes the user and {DATA_DIRECTORY}.
DynamicUser=yes
StateDirectory=quire
StateDirectoryMode=0750
Restart=on-failure
RestartSec=1s
# SIGTERM: the server makes everything persistent that it took, and marks a clean stop.
KillSignal=SIGTERM
TimeoutStopSec=60s
# One for each connection, and some for journal files.
LimitNOFILE=65536
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


def _executable() -> Path:
    """The command of the installation that this process runs from."""
    beside = Path(sys.executable).with_name("quire")
    found = str(beside) if beside.is_file() else shutil.which("quire")
    if found is None:
        raise ConfigError("there is no command quire beside the Python that runs this", key="--executable")
    return Path(found)


def _quoted(path: Path, key: str) -> str:
    """As one argument of `ExecStart`: `%` and `$` stand for other things there."""
    text = _one_line(path, key).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'.replace("%", "%%").replace("$", "$$") if set(text) & set(" \"\\%$';") else text


def _one_line(value: object, key: str) -> str:
    text = str(value)
    if not text.isprintable():
        raise ConfigError(f"{text!r} has characters that cannot be in such a file", key=key)
    return text


def _json(words: list[str]) -> str:
    return "[" + ", ".join(f'"{word}"' for word in words) + "]"
