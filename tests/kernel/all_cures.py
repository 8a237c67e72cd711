# SPDX-License-Identifier: Apache-2.0
"""Carries out every check and every cure of every finding on a node of namespaces. As root, on this machine's own kernel or
in the lab:

    python3 tests/kernel/all_cures.py [--only WORDS]

All work is done in namespaces that end with this process; the machine itself is not changed. With --machine a limit of the
whole machine is changed, too: for a throw-away machine only. The last line is cases=… checks=… cures=… wrong=… left_out=….
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[0:1] = [str(ROOT), str(ROOT / "vagrant")]

from tests.kernel import modules  # noqa: E402
from tests.kernel.cures import BuiltCase, Case, all_cases, commands  # noqa: E402
from tests.kernel.cures.box import Box  # noqa: E402
from tests.support import real_proxy  # noqa: E402
from tests.support.kubectl_api import KubectlApi  # noqa: E402
from tests.support.open_vswitch import MODULE  # noqa: E402

INSIDE = "K8SNET_CURES"
SLICES = ("v1beta1", "v1")
"""Versions of EndpointSlices that `kubectl` must work with: of Kubernetes 1.20, and of newer ones."""


class CaseFailed(Exception):
    """A check does not show what it promises, or a cure does not help."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--only", default="", metavar="WORDS", help="cases with these words in their name, or with others after a |"
    )
    parser.add_argument("--machine", action="store_true", help="the machine is a throw-away one")
    parser.add_argument("--verbose", action="store_true", help="print each command's output")
    options = parser.parse_args()
    if INSIDE not in os.environ:
        names = "br_netfilter nft_numgen nft_fib_ipv4 nft_masq nft_nat nft_reject_ipv4"
        names += " openvswitch veth vxlan xt_TCPMSS nf_conntrack_netlink"
        modules.load(f"{modules.RANDOM_RULES} {modules.INCIDENTS} {names}", anywhere=not options.machine)
        fd = os.open("/proc/self/ns/net", os.O_RDONLY)
        command = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]
        env = {**os.environ, INSIDE: str(fd) if options.machine else ""}
        return subprocess.run([*command, sys.executable, *sys.argv], env=env, pass_fds=[fd], check=False).returncode
    return run(options)


def run(options: argparse.Namespace) -> int:
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    Path("/run/netns").mkdir()
    folder = Path(tempfile.mkdtemp(dir="/run"))
    apis = {version: KubectlApi(version) for version in SLICES}
    box = Box(apis[SLICES[0]], int(os.environ[INSIDE]) if os.environ[INSIDE] else None)
    box.build()
    counts: Counter[str] = Counter()
    runner = Runner(box, apis, folder, counts, options.verbose)
    for case in (c for c in all_cases() if any(words in c.text for words in options.only.split("|"))):
        began, outcome = time.monotonic(), "right"
        missing = runner.missing_requirement(case)
        counts["left_out" if missing else "cases"] += 1
        try:
            if not missing:
                runner.carry_out(case)
        except CaseFailed as e:
            outcome = f"WRONG: {e}"
        except Exception:
            outcome = f"WRONG: {traceback.format_exc()}"
        finally:
            box.clear()
        counts["wrong"] += outcome != "right"
        print(f"{time.monotonic() - began:4.1f} s  {case.text}: {'left out, ' + missing if missing else outcome}", flush=True)
        for note in runner.notes:
            print(f"        {note}")
        runner.notes.clear()
    print(" ".join(f"{name}={counts[name]}" for name in ("cases", "checks", "cures", "wrong", "left_out")))
    return int(counts["wrong"] > 0)


