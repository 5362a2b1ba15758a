"""The name of the distribution: `quire-mq` installs the package `quire`.

Another project has the distribution `quire` on the package indexes. Both install into the folder
`quire`, so the one that was installed last has replaced files of the other one. An import of this
module checks for that, before any other module of the package is imported.
"""

import os
import re


def _refuse_foreign_distribution() -> None:
    """Raises `ImportError` when the distribution `quire` is installed in the directory that has this package.

    In any other directory its files are not mixed with those of this package. It checks only names:
    `importlib.metadata` would add half of the time of `import quire`.
    """
    directory = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    try:
        names = os.listdir(directory)
    except OSError:  # an archive
        return
    for name in names:
        if found := re.fullmatch(r"quire-(\d[^-]*)(-.*)?\.(dist|egg)-info", name):
            raise ImportError(
                f"quire-mq: the distribution quire {found[1]} is installed in {directory}, too. It is another project, or an "
                "early version of this one, and its files and those of quire-mq are in the same folder. Remove both, and "
                "install quire-mq again: pip uninstall quire quire-mq; pip install quire-mq",
                name="quire",
            )


_refuse_foreign_distribution()
