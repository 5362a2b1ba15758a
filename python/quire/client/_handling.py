"""Where handlers run: a call that waits for the handlers of its client cannot wait inside one of them."""

from __future__ import annotations

from contextvars import ContextVar


class Handling:
    """A context manager around code that `close` and `drain` of a client wait for: a handler, or a worker.

    A signal handler that interrupts the code is inside it, and so are the tasks that it starts,
    until it ends.
    """

    __slots__ = ("_client", "_token")

    def __init__(self, client: object) -> None:
        self._client: object | None = client

    def __enter__(self) -> None:
        self._token = _HANDLING.set((*_HANDLING.get(), self))

    def __exit__(self, *_: object) -> None:
        # A task that was started inside has a copy of the context, and may outlive the code.
        self._client = None
        _HANDLING.reset(self._token)


def is_handling(client: object) -> bool:
    """Whether the caller is inside a handler or a worker of the client."""
    return any(handling._client is client for handling in _HANDLING.get())


#: A handler may use another client, whose handlers then run inside it.
_HANDLING: ContextVar[tuple[Handling, ...]] = ContextVar("quire_handling", default=())
