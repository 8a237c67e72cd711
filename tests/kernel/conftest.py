# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the kernel tests, which run as root inside a virtual machine (`make kernel-test`), on real packets.

The probes are attached once for all tests of a boot, because compiling takes half a minute under emulation; each test sets the
filter it needs on the running probes. The scene, a node with kube-proxy's rules, is built once, too.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "vagrant")]

from scenes import scene  # noqa: E402
from tests.kernel import modules  # noqa: E402
from tests.kernel.recorder import Recorder  # noqa: E402
from tests.kernel.watching import NOTHING, Watch  # noqa: E402
from tracer.kernel.session import Announcements, Kernel, Session  # noqa: E402

TRIES = 3
_, MOST_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)
# A test may open a tracer beside that of all tests and that of its module: a tracer counts its own files only.
resource.setrlimit(resource.RLIMIT_NOFILE, (MOST_FILES, MOST_FILES))


@pytest.fixture(scope="session")
def node() -> Iterator[None]:
    """A node with kube-proxy's rules, three pods and a client; every kernel module the probes watch is loaded."""
    modules.load(modules.RANDOM_RULES)
    subprocess.run(["nft", "list", "ruleset"], check=True, stdout=subprocess.DEVNULL)  # loads nf_tables
    modules.load(modules.INCIDENTS)
    with scene.scene():
        yield


@pytest.fixture(scope="session", params=os.environ.get("K8SNET_ATTACH", "auto").split(","))
def watch(node: None, request: pytest.FixtureRequest) -> Iterator[Watch]:
    """The probes, attached for all tests; K8SNET_ATTACH=auto,kprobe runs every test with each way of attaching."""
    kernel = Kernel.running()
    refusals: list[str] = []
    with Session(kernel, NOTHING, only=request.param, announcements=Announcements(warn=refusals.append)) as session:
        assert not refusals, "a program that the kernel refuses makes all probes slower"
        missing = [r.probe.name for r in session.refused if "is not loaded" not in r.why]
        assert not missing or (kernel.types.builtin_layouts and all(name.startswith("ipvs_") for name in missing)), missing
        yield Watch(kernel, session)


@pytest.fixture
def recorder(watch: Watch, tmp_path: Path) -> Recorder:
    """Records what the probes see."""
    return Recorder(watch.kernel, watch.session, tmp_path)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Repeats a failed test in which events were lost: on a slow machine a kretprobe can be missed, and a lost event can be the
    reason of the failure. A test that fails without losses has failed."""
    watch = pyfuncitem.funcargs.get("watch")
    if not isinstance(watch, Watch):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    for attempt in range(1, TRIES + 1):
        watch.lost = 0
        try:
            pyfuncitem.obj(**arguments)
            break
        except AssertionError:
            if attempt == TRIES or not watch.lost:
                raise
    return True


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item, report: pytest.TestReport) -> None:
    """Shows a failure and the test's output at once: a machine that runs out of time prints no summary."""
    reporter = node.config.pluginmanager.getplugin("terminalreporter")
    if reporter:
        reporter.write_line(f"\n{report.nodeid}\n{report.longreprtext}\n{report.capstdout}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips tests that take long unless THOROUGH=1 is set; those of the matrix always run."""
    if not os.environ.get("K8SNET_THOROUGH"):
        for item in items:
            if item.get_closest_marker("thorough") and not item.get_closest_marker("matrix"):
                item.add_marker(pytest.mark.skip(reason="takes long: THOROUGH=1"))
