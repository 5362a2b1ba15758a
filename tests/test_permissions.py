"""Files with messages or hashes of passwords belong to their owner only, whatever the umask is
(docs/security.md, a stolen backup)."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

from support.waiting import PATIENCE

#: Everything that writes files: the journal, its archive, compressed files, last values, queues,
#: stores of clients, the file of users, statistics, dumps and exports.
PROGRAM = """
import os, subprocess, sys
os.umask(0)
import quire

def command(*arguments, **options):
    subprocess.run([sys.executable, "-m", "quire", *arguments], check=True, stdout=subprocess.DEVNULL, **options)

command("user", "add", "anna", "--password-stdin", input=b"correct horse\\n")
config = quire.Config(
    transport={"address": "127.0.0.1:0"},
    authentication={"method": "users", "users_file": "users.toml"},
    data_directory="data",
    transaction_log={"journal_size": "1MB", "journal_archive_directory": "archive"},
    queue=[{"name": "jobs", "message_type": "json"}],
    admin={"address": "127.0.0.1:0", "interval": "1s"},
    sow_topic=[{"name": "last", "message_type": "json", "key": ["/id"]}],
    # The first files of the server: they make the directory of the data, too.
    logging={"target": "file", "file": "logs/quire.log"},
    action={"name": "count", "on": {"publish": {"topic": "jobs"}}, "do": ["rotate_logs"]},
)
with quire.Server(config) as server:
    with quire.Client(
        server.url,
        name="p",
        user="anna",
        password="correct horse",
        publish_store=quire.PublishStore("p.store"),
        bookmark_store=quire.BookmarkStore("b.store"),
    ) as client:
        for number in range(300):
            client.publish("jobs", {"id": number})
            client.publish("last", {"id": number})
            client.publish("orders", bytes(10_000))
        client.flush(60)
        client.subscribe("orders", bookmark=quire.EPOCH).get(60)
        server.journal.compress(age=0)
        server.journal.archive(age=0)
"""


def test_nobody_else_can_read_what_quire_writes(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, check=True, timeout=PATIENCE)
    paths = sorted(tmp_path.rglob("*"))
    names = {path.name for path in paths}
    assert {
        "p.store",
        "b.store",
        "users.toml",
        "data",
        "archive",
        "clients.ack",
        "statistics.db",
        "quire.log",
        "actions",
    } <= names
    assert any(path.parent.name == "archive" for path in paths), "a file was archived"
    for path in paths:
        open_to_others = stat.S_IMODE(path.stat().st_mode) & 0o077
        # A socket is protected by its directory.
        if not path.is_socket():
            assert not open_to_others, f"{path}: {path.stat().st_mode:o}"
