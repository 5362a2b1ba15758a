"""Which part may know which: docs/internals/architecture.md, "Crates" and the modules of kernel and
broker."""

import ast
import re
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent

ALLOWED = {
    "types": set[str](),
    "expression": {"types"},
    "command": {"types"},
    "wire": {"types", "command"},
    "journal": {"types"},
    "queue": {"types", "journal"},
    "table": {"types", "expression", "journal"},
    "link": {"types", "journal", "wire"},
    "client": {"types", "command", "wire"},
    "kernel": {"types", "command", "expression", "wire", "journal", "queue", "table", "link"},
    "broker": {"types", "command", "expression", "wire", "journal", "queue", "table", "link", "kernel"},
    "arrow": {"types", "expression", "journal", "queue", "client"},
    "spark": {"types", "journal", "arrow"},
    "jvm": {"spark"},
    "driver": {"types", "command", "journal", "client", "broker"},
    "sim": {"types", "command", "expression", "wire", "journal", "queue", "client", "broker"},
    "model": {"link"},
    "python": {
        "types",
        "command",
        "expression",
        "wire",
        "journal",
        "queue",
        "client",
        "broker",
        "arrow",
        "spark",
        "driver",
    },
}


def test_every_crate_is_listed() -> None:
    crates = {path.parent.name for path in ROOT.glob("crates/*/Cargo.toml")}
    assert crates == {f"quire-{name}" for name in ALLOWED}


@pytest.mark.parametrize("crate", ALLOWED)
def test_a_crate_imports_only_the_crates_below_it(crate: str) -> None:
    manifest = tomllib.loads((ROOT / f"crates/quire-{crate}/Cargo.toml").read_text(encoding="utf-8"))
    imported = {name.removeprefix("quire-") for name in manifest["dependencies"] if name.startswith("quire-")}
    assert imported <= ALLOWED[crate]


PAGE = (ROOT / "docs/internals/architecture.md").read_text(encoding="utf-8")


def test_the_architecture_page_says_the_same() -> None:
    rows = re.findall(r"^\| `quire-(\w+)` \|[^|]*\|([^|]*)\|$", PAGE, re.MULTILINE)
    said = {name: re.sub(r"\(.*?\)", "", imports).strip() for name, imports in rows}
    assert set(said) == set(ALLOWED)
    for name, imports in said.items():
        listed = {part for part in re.split(r",| and ", imports.removeprefix("all but")) if part}
        crates = {part.strip() for part in listed}
        if imports.startswith("all but"):
            crates = set(ALLOWED) - crates - {name}
        assert crates == ALLOWED[name], name


def test_only_the_codec_of_the_kernel_and_the_links_import_the_wire_protocol() -> None:
    importing = {
        (crate, path.relative_to(folder).parts[0], module)
        for crate in ("kernel", "broker")
        for folder in [ROOT / f"crates/quire-{crate}/src"]
        for path in sorted(folder.rglob("*.rs"))
        for module in re.findall(r"quire_wire(::link)?", path.read_text(encoding="utf-8"))
    }
    assert importing == {("kernel", "codec.rs", ""), ("broker", "links", "::link")}


KERNEL = ROOT / "crates/quire-kernel/src"

BROKER = ROOT / "crates/quire-broker/src"

SERVICES = ["publishers", "stream", "bookmarks", "queues", "tables", "links", "maintenance"]


def rust_files(name: str) -> list[Path]:
    folder = BROKER / name
    return sorted(folder.rglob("*.rs")) if folder.is_dir() else [BROKER / f"{name}.rs"]


def code_of(path: Path) -> str:
    """The file without its comments."""
    return re.sub(r"//.*", "", path.read_text(encoding="utf-8"))


#: Comments, texts and characters: they may contain braces and names of modules.
NOT_CODE = re.compile(
    r"""//[^\n]* | /\*.*?\*/ | b?r(\#*)".*?"\1 | b?"(?:\\.|[^"\\])*" | b?'(?:\\.[^']*|[^'\\])'""",
    re.DOTALL | re.VERBOSE,
)

