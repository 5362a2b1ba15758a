"""The configuration says what is wrong with which key on which line, and starts nothing half-configured."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any, get_args

import pytest
import quire
import quire.config
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from quire._filter import MessageType
from quire.config import Config
from quire.config._example import EXAMPLE


def load(directory: Path, text: str) -> Config:
    path = directory / "quire.toml"
    path.write_text(text)
    return Config.load(path)


@pytest.mark.parametrize("directory", ["~/data", "${HOME}/data", "$HOME/data", "/srv/${NAME}"])
def test_a_directory_that_a_shell_would_replace_is_refused(tmp_path: Path, directory: str) -> None:
    file = tmp_path / "quire.toml"
    for text, key in (
        (f'data_directory = "{directory}"', "data_directory"),
        (f'[transaction_log]\njournal_directory = "{directory}"', "transaction_log.journal_directory"),
    ):
        file.write_text(text)
        with pytest.raises(quire.ConfigError, match=r"(is|are) not replaced") as caught:
            quire.Config.load(file)
        assert caught.value.key == key
    assert quire.Config(data_directory="a$b~").data_directory == Path("a$b~")


def test_without_settings_everything_is_recorded_as_json_below_the_working_directory() -> None:
    core = json.loads(Config().to_core())
    assert core["transaction_log"]["journal_directory"] == "quire-data/journal"
    assert core["transaction_log"]["topics"] == [
        {"name": "^", "message_type": "json", "filter": None, "recorded": True, "validate": False}
    ]
    assert str(Config().address) == "127.0.0.1:9007"


def test_the_example_is_a_configuration_with_the_defaults(tmp_path: Path) -> None:
    config = load(tmp_path, EXAMPLE)
    assert config == Config(data_directory=tmp_path / "quire-data")


def test_the_example_of_replication_can_be_used(tmp_path: Path) -> None:
    head, _, links = EXAMPLE.partition("# [replication]")
    # The files are not there, and a destination has one kind of identity.
    files = ("tls =", "authentication =", "user =", "password_file =", "token_file =")
    lines = [line.removeprefix("# ") for line in links.splitlines()]
    uncommented = [line for line in lines if not line.startswith(files)]
    config = load(tmp_path, "\n".join([head.rstrip("# "), "[replication]", *uncommented]))
    config.check()
    [destination] = config.replication.destination
    assert (destination.sync_type, destination.downgrade_after) == ("sync", 10.0)


def test_the_example_has_every_key() -> None:
    keys: dict[str, set[str]] = {"": {"allow_execute", "local_queue"}, "queue": {"target_queue_depth"}}
    table = ""
    for line in EXAMPLE.splitlines():
        if head := re.match(r"(?:# )*\[+([\w.]+)\]+", line):
            table = head[1]
            for above in (table[: dot.start()] for dot in re.finditer(r"\.|$", table)):
                keys.setdefault(above, set())
                keys[above.rpartition(".")[0]].add(above.rpartition(".")[2])
        keys[table].update(re.findall(r"(\w+) =", line))
    inline = set().union(*keys.values())
    missing: set[str] = set()
    models: list[tuple[str, type[BaseModel]]] = [("", Config)]
    for table, model in models:
        names = {name: field.alias or name for name, field in model.model_fields.items()}
        # A table that the example writes in one line has its keys anywhere.
        missing |= {f"{table}.{name}" for name in names.values() if name not in keys.get(table, inline)}
        for name, field in model.model_fields.items():
            known = {kind for _, kind in models}
            below = f"{table}.{names[name]}".removeprefix(".")
            kinds = (kind for kind in _models_in(field.annotation) if kind not in known)
            models.extend((below, kind) for kind in kinds)
    assert missing == set()
    assert ("queue", quire.config.Queue) in models


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [kind for part in get_args(annotation) for kind in _models_in(part)]


def test_one_retry_delay_can_be_written_without_a_list(tmp_path: Path) -> None:
    text = '[queue]\nname = "JOBS"\nmessage_type = "json"\nretry_delay = "1s"'
    assert load(tmp_path, text).queue[0].retry_delay == (1.0,)


def test_sizes_intervals_and_directories_are_read(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
        data_directory = "d"
        [[transport]]
        address = "127.0.0.1:0"
        max_message_size = "2MB"
        [transaction_log]
        journal_directory = "/elsewhere"
        journal_size = "1MB"
        flush_interval = "30us"
        [[transaction_log.topic]]
        name = "^ORDERS"
        message_type = "json"
        filter = "/qty > 0"
        """,
    )
    core = json.loads(config.to_core())
    assert core["transports"][0]["max_message_size"] == 2 * 1024**2
    assert core["transaction_log"]["journal_directory"] == "/elsewhere"
    assert core["transaction_log"]["journal_size"] == 1024**2
    assert core["transaction_log"]["flush_interval_ns"] == 30_000
    assert config.data_directory == tmp_path / "d"