class Runner:
    """Carries cases out. notes: commands of the last case that were not run, one sentence each."""

    def __init__(self, box: Box, apis: dict[str, KubectlApi], folder: Path, counts: Counter[str], verbose: bool) -> None:
        self.box, self.apis, self.counts, self.verbose = box, apis, counts, verbose
        self.folder, self.notes = folder, list[str]()
        self.configs = {version: api.kubeconfig(folder) for version, api in apis.items()}
        self.proxies: dict[str, str] = {}

    def _real_proxy(self, version: str) -> str:
        """The directory with this version of `kube-proxy` and the legacy `iptables` tools; "" if it is not installed."""
        if version not in self.proxies:
            self.proxies[version] = self._unpacked(version)
        return self.proxies[version]

    def _unpacked(self, version: str) -> str:
        binary = real_proxy.UNPACKED / version / "kube-proxy"
        if not os.access(binary, os.X_OK):
            return ""
        folder = self.folder / version
        folder.mkdir()
        (folder / "kube-proxy").symlink_to(binary)
        for name in ("iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"):
            tool = shutil.which(name.replace("tables", "tables-legacy"))
            if tool:
                (folder / name).symlink_to(tool)
        return str(folder)

    def missing_requirement(self, case: Case) -> str:
        """Why a case cannot be built here, "" if it can."""
        for need in case.needs:
            if need == "ipvs" and not Path("/proc/net/ip_vs").exists():
                return "this kernel has no IPVS"
            if need == "machine" and self.box.machine is None:
                return "it changes a limit of the whole machine (--machine)"
            if need == "real" and not self._real_proxy("1.36.2"):
                return "the real kube-proxy is not here: `make real-proxy` unpacks it"
            if need == "ovs" and not MODULE.exists():
                return "this kernel has no Open vSwitch"
            if need == "bridge" and not Path("/proc/sys/net/bridge").exists():
                return "this kernel has no br_netfilter"
            if need == "conntrack" and not shutil.which("conntrack"):
                return "conntrack is not installed"
        return ""

    def carry_out(self, case: Case) -> None:
        """Builds a case, runs its commands, and looks for the finding again. Raises CaseFailed."""
        built = case.build(self.box)
        found = built.find()
        if not found:
            raise CaseFailed("the finding is not found")
        for finding in found[:1]:
            for command in commands(finding.check):
                self._check(command, built)
            for command in commands(finding.cure):
                self._cure(command, built)
        built.repair()
        remaining = built.find()
        if remaining:
            raise CaseFailed(f"it is still found after its cure: {remaining[0].cause}\ncure: {remaining[0].cure}")

    def _check(self, command: str, built: BuiltCase) -> None:
        """Runs a command of a check, which must print what the case expects."""
        if self._is_skipped(command, built):
            return
        expected = [pattern for words, pattern in built.expected_output.items() if words in command]
        if len(expected) != 1:
            raise CaseFailed(f"the case expects no output, or more than one, of `{command}`")
        for version in SLICES if command.startswith("kubectl") else SLICES[:1]:
            done = self._run(command, built, version)
            if not re.search(expected[0], done.stdout + done.stderr):
                raise CaseFailed(f"`{command}` does not show {expected[0]!r} ({done.returncode}): {done.stdout}{done.stderr}")
            self.counts["checks"] += 1

    def _cure(self, command: str, built: BuiltCase) -> None:
        """Runs a command of a cure, which must succeed."""
        if self._is_skipped(command, built):
            return
        done = self._run(command, built if built.namespace == "machine" else replace(built, namespace=""), SLICES[0])
        if done.returncode:
            raise CaseFailed(f"the cure `{command}` fails ({done.returncode}): {done.stdout}{done.stderr}")
        self.counts["cures"] += 1

    def _is_skipped(self, command: str, built: BuiltCase) -> bool:
        why = next((why for words, why in built.skipped.items() if words in command), "")
        # For a loop: the program that it runs.
        program = shlex.split(command.partition("; do ")[2] if command.startswith("for ") else command)[0]
        if not why and not shutil.which(program) and program != "kube-proxy":
            why = f"{program} is not installed"
        if why:
            self.notes.append(f"not run because {why}: {command}")
        return bool(why)

    def _run(self, command: str, built: BuiltCase, version: str) -> subprocess.CompletedProcess[str]:
        self.apis[version].share(self.box.api)
        path = os.environ["PATH"]
        if command.startswith("kube-proxy"):
            path = f"{self._real_proxy(built.proxy)}:{path}"
        env = {**os.environ, "KUBECONFIG": self.configs[version], "KUBE_EDITOR": f"sed -i '{built.editor}'", "PATH": path,
               "HOME": str(self.folder)}  # fmt: skip
        words = ["sh", "-c", command]
        if built.namespace == "machine":
            words = ["nsenter", f"--net=/proc/self/fd/{self.box.machine}", *words]
        elif built.namespace:
            words = ["ip", "netns", "exec", built.namespace, *words]
        fds = [self.box.machine] if self.box.machine is not None else []
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, pass_fds=fds, timeout=120)
        if self.verbose:
            print(f"    $ {command}\n{done.stdout}{done.stderr}")
        return done


if __name__ == "__main__":
    sys.exit(main())
