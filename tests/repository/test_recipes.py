# SPDX-License-Identifier: Apache-2.0
"""The table of docs/design.md that says which files an addition touches: its paths exist, its numbers count them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEAD = "| what is added | files touched | which |"
PATH = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|h|c|md|json))`")


def recipes() -> dict[str, tuple[int, list[str]]]:
    """(number of files, paths) of each addition."""
    rows = (ROOT / "docs/design.md").read_text().partition(HEAD)[2].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {name: (int(count), PATH.findall(which)) for name, count, which in cells}


def test_every_path_of_a_recipe_exists() -> None:
    missing = []
    for name, (_, paths) in recipes().items():
        for path in paths:
            place = ROOT / path
            if not (place.parent.is_dir() and any(place.parent.iterdir()) if "NAME" in place.name else place.is_file()):
                missing.append(f"{name}: {path}")
    assert len(recipes()) >= 6 and missing == []


def test_a_recipe_counts_its_paths() -> None:
    found = recipes()
    same = found.pop("the same, of a function that no probe had before")
    probe = found["a probe with a new kind of event"]
    assert same[0] == probe[0] + len(same[1])
    assert {name: count for name, (count, _) in found.items()} == {name: len(set(paths)) for name, (_, paths) in found.items()}


def test_a_new_file_of_a_recipe_is_beside_others_of_its_kind() -> None:
    """A file with NAME stands for one that exists under other names."""
    for _, paths in recipes().values():
        for path in (ROOT / p for p in paths if "NAME" in p):
            assert len(list(path.parent.glob(path.name.replace("NAME", "*")))) >= 2, path
