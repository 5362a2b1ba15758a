"""The check of actions in a configuration, and the page about them."""

from __future__ import annotations

from pathlib import Path

import actions_page
import pytest
import quire
import quire.testing
from quire._errors import ConfigError


def mistake(tmp_path: Path, text: str) -> str:
    file = tmp_path / "one.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        quire.Config.load(file).check()
    return str(raised.value).replace(f"{file}:", "")


#: Triggers, of which each is refused with a text.
BAD_TRIGGERS: dict[str, str] = {
    '{ schedul = "4h" }': 'action[0].on[0].schedul: unknown trigger; did you mean "schedule"?',
    '{ schedule = "25:00" }': "action[0].on[0].schedule: expected a time such as",
    '"schedule"': "action[0].on[0].schedule.at: this key is required",
    '{ signal = "SIGKILL" }': "action[0].on[0].signal: expected",
    '{ publish = { topic = "a", filter = "/a =" } }': "action[0].on[0].publish.filter:",
    '{ publish = { topic = "a", flter = "/a" } }': 'did you mean "filter"?',
    '{ publish = { topic = "a", source = "here" } }': "action[0].on[0].publish.source: expected",
    '{ deliver = { topic = "a", filter = "/a =" } }': "action[0].on[0].deliver.filter:",
    '{ expire_message = "none" }': 'no queue and no last-value topic has the name "none"',
    '{ delete_message = "none" }': 'no last-value topic has the name "none"',
}
#: Steps, of which each is refused with a text.
BAD_STEPS: dict[str, str] = {
    '"rotate_log"': 'action[0].do[0].rotate_log: unknown step; did you mean "rotate_logs"?',
    '{ rotate_logs = "x" }': 'action[0].do[0].rotate_logs: expected no value: write "rotate_logs"',
    "{ archive_journal = {} }": "expected exactly one of age and size_max",
    '{ execute = ["/bin/true"] }': "it requires allow_execute = true",
    '{ log = "{{name}}" }': "{{name}} is no variable",
    '{ log = "{{NAME:xml}}" }': "expected one of json, base64, url, filter",
    '{ delete_records = { topic = "a", filter = "/a = \'{{A}}\'" } }': "write {{A:filter}}",
    '{ publish = { topic = "^a", data = "" } }': "expected a name, and no pattern",
    '{ publish = { topic = "/quire/a", data = "" } }': "only the server publishes",
    '{ publish = { topic = "a", data = "", update_only = true } }': 'no last-value topic has the name "a"',
    '{ compact_records = "a" }': 'no last-value topic has the name "a"',
    '{ if_free_space = { path = ".", below = "many" } }': "below: 'many' is not a size",
    '{ if_free_space = { path = ".", below = "٢٣%" } }': "below: '٢٣%' is not a size",
}
#: Actions that start themselves.
CYCLES: dict[str, str] = {
    '{ publish = "a" }': '{ publish = { topic = "a", data = "x" } }',
    '{ deliver = "a" }': '{ publish = { topic = "a", data = "x" } }',
    '{ event = "a" }': '{ raise_event = "a" }',
}


@pytest.mark.parametrize(
    ("on", "do", "expected"),
    [
        *((on, '"rotate_logs"', expected) for on, expected in BAD_TRIGGERS.items()),
        *(('"startup"', do, expected) for do, expected in BAD_STEPS.items()),
        *((on, do, "action[0].do[0]: a cycle: a starts a") for on, do in CYCLES.items()),
    ],
)
def test_a_mistake_has_its_key_and_its_line(on: str, do: str, expected: str, tmp_path: Path) -> None:
    text = mistake(tmp_path, f'name = "one"\n\n[[action]]\nname = "a"\non = {on}\ndo = [\n    {do},\n]\n')
    assert expected in text
    line = 7 if ".do[" in text else 5
    assert text.startswith(f"{line}:"), text


@pytest.mark.parametrize(
    ("on", "do"),
    [
        ('"startup"', '{ compact_records = "all" }'),
        ('"startup"', '{ publish = { topic = "all", data = "x", update_only = true } }'),
        ('{ oof_message = "all" }', '"rotate_logs"'),
        ('{ expire_message = "all" }', '"rotate_logs"'),
    ],
)
def test_the_name_of_an_entry_with_a_pattern_is_not_a_topic(on: str, do: str, tmp_path: Path) -> None:
    entry = '[[sow_topic]]\nname = "all"\nmessage_type = "json"\nkey = "/id"\npattern = "orders/.*"\n'
    text = mistake(tmp_path, f'{entry}[[action]]\nname = "a"\non = {on}\ndo = {do}\n')
    assert 'last-value topic has the name "all": it is the name of an entry; write a topic that' in text


def test_actions_that_start_each_other_are_refused(tmp_path: Path) -> None:
    chain = "".join(
        f'[[action]]\nname = "{name}"\non = {{ publish = "{name}" }}\n'
        f'do = [{{ publish = {{ topic = "{to}", data = "x" }} }}]\n'
        for name, to in (("a", "b"), ("b", "c"), ("c", "a"))
    )
    assert "a cycle: a starts b starts c starts a" in mistake(tmp_path, chain)
    open_chain = chain.replace('topic = "a"', 'topic = "d"')
    (tmp_path / "open.toml").write_text(open_chain)
    quire.Config.load(tmp_path / "open.toml").check()


def test_a_message_put_back_into_its_queue_is_a_cycle(tmp_path: Path) -> None:
    text = (
        '[[queue]]\nname = "jobs"\nmessage_type = "json"\n[[action]]\nname = "a"\non = { expire_message = "jobs" }\n'
        'do = [{ publish = { topic = "jobs", data = "{{DATA}}" } }]\n'
    )
    assert "a cycle: a starts a" in mistake(tmp_path, text)


def test_an_engine_in_the_program_refuses_actions() -> None:
    config = quire.Config(action={"name": "a", "on": "startup", "do": "dump_stacks"})
    with pytest.raises(ConfigError, match="an engine in this process runs no actions"):
        quire.Client("memory:actions", config=config)


def test_the_page_has_the_tables_of_the_code() -> None:
    assert actions_page.PAGE.read_text() == actions_page.page()