@pytest.mark.parametrize(
    ("text", "mistakes"),
    [
        ("nme = 'x'", ['1: nme: unknown key; did you mean "name"?']),
        (
            "name = 'x'\n[transaction_log]\njournal_sise = '1MB'",
            ['3: transaction_log.journal_sise: unknown key; did you mean "journal_size"?'],
        ),
        ("[transaction_log]\nzzz = 1", ["2: transaction_log.zzz: unknown key"]),
        (
            "[transaction_log]\nsequence_jump_logged = 100",
            ["2: transaction_log.sequence_jump_logged: unknown key"],
        ),
        (
            "[transaction_log]\njournal_size = '1KB'",
            ['2: transaction_log.journal_size: expected a size of at least 64KB such as "64MB", got "1KB"'],
        ),
        (
            f"[transaction_log]\njournal_size = '{'9' * 400}'",
            [
                '2: transaction_log.journal_size: expected a size of at least 64KB such as "64MB", '
                f'got "{"9" * 64}…"'
            ],
        ),
        (
            "[[transport]]\nmax_message_size = 5",
            ['2: transport[0].max_message_size: expected a size from 1KB to 1GB such as "16MB", got 5'],
        ),
        (
            "[transaction_log]\nflush_interval = '1s'",
            [
                "2: transaction_log.flush_interval: expected a duration from 30us to 100ms such as "
                '"100ms", got "1s"'
            ],
        ),
        (
            "[[transport]]\naddress = 'localhost:٩٣٣٧'",
            [
                '2: transport[0].address: expected an address such as "127.0.0.1:9007", with a port up to '
                '65535, got "localhost:٩٣٣٧"'
            ],
        ),
        (
            "[[transport]]\naddress = 'here'",
            [
                '2: transport[0].address: expected an address such as "127.0.0.1:9007", with a port up to '
                '65535, got "here"'
            ],
        ),
        (
            "[[transaction_log.topic]]\nname = 'a'",
            ["1: transaction_log.topic[0].message_type: this key is required"],
        ),
        (
            "[[queue]]\nname = 'a'\nlease_period = '1s'\n[[queue]]\nname = 'b'\nlease_period = 'soon'",
            [
                "1: queue[0].message_type: this key is required",
                "4: queue[1].message_type: this key is required",
                '6: queue[1].lease_period: expected a duration above 0 such as "30s", or "disabled", got "soon"',
            ],
        ),
        (
            "nme = 'x'\n[transaction_log]\nx = 1\n[limits]\nmax_patterns = -1",
            [
                '1: nme: unknown key; did you mean "name"?',
                "3: transaction_log.x: unknown key",
                "5: limits.max_patterns: expected a whole number of at least 0, got -1",
            ],
        ),
        (
            "[transaction_log]\ndurability = 'maybe'",
            ['2: transaction_log.durability: expected "fsync" or "os", got "maybe"'],
        ),
        (
            "name = 'a b'",
            [
                '1: name: expected 1 to 100 letters, digits, "-", "_" or ".", not beginning with ".", '
                'got "a b"'
            ],
        ),
        ("name = 5", ["1: name: expected text, got 5"]),
        ("limits = 5", ["1: limits: expected a table, got 5"]),
        ("queue = 5", ["1: queue: expected a list, got 5"]),
        ("transport = []", ["1: transport: expected a list of at least 1, got 0"]),
        (
            "transaction_log = {durability = 'maybe'}",
            ['1: transaction_log.durability: expected "fsync" or "os", got "maybe"'],
        ),
        (
            "[[queue]]\nname = 'a'\nmessage_type = 'json'\nretry_delay = [\n  '1s',\n  'soon',\n]",
            ['6: queue[0].retry_delay[1]: expected a duration such as "30s", got "soon"'],
        ),
        (
            "[[transport]]\nmax_connections = 'many'\n[transaction_log.maintenance]\nby_clients = ['all']",
            [
                '2: transport[0].max_connections: expected a whole number, got "many"',
                '4: transaction_log.maintenance.by_clients[0]: expected "archive", "compress" or "remove", '
                'got "all"',
            ],
        ),
        (
            "allow_backtracking_patterns = 'perhaps'",
            ['1: allow_backtracking_patterns: expected true or false, got "perhaps"'],
        ),
        ("name = 'a'\n= 3", ["2: not TOML: invalid statement, at column 1"]),
        ("name = orders-1", ['1: not TOML: invalid value, at column 8; write a text in quotes: "orders-1"']),
        (
            "[limits]\nlease_period = 30s",
            [
                "2: not TOML: expected newline or end of document after a statement, at column 18; "
                'write a text in quotes: "30s"'
            ],
        ),
        (
            "name = 'a'\n[transport",
            ["2: not TOML: expected ']' at the end of a table declaration, at the end of the file"],
        ),
    ],
)
def test_every_mistake_names_file_line_and_key_in_the_order_of_the_file(
    tmp_path: Path, text: str, mistakes: list[str]
) -> None:
    with pytest.raises(quire.ConfigError) as caught:
        load(tmp_path, text)
    path = tmp_path / "quire.toml"
    assert str(caught.value).splitlines() == [f"{path}:{mistake}" for mistake in mistakes]
    assert [str(mistake) for mistake in caught.value.mistakes] == [
        f"{path}:{mistake}" for mistake in mistakes
    ]


