"""`quire user`: the users of a server, in their file."""

from __future__ import annotations

import getpass
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from quire._errors import ConfigError, QuireError
from quire._text import check_unicode
from quire.cli._app import Json
from quire.cli._output import print_json, print_table, say
from quire.server._identity import check_name
from quire.server._users import User, Users, hash_of, locked

app = App(
    name="user",
    help="Add, change, show and remove the users of a server.",
    help_format="plaintext",
)

File = Annotated[
    Path,
    Parameter(help="File of users: users_file of the configuration. A running server reads it within 5 s."),
]
PasswordStdin = Annotated[
    bool, Parameter(negative="", help="The password is the first line of the standard input.")
]
PasswordEnv = Annotated[str | None, Parameter(help="Name of the environment variable that has the password.")]

_DEFAULT = Path("users.toml")


@app.command
def add(
    name: str,
    *,
    group: Annotated[
        list[str] | None, Parameter(negative="", help="Group of the user. Repeat it for more.")
    ] = None,
    no_password: Annotated[
        bool, Parameter(negative="", help="The user cannot log on with a password.")
    ] = False,
    password_stdin: PasswordStdin = False,
    password_env: PasswordEnv = None,
    file: File = _DEFAULT,
) -> int:
    """Add a user, with a password of 8 to 1024 bytes. Without an option, the command asks for it twice.

    The file has the argon2id hash of the password. Only its owner may read the file.
    Exit code 1: the user exists.

    For example:
      quire user add anna --group desk
      pwgen 20 1 | quire user add loader --password-stdin
      quire user add auditor --no-password --file /etc/quire/users.toml

    Parameters
    ----------
    name
        Name of the user, 1 to 255 bytes.
    """
    _check(name)
    groups = tuple(check_name(each, "--group") for each in group or ())
    if no_password and (password_stdin or password_env is not None):
        raise ConfigError("it cannot be given together with a source of a password", key="--no-password")
    users = _load(file, may_be_new=True)
    _refuse_if(name in users.by_name, f"the user {name!r} exists")
    password = None if no_password else _hash(name, password_stdin, password_env)
    with locked(file):
        users = _load(file, may_be_new=True)
        _refuse_if(name in users.by_name, f"the user {name!r} exists")
        users.by_name[name] = User(name, password, groups)
        users.save(file)
    say(f"added {name}")
    return 0


@app.command
def passwd(
    name: str,
    *,
    password_stdin: PasswordStdin = False,
    password_env: PasswordEnv = None,
    file: File = _DEFAULT,
) -> int:
    """Change the password of a user. The server ends the connections of the user.

    Exit code 1: there is no such user.

    For example:
      quire user passwd anna
      quire user passwd anna --password-env NEW_PASSWORD

    Parameters
    ----------
    name
        Name of the user.
    """
    _check(name)
    users = _load(file)
    _refuse_if(name not in users.by_name, f"there is no user {name!r}")
    password = _hash(name, password_stdin, password_env)
    with locked(file):
        users = _load(file)
        _refuse_if(name not in users.by_name, f"there is no user {name!r}")
        users.by_name[name] = replace(users.by_name[name], password=password)
        users.save(file)
    say(f"changed the password of {name}")
    return 0


@app.command
def ls(*, file: File = _DEFAULT, json: Json = False) -> int:
    """List the users, with their groups. Passwords and hashes are not printed.

    For example:
      quire user ls
      quire user ls --file /etc/quire/users.toml --json | jq .name
    """
    rows = []
    for user in _load(file).by_name.values():
        has_password = user.password is not None
        if json:
            print_json(
                name=user.name, groups=list(user.groups), disabled=user.disabled, password=has_password
            )
        rows.append([user.name, ", ".join(user.groups), user.disabled, has_password])
    if not json:
        print_table(["user", "groups", "disabled", "has a password"], rows)
    return 0


@app.command
def remove(name: str, *, file: File = _DEFAULT) -> int:
    """Remove a user. The server ends the connections of the user. Exit code 1: there is no such user.

    For example:
      quire user remove anna

    Parameters
    ----------
    name
        Name of the user.
    """
    _check(name)
    with locked(file):
        users = _load(file)
        _refuse_if(name not in users.by_name, f"there is no user {name!r}")
        del users.by_name[name]
        users.save(file)
    say(f"removed {name}")
    return 0


def _check(name: str) -> None:
    check_unicode(name, "NAME")
    check_name(name, "NAME")


def _load(file: Path, *, may_be_new: bool = False) -> Users:
    if may_be_new and not file.exists():
        if not file.parent.is_dir():
            raise ConfigError(f"there is no directory {file.parent}", key="--file")
        return Users([])
    return Users.load(file)


def _refuse_if(condition: bool, reason: str) -> None:
    """Ends the command with exit code 1."""
    if condition:
        raise QuireError(reason)


def _hash(name: str, from_stdin: bool, variable: str | None) -> str:
    """The hash of the password from the source that the user has chosen."""
    if from_stdin and variable is not None:
        raise ConfigError("it cannot be given together with --password-env", key="--password-stdin")
    if from_stdin:
        key, password = "--password-stdin", sys.stdin.readline().removesuffix("\n").removesuffix("\r")
    elif variable is not None:
        if variable not in os.environ:
            raise ConfigError(f"there is no environment variable {variable}", key="--password-env")
        key, password = "--password-env", os.environ[variable]
    elif sys.stdin.isatty():
        key = "password"
        password = getpass.getpass(f"password of {name}: ")
        if getpass.getpass("the same again: ") != password:
            raise ConfigError("the two passwords differ", key=key)
    else:
        raise ConfigError(
            "give --password-stdin, --password-env or --no-password: there is no terminal", key="password"
        )
    check_unicode(password, key)
    try:
        return hash_of(password)
    except ConfigError as error:
        raise error if error.key != "password" else ConfigError(error._reason, key=key) from None
