"""`make quick` runs the checks and tests that belong to a change."""

from __future__ import annotations

from pathlib import Path

import pytest
import quick
from quick import Changes


def lines(changes: Changes) -> list[str]:
    return [" ".join(command) for command in quick.commands(changes)]


def the(start: str, changes: Changes) -> str:
    """Returns the only command that begins with this, or an empty text."""
    found = [line for line in lines(changes) if line.startswith(start)]
    assert len(found) <= 1
    return found[0] if found else ""


def test_a_crate_is_tested_and_the_crates_that_import_it_are_only_linted() -> None:
    changed = Changes(crates={"quire-queue"})
    assert "--package quire-queue " in the("cargo clippy", changed)
    assert "--package quire-broker " in the("cargo clippy", changed)
    assert "--package quire-queue " in the("cargo test", changed)
    assert "quire-broker" not in the("cargo test", changed)


def test_a_new_interface_also_tests_the_crates_that_import_it() -> None:
    changed = Changes(crates={"quire-queue"}, interfaces={"quire-queue"})
    assert "--package quire-broker " in the("cargo test", changed)
    # It has no tests that cargo can run.
    assert "--package quire-python " in the("cargo clippy", changed)
    assert "quire-python" not in the("cargo test", changed)


def test_the_kernel_is_tested_by_the_broker() -> None:
    changed = Changes(crates={"quire-kernel"})
    assert "--package quire-kernel " in the("cargo test", changed)
    assert "--package quire-broker " in the("cargo test", changed)


def test_the_crate_of_the_extension_is_tested_in_python() -> None:
    changed = Changes(crates={"quire-python"})
    assert the("cargo test", changed) == ""
    assert the("make", changed).endswith(" setup")
    assert "tests/test_client.py" in the(".venv/bin/python -m pytest", changed)


def test_a_python_module_runs_its_tests_and_no_build_of_rust() -> None:
    changed = Changes(python={Path("python/quire/client/_receipts.py")})
    assert the("cargo", changed) == ""
    assert "tests/test_receipts.py" in the(".venv/bin/python -m pytest", changed)
    assert the(".venv/bin/mypy", changed)


def test_nothing_changed_runs_nothing() -> None:
    assert lines(Changes()) == []


BEFORE = """
/// A lease.
pub struct Lease {
    pub holder: u64,
    count: u32,
}

pub enum Reply {
    Granted,
}

pub trait Clock {
    fn now(&self) -> u64;
}

impl Lease {
    pub fn end(&self) -> u64 {
        self.holder
    }

    pub(crate) fn begin(&self) {}
}
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("pub holder: u64", "pub holder: u32"),
        ("Granted,", "Granted,\n    Refused,"),
        ("now(&self)", "now(&mut self)"),
        ("pub fn end(&self) -> u64", "pub fn end(&self) -> u32"),
        ("pub struct Lease", "pub struct Leases"),
        ("impl Lease {", "impl Clone for Lease {"),
        ("pub(crate) fn begin", "pub fn begin"),
    ],
)
def test_a_changed_public_item_is_a_new_interface(before: str, after: str) -> None:
    assert BEFORE.count(before) == 1
    assert quick.interface(BEFORE) != quick.interface(BEFORE.replace(before, after))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("self.holder\n", "self.holder + 1\n"),
        ("/// A lease.", "/// A lease of a message."),
        ("count: u32", "count: u64"),
        ("pub(crate) fn begin(&self)", "pub(crate) fn begin(&mut self)"),
        ("pub struct Lease {", "pub struct Lease\n{"),
    ],
)
def test_bodies_comments_and_private_items_are_no_interface(before: str, after: str) -> None:
    assert BEFORE.count(before) == 1
    assert quick.interface(BEFORE) == quick.interface(BEFORE.replace(before, after))


def test_files_belong_to_crates_modules_and_tests() -> None:
    files = map(
        Path,
        [
            "crates/quire-table/src/lib.rs",
            "python/quire/cli/_csv.py",
            "tests/test_aio.py",
            "tests/golden/filters.txt",
            "docs/queues.md",
            "Cargo.lock",
        ],
    )
    changes = quick.changes_of(files, "HEAD")
    assert changes.crates >= {"quire-table", "quire-expression"}
    assert changes.interfaces == set()
    assert changes.python == {Path("python/quire/cli/_csv.py")}
    assert {"test_aio", "test_filter"} <= changes.tests
    assert changes.pages
    assert changes.everything == {Path("Cargo.lock")}


def test_the_harness_of_the_crashes_runs_the_tests_of_its_programs() -> None:
    changes = quick.changes_of([Path("tests/support/crash_harness.py")], "HEAD")
    crashes = {
        "test_crash",
        "test_client_crash",
        "test_link_crash",
        "test_protocol_crash",
        "test_table_crash",
    }
    assert crashes <= changes.tests
    assert not any(name.startswith("spark/") for name in changes.tests)
    assert changes.everything == set()


def test_a_change_of_the_entry_point_runs_the_tests_of_the_command() -> None:
    assert "test_cli" in quick.tests_of(Path("python/quire_command/__init__.py"))


@pytest.mark.parametrize(
    ("page", "test"),
    [
        ("docs/internals/benchmarks.md", "test_benches"),
        ("docs/reference/command-line.md", "test_command_line"),
        ("docs/reference/errors.md", "test_errors"),
        ("docs/replay.md", "test_replay"),
    ],
)
def test_a_page_runs_the_tests_that_read_it(page: str, test: str) -> None:
    assert test in quick.changes_of([Path(page)], "HEAD").tests | {*quick.TEXT_TESTS}


GOLDEN = sorted(path.relative_to(quick.ROOT) for path in quick.TESTS.glob("golden/**/*") if path.is_file())


@pytest.mark.parametrize("file", [*GOLDEN, Path("tests/wheel.py"), Path("tests/support/no_user.py")], ids=str)
def test_a_file_of_the_tests_runs_its_readers_or_is_named(file: Path) -> None:
    assert quick.changes_of([file], "HEAD") != Changes()


MODULES = sorted(path.relative_to(quick.ROOT) for path in quick.ROOT.glob("python/quire/**/*.py"))


def test_every_python_module_has_tests() -> None:
    assert [module for module in MODULES if not quick.tests_of(module)] == []


def test_the_named_tests_exist() -> None:
    named = {
        *quick.TEXT_TESTS,
        *quick.SOURCE_TESTS,
        *sum((*quick.PACKAGE_TESTS.values(), *quick.CRATE_TESTS.values()), ()),
    }
    assert named <= set(map(quick.test_name, quick.test_files()))