def test_a_mistake_has_its_key_file_and_line_as_attributes(tmp_path: Path) -> None:
    with pytest.raises(quire.ConfigError) as caught:
        load(tmp_path, "name = 'x'\n[transaction_log]\nx = 1\ny = 2")
    error = caught.value
    place = (str(tmp_path / "quire.toml"), 3, "transaction_log.x")
    assert (error.file, error.line, error.key) == place
    assert [(mistake.line, mistake.key) for mistake in error.mistakes] == [
        (3, "transaction_log.x"),
        (4, "transaction_log.y"),
    ]
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.file, copy.line, copy.key, str(copy)) == (*place, str(error))
    assert [str(mistake) for mistake in copy.mistakes] == [str(mistake) for mistake in error.mistakes]


@pytest.mark.parametrize(
    ("text", "line", "key", "reason"),
    [
        (
            "name = 'a'\n[[transaction_log.topic]]\nname = '('\nmessage_type = 'json'",
            3,
            "transaction_log.topic[0].name",
            "unclosed group",
        ),
        (
            "[[transaction_log.topic]]\nname = 'a'\nmessage_type = 'json'\n"
            "[[transaction_log.topic]]\nname = 'b'\nmessage_type = 'json'\nfilter = '/a ='",
            7,
            "transaction_log.topic[1].filter",
            "column 5",
        ),
        (
            "[[queue]]\nname = 'a'\nmessage_type = 'json'\nunderlying_topic = 't'\n"
            "[[queue]]\nname = 'b'\nmessage_type = 'json'\nunderlying_topic = 'u'\npriority = '/a +'",
            9,
            "queue[1].priority",
            "priority: column 5: ",
        ),
        (
            "[transaction_log]\n[transaction_log.maintenance]\narchive_after = '1d'",
            3,
            "transaction_log.maintenance.archive_after",
            "journal_archive_directory",
        ),
    ],
)
def test_a_mistake_that_only_the_core_sees_has_its_place_too(
    tmp_path: Path, text: str, line: int, key: str, reason: str
) -> None:
    config = load(tmp_path, text)
    for start in (config.check, quire.Server(config.replace(address="127.0.0.1:0")).start):
        with pytest.raises(quire.ConfigError, match=reason) as caught:
            start()
        error = caught.value
        assert (error.file, error.line, error.key) == (str(tmp_path / "quire.toml"), line, key)
        assert str(error).count(key) == 1