#: The parts of a file that decide its paths: `mod name {`, a whole `use`, braces, and paths that
#: begin with `crate`, `self` or `super`.
RELEVANT = re.compile(
    r"""
    \bmod\s+(?P<module>\w+)\s*\{
    | \buse\s+(?P<tree>[^;]*);
    | (?P<brace>[{}])
    | (?<![\w$:])(?P<path>(?:crate|self|super)(?:\s*::\s*\w+)+)
    """,
    re.VERBOSE,
)

Module = tuple[str, ...]


def leaves_of(tree: str) -> list[tuple[list[str], str]]:
    """The paths of a `use`, without its groups, each with the name that it gets in the module."""
    tree = tree.strip()
    if (group := re.fullmatch(r"(.*?)\{(.*)\}", tree, re.DOTALL)) is None:
        path, _, alias = re.sub(r"\s+", " ", tree).partition(" as ")
        parts = [part.strip() for part in path.split("::") if part.strip()]
        if len(parts) > 1 and parts[-1] == "self":
            parts.pop()
        return [(parts, alias.strip() or parts[-1])] if parts else []
    prefix = [part.strip() for part in group[1].split("::") if part.strip()]
    items, depth = [""], 0
    for character in group[2]:
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            items.append("")
        else:
            items[-1] += character
    found = []
    for item in items:
        for parts, name in leaves_of(item):
            if parts == ["self"]:
                found.append((prefix, prefix[-1] if name == "self" else name))
            else:
                found.append((prefix + parts, name))
    return found


def absolute(parts: list[str], module: Module) -> Module:
    """The path from the root of the crate. `module` is the module that contains it."""
    at = () if parts[0] == "crate" else module
    for part in parts:
        if part == "super":
            at = at[:-1]
        elif part not in ("crate", "self"):
            at = (*at, part)
    return at


def paths_of(code: str, module: Module) -> tuple[set[Module], dict[Module, Module]]:
    """The paths into the crate, and the names that `use` gives to paths."""
    paths: set[Module] = set()
    names: dict[Module, Module] = {}
    inner = [module]
    for match in RELEVANT.finditer(NOT_CODE.sub("''", code)):
        if match["module"]:
            inner.append((*inner[-1], match["module"]))
        elif match["brace"] == "{":
            inner.append(inner[-1])
        elif match["brace"]:
            inner.pop()
        elif match["path"]:
            paths.add(absolute(re.split(r"\s*::\s*", match["path"]), inner[-1]))
        else:
            for parts, name in leaves_of(match["tree"]):
                path = absolute(parts, inner[-1])
                names[(*inner[-1], name)] = path
                # Another first name is a module in this one, or another crate.
                if parts[0] in ("crate", "self", "super"):
                    paths.add(path)
    assert inner == [module], "the braces of the file do not match"
    return paths, names


def resolved(path: Module, names: dict[Module, Module]) -> Module:
    """Follows re-exports to the module that has the item."""
    for _ in range(10):
        known = [end for end in range(1, len(path) + 1) if path[:end] in names]
        if not known:
            break
        path = names[path[: known[0]]] + path[known[0] :]
    return path


def module_of(path: Path) -> Module:
    parts = path.relative_to(BROKER).with_suffix("").parts
    return parts[:-1] if parts[-1] in ("mod", "lib") else parts


def listed_modules(crate: str) -> list[tuple[str, str]]:
    """The modules in the table of a crate on the page, each with its purpose."""
    text = PAGE.partition(f"\n## Modules of the {crate}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]+) \|([^|]+)\|$", text, re.MULTILINE)
    return [(name, purpose) for cell, purpose in rows for name in re.findall(r"`([\w./]+)`", cell)]


@pytest.mark.parametrize(("crate", "folder"), [("kernel", KERNEL), ("broker", BROKER)])
def test_the_architecture_page_lists_every_module(crate: str, folder: Path) -> None:
    modules = {f"{path.name}/" if path.is_dir() else path.name for path in folder.iterdir()}
    assert sorted(name for name, _ in listed_modules(crate)) == sorted(modules - {"lib.rs"})


