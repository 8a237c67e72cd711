# SPDX-License-Identifier: Apache-2.0
"""Finds the containers that objects of the tracer hold, by reading its source: dictionaries, lists, sets, queues and caches."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BOUNDED = {"LruDict", "LruCounter", "BoundedQueue"}
"""Classes with a bound and a name."""
UNBOUNDED = {
    "dict", "list", "set", "deque", "OrderedDict", "Counter", "defaultdict", "Queue", "SimpleQueue", "MultiIndex", "WeakSet",
}  # fmt: skip
CACHES = {"lru_cache", "cache"}


@dataclass(frozen=True)
class Container:
    """A container that the source creates.

    Attributes:
        where: Class and attribute, or module and function: "Processes._owners", "record.address".
        kind: Name of its class or decorator.
        name: Name of its evictions; "" = none.
        most: Its bound; None = none.
    """

    where: str
    kind: str
    name: str = ""
    most: int | None = None


def containers() -> Iterator[Container]:
    """Yields the containers of all classes and modules."""
    for path in sorted((ROOT / "tracer").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                yield from _of_class(node, module)
            elif isinstance(node, ast.FunctionDef):
                for decorator in node.decorator_list:
                    if called(decorator) in CACHES:
                        most = _number(decorator, module)
                        yield Container(f"{module.rpartition('.')[2]}.{node.name}", str(called(decorator)), "", most)


def _of_class(node: ast.ClassDef, module: str) -> Iterator[Container]:
    found: dict[str, Container] = {}
    if any("frozen=True" in ast.unparse(decorator) for decorator in node.decorator_list):
        return  # values
    for part in ast.walk(node):
        if not isinstance(part, ast.Assign | ast.AnnAssign) or part.value is None:
            continue
        targets = part.targets if isinstance(part, ast.Assign) else [part.target]
        values: list[ast.expr] = [part.value]
        if isinstance(targets[0], ast.Tuple) and isinstance(part.value, ast.Tuple):
            targets, values = targets[0].elts, part.value.elts
        for target, value in zip(targets, values, strict=False):
            name = _attribute(target, part in node.body)
            made = _made(value)
            if name and made:
                where = f"{node.name}.{name}"
                kind = called(made) or type(made).__name__.lower()
                more = (_text(made, module), _number(made, module)) if kind in BOUNDED else ("", None)
                if name not in found or kind in BOUNDED:
                    found[name] = Container(where, kind, *more)
    yield from found.values()


def _attribute(target: ast.expr, is_field: bool) -> str:
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
        return target.attr
    return target.id if is_field and isinstance(target, ast.Name) else ""


def _made(value: ast.expr) -> ast.expr | None:
    """The expression that makes a container, within defaults of fields and conditions; None = it makes none."""
    if isinstance(value, ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp):
        return value
    if isinstance(value, ast.IfExp):
        return _made(value.body) or _made(value.orelse)
    if isinstance(value, ast.Call):
        name = called(value)
        if name in BOUNDED | UNBOUNDED | CACHES:
            return value
        if name == "field":
            factory = next((k.value for k in value.keywords if k.arg == "default_factory"), None)
            if isinstance(factory, ast.Lambda):
                return _made(factory.body)
            return factory if isinstance(factory, ast.Name) and factory.id in BOUNDED | UNBOUNDED else None
        if isinstance(value.func, ast.Call):  # lru_cache(1 << 16)(function)
            return _made(value.func)
    return None


def called(node: ast.expr) -> str:
    """The name of what is called: "deque" of `deque(...)`, `deque[int]()`, `collections.deque` or `@deque`."""
    if isinstance(node, ast.Call):
        return called(node.func)
    if isinstance(node, ast.Subscript):
        return called(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _number(node: ast.expr, module: str) -> int | None:
    """The first argument, or `maxsize`, as the value of a constant of its module; a parameter's default has no constant."""
    if not isinstance(node, ast.Call):
        return None
    arguments = [*node.args, *(k.value for k in node.keywords if k.arg == "maxsize")]
    if not arguments:
        return None
    try:
        found: Any = eval(ast.unparse(arguments[0]), vars(import_module(module)))  # the tracer's own source
    except NameError:
        return None
    return found if isinstance(found, int) else None


def _text(node: ast.expr, module: str) -> str:
    arguments = node.args if isinstance(node, ast.Call) else []
    return str(arguments[1].value) if len(arguments) > 1 and isinstance(arguments[1], ast.Constant) else ""
