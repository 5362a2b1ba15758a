"""Runs the checks and tests of what changed: `make quick`.

    python tests/quick.py                    # changed since the main branch, committed or not
    python tests/quick.py --crate quire-wire # all of a crate; git is not needed
    python tests/quick.py --crate python     # the main tests of each package
    python tests/quick.py --list             # only prints the commands

A changed crate is linted and tested. The crates that import it are linted, which shows that they
compile. They are tested when its public interface changed. A changed Python module runs the tests
that `tests_of` finds for it, over a new extension when Rust code changed, too. `make test` runs
everything.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
TESTS: Final = ROOT / "tests"
BIN: Final = ".venv/bin"
STAMP: Final = ".venv/.installed"
PYTEST: Final = (f"{BIN}/python", "-m", "pytest", "-q", "--hypothesis-profile", "ci")

#: Tests of a Python package: its modules run them in addition to the tests of their own name.
PACKAGE_TESTS: Final = {
    "quire/actions": (
        *("test_action_triggers", "test_action_steps", "test_action_runs", "test_action_times"),
        *("test_action_check", "test_action_examples"),
    ),
    "quire/admin": ("test_admin", "test_console", "test_statistics"),
    "quire": ("test_arguments", "test_import", "test_message"),
    "quire/cli": ("test_cli", "test_cli_output", "test_command_line"),
    "quire/client": ("test_client", "test_aio", "test_ways_in"),
    "quire/config": ("test_config", "test_config_types", "test_config_edit"),
    "quire/demo": ("test_demo",),
    "quire/journal": ("test_journal",),
    "quire/server": ("test_server",),
    "quire/spark": ("spark/test_options", "spark/test_readers"),
    "quire/testing": ("test_testing",),
    "quire_command": ("test_cli",),
}
#: These crates have no tests in Rust.
CRATE_TESTS: Final = {
    "quire-python": ("test_client", "test_encoding", "test_filter", "test_journal", "test_message"),
    "quire-jvm": ("spark/test_readers",),
}
#: The tests of a crate that are in another one.
TESTED_BY: Final = {"quire-kernel": "quire-broker"}
TEXT_TESTS: Final = ("test_docs", "test_errors")
SOURCE_TESTS: Final = ("test_language", "test_layering")
#: A support module of more tests than this belongs to all of them.
USERS_MAX: Final = 8


@dataclass
class Changes:
    """The changes, by the part that they belong to."""

    crates: set[str] = field(default_factory=set)
    #: Those of `crates` with another public interface.
    interfaces: set[str] = field(default_factory=set)
    python: set[Path] = field(default_factory=set)
    tests: set[str] = field(default_factory=set)
    pages: bool = False
    #: Files on which everything depends. `make quick` cannot show that a change of them is good.
    everything: set[Path] = field(default_factory=set)


# --- The changes ---


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def merge_base() -> str:
    """Returns the commit at which the work left the main branch."""
    for main in ("origin/main", "main"):
        try:
            return git("merge-base", "HEAD", main).strip()
        except (subprocess.CalledProcessError, FileNotFoundError):
            continue
    sys.exit("git has no branch main to compare with: name a crate, as in `make quick CRATE=quire-queue`")


def changed_files(base: str) -> list[Path]:
    # A moved file has changed at both places.
    names = git("diff", "--name-only", "--no-renames", "-z", base) + git(
        "ls-files", "--others", "--exclude-standard", "-z"
    )
    return [Path(name) for name in names.split("\0") if name]


def changes_of(files: Iterable[Path], base: str) -> Changes:
    changes = Changes()
    for file in files:
        match file.parts:
            case ("crates", str(crate), *inside) if crate in manifests():
                changes.crates.add(crate)
                source = inside[0] == "src" and file.suffix == ".rs"
                if source and interface(now(file)) != interface(at(base, file)):
                    changes.interfaces.add(crate)
            case ("benches", *_) if file.suffix in (".rs", ".toml"):
                changes.crates.add("quire-benches")
            case ("python", *_):
                changes.python.add(file)
            case ("tests", "golden", str(folder), *_):
                # A file, or a folder that is read as a whole.
                crates = crates_that_read(file.name) | crates_that_read(folder)
                users = users_of(file.name) | users_of(folder)
                changes.crates.update(crates)
                changes.tests.update(users)
                if not crates and not users:
                    changes.everything.add(file)
            case ("tests", "support", *_):
                users = users_of_support(file.stem)
                changes.tests.update(users)
                if not users or len(users) > USERS_MAX or file.stem == "__init__":
                    changes.everything.add(file)
            case ("tests", *_, str(name)) if name.startswith("test_") and file.suffix == ".py":
                if (ROOT / file).exists():
                    changes.tests.add(test_name(ROOT / file))
            case ("tests", "language.json"):
                changes.tests.add("test_language")
            case ("tests", *_) if file.suffix == ".py" and file.stem != "conftest":
                users = users_of_module(file.stem)
                changes.tests.update(users)
                if not users:
                    changes.everything.add(file)
            case ("docs" | "examples", *_) | (
                "README.md" | "CHANGELOG.md" | "CONTRIBUTING.md" | "mkdocs.yml",
            ):
                changes.pages = True
                changes.tests.update(readers_of(file))
            case _:
                changes.everything.add(file)
    return changes


def now(file: Path) -> str:
    return (ROOT / file).read_text(encoding="utf-8") if (ROOT / file).exists() else ""


def at(commit: str, file: Path) -> str:
    shown = subprocess.run(["git", "show", f"{commit}:{file}"], cwd=ROOT, capture_output=True, text=True)
    return shown.stdout if shown.returncode == 0 else ""


#: A public item up to its body, with the body of an enum or a trait: their variants and methods
#: have no `pub`.
_INTERFACE: Final = re.compile(
    r"""
    ^(?P<indent>[ ]*)pub\ (?:unsafe\ )?(?:enum|trait)\b .*? ^(?P=indent)\}
    | ^[ ]*pub\ [a-z_0-9]+: [^\n]*
    | ^[ ]*pub\ use\b [^;]*
    | ^[ ]*pub\ [^{;=]*
    | ^[ ]*(?:unsafe\ )?impl\b [^{;]*
    | ^[ ]*\#\[macro_export\]
    """,
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)


def interface(source: str) -> list[str]:
    """Returns the public items of a Rust file. Bodies, comments and the layout do not count."""
    code = re.sub(r"[ \t]*//[^\n]*\n", "", source)
    return sorted(" ".join(item[0].split()) for item in _INTERFACE.finditer(code))


# --- The tests and crates that belong to a file ---


@cache
def manifests() -> dict[str, tuple[Path, set[str]]]:
    """Returns the folder of each crate, and the crates that it imports, in its tests, too."""
    found = {}
    for path in [*ROOT.glob("crates/*/Cargo.toml"), ROOT / "benches/Cargo.toml"]:
        manifest = tomllib.loads(path.read_text(encoding="utf-8"))
        imported = {*manifest.get("dependencies", {}), *manifest.get("dev-dependencies", {})}
        found[manifest["package"]["name"]] = (
            path.parent,
            {name for name in imported if name.startswith("quire-")},
        )
    return found


def importers(crate: str) -> set[str]:
    return {name for name, (_, imported) in manifests().items() if crate in imported}


def crates_that_read(name: str) -> set[str]:
    """Returns the crates with a source that names a file of `tests/golden`."""
    return {
        crate
        for crate, (folder, _) in manifests().items()
        if any(name in text_of(path) for path in folder.rglob("*.rs"))
    }


@cache
def test_files() -> list[Path]:
    return sorted([*TESTS.glob("test_*.py"), *TESTS.glob("spark/test_*.py")])


def test_name(path: Path) -> str:
    return path.relative_to(TESTS).with_suffix("").as_posix()


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def users_of(word: str, pattern: str = "") -> set[str]:
    """Returns the tests that contain the word, in the given way."""
    found = (path for path in test_files() if word in text_of(path) and re.search(pattern, text_of(path)))
    return {test_name(path) for path in found}


def users_of_module(name: str) -> set[str]:
    """Returns the tests that import a module of `tests` or `benches`, or run it."""
    return users_of(name, rf"\b(?:from|import) .*\b{name}\b|\b{name}\.py\b")


def users_of_support(name: str) -> set[str]:
    """Returns the tests that import a module of `tests/support`, and those of the programs that do."""
    imports = rf"\b(?:from|import) .*\b{name}\b"
    programs = [
        path.stem
        for path in TESTS.glob("*.py")
        if not path.stem.startswith("test_") and re.search(imports, text_of(path))
    ]
    return users_of(name, imports).union(*map(users_of_module, programs))


def readers_of(page: Path) -> set[str]:
    """Returns the tests that name a page, and those of the modules that write a part of it."""
    writers = {path for folder in (TESTS, ROOT / "benches") for path in folder.glob("*.py")}
    named = [path.stem for path in writers if page.as_posix() in text_of(path)]
    return users_of(page.name).union(*map(users_of_module, named)) - {"test_quick"}


def tests_of(module: Path) -> set[str]:
    """Returns the tests of a module in `python/`: those with its name, those that import it, and
    those of its package.

    `client/_receipts.py` has `test_receipts`, and `cli/_csv.py` has `test_cli_csv`.
    """
    package, noun = module.parent.relative_to("python").as_posix(), module.stem.strip("_")
    folder = "spark/" if package == "quire/spark" else ""
    names = {f"{folder}test_{noun}", f"test_{package.rpartition('/')[2]}_{noun}"}
    same = {name for name in map(test_name, test_files()) if name in names}
    parent = re.escape(package.replace("/", "."))
    named = rf"\b{parent}\.{module.stem}\b|from {parent} import .*\b{module.stem}\b"
    importing = set() if module.stem.startswith("__") else users_of(module.stem, named)
    return same | importing | set(PACKAGE_TESTS.get(package, ()))


# --- The commands ---


def commands(changes: Changes) -> Iterator[list[str]]:
    linted = changes.crates.union(*map(importers, changes.crates))
    tested = changes.crates.union(*map(importers, changes.interfaces)) - CRATE_TESTS.keys()
    tested |= {TESTED_BY[crate] for crate in changes.crates & TESTED_BY.keys()}
    tests = {*changes.tests}
    for module in changes.python:
        tests |= tests_of(module)
    for crate in changes.crates & CRATE_TESTS.keys():
        tests.update(CRATE_TESTS[crate])
    if changes.pages:
        tests.update(TEXT_TESTS)

    if linted:
        yield ["cargo", "fmt", "--all", "--check"]
        yield ["cargo", "clippy", *packages(linted), "--all-targets", "--locked", "--", "--deny", "warnings"]
    if tested:
        yield ["cargo", "test", *packages(tested), "--lib", "--bins", "--tests", "--locked"]
    if linted and not tests and (ROOT / STAMP).exists():
        # The extension may be an old one: these tests only read the sources.
        yield [*PYTEST, "--noconftest", "-p", "no:quire", *(f"tests/{name}.py" for name in SOURCE_TESTS)]
    if not tests:
        return
    tests.update(SOURCE_TESTS)
    yield ["make", "--no-print-directory", "setup"]
    yield [f"{BIN}/ruff", "format", "--check", "python", "tests", "benches", "examples"]
    yield [f"{BIN}/ruff", "check", "python", "tests", "benches", "examples"]
    if changes.python or changes.tests:
        yield [f"{BIN}/mypy"]
    if changes.python:
        yield [f"{BIN}/pyright", "--pythonpath", f"{BIN}/python"]
    if "quire-python" in changes.crates or any(file.name == "_quire.pyi" for file in changes.python):
        yield [f"{BIN}/stubtest", "quire._quire", "--allowlist", "tests/stubtest-allowlist.txt"]
    if plain := sorted(f"tests/{name}.py" for name in tests if not name.startswith("spark/")):
        yield [*PYTEST, "-n", "auto", *plain]
    if spark := sorted(f"tests/{name}.py" for name in tests if name.startswith("spark/")):
        yield [*PYTEST, *spark]


def packages(names: Iterable[str]) -> list[str]:
    return [word for name in sorted(names) for word in ("--package", name)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs the checks and tests of what changed.")
    parser.add_argument(
        "--crate", choices=["python", *sorted(manifests())], help="all of it, whatever changed"
    )
    parser.add_argument("--list", action="store_true", help="only prints the commands")
    options = parser.parse_args()
    if options.crate == "python":
        # The tests of each package. Those of all modules are nearly the whole suite.
        changes = Changes(
            python={path.relative_to(ROOT) for path in ROOT.glob("python/quire/**/__init__.py")}
        )
    elif options.crate:
        changes = Changes(crates={options.crate})
    else:
        base = merge_base()
        changes = changes_of(changed_files(base), base)
    # The same cases as in `make test`: a red run is the doing of the change.
    os.environ.setdefault("PROPTEST_RNG_SEED", "1")
    began = time.monotonic()
    for command in commands(changes):
        print("$", " ".join(command), flush=True)
        if options.list:
            continue
        start = time.monotonic()
        if subprocess.run(command, cwd=ROOT).returncode != 0:
            sys.exit(f"make quick: this command failed: {' '.join(command)}")
        print(f"  {time.monotonic() - start:.0f} s", flush=True)
    if changes.everything:
        names = ", ".join(sorted(map(str, changes.everything)))
        print(f"make quick does not cover changes of {names}: run `make test`")
    print(f"make quick: {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
