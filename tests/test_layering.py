"""Which part may know which: docs/internals/architecture.md, "Crates" and "Modules of the broker"."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

ALLOWED = {
    "types": set[str](),
    "expression": {"types"},
    "command": {"types"},
    "wire": {"types", "command"},
    "journal": {"types"},
    "queue": {"types", "journal"},
    "scan": {"types", "command", "expression", "wire", "journal"},
    "client": {"types", "command", "wire"},
    "broker": {"types", "command", "expression", "wire", "journal", "queue", "scan"},
    "arrow": {"types", "expression", "journal", "queue", "client"},
    "driver": {"types", "command", "journal", "client", "broker"},
    "sim": {"types", "command", "expression", "wire", "journal", "queue", "scan", "client", "broker"},
    "python": {
        "types",
        "command",
        "expression",
        "wire",
        "journal",
        "queue",
        "scan",
        "client",
        "broker",
        "arrow",
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


def test_the_architecture_page_says_the_same() -> None:
    page = (ROOT / "docs/internals/architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `quire-(\w+)` \|[^|]*\|([^|]*)\|$", page, re.MULTILINE)
    said = {name: re.sub(r"\(.*?\)", "", imports).strip() for name, imports in rows}
    assert set(said) == set(ALLOWED)
    for name, imports in said.items():
        if not imports.startswith("all"):
            assert {part.strip() for part in imports.split(",") if part.strip()} == ALLOWED[name], name


def test_only_the_codec_of_the_broker_imports_the_wire_protocol() -> None:
    folder = ROOT / "crates/quire-broker/src"
    importing = [
        path.relative_to(folder).as_posix()
        for path in sorted(folder.rglob("*.rs"))
        if "quire_wire" in path.read_text(encoding="utf-8")
    ]
    assert importing == ["codec.rs"]


BROKER = ROOT / "crates/quire-broker/src"

SERVICES = ["publishers", "ordinary", "bookmarks", "queues", "maintenance"]


def rust_files(name: str) -> list[Path]:
    folder = BROKER / name
    return sorted(folder.rglob("*.rs")) if folder.is_dir() else [BROKER / f"{name}.rs"]


def code_of(path: Path) -> str:
    """The file without its comments."""
    return re.sub(r"//.*", "", path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_knows_neither_the_broker_nor_another_service(service: str) -> None:
    others = "|".join(other for other in SERVICES if other != service)
    for path in rust_files(service):
        code = code_of(path)
        assert not re.search(r"\bBroker\b", code), f"{path}: names the broker"
        assert not re.search(rf"\bcrate::({others}|broker)\b", code), f"{path}: imports another service"


def test_only_the_run_loop_has_methods_of_the_broker() -> None:
    files = [
        path for path in BROKER.rglob("*.rs") if re.search(r"^impl Broker\b", code_of(path), re.MULTILINE)
    ]
    names = {path.relative_to(BROKER).as_posix() for path in files}
    assert names <= {
        f"broker/{name}" for name in ("mod.rs", "dispatch.rs", "publish.rs", "ingest.rs", "subscribe/mod.rs")
    }


def test_the_broker_is_a_handful_of_parts() -> None:
    code = code_of(BROKER / "broker/mod.rs")
    fields = re.search(r"pub struct Broker \{(.*?)\n\}", code, re.DOTALL)
    assert fields is not None
    assert len(re.findall(r"^    \w+:", fields[1], re.MULTILINE)) <= 12


def test_the_leaf_of_the_broker_imports_nothing_of_it() -> None:
    assert not re.search(r"\b(crate|super)::", code_of(BROKER / "ids.rs"))


def test_type_checkers_refuse_names_that_no_module_has() -> None:
    """A `__getattr__` that a type checker sees makes every misspelt name of the module an `Any`."""
    for path in sorted((ROOT / "python").rglob("*.py")):
        visible = ast.parse(path.read_text(encoding="utf-8")).body
        functions = [node.name for node in visible if isinstance(node, ast.FunctionDef)]
        assert "__getattr__" not in functions, path
