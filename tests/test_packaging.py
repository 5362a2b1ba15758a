"""A source distribution can be installed without the checkout, and every text names the
distribution `quire-mq`."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from support.waiting import PATIENCE

ROOT = Path(__file__).parent.parent


def run(*arguments: str, directory: Path) -> None:
    command = [sys.executable, "-m", "maturin", *arguments]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_source_distribution_has_what_its_build_needs(tmp_path: Path) -> None:
    run("sdist", "--out", str(tmp_path), directory=ROOT)
    [archive] = tmp_path.glob("quire_mq-*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(tmp_path, filter="data")
    unpacked = tmp_path / archive.name.removesuffix(".tar.gz")
    # The first thing that pip does with it. The workspace is smaller there: members that only tests
    # and benches need are left out.
    run(
        "pep517",
        "write-dist-info",
        "--metadata-directory",
        str(tmp_path),
        "--interpreter",
        sys.executable,
        directory=unpacked,
    )
    [metadata] = tmp_path.glob("quire_mq-*.dist-info/METADATA")
    assert "Name: quire-mq\n" in metadata.read_text()
    assert (unpacked / "Cargo.lock").is_file(), "the versions that were tested"


def texts() -> Iterator[tuple[Path, str]]:
    """Yields every text file of the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, timeout=PATIENCE
    )
    for name in listed.stdout.decode().split("\0")[:-1]:
        try:
            yield Path(name), (ROOT / name).read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError):
            # A golden file, or a file that was just removed.
            continue


def wrong_installs(text: str) -> list[str]:
    """Returns what a text tells its reader to install when that is the other project, `quire`."""
    arguments = (
        words for line in re.findall(r"pip install ([^`\n]*)", text) for words in re.split(r"[\s'\"]+", line)
    )
    extras = re.findall(r"(?<![\w-])quire\\{0,2}\[(?:arrow|spark|uvloop|demo|dev|peers)\b", text)
    wheels = re.findall(r"\bquire-(?:\*|[\d{]\S*)\.whl", text)
    return [word for word in arguments if re.fullmatch(r"quire([=<>~!\[\\].*)?", word)] + extras + wheels


def test_the_texts_tell_nobody_to_install_the_other_project() -> None:
    assert wrong_installs("pip install 'quire[arrow]'") == ["quire[arrow]", "quire[arrow"]
    assert wrong_installs("pip install quire") == ["quire"]
    assert wrong_installs("pip install --upgrade quire==0.1") == ["quire==0.1"]
    assert wrong_installs("pip install dist/quire-*.whl") == ["quire-*.whl"]
    assert wrong_installs("pip install 'quire-mq[arrow]' dist/quire_mq-*.whl") == []
    this = Path(__file__).relative_to(ROOT)
    wrong = {str(path): found for path, text in texts() if path != this and (found := wrong_installs(text))}
    assert wrong == {}