def test_topics_of_a_queue_that_are_not_recorded_are_reported_together(tmp_path: Path) -> None:
    text = (
        "[[transaction_log.topic]]\nname = 'a'\nmessage_type = 'json'\n"
        "[[queue]]\nname = 'jobs'\nmessage_type = 'json'\nunderlying_topic = 'b'\ndead_letter_topic = 'c'"
    )
    with pytest.raises(quire.ConfigError) as caught:
        load(tmp_path, text).check()
    places = [(mistake.line, mistake.key) for mistake in caught.value.mistakes]
    assert places == [(7, "queue[0].underlying_topic"), (8, "queue[0].dead_letter_topic")]


def test_every_mistake_that_only_the_core_sees_is_reported_at_once(tmp_path: Path) -> None:
    text = (
        "[[transaction_log.topic]]\nname = '('\nmessage_type = 'json'\nfilter = '/a ='\n"
        "[[transaction_log.topic]]\nname = 'b'\nmessage_type = 'json'\nfilter = '/a +'\n"
    )
    config = load(tmp_path, text)
    for start in (config.check, quire.Server(config.replace(address="127.0.0.1:0")).start):
        with pytest.raises(quire.ConfigError) as caught:
            start()
        assert [(mistake.line, mistake.key) for mistake in caught.value.mistakes] == [
            (2, "transaction_log.topic[0].name"),
            (4, "transaction_log.topic[0].filter"),
            (8, "transaction_log.topic[1].filter"),
        ]


def test_the_mistakes_of_all_stages_are_reported_at_once(tmp_path: Path) -> None:
    text = (
        "x = 1\n"
        "[[group_local_queue]]\nname = 'v'\n"
        "[[queue]]\nname = 'a'\nmessage_type = 'json'\nlease_period = 'long'\nfilter = '/a ='\n"
        "[[queue]]\nmessage_type = 'json'\n"
        "[[queue]]\nname = 'c'\nmessage_type = 'json'\nfilter = '/a +'\n"
        "[[sow_topic]]\nname = 'c'\nmessage_type = 'json'\nhistory = 1\nindex = 5\n"
        "[[sow_topic]]\nname = 'd'\nmessage_type = 'json'\nkey = ['id']\n"
    )
    with pytest.raises(quire.ConfigError) as caught:
        load(tmp_path, text)
    assert [(mistake.line, mistake.key) for mistake in caught.value.mistakes] == [
        (1, "x"),
        (2, "group_local_queue"),
        (7, "queue[0].lease_period"),
        (8, "queue[0].filter"),
        (9, "queue[1].name"),
        (14, "queue[2].filter"),
        (18, "sow_topic[0].history"),
        (19, "sow_topic[0].index"),
        (23, "sow_topic[1].key"),
    ]


def test_an_unknown_key_with_the_name_of_a_required_one_is_a_mistake(tmp_path: Path) -> None:
    text = "[[transport]]\nmessage_type = 'json'\n[limits]\nname = 'a'\nmax_topics = 0\n"
    with pytest.raises(quire.ConfigError) as caught:
        load(tmp_path, text)
    assert [mistake.key for mistake in caught.value.mistakes] == [
        "transport[0].message_type",
        "limits.name",
        "limits.max_topics",
    ]


def test_a_mistake_that_follows_from_another_is_not_reported(tmp_path: Path) -> None:
    text = (
        "[transaction_log]\njournal_archive_directory = 1\n[transaction_log.maintenance]\narchive_after = '1d'\n"
        "[[transaction_log.topic]]\nname = 'a'\n"
        "[[transaction_log.topic]]\nname = 'b'\nmessage_type = 'json'\n"
        "[[queue]]\nname = 'q'\nmessage_type = 'json'\nunderlying_topic = 'a'\n"
    )
    with pytest.raises(quire.ConfigError) as caught:
        load(tmp_path, text)
    assert [(mistake.line, mistake.key) for mistake in caught.value.mistakes] == [
        (2, "transaction_log.journal_archive_directory"),
        (5, "transaction_log.topic[0].message_type"),
    ]


