"""The options of both clients, checked in one place. The extension reads them by their names."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import timedelta
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from quire import _quire
from quire._arguments import check_function, check_type, delta_of, delta_to_core, timeout_to_core
from quire._errors import CLASSES, ConfigError, DisconnectedError
from quire._message import Encoder
from quire._text import path_to_core
from quire._units import Duration, Size, seconds, size
from quire.client._credentials import Credentials, Secret, credentials_of
from quire.client._links import Place, SecuredHost, is_loopback, parse_url, user_in
from quire.client._stores import BookmarkStore, PublishStore
from quire.client._tls import TLS, SSLArgument, tls_of

if TYPE_CHECKING:
    from quire.config import Config

DEFAULT_CLOSE_TIMEOUT: Final = 10.0

ServerChooser = Literal["first", "random", "least_loaded"]

#: Two of these without a word end a connection: below it, a busy machine would.
HEARTBEAT_MIN: Final = timedelta(milliseconds=10)


@dataclass(frozen=True, kw_only=True)
class Reconnect:
    """The delays between attempts to reconnect: `initial`, times `factor` at each attempt, up to `maximum`.

    Durations are seconds, a `timedelta`, or text such as "500ms". Raises `ConfigError` for invalid
    values.
    """

    initial: Duration = timedelta(seconds=0.2)
    maximum: Duration = timedelta(seconds=2)
    factor: float = 2.0
    #: A random time up to this share of `initial` is added to every delay.
    jitter: float = 1.0
    #: Stop trying after this long; `None` = never.
    give_up_after: Duration | None = None

    def __post_init__(self) -> None:
        for name in ("factor", "jitter"):
            number: object = getattr(self, name)
            if not isinstance(number, Real):
                reason = f"expected a number, got `{type(number).__name__}`"
                raise ConfigError(reason, key=f"reconnect.{name}")
        if not (math.isfinite(self.factor) and self.factor >= 1):
            raise ConfigError(f"{self.factor!r} is not a number from 1 up", key="reconnect.factor")
        if not 0 <= self.jitter <= 1:
            raise ConfigError(f"{self.jitter!r} is not between 0 and 1", key="reconnect.jitter")
        for name in ("initial", "maximum", "give_up_after"):
            object.__setattr__(self, name, delta_to_core(getattr(self, name), f"reconnect.{name}"))
        if self.initial > self.maximum:  # type: ignore[operator]
            raise ConfigError(f"{self.maximum} is below initial, {self.initial}", key="reconnect.maximum")


@dataclass(frozen=True)
class ClientOptions:
    """The arguments of `quire.Client` and `quire.AsyncClient`, which are documented there.

    The members have the form in which the extension reads them: durations are `timedelta`, sizes
    are bytes.
    """

    url: str | Sequence[str]
    _: KW_ONLY
    config: Config | None = None
    name: str | None = None
    user: str | None = None
    password: Secret | None = field(default=None, repr=False)
    token: Secret | None = field(default=None, repr=False)
    publish_store: str | os.PathLike[str] | PublishStore | None = None
    bookmark_store: str | os.PathLike[str] | BookmarkStore | None = None
    heartbeat: Duration | None = None
    connect: Literal["wait", "background"] = "wait"
    wait: bool = False
    connect_timeout: Duration = timedelta(seconds=10)
    command_timeout: Duration | None = timedelta(seconds=10)
    auto_ack: bool = False
    ack_batch_size: int = 1
    ack_timeout: Duration = timedelta(seconds=1)
    reconnect: Reconnect | None = None
    server_chooser: ServerChooser = "first"
    receive_size_max: Size = 64 * 1024 * 1024
    encoder: Encoder | None = None
    ssl: SSLArgument = None
    #: Where the URLs lead. Relative directories are those of the moment when the client was made.
    places: tuple[tuple[str, int] | SecuredHost | tuple[Path] | Place, ...] = field(init=False, repr=False)
    #: The identity of the client.
    credentials: Credentials = field(init=False, repr=False)
    #: The files for `quires://`; `None`: no URL is one.
    tls: TLS | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._check_types()
        if not self.urls:
            raise ConfigError("the list is empty", key="url")
        store = self.publish_store
        store = store if isinstance(store, PublishStore) else PublishStore(store)
        if store.path is not None and self.name is None:
            raise ConfigError(
                "a file requires `name`, and the name must stay the same after a restart: the server knows by it what it has",
                key="publish_store",
            )
        if self.name is not None and not _is_name(self.name):
            raise ConfigError("it must have 1 to 255 bytes and no control characters", key="name")
        if not 1 <= self.ack_batch_size < 2**32:
            raise ConfigError(f"{self.ack_batch_size} is not between 1 and 2**32 - 1", key="ack_batch_size")
        if self.connect not in ("wait", "background"):
            raise ConfigError(f"expected 'wait' or 'background', got {self.connect!r}", key="connect")
        if self.connect == "background" and store.path is None:
            raise ConfigError(
                "'background' requires a publish_store= with a path: without a file, publishes of a client that never"
                " connects are lost with the process",
                key="connect",
            )
        if self.server_chooser not in get_args(ServerChooser):
            expected = ", ".join(map(repr, get_args(ServerChooser)))
            raise ConfigError(
                f"expected one of {expected}, got {self.server_chooser!r}", key="server_chooser"
            )
        reconnect = Reconnect() if self.reconnect is None else self.reconnect
        if not isinstance(reconnect, Reconnect):
            raise ConfigError(
                f"expected a quire.Reconnect, got `{type(reconnect).__name__}`", key="reconnect"
            )
        places = tuple(map(parse_url, self.urls))
        for name, value in {
            "places": places,
            "credentials": (credentials := self._credentials(places)),
            "tls": self._tls(places, credentials),
            "publish_store": store,
            "reconnect": reconnect,
            "heartbeat": delta_to_core(self.heartbeat, "heartbeat"),
            "connect_timeout": delta_of(self.connect_timeout, "connect_timeout"),
            "command_timeout": delta_to_core(self.command_timeout, "command_timeout"),
            "ack_timeout": delta_of(self.ack_timeout, "ack_timeout"),
            "receive_size_max": size(self.receive_size_max, "receive_size_max"),
        }.items():
            object.__setattr__(self, name, value)
        if self.config is not None and not any(isinstance(place, Place) for place in self.places):
            reason = f"{self.urls[0]!r} is a server with its own configuration; this one is for memory: and file: URLs"
            raise ConfigError(reason, key="config")
        if self.heartbeat is not None and self.heartbeat < HEARTBEAT_MIN:  # type: ignore[operator]
            reason = f"{self.heartbeat} is below {HEARTBEAT_MIN}; None means no heartbeat"
            raise ConfigError(reason, key="heartbeat")
        if self.receive_size_max == 0:
            raise ConfigError("expected at least 1 byte, got 0", key="receive_size_max")

    def _credentials(self, places: tuple[object, ...]) -> Credentials:
        """The identity of the client. Engines of this process, and the administrator of a directory, need no user."""
        given = Credentials(self.user, self.password, self.token)
        if self.password is not None and self.token is not None:
            raise ConfigError("a client has a password or a token, and not both", key="token")
        hosts = [place.host for place in places if isinstance(place, SecuredHost)]
        hosts += [place[0] for place in places if isinstance(place, tuple) and len(place) == 2]
        if not hosts:
            return given
        users = [user for url in self.urls if (user := user_in(url)) is not None]
        return credentials_of(given, users, hosts)

    def _tls(self, places: tuple[object, ...], credentials: Credentials) -> TLS | None:
        """The files for `quires://`. Raises `ConfigError` when the argument and the URLs do not go together."""
        if any(isinstance(place, SecuredHost) for place in places):
            return tls_of(self.ssl)
        plain = [place for place in places if isinstance(place, tuple) and len(place) == 2]
        if plain and self.ssl not in (None, False):
            raise ConfigError(
                "quire:// is not encrypted: TLS requires a URL that begins with quires://", key="ssl"
            )
        if credentials.secret is not None and self.ssl is not False:
            for host, _ in plain:
                if not is_loopback(host):
                    reason = (
                        f"quire:// would send it to {host} without encryption: use quires://, or `ssl=False` in a network that"
                        " you trust"
                    )
                    raise ConfigError(reason, key=credentials.secret[0])
        return None

    def __getstate__(self) -> dict[str, Any]:
        if self.credentials.secret is not None:
            raise TypeError("a password or a token cannot be pickled: it would be in the result")
        return dict(self.__dict__)

    def _check_types(self) -> None:
        """Before anything is done with the arguments: an environment variable that is not set is
        `None`, for one."""
        url: object = self.url
        urls = url if isinstance(url, (list, tuple)) else [url]
        for each in urls:
            if not isinstance(each, str):
                reason = f"expected text such as 'quire://127.0.0.1:9007', or a list of such texts, got `{type(each).__name__}`"
                raise ConfigError(reason, key="url")
        for key in ("name", "user"):
            check_type(getattr(self, key), str, key, optional=True)
        for key in ("password", "token"):
            if not callable(getattr(self, key)):
                check_type(getattr(self, key), str, key, optional=True)
        for key in ("wait", "auto_ack"):
            check_type(getattr(self, key), bool, key)
        check_type(self.ack_batch_size, int, "ack_batch_size")
        if self.encoder is not None:
            check_function(self.encoder, "encoder")
        config: object = self.config
        if config is not None and not hasattr(config, "to_core"):
            reason = f"expected a quire.Config, got `{type(config).__name__}`; quire.Config.load(path) reads a file"
            raise ConfigError(reason, key="config")

    @property
    def urls(self) -> tuple[str, ...]:
        """As they were given."""
        return (self.url,) if isinstance(self.url, str) else tuple(self.url)

    @property
    def connect_seconds(self) -> float:
        """How long to wait for the first logon."""
        return seconds(self.connect_timeout, "connect_timeout")

    @property
    def command_seconds(self) -> float | None:
        """How long a command waits for the server by default; `None`: without a limit."""
        return timeout_to_core(self.command_timeout)

    @property
    def unpersisted_reason(self) -> str:
        """The reason why publishes wait while the client is connected, as the end of a sentence. A
        client cannot distinguish the two."""
        if any(isinstance(place, Place) for place in self.places):
            return ""
        return ": the server waits for its disk or for a sync destination (see `quire replication ls`)"

    def with_source(self, source: Callable[[Callable[[], Any], float], Callable[[], str]]) -> ClientOptions:
        """These options, with a function for the secret that the thread of the client can call. `source` makes it."""
        secret = self.credentials.secret
        if secret is None or isinstance(secret[1], str):
            return self
        options = object.__new__(type(self))
        options.__dict__.update(self.__dict__)
        changes: dict[str, Any] = {secret[0]: source(secret[1], self.connect_seconds)}
        credentials = replace(self.credentials, **changes)
        object.__setattr__(options, "credentials", credentials)
        return options

    def links(self) -> list[tuple[str, int] | tuple[str, int, TLS] | tuple[Path] | _quire.Embedded]:
        """Where to connect. Starts the engines of this process that are not running."""
        return [self._link(place) for place in self.places]

    def _link(
        self, place: tuple[str, int] | SecuredHost | tuple[Path] | Place
    ) -> tuple[str, int] | tuple[str, int, TLS] | tuple[Path] | _quire.Embedded:
        if isinstance(place, Place):
            return self._engine(place)
        if isinstance(place, SecuredHost):
            assert self.tls is not None
            return place.host, place.port, self.tls
        return place

    def _engine(self, place: Place) -> _quire.Embedded:
        """The engine of this process at that place; everything is recorded as JSON unless `config`
        says otherwise."""
        directory = None if place.directory is None else path_to_core(place.directory, "url")
        if self.config is not None:
            if self.config.entitlement:
                raise ConfigError(
                    "an engine in this process has no users: remove `entitlement`", key="config"
                )
            if self.config.has_users:
                raise ConfigError(
                    "an engine in this process has no users: remove `authentication`", key="config"
                )
            if self.config.action:
                raise ConfigError(
                    "an engine in this process runs no actions: remove `action`, or run a server",
                    key="config",
                )
            settings = json.loads(self.config.to_core())
            settings["transaction_log"]["journal_directory"] = directory
        else:
            settings = {"transaction_log": {"journal_directory": directory}}
        try:
            # Without a configuration the client joins an engine that runs, as it is.
            return _quire.Embedded(json.dumps(settings), directory, place.name, self.config is None)
        except ConfigError as error:
            raise error if self.config is None else self.config.placed(error) from None

    def not_connected(self, last_error: str | None, code: str | None) -> Exception:
        """The error when no server accepted the client within `connect_timeout`. `code` is the
        reason."""
        if last_error is None:
            return TimeoutError(f"{', '.join(self.urls)} did not answer within {self.connect_seconds:g} s")
        return _unreachable(f"no connection within {self.connect_seconds:g} s: {last_error}", code)

    @staticmethod
    def refused(last_error: str | None, code: str | None) -> DisconnectedError:
        """The error when every server was tried once, and none accepted the client. `code` is the
        reason."""
        return _unreachable(f"no connection: {last_error}", code)


def _unreachable(reason: str, code: str | None) -> DisconnectedError:
    """The error when there is no connection, with what to do."""
    cls = CLASSES.get(code or "", DisconnectedError)
    if code == "no_such_host":
        reason += "; check the spelling of the host, and the name service of this machine"
    elif cls is DisconnectedError and code != "not_ready":
        reason += "; check the address, and that the server is running"
    return (cls if issubclass(cls, DisconnectedError) else DisconnectedError)(reason, code=code)


def generated_name() -> str:
    """A name that no other client has; with it nothing can be deduplicated across restarts."""
    return f"{platform.node()[:100]}-{os.getpid()}-{os.urandom(4).hex()}"


def _is_name(name: str) -> bool:
    return 1 <= len(name.encode()) <= 255 and not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in name)
