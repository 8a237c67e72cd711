# SPDX-License-Identifier: Apache-2.0
"""Saved queries. Each one is a file NAME.sql of this package, found by its file name.

Its head are comments: the description, then a line for each parameter, `-- :name = value  meaning`. The SQL below uses a
parameter as `:name`; a number stays a number, everything else becomes a text. SQL is the part that DuckDB, Spark, Trino and
ClickHouse have in common (docs/sql.md).

Must not know: DuckDB, captures, how a result is shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tracer.errors import BadOption

_HERE = Path(__file__).parent
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_PARAMETER = re.compile(r"-- :([a-z_]+) = (\S+)  (.+)")
_USE = re.compile(r"(?<![:\w]):([a-z_]+)\b")
_NUMBER = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True)
class Parameter:
    """A parameter. default: its value as text; meaning: for the help."""

    default: str
    meaning: str


@dataclass(frozen=True)
class SavedQuery:
    """A saved query.

    Attributes:
        name: The name of its file.
        description: The question that it answers.
        sql: The SQL, with parameters as `:name`.
        parameters: The parameters by name.
    """

    name: str
    description: str
    sql: str
    parameters: Mapping[str, Parameter] = field(default_factory=dict)

    def filled(self, values: Mapping[str, str]) -> str:
        """The SQL with values in place of the parameters.

        Raises:
            BadOption: There is no such parameter, or it is a number and the value is none.
        """
        for name in values:
            if name not in self.parameters:
                known = ", ".join(self.parameters) or "none"
                raise BadOption(f"The query {self.name} has no parameter {name!r}; its parameters: {known}.")
        return _USE.sub(lambda found: self._literal(found[1], values), self.sql)

    def _literal(self, name: str, values: Mapping[str, str]) -> str:
        default = self.parameters[name].default
        value = values.get(name, default)
        if not _NUMBER.fullmatch(default):
            return "'" + value.replace("'", "''") + "'"
        if not _NUMBER.fullmatch(value):
            raise BadOption(f"The parameter {name} of the query {self.name} is a whole number, not {value!r}.")
        return str(int(value))


@cache
def names() -> tuple[str, ...]:
    """Returns the names of all saved queries."""
    return tuple(sorted(path.stem for path in _HERE.glob("*.sql")))


def find(name: str) -> SavedQuery:
    """Returns a saved query. Raises BadOption for an unknown name."""
    if name not in names():
        raise BadOption(f"There is no saved query {name!r}: choose one of {', '.join(names())}, or write a query in SQL.")
    return parse(name, (_HERE / f"{name}.sql").read_text(encoding="utf-8"))


def parse(name: str, text: str) -> SavedQuery:
    """Reads the text of a file. Raises ValueError for one without description, or with a parameter that its head lacks."""
    lines = text.splitlines()
    head = [line for line in lines if line.startswith("--")]
    parameters = {m[1]: Parameter(m[2], m[3]) for m in map(_PARAMETER.fullmatch, head) if m}
    words = [line[2:].strip() for line in head if not line.startswith(("-- :", "-- SPDX"))]
    sql = "\n".join(line for line in lines if not line.startswith("--")).strip()
    if not any(words) or set(_USE.findall(sql)) != set(parameters):
        raise ValueError(f"{name}.sql needs a description, and a line in its head for each parameter")
    return SavedQuery(name, " ".join(words), sql, parameters)


def sql_of(asked: str, settings: Sequence[str] = ()) -> str:
    """The SQL of a query as given on the command line: SQL, or the name of a saved query.

    Args:
        asked: What was asked.
        settings: Values of parameters, NAME=VALUE each.

    Raises:
        BadOption: No such saved query or parameter, or a value without a name.
    """
    values = dict(_setting(each) for each in settings)
    if _NAME.fullmatch(asked):
        return find(asked).filled(values)
    if values:
        raise BadOption("--param is for saved queries; write values into the SQL.")
    return asked


def _setting(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign:
        raise BadOption(f"--param {text!r} is not NAME=VALUE.")
    return name, value
