"""A source distribution is one: it can be installed where the checkout is not."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

from support.waiting import PATIENCE

ROOT = Path(__file__).parent.parent


def run(*arguments: str, directory: Path) -> None:
    command = [sys.executable, "-m", "maturin", *arguments]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_source_distribution_has_what_its_build_needs(tmp_path: Path) -> None:
    run("sdist", "--out", str(tmp_path), directory=ROOT)
    [archive] = tmp_path.glob("quire-*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(tmp_path, filter="data")
    unpacked = tmp_path / archive.name.removesuffix(".tar.gz")
    # The first thing that pip does with it. The workspace is smaller there: members that only tests and benches need are left out.
    run(
        "pep517",
        "write-dist-info",
        "--metadata-directory",
        str(tmp_path),
        "--interpreter",
        sys.executable,
        directory=unpacked,
    )
    [metadata] = tmp_path.glob("quire-*.dist-info/METADATA")
    assert "Name: quire" in metadata.read_text()
    assert (unpacked / "Cargo.lock").is_file(), "the versions that were tested"