def test_the_broker_has_the_services_and_the_run_loop_only() -> None:
    """Code that services share is in the kernel, which does not import them."""
    modules = listed_modules("broker")
    services = [name.strip("/").removesuffix(".rs") for name, purpose in modules if "service:" in purpose]
    assert sorted(services) == sorted(SERVICES)
    files = {f"{name}/" for name in SERVICES} | {f"{name}.rs" for name in SERVICES}
    assert {name for name, _ in modules} - files == {"broker/"}


def test_every_consumer_of_the_log_is_in_a_service() -> None:
    consumers = [path for path in BROKER.rglob("*.rs") if re.search(r"\bLogConsumer for\b", code_of(path))]
    assert consumers
    assert {module_of(path)[0] for path in consumers} <= set(SERVICES)


def names_of_the_broker() -> dict[Module, Module]:
    names: dict[Module, Module] = {}
    for path in sorted(BROKER.rglob("*.rs")):
        names |= paths_of(path.read_text(encoding="utf-8"), module_of(path))[1]
    return names


def forbidden(code: str, module: Module, names: dict[Module, Module]) -> list[str]:
    """The paths of a file that lead to the broker, to a service that is not its own, or to the
    whole crate."""
    others = {*SERVICES, "broker"} - {module[0]}
    found = []
    for path in paths_of(code, module)[0]:
        first = (*resolved(path, names), "*")[0]
        if first == "*" or first in others:
            found.append("::".join(("crate", *path)))
    return sorted(found)


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_knows_neither_the_broker_nor_another_service(service: str) -> None:
    names = names_of_the_broker()
    for path in rust_files(service):
        assert not re.search(r"\bBroker\b", code_of(path)), f"{path}: names the broker"
        assert forbidden(path.read_text(encoding="utf-8"), module_of(path), names) == [], path


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("use crate::queues::DeadLetter;", ["crate::queues::DeadLetter"]),
        ("use super::super::queues::DeadLetter;", ["crate::queues::DeadLetter"]),
        ("use crate::{Timer, queues::{DeadLetter, self}};", ["crate::queues", "crate::queues::DeadLetter"]),
        ("use super::{super::queues as q, Publishers};", ["crate::queues"]),
        ("use crate::StandaloneQueue;", ["crate::StandaloneQueue"]),
        ("use crate::{\n    Event,\n    StandaloneError as Mistake,\n};", ["crate::StandaloneError"]),
        ("fn f() -> super::super::queues::Wanted {}", ["crate::queues::Wanted"]),
        ("fn f() { crate::broker::run() }", ["crate::broker::run"]),
        ("mod tests { use super::super::super::queues; }", ["crate::queues"]),
        ("use crate as root;", ["crate"]),
        ("use super::super::*;", ["crate::*"]),
        ("use super::Publishers; use crate::{Event, context::Context};", []),
        ("mod tests { use super::super::queues; }", []),
        ("// crate::queues\nconst TEXT: &str = \"{ crate::queues\"; const C: char = '{';", []),
    ],
)
def test_every_form_of_an_import_is_seen(code: str, found: list[str]) -> None:
    assert forbidden(code, ("publishers", "logon"), names_of_the_broker()) == found


def test_only_the_run_loop_has_methods_of_the_broker() -> None:
    files = [
        path for path in BROKER.rglob("*.rs") if re.search(r"^impl Broker\b", code_of(path), re.MULTILINE)
    ]
    names = {path.relative_to(BROKER).as_posix() for path in files}
    assert names == {
        f"broker/{name}" for name in ("mod.rs", "authenticate.rs", "dispatch.rs", "subscribe/mod.rs")
    }


def test_the_broker_is_a_handful_of_parts() -> None:
    code = code_of(BROKER / "broker/mod.rs")
    fields = re.search(r"pub struct Broker \{(.*?)\n\}", code, re.DOTALL)
    assert fields is not None
    count = len(re.findall(r"^    (?:pub(?:\([^)]*\))? )?\w+:", fields[1], re.MULTILINE))
    assert count <= 12


