"""Compiles the Java classes of the Spark source and packs them with the library into a jar.

    python crates/quire-jvm/build_jar.py DIRECTORY JAR

DIRECTORY is where cargo has put the library of the package `quire-jvm`. The classes are compiled
against the jars of the installed PySpark. Where the compiler of Java or PySpark is missing, no jar
is built and an old one is removed: Spark then reads with the Python source.
"""

from __future__ import annotations

import importlib.util
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

SOURCES = Path(__file__).parent / "java"
#: As cargo names it on this system.
LIBRARY = {"Windows": "quire_jvm.dll", "Darwin": "libquire_jvm.dylib"}.get(
    platform.system(), "libquire_jvm.so"
)
#: The classes run on this version of Java and on newer ones: Spark 4 needs it.
JAVA = "17"
#: Time of each file in the jar: the same sources give the same bytes.
EPOCH = (1980, 1, 1, 0, 0, 0)


def main(directory: Path, jar: Path) -> None:
    jar.unlink(missing_ok=True)
    spark = importlib.util.find_spec("pyspark")
    if shutil.which("javac") is None or spark is None or not spark.submodule_search_locations:
        print(
            f"{jar.name} is not built, because javac or PySpark is missing: the Python source reads for Spark"
        )
        return
    with tempfile.TemporaryDirectory(prefix="quire-jar-") as classes:
        compile_classes(Path(spark.submodule_search_locations[0]) / "jars", Path(classes))
        # A reader of the old jar keeps it: the new one is another file.
        written = jar.with_suffix(".new")
        pack(Path(classes), directory / LIBRARY, written)
        written.replace(jar)
    print(f"{jar}: {jar.stat().st_size:,} bytes")


def compile_classes(spark: Path, classes: Path) -> None:
    """Compiles all classes. Warnings are errors, but for those about jars that the jars of Spark name."""
    sources = sorted(map(str, SOURCES.rglob("*.java")))
    options = ["--release", JAVA, "-proc:none", "-Xlint:all,-path", "-Werror", "-encoding", "UTF-8"]
    subprocess.run(["javac", *options, "-cp", f"{spark}/*", "-d", str(classes), *sources], check=True)


def pack(classes: Path, library: Path, jar: Path) -> None:
    """Writes the classes and the library. `Core.java` looks for it under this name."""
    entries = {path.relative_to(classes).as_posix(): path for path in sorted(classes.rglob("*.class"))}
    system, machine = platform.system().lower(), platform.machine().lower()
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
    entries[f"quire/native/{system}-{machine}/{library.name}"] = library
    with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("META-INF/MANIFEST.MF", EPOCH), "Manifest-Version: 1.0\n")
        for name, path in entries.items():
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
