"""Every Python example of the README and the docs runs, and every configuration is sound."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import quire
import quire.config
from pydantic import BaseModel
from support.spark import SPARK_TOO_SLOW

ROOT = Path(__file__).parent.parent


def examples(language: str = "python") -> Iterator[tuple[str, str]]:
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for number, block in enumerate(
            re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.S | re.M), start=1
        ):
            yield f"{path.relative_to(ROOT)}-{number}", block


CONFIGURATIONS = dict(examples("toml"))


@pytest.mark.parametrize("text", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_a_configuration_is_sound(text: str, tmp_path: Path) -> None:
    (tmp_path / "quire.toml").write_text(text)
    quire.Config.load(tmp_path / "quire.toml")


PROGRAMS = dict(examples())
#: They share a Java machine: starting one costs more than most of them.
WITH_SPARK = {name: program for name, program in PROGRAMS.items() if "import quire.spark" in program}
OTHERS = {name: program for name, program in PROGRAMS.items() if name not in WITH_SPARK}

#: Runs one example after the other, each in an empty directory. The Java machine cannot change its
#: directory, so it stays, and the files of an example leave it.
ONE_AFTER_THE_OTHER = """
import json, sys
from pathlib import Path

for name, program in json.load(sys.stdin).items():
    print("begins:", name, file=sys.stderr, flush=True)
    exec(compile(program, name, "exec"), {"__name__": "example"})
    done = Path("..", "done", name)
    done.mkdir(parents=True)
    for path in Path().iterdir():
        path.rename(done / path)
"""


@pytest.mark.parametrize("program", OTHERS.values(), ids=OTHERS)
def test_an_example_runs(program: str, tmp_path: Path) -> None:
    result = run(program, tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.timeout(3600)
def test_the_examples_with_spark_run(tmp_path: Path) -> None:
    for attempt in range(5):
        directory = tmp_path / str(attempt) / "here"
        directory.mkdir(parents=True)
        result = subprocess.run(
            [sys.executable, "-c", ONE_AFTER_THE_OTHER],
            cwd=directory,
            input=json.dumps(WITH_SPARK),
            capture_output=True,
            text=True,
            timeout=1000,
        )
        if SPARK_TOO_SLOW not in result.stderr:
            break
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.findall("^begins: (.*)$", result.stderr, re.M) == list(WITH_SPARK)


def run(program: str, directory: Path) -> subprocess.CompletedProcess[str]:
    if "\ndef test_" in program:
        (directory / "test_example.py").write_text(program)
        command = [sys.executable, "-m", "pytest", "-q", "--basetemp=kept", "test_example.py"]
    else:
        # An example that uses a server gets a separate one.
        setting = (
            "import quire.testing\n"
            "with quire.testing.server() as server:\n"
            f"    program = {program!r}.replace('quire://127.0.0.1:9007', server.url)\n"
            "    exec(compile(program, 'example', 'exec'), {'__name__': 'example'})\n"
        )
        command = [sys.executable, "-c", setting]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=1000)


def test_every_page_that_the_readme_names_is_there() -> None:
    for page in re.findall(r"\]\((docs/[a-z/-]+\.md)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / page).is_file(), page


def test_the_page_of_the_configuration_has_every_key() -> None:
    page = (ROOT / "docs/reference/configuration.md").read_text()
    tables: dict[str, tuple[type[BaseModel], set[str]]] = {
        "Server": (
            quire.Config,
            {
                "transport",
                "authentication",
                "entitlement",
                "user_limit",
                "logging",
                "events",
                "action",
                "limits",
                "transaction_log",
                "queue",
                "local_queue",
                "sow_topic",
                "view",
                "conflated_topic",
                "replication",
                "admin",
            },
        ),
        "`[admin]`": (quire.config.Admin, set()),
        "`[[transport]]`": (quire.config.Transport, set()),
        "`[authentication]`": (quire.config.Authentication, set()),
        "`[[entitlement]]`": (quire.config.Entitlement, set()),
        "`[[user_limit]]`": (quire.config.UserLimit, set()),
        "`[events]`": (quire.config.Events, set()),
        "`[[action]]`": (quire.config.Action, set()),
        "`[[logging]]`": (quire.config.Logging, set()),
        "`[limits]`": (quire.config.Limits, set()),
        "`[transaction_log]`": (quire.config.TransactionLog, {"topic", "maintenance"}),
        "`[[transaction_log.topic]]`": (quire.config.RecordedTopic, set()),
        "`[transaction_log.maintenance]`": (quire.config.Maintenance, set()),
        "`[[sow_topic]]`": (quire.config.SowTopic, set()),
        "`[[view]]`": (quire.config.View, set()),
        "`[[conflated_topic]]`": (quire.config.ConflatedTopic, set()),
        "`[replication]`": (quire.config.Replication, {"destination"}),
        "`[[replication.destination]]`": (quire.config.Destination, {"topic"}),
        "`[[replication.destination.topic]]`": (quire.config.ReplicatedTopic, set()),
        "`[[local_queue]]`": (quire.config.Queue, {*quire.config.Queue.model_fields}),
        "`[[queue]]`": (quire.config.Queue, set()),
    }
    sections = dict(section.split("\n", 1) for section in page.split("\n## ")[1:])
    assert set(sections) == set(tables)
    for title, (model, tables_below) in tables.items():
        keys = {field.alias or name for name, field in model.model_fields.items()} - tables_below
        assert set(re.findall(r"^\| `(\w+)` \|", sections[title], re.M)) == keys, title


def test_the_pages_of_the_api_show_the_arguments_of_every_call() -> None:
    """Some methods take a dataclass, and have its arguments at run time only: tests/api_signatures.py."""
    griffe = pytest.importorskip("griffe")  # comes with `make docs`
    from api_signatures import Takes

    extensions = griffe.load_extensions("dataclasses", Takes)
    package = griffe.load("quire", search_paths=[str(ROOT / "python")], extensions=extensions)
    calls: dict[str, Callable[..., object]] = {
        "client._blocking.Client.__init__": quire.Client.__init__,
        "client._blocking.Client.publish": quire.Client.publish,
        "client._blocking.Client.subscribe": quire.Client.subscribe,
        "client._blocking.Client.sow": quire.Client.sow,
        "client._blocking.Client.sow_and_subscribe": quire.Client.sow_and_subscribe,
        "client._blocking.Client.table": quire.Client.table,
        "client._blocking.Subscription.replace": quire.Subscription.replace,
        "client._aio.AsyncClient.__init__": quire.AsyncClient.__init__,
        "client._aio.AsyncClient.subscribe": quire.AsyncClient.subscribe,
        "client._aio.AsyncClient.table": quire.AsyncClient.table,
    }
    for path, call in calls.items():
        shown = [parameter.name for parameter in package[path].parameters]
        assert shown == list(inspect.signature(call).parameters), path
