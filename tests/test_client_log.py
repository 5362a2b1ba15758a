"""The log records of a client about its connection, and their fields, which handlers that write
JSON use."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import quire
from support.ports import reserve
from support.server_process import ServerProcess
from support.waiting import PATIENCE, wait_until

_QUICK = quire.Reconnect(initial="5ms", maximum="50ms")


def records(caplog: pytest.LogCaptureFixture, part: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if part in record.getMessage()]


def test_a_client_in_the_background_logs_that_no_server_has_accepted_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "quire.client")
    reserved, port = reserve()
    url = f"quire://127.0.0.1:{port}"

    def sensor() -> quire.Client:
        store = tmp_path / "store"
        return quire.Client(url, name="sensor", publish_store=store, connect="background", reconnect=_QUICK)

    with reserved:
        # The store has a publish from the start: the warning can come before one of the same
        # client.
        with sensor() as earlier:
            earlier.publish("readings", b"1")
        caplog.clear()
        with sensor() as client:
            wait_until(lambda: bool(records(caplog, "no connection to")))
            [warning] = records(caplog, "no connection to")
            assert warning.levelname == "WARNING"
            assert "refused" in warning.getMessage()
            fields = {name: value for name, value in vars(warning).items() if name.startswith("quire_")}
            assert fields == {
                "quire_client": "sensor",
                "quire_address": url,
                "quire_code": "connection_refused",
                "quire_unpersisted": 1,
            }
            config = quire.Config(
                data_directory=tmp_path / "data", transport={"address": f"127.0.0.1:{port}"}
            )
            with quire.Server(config):
                client.flush(PATIENCE)
                wait_until(lambda: bool(records(caplog, "connected to")))


def test_a_lost_connection_is_logged_with_fields(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "quire.client")
    with (
        ServerProcess(tmp_path) as server,
        quire.Client(server.url, name="loader", reconnect=_QUICK) as client,
    ):
        client.publish("orders", b"1")
        client.flush(PATIENCE)
        server.kill()
        wait_until(lambda: bool(records(caplog, "lost the connection")))
        [lost] = records(caplog, "lost the connection")
        assert (lost.quire_client, lost.quire_unpersisted) == ("loader", 0)  # type: ignore[attr-defined]
        server.start()
        client.flush(PATIENCE)
        wait_until(lambda: bool(records(caplog, "again after")))
        [again] = records(caplog, "again after")
        assert again.quire_client == "loader"  # type: ignore[attr-defined]
        assert again.quire_seconds > 0  # type: ignore[attr-defined]


def test_a_failed_handler_is_logged_with_the_message(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: quire.Message) -> None:
        raise ZeroDivisionError

    with quire.Client("memory:failing", name="c") as client:
        client.subscribe("orders", bookmark=quire.EPOCH, sub_id="books", on_message=fail)
        client.publish("orders", b"1")
        wait_until(lambda: bool(records(caplog, "the handler of")))
        [failed] = records(caplog, "the handler of")
        assert (failed.quire_topic, failed.quire_sub_id) == ("orders", "books")  # type: ignore[attr-defined]


def test_the_pause_between_two_attempts_is_at_most_two_seconds() -> None:
    assert quire.Reconnect().maximum == quire.Reconnect(maximum="2s").maximum
