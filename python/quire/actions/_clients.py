"""The clients of actions inside of the server: they have all rights."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Final

from quire._errors import DisconnectedError
from quire.client._blocking import Client
from quire.client._options import ClientOptions, Reconnect
from quire.client._publish import CoreMessage
from quire.client._receipts import Receipt
from quire.client._stores import BookmarkStore
from quire.client._threads import finish

if TYPE_CHECKING:
    from quire._quire import Inside

#: The user of the clients, and the beginning of their names. A client with another user cannot take
#: over the names.
USER: Final = "/quire/actions"
#: Seconds that one command may take.
_COMMAND_TIMEOUT: Final = 60.0
#: Bytes of messages that wait for a trigger. Beyond it, a replay is paused, and a subscription
#: without a place in the log misses messages.
_RECEIVED_MAX: Final = 16 << 20
#: Connections that steps have ended, until their events come.
_CAUSES_MAX: Final = 10_000


@dataclass(frozen=True)
class _Options(ClientOptions):
    """Options of a client that has a connection already. It reads no credentials from the environment."""

    _: KW_ONLY
    inside: Inside

    def links(self) -> list[Any]:
        return [self.inside]


class Clients:
    """Makes the clients of actions, and knows what their steps have caused."""

    def __init__(self, connect: Callable[[], Inside]) -> None:
        """`connect`: makes a connection that has all rights."""
        self._connect = connect
        self._lock = threading.Lock()
        self._clients: dict[str, Client] = {}
        self._locks: dict[str, threading.Lock] = {}
        #: The chains of connections and links that steps have changed, the oldest first.
        self._causes: OrderedDict[object, tuple[str, ...]] = OrderedDict()

    @contextlib.contextmanager
    def of(self, action: str) -> Iterator[Client]:
        """The client of the steps of an action. It is made again after its connection was lost."""
        with self._lock:
            lock = self._locks.setdefault(action, threading.Lock())
        with lock:
            client = self._clients.get(action)
            if client is None:
                client = self._clients[action] = self.made(f"{USER}/{action}")
            try:
                yield client
            except DisconnectedError:
                del self._clients[action]
                client.close(0)
                raise

    def made(self, name: str | None = None, store: BookmarkStore | None = None) -> Client:
        """A new client, which the caller has to close."""
        options = _Options(
            "memory:",
            name=name or f"{USER}-{secrets.token_hex(4)}",
            user=USER,
            inside=self._connect(),
            bookmark_store=store,
            receive_size_max=_RECEIVED_MAX,
            command_timeout=_COMMAND_TIMEOUT,
            connect_timeout=_COMMAND_TIMEOUT,
            reconnect=Reconnect(give_up_after=0),
        )
        client = Client.__new__(Client)
        _init(client, options)
        return client

    def ended_by(self, connection: int, chain: tuple[str, ...]) -> None:
        """A step is about to end a connection."""
        self._note(connection, chain)

    def changed_by(self, destination: str, chain: tuple[str, ...]) -> None:
        """A step is about to change a link."""
        self._note(destination, chain)

    def _note(self, what: object, chain: tuple[str, ...]) -> None:
        with self._lock:
            self._causes[what] = chain
            self._causes.move_to_end(what)
            while len(self._causes) > _CAUSES_MAX:
                self._causes.popitem(last=False)

    def chain_of(self, what: object) -> tuple[str, ...]:
        """The actions that led to an event of a connection or a link."""
        with self._lock:
            return self._causes.get(what, ())

    def close(self) -> None:
        """Closes the clients of steps."""
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close(1.0)


def publish(client: Client, message: CoreMessage) -> None:
    """Publishes a message, which may have options that the methods of a client do not have."""
    finish(client._publish(Receipt, message, None, None))


def _init(client: Client, options: ClientOptions) -> None:
    """The public constructor makes the options from a URL."""
    import inspect

    inspect.unwrap(Client.__init__)(client, options)
