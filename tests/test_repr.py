"""Objects say in a debugger and in a log what they are and in which state."""

from __future__ import annotations

from pathlib import Path

import quire
import quire.testing
from support.waiting import PATIENCE


def test_a_server_shows_where_it_listens_and_where_its_data_is(tmp_path: Path) -> None:
    config = quire.Config(name="shop", transport={"address": "127.0.0.1:0"}, data_directory=tmp_path)
    server = quire.Server(config)
    assert repr(server) == f"<Server 'shop': not running, journal in {tmp_path}/journal>"
    with server:
        assert repr(server) == f"<Server 'shop': {server.url}, journal in {tmp_path}/journal>"


def test_a_server_process_shows_its_process(tmp_path: Path) -> None:
    server = quire.testing.ServerProcess(tmp_path)
    assert repr(server) == f"<ServerProcess {server.url}: not running, data in {tmp_path}>"
    with server:
        assert repr(server) == f"<ServerProcess {server.url}: process {server.pid}, data in {tmp_path}>"


def test_a_receipt_and_an_event_show_their_state() -> None:
    with quire.Client("memory:repr", name="shop") as client:
        receipt = client.publish_receipt("orders", {})
        receipt.wait(PATIENCE)
        assert repr(receipt) == "<Receipt of publish 1 on 'orders': persisted>"
        replay = client.subscribe("orders", bookmark="epoch")
        assert repr(replay.completed) == "<Completed: not set>"
        replay.get(PATIENCE)
        assert replay.completed.wait(PATIENCE)
        assert repr(replay.completed) == "<Completed: set>"