def test_the_architecture_page_lists_the_parts_of_the_context() -> None:
    fields = re.search(r"pub struct Context \{(.*?)\n\}", code_of(KERNEL / "context.rs"), re.DOTALL)
    table = re.search(r"^\| part of `Context` \|.*?(?=^$)", PAGE, re.MULTILINE | re.DOTALL)
    assert fields is not None
    assert table is not None
    parts = re.findall(r"^\| `(\w+)` \|", table[0], re.MULTILINE)
    assert sorted(parts) == sorted(re.findall(r"^    pub (\w+):", fields[1], re.MULTILINE))
    assert len(parts) <= 9


def test_the_kernel_knows_little_of_a_subscription() -> None:
    """A service keeps the state of its subscriptions: see "Modules of the broker" on the page."""
    code = code_of(KERNEL / "subscription/mod.rs")
    fields = re.search(r"pub struct Subscription \{(.*?)\n\}", code, re.DOTALL)
    assert fields is not None
    assert len(re.findall(r"^    pub \w+:", fields[1], re.MULTILINE)) <= 6


def test_the_architecture_page_lists_the_phases_of_a_turn_in_order() -> None:
    code = code_of(BROKER / "broker/mod.rs")
    phases = re.search(r"let phases = \[(.*?)\];", code, re.DOTALL)
    table = re.search(r"^\| phase \|.*?(?=^$)", PAGE, re.MULTILINE | re.DOTALL)
    assert phases is not None
    assert table is not None
    said = [name for row in table[0].splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[2])]
    assert said == re.findall(r"Broker::(\w+)", phases[1])


def file_of(name: str) -> Path:
    """The file that a table of a path names: see "How to read the paths" on the page."""
    first, _, rest = name.partition("/")
    if first.startswith("quire-"):
        return ROOT / "crates" / first / "src" / rest
    if first == "quire":
        return ROOT / "python" / name
    return BROKER / name if (BROKER / name).exists() else KERNEL / name


class Row(NamedTuple):
    step: int
    file: str
    functions: list[str]


def rows_of(section: str) -> list[Row]:
    """The rows of the tables of a path."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| `([^`]+)` \| ([^|]+) \|[^|]+\|$", text, re.MULTILINE)
    every = re.findall(r"^\| \d+ \|", text, re.MULTILINE)
    assert len(rows) == len(every) > 0, f"{section}: a row has another form"
    return [Row(int(step), file, names.split(", ")) for step, file, names in rows]


PATHS = [
    "From the client to the broker",
    "From the broker to the program",
    "One publish",
    "One message to a subscriber",
    "One queue delivery",
    "One query",
    "One replicated record",
]


@pytest.mark.parametrize("section", PATHS)
def test_each_file_of_a_path_has_the_functions_that_the_page_names(section: str) -> None:
    missing = []
    for row in rows_of(section):
        path = file_of(row.file)
        assert path.is_file(), f"step {row.step}: {row.file}"
        code = path.read_text(encoding="utf-8")
        keyword = "def" if path.suffix == ".py" else "fn"
        for name in row.functions:
            assert re.fullmatch(r"`\w+`", name), f"step {row.step}: {name}"
            if not re.search(rf"\b{keyword} {name.strip('`')}\b", code):
                missing.append(f"step {row.step}: {row.file} {name}")
    assert missing == []


@pytest.mark.parametrize("page", ["architecture.md", "log-consumer.md"])
def test_each_file_that_a_page_about_the_parts_names_exists(page: str) -> None:
    text = (ROOT / "docs/internals" / page).read_text(encoding="utf-8")
    names = re.findall(r"`((?:[\w-]+/)+[\w-]+\.(?:rs|py|md|toml))`", text)
    assert len(names) > 10
    for name in names:
        assert file_of(name).is_file() or (ROOT / name).is_file(), name


def test_the_leaf_of_the_kernel_imports_nothing_of_it() -> None:
    assert not re.search(r"\b(crate|super)::", code_of(KERNEL / "ids.rs"))


def test_type_checkers_refuse_names_that_no_module_has() -> None:
    """A `__getattr__` that a type checker sees makes every misspelt name of the module an `Any`."""
    for path in sorted((ROOT / "python").rglob("*.py")):
        visible = ast.parse(path.read_text(encoding="utf-8")).body
        functions = [node.name for node in visible if isinstance(node, ast.FunctionDef)]
        assert "__getattr__" not in functions, path
