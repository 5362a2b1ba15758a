"""Counts what makes a text hard to read: idioms, and sentences and lines that are too long.

    python tests/language.py            # the files with the most
    python tests/language.py FILE       # what is counted in one file
    python tests/language.py --write    # after a file became better: its new limit

`tests/language.json` has the limit of each file. A file that is not in it must have none.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
LIMITS = ROOT / "tests" / "language.json"
SENTENCE_WORDS_MAX = 35
PROSE_COLUMNS_MAX = 100
#: Folders whose comments are at most as wide as prose.
WRAPPED_FOLDERS = ("crates", "python", "tests", "examples", "benches", "fuzz/src")
SOURCES = {".py", ".pyi", ".rs"}

#: Idioms for which the field has a term, and clauses as subjects.
PATTERNS = re.compile(
    r"""
    (?:^|[.;:,(]\s)(?:who|what)(?:ever)?\b(?!\sis|\sare|\sto\b|\?)
    | \b(?:nobody|somebody|everybody|whoever)\b
    | \b(?:stands|lies|speaks|is\stold|are\stold)\b
    | \b(?:comes|come|came|goes|go|went)\s(?:on|back(?!\sto\b)|late|out)\b | \bcame\sin\b(?!\stime)
    | \b(?:behind|beside)\b
    | \bof\sits\sown\b | \ball\sthe\ssame\b | \bat\shand\b | \bby\sturns\b | \bso\smany\b | \bas\smuch\sas\b
    | (?<!there\s)\b(?:is|are|was|were)\s(?-i:none|no(?!\s(?:longer|faster|slower|later|larger|smaller|more)\b))\b
    | \b(?:of\snow|anew|anybody)\b | \bways?\sin\b(?!\swhich) | \bThere\s(?:while|as|until|when)\b
    """,
    re.VERBOSE | re.IGNORECASE,
)


def texts(path: Path) -> Iterator[str]:
    """The paragraphs of a file that people read."""
    source = path.read_text()
    if path.suffix == ".md":
        yield from paragraphs_of_markdown(source)
    elif path.suffix == ".py":
        yield from paragraphs_of_python(source)
    else:
        yield from paragraphs_of_rust(source)


def paragraphs_of_markdown(source: str) -> Iterator[str]:
    source = re.sub(r"^```.*?^```", "", source, flags=re.S | re.M)
    for block in re.split(r"\n\s*\n|\n(?=[-*|#] |\|)", source):
        if block.lstrip().startswith("|"):
            yield from block.split("|")
        elif not block.startswith("    "):
            yield block


def paragraphs_of_python(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from (ast.get_docstring(node) or "").split("\n\n")
    comments = [
        (token.start[0], token.string.lstrip("#: "))
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    yield from joined(comments)


def paragraphs_of_rust(source: str) -> Iterator[str]:
    comments = [
        (number, match.group(1))
        for number, line in enumerate(source.splitlines())
        if (match := re.search(r"(?:^|\s)//[/!]?\s?(.*)", line))
    ]
    yield from joined(comments)


def joined(lines: list[tuple[int, str]]) -> Iterator[str]:
    """Comments of neighboring lines are one text."""
    text, last = "", -1
    for number, line in lines:
        if number != last + 1 or not line:
            yield text
            text = ""
        text, last = f"{text} {line}".strip(), number
    yield text


def faults(path: Path) -> list[str]:
    """What is counted in a file."""
    found = []
    for text in texts(path):
        plain = re.sub(r"`[^`]*`|\]\([^)]*\)|https?://\S+", "X", " ".join(text.split()))
        found += [f"{match.group().strip()!r} in: {plain[:90]}" for match in PATTERNS.finditer(plain)]
        for sentence in re.split(r"(?<=[.!?:;])\s+", plain):
            if len(sentence.split()) > SENTENCE_WORDS_MAX:
                found.append(f"{len(sentence.split())} words: {sentence[:90]}")
    if path.suffix == ".md":
        prose = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.S | re.M)
        found += [
            f"{len(line)} columns: {line[:90]}"
            for line in prose.splitlines()
            if len(line) > PROSE_COLUMNS_MAX and not line.startswith(("    ", "|"))
        ]
    return found


def wide_comments(path: Path) -> list[str]:
    """The comments of a Rust or Python file that have a separate line and are wider than prose."""
    source = path.read_text()
    lines = source.splitlines()
    if path.suffix == ".rs":
        numbers = [n for n, line in enumerate(lines, 1) if line.lstrip().startswith("//")]
    else:
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        numbers = [
            t.start[0] for t in tokens if t.type == tokenize.COMMENT and not t.line[: t.start[1]].strip()
        ]
    return [
        f"{path.name}:{number}: {len(lines[number - 1])} columns"
        for number in numbers
        if len(lines[number - 1]) > PROSE_COLUMNS_MAX
    ]


def wrapped_files() -> list[Path]:
    """The files of `wide_comments` that must have none."""
    files = (path for folder in WRAPPED_FOLDERS for path in (ROOT / folder).rglob("*"))
    return sorted(path for path in files if path.suffix in SOURCES)


def files() -> list[Path]:
    """Every file with texts that people read, apart from tests in Python."""
    pages = list(ROOT.glob("*.md"))
    pages += (ROOT / "docs").rglob("*.md")
    pages += (path for folder in ("python", "examples") for path in (ROOT / folder).rglob("*.py"))
    pages += (ROOT / "crates").rglob("*.rs")
    return sorted(pages)


def counts() -> dict[str, int]:
    """How many faults each file has."""
    return {str(path.relative_to(ROOT)): len(faults(path)) for path in files()}


def main(arguments: list[str]) -> None:
    if arguments == ["--write"]:
        # A limit is never raised. Without the file there is one for every file that has any.
        old = json.loads(LIMITS.read_text()) if LIMITS.exists() else None
        limits = {
            name: limit
            for name, count in counts().items()
            if (limit := count if old is None else min(count, old.get(name, 0)))
        }
        LIMITS.write_text(json.dumps(limits, indent=2) + "\n")
    elif arguments:
        print("\n".join(faults(Path(arguments[0]).resolve())))
    else:
        worst = sorted(counts().items(), key=lambda item: -item[1])
        print("\n".join(f"{count:5} {name}" for name, count in worst[:30]))
        print(f"{sum(count for _, count in worst):5} in all")


if __name__ == "__main__":
    main(sys.argv[1:])
