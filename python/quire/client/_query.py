"""The result of `sow`: its records one by one, or as a data frame."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from quire import _quire
from quire._frames import (
    Fields,
    arrow_table,
    check_fields,
    check_pandas,
    check_polars,
    pandas_frame,
    polars_frame,
)
from quire._message import Message
from quire.client._records import QuerySpec, query
from quire.client._threads import finish

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from quire.client._aio import AsyncClient  # noqa: F401 (in the base of `AsyncQuery`)
    from quire.client._base import ClientBase
    from quire.client._blocking import Client

C = TypeVar("C", bound="ClientBase[Any]")
T = TypeVar("T")

#: Records that are taken from the connection at a time, unless the program asks for another number.
BATCH_COUNT = 1024


class QueryBase(Generic[C]):
    """The result of a query, apart from the iteration, and from how a client waits."""

    def __init__(self, client: C, spec: QuerySpec) -> None:
        self._client = client
        self._spec = spec
        #: `None` until the query has started.
        self._core: _quire.Subscription | None = None
        self._is_closed = False
        self._ahead = spec.batch_size or BATCH_COUNT
        #: The records that were taken from the core, and that the program does not have. Those of a
        #: blocking query stay in the core.
        self._taken: deque[Message] = deque()
        #: The records of a data frame, until the program has the frame: its conversion can fail.
        self._rows = _quire.Rows([])

    @property
    def total(self) -> int | None:
        """The number of matching records before `top_n` and `skip_n`.

        `None` before the last record has arrived.
        """
        return None if self._core is None else self._core.total

    def __repr__(self) -> str:
        total = None if self._client._is_of_parent else self.total
        return f"{type(self).__name__}(topic={self._spec.topic!r}, total={total})"

    async def _start(self) -> _quire.Subscription | None:
        """Starts the query, once. `None`: it was closed before."""
        if self._core is None and not self._is_closed:
            self._core = await query(self._client, self._spec)
        return self._core

    async def _frame(self, convert: Callable[[pa.Table], T], fields: Fields) -> T:
        """The records that the program has not taken, as a table that is converted."""
        fields, core = check_fields(fields), await self._start()
        if core is None:
            return convert(arrow_table(_quire.Rows([]), fields, "json"))
        self._rows.append(list(self._taken))
        self._taken.clear()
        frame = convert(await arrow_of_query(self._client, core, self._spec.topic, fields, self._rows))
        self._rows = _quire.Rows([])
        return frame

    def _end(self) -> None:
        """Ends the query on the server, and the iteration."""
        self._is_closed = True
        self._rows = _quire.Rows([])
        if self._core is not None:
            self._core.close()


class Query(QueryBase["Client"]):
    """The result of `Client.sow`: an iterator over its records, which can also be taken as a data frame.

        with client.sow("orders", filter="/qty > 50") as query:
            for record in query:
                print(record.sow_key, record.json())

    The records arrive while the program takes them. A query that the program closes or drops ends
    on the server.
    """

    def __init__(self, client: Client, spec: QuerySpec) -> None:
        super().__init__(client, spec)
        core = finish(self._start())
        assert core is not None, "nothing can have closed the query"
        self._started = core

    # The core keeps the records that it takes at once. A list of them would be lost with the
    # exception of a signal handler, which comes when the call that returns it has ended.
    def __iter__(self) -> Iterator[Message]:
        return self._started.iterate(self, self._ahead)

    def __next__(self) -> Message:
        message = self._started.next(None, self._ahead)
        if message is None:
            raise StopIteration
        return message

    def to_arrow(self, fields: Fields = None) -> pa.Table:
        """Returns the records that the program has not taken as a `pyarrow.Table`, one row for each.

        Waits for the last record.

        - `fields`: identifiers such as `["/symbol", "/order/price"]`, or identifiers with the types
          of their columns such as `{"/qty": "long"}`. Without it, every field at the top level of
          the records. The type of a column is that of its values: objects and lists become nested
          columns, and values of different types become text. A column has the name of its
          identifier without the first slash

        Requires `quire-mq[arrow]`. Raises `ConfigError` for messages that are not JSON when
        `fields` is left out. After an error, such as one in `fields`, a second call returns all
        these records, also one of `to_pandas` or `to_polars`. The iteration does not return the
        records that the first call has collected.
        """
        return finish(self._frame(_itself, fields))

    def to_pandas(self, fields: Fields = None) -> pd.DataFrame:
        """Returns the records as a pandas data frame. See `to_arrow`.

        Requires pandas and `quire-mq[arrow]`.
        """
        check_pandas()
        return finish(self._frame(pandas_frame, fields))

    def to_polars(self, fields: Fields = None) -> pl.DataFrame:
        """Returns the records as a polars data frame. See `to_arrow`.

        Requires polars and `quire-mq[arrow]`.
        """
        check_polars()
        return finish(self._frame(polars_frame, fields))

    def close(self) -> None:
        """Ends the query on the server, and the iteration. Does nothing when the query has ended."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncQuery(QueryBase["AsyncClient"]):
    """The result of `AsyncClient.sow`: an asynchronous iterator over its records, or a data frame.

        async for record in client.sow("orders", filter="/qty > 50"):
            print(record.sow_key, record.json())

    The query starts when the program asks for the first record. `await client.sow(...)` starts it
    at once, and returns the query when the server has accepted it.
    """

    def __await__(self) -> Generator[Any, Any, Self]:
        return self._entered().__await__()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        while not self._taken:
            core = self._core or await self._start()
            batch = (
                None if core is None else await self._client._driver.wait(partial(core.batch, self._ahead))
            )
            if batch is None:
                raise StopAsyncIteration
            self._taken.extend(batch)
        return self._taken.popleft()

    async def to_arrow(self, fields: Fields = None) -> pa.Table:
        """Returns the records that the program has not taken as a `pyarrow.Table`. See `Query.to_arrow`."""
        return await self._frame(_itself, fields)

    async def to_pandas(self, fields: Fields = None) -> pd.DataFrame:
        """Returns the records as a pandas data frame. See `to_arrow`.

        Requires pandas and `quire-mq[arrow]`.
        """
        check_pandas()
        return await self._frame(pandas_frame, fields)

    async def to_polars(self, fields: Fields = None) -> pl.DataFrame:
        """Returns the records as a polars data frame. See `to_arrow`.

        Requires polars and `quire-mq[arrow]`.
        """
        check_polars()
        return await self._frame(polars_frame, fields)

    async def close(self) -> None:
        """Ends the query on the server, and the iteration. Does nothing when the query has ended."""
        self._taken.clear()
        self._end()
        if self._core is not None:
            self._client._driver.wake()

    async def __aenter__(self) -> Self:
        return await self._entered()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _entered(self) -> Self:
        await self._start()
        return self


def _itself(table: pa.Table) -> pa.Table:
    return table


async def arrow_of_query(
    client: ClientBase[Any], core: _quire.Subscription, topic: str, fields: Fields, rows: _quire.Rows
) -> pa.Table:
    """The rows, and the records that were not taken, when the last one has arrived."""
    while await client._driver.wait(partial(core.collect, rows)) is not None:
        pass
    return await arrow_of_rows(client, rows, topic, fields)


async def arrow_of_rows(client: ClientBase[Any], rows: _quire.Rows, topic: str, fields: Fields) -> pa.Table:
    """The rows as a table. The server has the message type of their topic."""
    message_type = await client._message_type(rows.topic or topic)
    return await client._driver.call(partial(arrow_table, rows, fields, message_type))
