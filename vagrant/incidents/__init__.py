# SPDX-License-Identifier: Apache-2.0
"""Five incidents of real clusters, each made again on the small node of vagrant/scenes, and taken down again.

For a throw-away machine only, as root: `python3 vagrant/incidents 3 up`, `... traffic`, `... down`. An incident is one file,
named after the finding that must be found. It has:

    NUMBER, TITLE       which, and what it is called
    STORY               what somebody sees who knows nothing of the cause
    PORTS               what to trace: the ports of `--port`
    OPTIONS             of the tracer in the demo, if it needs any
    STATES              state -> how often its finding is to be found; 0 is a healthy twin, in which nothing is wrong
    ONLY                state -> the one back end in which it exists; of those that exist in both there is no word
    up(state, backend)  builds it, with its rules in "legacy" or "nft"; returns the API's objects
    traffic(state)      requests, each as (what was asked, what came of it)
    down()              removes what up() made beside the scene; only where there is something
"""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

from incidents.objects import Object
from scenes import rules, scene
from scenes.topology import STATE_DIR

OBJECTS = STATE_DIR / "objects.json"
"""What `kubectl get -A -o json` would say; for --objects."""
RULESETS = Path(__file__).with_name("rulesets")
HELPERS = ("objects", "kube_proxy", "demo", "ipvs", "links", "proxy", "situations", "variations", "varied")

Said = list[tuple[str, str]]


class Incident:
    """One incident, from its file."""

    def __init__(self, module: ModuleType) -> None:
        self.finding = module.__name__.rpartition(".")[2]
        self.number: int = module.NUMBER
        self.title: str = module.TITLE
        self.story: str = module.STORY
        self.ports: tuple[int, ...] = module.PORTS
        self.options: tuple[str, ...] = getattr(module, "OPTIONS", ())
        self.states: dict[str, int] = module.STATES
        self._only: dict[str, rules.Backend] = getattr(module, "ONLY", {})
        self._up: Callable[[str, rules.Backend], list[Object]] = module.up
        self._traffic: Callable[[str], Said] = module.traffic
        self._down: Callable[[], None] = getattr(module, "down", lambda: None)

    def states_in(self, backend: str) -> list[str]:
        """Those that exist in this back end."""
        return [s for s in self.states if self._only.get(s, backend) == backend]

    def up(self, state: str, backend: rules.Backend = "legacy") -> list[Object]:
        """Builds the state and writes the API's objects to OBJECTS; returns them. Whatever incident was there is removed."""
        down()
        found = self._up(state, backend)
        STATE_DIR.mkdir(parents=True, exist_ok=True)
        OBJECTS.write_text(json.dumps({"kind": "List", "items": found}))
        (STATE_DIR / "state").write_text(state)
        return found

    def traffic(self, state: str = "") -> Said:
        """Makes the requests of the state that is up, if none is given."""
        return self._traffic(state or (STATE_DIR / "state").read_text())

    def remove(self) -> None:
        """Removes what it makes beside the scene; to be called when the rules are gone."""
        self._down()


def every() -> list[Incident]:
    """All incidents, by number."""
    names = (m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]))
    found = [Incident(import_module(f"incidents.{n}")) for n in names if n not in HELPERS and not n.startswith("_")]
    return sorted(found, key=lambda i: i.number)


def find(number: int) -> Incident:
    """KeyError when there is none of that number."""
    return {i.number: i for i in every()}[number]


def down() -> None:
    """Removes everything, of whatever incident and state."""
    scene.down()
    for each in every():
        each.remove()


def restore(name: str, backend: rules.Backend) -> None:
    """Puts the rules of rulesets/NAME.rules in force, where there are none."""
    rules.restore_text((RULESETS / f"{name}.rules").read_text(), 4, backend)
