"""Changes of the destinations in a configuration file keep everything else as it is."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import quire
from quire.config._edit import ConfigFile

FILE = """\
# The first instance.
name = "a"   # its name

[replication]
address = "127.0.0.1:9107"
required_acks = 1

# The second machine.
[[replication.destination]]
name = "b"
addresses = ["127.0.0.1:9207"]   # in the cellar
sync_type = "sync"
downgrade_after = "10s"
pass_through = [".*"]

[[replication.destination.topic]]
name = "^orders"
message_type = "json"
filter = "/text = '[[x]]'"

# The log.
[transaction_log]
durability = "os"
"""


@pytest.fixture
def file(tmp_path: Path) -> ConfigFile:
    path = tmp_path / "a.toml"
    path.write_text(FILE)
    path.chmod(0o640)
    return ConfigFile(path)


def test_a_destination_is_added_with_the_settings_of_the_others_and_removed_again(file: ConfigFile) -> None:
    file.add(file.entry("c", "127.0.0.1:9307"))
    added = file.path.read_text()
    assert added == FILE + (
        "\n[[replication.destination]]\n"
        'name = "c"\n'
        'addresses = ["127.0.0.1:9307"]\n'
        'sync_type = "async"\n'
        'pass_through = [".*"]\n'
        "\n[[replication.destination.topic]]\n"
        'name = "^orders"\n'
        'message_type = "json"\n'
        "filter = \"/text = '[[x]]'\"\n"
    )
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o640
    assert [each.name for each in quire.Config.load(file.path).replication.destination] == ["b", "c"]
    file.change("c", file.as_sync())
    changed = added.replace('"async"\n', '"sync"\ndowngrade_after = "10s"\n')
    assert file.path.read_text() == changed
    file.remove("c")
    assert file.path.read_text() == FILE


def test_a_destination_is_removed_and_comments_stay(file: ConfigFile) -> None:
    file.path.write_text(FILE.replace("required_acks = 1\n", ""))
    file = ConfigFile(file.path)
    file.remove("b")
    assert file.path.read_text() == (
        "# The first instance.\n"
        'name = "a"   # its name\n\n'
        "[replication]\n"
        'address = "127.0.0.1:9107"\n\n'
        "# The second machine.\n\n"
        "# The log.\n"
        "[transaction_log]\n"
        'durability = "os"\n'
    )


def test_a_key_of_a_destination_is_changed_and_its_comment_stays(file: ConfigFile) -> None:
    file.change("b", {"addresses": ["10.0.0.9:9207"]})
    changed = FILE.replace('["127.0.0.1:9207"]', '["10.0.0.9:9207"]')
    assert file.path.read_text() == changed


def test_a_change_that_the_configuration_does_not_allow_is_not_written(file: ConfigFile) -> None:
    with pytest.raises(quire.ConfigError, match="required_acks"):
        file.remove("b")
    assert file.path.read_text() == FILE


@pytest.mark.parametrize(
    "destination",
    [
        'destination = [{ name = "b", sync_type = "async", topic = [{ name = "^", message_type = "json" }] }]',
        'destination = { name = "b", sync_type = "async", topic = { name = "^", message_type = "json" } }',
    ],
)
def test_lines_that_a_command_cannot_change_are_named(tmp_path: Path, destination: str) -> None:
    path = tmp_path / "a.toml"
    path.write_text(f'[replication]\naddress = "127.0.0.1:9107"\n{destination}\n')
    file = ConfigFile(path)
    before = path.read_text()
    with pytest.raises(quire.ConfigError, match="cannot be changed by a command"):
        file.remove("b")
    with pytest.raises(quire.ConfigError, match="cannot be changed by a command"):
        file.change("b", {"sync_type": "sync"})
    with pytest.raises(quire.ConfigError, match="cannot be changed by a command"):
        file.add(file.entry("c", "127.0.0.1:9307"))
    assert path.read_text() == before


def test_a_file_with_one_table_instead_of_a_list_is_changed(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    text = (
        '[replication]\naddress = "127.0.0.1:9107"\n\n[replication.destination]\nname = "b"\nsync_type = "async"\n'
        'topic = { name = "^", message_type = "json" }\n'
    )
    path.write_text(text)
    file = ConfigFile(path)
    file.change("b", {"sync_type": "sync"})
    assert path.read_text() == text.replace("async", "sync")
    file.remove("b")
    assert path.read_text() == '[replication]\naddress = "127.0.0.1:9107"\n'
