# SPDX-License-Identifier: Apache-2.0
"""Five incidents of real clusters, reproduced on the small node of vagrant/scenes, and removed again.

For a throw-away machine only, as root: `python3 vagrant/incidents 3 up`, `... traffic`, `... down`. An incident is one file,
with the name of the finding that the tracer must report. The file has:

    NUMBER, TITLE       its number and its name
    SYMPTOM             what a user sees who does not know the cause
    PORTS               the ports for `--port`
    OPTIONS             further options of the tracer in the demo; optional
    STATES              state -> expected number of its finding; 0 is a healthy twin, without a fault
    ONLY                state -> the one back end in which it exists; states that exist in both are not listed
    up(state, backend)  builds it, with its rules in "legacy" or "nft"; returns the API's objects
    traffic(state)      makes requests; returns (request, result) of each
    down()              removes what up() made in addition to the scene; optional
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
"""The objects as `kubectl get -A -o json` prints them; for --objects."""
RULESETS = Path(__file__).with_name("rulesets")
HELPERS = (
    "network_policies", "objects", "kube_proxy", "demo", "ipvs", "links", "proxy", "service_situations", "situations",
    "variations", "varied",
)  # fmt: skip

Requests = list[tuple[str, str]]


class Incident:
    """One incident, read from its file."""

    def __init__(self, module: ModuleType) -> None:
        self.finding = module.__name__.rpartition(".")[2]
        self.number: int = module.NUMBER
        self.title: str = module.TITLE
        self.symptom: str = module.SYMPTOM
        self.ports: tuple[int, ...] = module.PORTS
        self.options: tuple[str, ...] = getattr(module, "OPTIONS", ())
        self.states: dict[str, int] = module.STATES
        self._only: dict[str, rules.Backend] = getattr(module, "ONLY", {})
        self._up: Callable[[str, rules.Backend], list[Object]] = module.up
        self._traffic: Callable[[str], Requests] = module.traffic
        self._down: Callable[[], None] = getattr(module, "down", lambda: None)

    def states_in(self, backend: str) -> list[str]:
        """The states that exist in this back end."""
        return [s for s in self.states if self._only.get(s, backend) == backend]

    def up(self, state: str, backend: rules.Backend = "legacy") -> list[Object]:
        """Removes any earlier incident, builds the state, writes the API's objects to OBJECTS, and returns them."""
        down()
        found = self._up(state, backend)
        STATE_DIR.mkdir(parents=True, exist_ok=True)
        OBJECTS.write_text(json.dumps({"kind": "List", "items": found}))
        (STATE_DIR / "state").write_text(state)
        return found

    def traffic(self, state: str = "") -> Requests:
        """Makes the requests of the given state; by default of the state that is up."""
        return self._traffic(state or (STATE_DIR / "state").read_text())

    def remove(self) -> None:
        """Removes what it made in addition to the scene. Call it after the rules were removed."""
        self._down()


def every() -> list[Incident]:
    """All incidents, by number."""
    names = (m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]))
    found = [Incident(import_module(f"incidents.{n}")) for n in names if n not in HELPERS and not n.startswith("_")]
    return sorted(found, key=lambda i: i.number)


def find(number: int) -> Incident:
    """The incident with this number. KeyError when there is none."""
    return {i.number: i for i in every()}[number]


def down() -> None:
    """Removes everything, of every incident and state."""
    scene.down()
    for each in every():
        each.remove()


def restore(name: str, backend: rules.Backend) -> None:
    """Loads the rules of rulesets/NAME.rules; there must be no rules yet."""
    rules.restore_text((RULESETS / f"{name}.rules").read_text(), 4, backend)