def test_a_single_table_stands_for_a_list_of_one() -> None:
    topic = {"name": "orders", "message_type": "json"}
    assert Config(transaction_log={"topic": topic}) == Config(transaction_log={"topic": [topic]})


def test_a_mistake_in_python_names_the_key() -> None:
    with pytest.raises(quire.ConfigError, match=r"transaction_log\.durability") as caught:
        Config(transaction_log={"durability": "maybe"})
    assert (caught.value.key, caught.value.file, caught.value.line) == (
        "transaction_log.durability",
        None,
        None,
    )
    with pytest.raises(quire.ConfigError, match="url: the list is empty") as caught:
        quire.Client([])
    assert caught.value.key == "url"


def test_a_filter_or_pattern_that_does_not_parse_stops_the_start(tmp_path: Path) -> None:
    topic = {"name": "t", "message_type": "json", "filter": "/a ="}
    config = Config(
        data_directory=tmp_path, transport={"address": "127.0.0.1:0"}, transaction_log={"topic": [topic]}
    )
    with pytest.raises(quire.ConfigError, match="filter"):
        quire.Server(config).start()


@pytest.mark.parametrize("message_type", get_args(MessageType))
def test_every_message_type_is_configured_by_its_name(message_type: MessageType) -> None:
    Config(transaction_log={"topic": [{"name": "t", "message_type": message_type}]}).check()


def test_backtracking_patterns_are_for_configurations_that_allow_them() -> None:
    topic = {"name": "t", "message_type": "json", "filter": r"/state LIKE '(.)\1'"}
    with pytest.raises(quire.ConfigError, match="backtracking"):
        Config(transaction_log={"topic": [topic]}).check()
    Config(transaction_log={"topic": [topic]}, allow_backtracking_patterns=True).check()


def test_the_queue_of_the_example_is_a_queue(tmp_path: Path) -> None:
    head, queue = EXAMPLE.split("# Example of replication")[0].split("# [[queue]]")
    config = load(
        tmp_path, head + "\n".join(line.removeprefix("# ") for line in f"# [[queue]]{queue}".splitlines())
    )
    config.check()
    [core] = json.loads(config.to_core())["queues"]
    assert (core["name"], core["lease_period_ns"], core["expiration_ns"]) == (
        "ORDERS_RISK",
        30 * 10**9,
        3600 * 10**9,
    )
    assert config.replace(address="127.0.0.1:0").queue == config.queue


def test_a_queue_that_cannot_be_names_itself_and_the_key() -> None:
    cases: list[tuple[dict[str, object], str]] = [
        ({"underlying_topic": "^a"}, "default_publish_target"),
        ({"priority": "/a +"}, "priority"),
        ({"target_queue_depth": 5, "priority": "/a"}, "target_queue_depth"),
    ]
    for changed, key in cases:
        with pytest.raises(quire.ConfigError, match=f'{key}.*"jobs"|{key}'):
            Config(queue={"name": "jobs", "message_type": "json", **changed}).check()


def test_the_older_name_of_the_target_depth_is_taken_but_not_beside_the_newer() -> None:
    queue = {"name": "jobs", "message_type": "json", "max_queue_depth": 5}
    assert Config(queue=queue).queue[0].target_queue_depth == 5
    with pytest.raises(quire.ConfigError, match="same setting"):
        Config(queue={**queue, "target_queue_depth": 5})


#: Words of the libraries that read the values.
_FOREIGN = r"Input should|Value error|pydantic|https?:|(?<!exclude_)validation|[Tt]uple|serde|\bu(32|64)\b|line 1 column|timedelta"

_KEYS = sorted(set(re.findall(r"^#? ?(\w+) =", EXAMPLE, re.MULTILINE)))
_TABLES = sorted(set(re.findall(r"^#? ?(\[+\w[\w.]*\]+)", EXAMPLE, re.MULTILINE)))
_VALUES = st.one_of(
    st.sampled_from(
        [
            '""',
            '"1MB"',
            '"30us"',
            '"-1s"',
            '"^a("',
            '"/a +"',
            "[]",
            "{}",
            "[[1]]",
            "nan",
            "1979-05-27",
            "true",
        ]
    ),
    st.integers().map(str),
    st.floats().map(repr),
    st.text(max_size=8).map(json.dumps),
)
_LINES = st.one_of(
    st.sampled_from(_TABLES),
    st.builds("{} = {}".format, st.sampled_from(_KEYS), _VALUES),
    st.text(max_size=20),
)


