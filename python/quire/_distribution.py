"""The name of the distribution: `quire-mq` installs the package `quire`.

Another project has the distribution `quire` on the package indexes. Both install into the folder `quire`, so the one
that was installed last has replaced files of the other one. An import of this module checks for that, before any
other module of the package is imported.
"""

import os
import re
import sys


def _refuse_foreign_distribution() -> None:
    """Raises `ImportError` when the distribution `quire` of the other project is installed.

    It looks at names only: `importlib.metadata` would add half of the time that `import quire` takes.
    """
    for directory in sys.path:
        try:
            names = os.listdir(directory or ".")
        except OSError:  # an archive, or a directory that does not exist
            continue
        for name in names:
            if found := re.fullmatch(r"quire-(\d[^-]*)(-.*)?\.(dist|egg)-info", name):
                raise ImportError(
                    f"quire-mq: the distribution quire {found[1]} is installed in {os.path.abspath(directory)}. It is another "
                    "project, and its package has the same name as the package of quire-mq. Remove both, and install quire-mq "
                    "again: pip uninstall quire quire-mq; pip install quire-mq",
                    name="quire",
                )


_refuse_foreign_distribution()