def test_a_configuration_can_be_built_from_its_models() -> None:
    models = Config(
        transport=quire.config.Transport(address="127.0.0.1:0"),
        transaction_log=quire.config.TransactionLog(
            topic=(quire.config.RecordedTopic(name="orders", message_type="json"),),
            maintenance=quire.config.Maintenance(archive_after=86_400),
        ),
        queue=quire.config.Queue(name="JOBS", message_type="json", lease_period=30),
    )
    mappings = Config(
        transport={"address": "127.0.0.1:0"},
        transaction_log={
            "topic": [{"name": "orders", "message_type": "json"}],
            "maintenance": {"archive_after": "1d"},
        },
        queue={"name": "JOBS", "message_type": "json", "lease_period": "30s"},
    )
    assert models == mappings


@given(st.lists(_LINES, max_size=8).map("\n".join))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_a_configuration_or_a_mistake_that_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "quire.toml"
    path.write_text(text, encoding="utf-8")
    try:
        Config.load(path).check()
        return
    except quire.ConfigError as error:
        mistake = error
    assert mistake.file == str(path)
    assert not re.search(_FOREIGN, str(mistake)), str(mistake)
    # A text that is not TOML has a line instead of a key.
    assert mistake.key or mistake.line, str(mistake)


def test_a_file_in_another_encoding_is_a_mistake_that_is_named(tmp_path: Path) -> None:
    path = tmp_path / "quire.toml"
    path.write_bytes('name = "Zürich"'.encode("latin-1"))
    with pytest.raises(quire.ConfigError, match=r"quire\.toml.*UTF-8"):
        Config.load(path)


def test_the_last_value_topic_of_the_example_is_one(tmp_path: Path) -> None:
    begin, end = EXAMPLE.index("# [[sow_topic]]"), EXAMPLE.index("# Example view")
    lines = [line.removeprefix("# ") for line in EXAMPLE[begin:end].splitlines()]
    # The recovery point is for transient topics, and a topic with a pattern keeps no history.
    for without in ("pattern =", "history ="):
        kept = [line for line in lines if not line.startswith(("recovery_point", without))]
        config = load(tmp_path, EXAMPLE + "\n".join(kept))
        config.check()
        [topic] = config.sow_topic
        assert (topic.name, topic.key, topic.expiration) == ("orders", ("/order_id",), "disabled")


def test_the_view_of_the_example_is_one(tmp_path: Path) -> None:
    begin, end = EXAMPLE.index("# [[view]]"), EXAMPLE.index("# Example conflated topic")
    lines = [line.removeprefix("# ") for line in EXAMPLE[begin:end].splitlines()]
    config = load(tmp_path, EXAMPLE + SOW_TOPIC + "\n".join(lines))
    config.check()
    [view] = config.view
    assert (view.name, view.underlying_topic, view.grouping) == ("exposure", "orders", ("/account",))


def test_the_conflated_topic_of_the_example_is_one(tmp_path: Path) -> None:
    begin, end = EXAMPLE.index("# [[conflated_topic]]"), EXAMPLE.index("# Example queue")
    lines = [line.removeprefix("# ") for line in EXAMPLE[begin:end].splitlines()]
    config = load(tmp_path, EXAMPLE + SOW_TOPIC + "\n".join(lines))
    config.check()
    [topic] = config.conflated_topic
    assert (topic.name, topic.underlying_topic, topic.interval) == ("orders-C", "orders", 5.0)


SOW_TOPIC = """
[[sow_topic]]
name = "orders"
message_type = "json"
"""


def test_a_last_value_topic_is_passed_on_with_its_lifetime_in_nanoseconds(tmp_path: Path) -> None:
    extra = """
key = "/id"
hash_index = [["/symbol", "/side"], "/symbol"]
index = ["/price"]
expiration = "30s"
preprocessing = "1 AS /a"
enrichment = ["/a OF PREVIOUS AS /b", "/c"]
history = { window = "1d", granularity = "1m" }
"""
    config = load(tmp_path, SOW_TOPIC + extra)
    assert json.loads(config.to_core())["sow_topics"] == [
        {
            "name": "orders",
            "message_type": "json",
            "key": ["/id"],
            "key_domain": None,
            "durability": "persistent",
            "hash_index": [["/symbol", "/side"], ["/symbol"]],
            "index": ["/price"],
            "expiration": {"after_ns": 30_000_000_000},
            "preprocessing": ["1 AS /a"],
            "enrichment": ["/a OF PREVIOUS AS /b", "/c"],
            "history": {"window_ns": 86_400 * 10**9, "granularity_ns": 60 * 10**9, "max_size": 1 << 30},
            "pattern": None,
            "file_backed": False,
            "recovery_point": None,
        }
    ]
    assert Config(sow_topic={"name": "orders", "message_type": "json"}).sow_topic[0].expiration == "disabled"


def test_a_last_value_topic_with_a_pattern_keeps_no_history(tmp_path: Path) -> None:
    config = load(tmp_path, SOW_TOPIC + 'pattern = "orders/.*"')
    assert json.loads(config.to_core())["sow_topics"][0]["pattern"] == "orders/.*"
    config.check()
    config = load(tmp_path, SOW_TOPIC + 'pattern = "orders/.*"\nhistory = { window = "1d" }')
    with pytest.raises(quire.ConfigError, match="keep no history") as refused:
        config.check()
    assert refused.value.key == "sow_topic[0].history"


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        (SOW_TOPIC + "history = {}", "sow_topic[0].history.window", "required"),
        (SOW_TOPIC + 'history = { window = "0s" }', "sow_topic[0].history.window", "above 0"),
        (
            SOW_TOPIC + 'history = { window = "1s", granularity = "2s" }',
            "sow_topic[0].history",
            "longer than",
        ),
        (SOW_TOPIC + 'history = { window = "1s", max_size = "1B" }', "sow_topic[0].history.max_size", "64KB"),
        (SOW_TOPIC + 'history = { window = "1s", depth = 3 }', "sow_topic[0].history.depth", "unknown key"),
        (SOW_TOPIC + "preprocessing = [1]", "sow_topic[0].preprocessing[0]", "text"),
        (SOW_TOPIC + "pattern = 1", "sow_topic[0].pattern", "text"),
        ("[[group_local_queue]]", "group_local_queue", "group_local_queue is not in this version"),
        (SOW_TOPIC + 'durability = "x"', "sow_topic[0].durability", "persistent"),
        (SOW_TOPIC + 'expiration = "0s"', "sow_topic[0].expiration", "0"),
        (SOW_TOPIC + 'expiration = "never"', "sow_topic[0].expiration", "never"),
        (SOW_TOPIC + "filter = 1", "sow_topic[0].filter", "unknown key"),
        (
            "[[transaction_log.topic]]\nname = 'a'\nmessage_type = 'json'\ndurability = 'os'",
            "transaction_log.topic[0].durability",
            "unknown key; it belongs to [transaction_log]",
        ),
        ("[transaction_log]\nname = 'a'", "transaction_log.name", "it belongs before all tables"),
        ("lease_period = '1s'", "lease_period", "unknown key; it belongs to [[queue]] or [[local_queue]]"),
    ],
)
def test_a_mistake_in_a_last_value_topic_is_named(tmp_path: Path, text: str, key: str, reason: str) -> None:
    with pytest.raises(quire.ConfigError, match=re.escape(reason)) as refused:
        load(tmp_path, text)
    assert (refused.value.key or "").startswith(key)


def test_a_mistake_in_a_constructed_field_is_named_with_its_entry_and_column(tmp_path: Path) -> None:
    lists = """
preprocessing = ["/a AS /b", "/a OF PREVIOUS AS /c"]
enrichment = [
    "1 AS /d",
    "/qty + AS /e",
]
"""
    config = load(tmp_path, SOW_TOPIC + lists)
    with pytest.raises(quire.ConfigError) as refused:
        config.check()
    text = str(refused.value)
    for part in ("sow_topic[0].preprocessing[1]", "only for enrichment", "sow_topic[0].enrichment[1]"):
        assert part in text
    assert re.findall(r"entry (\d)", text) == ["2", "2"]
    assert "column 8" in text
