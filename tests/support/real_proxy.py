# SPDX-License-Identifier: Apache-2.0
"""The real kube-proxy and the real portmap as processes of a test, in the test's network namespace.

`make real-proxy` unpacks the binaries. An absent binary is None here, and the caller skips with a message.
"""

from __future__ import annotations

import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNPACKED = ROOT / "build" / "real-proxy"
"""`make real-proxy` puts VERSION/kube-proxy here."""
PACKAGE = "containernetworking-plugins"
"""Debian's package that has portmap."""
PORTMAP = (UNPACKED / "portmap", Path("/usr/lib/cni/portmap"), Path("/opt/cni/bin/portmap"))
MULTI = {"legacy": "/usr/sbin/xtables-legacy-multi", "nft": "/usr/sbin/xtables-nft-multi"}
START_SECONDS, END_SECONDS = 120.0, 20.0
"""Limits for the start and the end of a kube-proxy, s; long enough for an emulated processor."""


@dataclass(frozen=True)
class Mode:
    """A version of kube-proxy, its --proxy-mode, and the back end of the iptables in its PATH."""

    version: str
    proxy: str
    back: str

    @property
    def name(self) -> str:
        return f"{self.version}-{self.proxy}-{self.back}"

    @property
    def binary(self) -> Path:
        return UNPACKED / self.version / "kube-proxy"


MODES = (
    Mode("1.20.2", "iptables", "legacy"), Mode("1.20.2", "iptables", "nft"), Mode("1.20.2", "ipvs", "legacy"),
    Mode("1.36.2", "nftables", "nft"), Mode("1.36.2", "iptables", "nft"),
)  # fmt: skip


def missing() -> str:
    """A sentence that names the absent binaries; "" when all are there."""
    absent = [str(m.binary.relative_to(ROOT)) for m in MODES if not os.access(m.binary, os.X_OK)]
    if absent:
        return f"the real kube-proxy is not here ({', '.join(dict.fromkeys(absent))})."
    return "" if portmap() else f"the real portmap is not here ({', '.join(map(str, PORTMAP))})."


def portmap() -> Path | None:
    """The real portmap: from Debian's containernetworking-plugins, or from a CNI installation."""
    return next((path for path in PORTMAP if os.access(path, os.X_OK)), None)


def tools(back: str, folder: Path) -> dict[str, str]:
    """Environment variables with this back end's `iptables` in PATH. folder: the links are made there."""
    place = folder / f"iptables-{back}"
    place.mkdir(parents=True, exist_ok=True)
    for name in ("iptables", "ip6tables"):
        for verb in ("", "-save", "-restore"):
            link = place / f"{name}{verb}"
            if not link.is_symlink():
                link.symlink_to(MULTI[back])
    return {**os.environ, "PATH": f"{place}:/usr/sbin:/usr/bin:/sbin:/bin"}


@dataclass
class KubeProxy:
    """One kube-proxy. kubeconfig: for the API server. options: added to the command line's fixed options."""

    mode: Mode
    kubeconfig: str
    folder: Path
    node: str = "node-1"
    options: Sequence[str] = ("--cluster-cidr=10.244.0.0/16",)
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def log(self) -> Path:
        return self.folder / f"kube-proxy-{self.mode.name}.log"

    def start(self) -> None:
        """Starts it, and returns at once."""
        self.process = self._run(
            f"--proxy-mode={self.mode.proxy}", f"--kubeconfig={self.kubeconfig}", f"--hostname-override={self.node}",
            # Settings of the whole machine stay unchanged.
            "--conntrack-max-per-core=0", "--conntrack-min=0", "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0", "--iptables-sync-period=5s", "--ipvs-sync-period=5s", *self.options,
        )  # fmt: skip

    def stop(self) -> None:
        """Stops it as a kubelet does; its rules stay."""
        process, self.process = self.process, None
        if process and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def cleanup(self) -> int:
        """Runs `kube-proxy --cleanup` with the iptables of this mode, and returns its exit status."""
        return self._run("--cleanup", f"--proxy-mode={self.mode.proxy}").wait(START_SECONDS)

    def log_end(self) -> str:
        """The last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:]) if self.log.exists() else ""

    def _run(self, *options: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            command = [str(self.mode.binary), *options]
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=tools(self.mode.back, self.folder)
            )


def until(is_true: object, proxy: KubeProxy, what: str, seconds: float = START_SECONDS) -> None:
    """Waits until is_true() is true; AssertionError with the proxy's log after `seconds`, or when the proxy ends."""
    assert callable(is_true)
    ends = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > ends or (proxy.process and proxy.process.poll() is not None):
            raise AssertionError(f"{proxy.mode.name}: {what}\n{proxy.log_end()}")
        time.sleep(0.1)


@dataclass(frozen=True)
class HostPort:
    """A hostPort of a pod (ns/name) with this address. to: port of the container. container: the container's id."""

    port: int
    pod: str
    address: str
    to: int
    container: str


def host_port(program: Path, back: str, folder: Path, mapped: HostPort, remove: bool = False) -> None:
    """Runs portmap as libcni does. back: back end of its rules; remove: removes the rules."""
    mapping = {"hostPort": mapped.port, "containerPort": mapped.to, "protocol": "tcp"}
    config = {
        "cniVersion": "0.4.0", "name": "cbr0", "type": "portmap", "runtimeConfig": {"portMappings": [mapping]},
        "prevResult": {
            "cniVersion": "0.4.0", "interfaces": [{"name": "eth0", "sandbox": "/var/run/netns/none"}],
            "ips": [{"version": "4", "address": f"{mapped.address}/24", "interface": 0}],
        },
    }  # fmt: skip
    namespace, _, pod = mapped.pod.partition("/")
    request = {
        "CNI_COMMAND": "DEL" if remove else "ADD", "CNI_CONTAINERID": mapped.container, "CNI_NETNS": "/proc/self/ns/net",
        "CNI_IFNAME": "eth0", "CNI_PATH": str(program.parent),
        "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={pod}",
    }  # fmt: skip
    environment = {**tools(back, folder), **request}
    text = json.dumps(config)
    done = subprocess.run([str(program)], input=text, text=True, capture_output=True, env=environment, check=False)
    if done.returncode:
        raise OSError(f"portmap ({back}): {done.stdout}{done.stderr}")


def unpack(source: Path) -> None:
    """Unpacks what is available: kube-proxy-VERSION.xz in the folder `source`, portmap from Debian's package."""
    for mode in MODES:
        packed = source / f"kube-proxy-{mode.version}.xz"
        if packed.exists() and not mode.binary.exists():
            mode.binary.parent.mkdir(parents=True, exist_ok=True)
            partial = mode.binary.with_suffix(".part")
            with lzma.open(packed) as reading, partial.open("wb") as writing:
                shutil.copyfileobj(reading, writing)
            partial.chmod(0o755)
            partial.rename(mode.binary)
    if all(mode.binary.exists() for mode in MODES) and not PORTMAP[0].exists():
        _unpack_portmap()


def _unpack_portmap() -> None:
    """Unpacks portmap into a directory that virtual machines also see: their images do not have the package."""
    with tempfile.TemporaryDirectory() as folder:
        got = subprocess.run(["apt-get", "download", PACKAGE], cwd=folder, capture_output=True, check=False)
        for package in Path(folder).glob("*.deb") if not got.returncode else ():
            subprocess.run(["dpkg-deb", "-x", str(package), folder], check=True)
            shutil.copy2(Path(folder, "usr/lib/cni/portmap"), PORTMAP[0])


def main(source: str) -> int:
    """Unpacks the binaries. Returns 0 when all are there, else prints one sentence with the absent ones."""
    unpack(Path(source))
    absent = missing()
    if absent:
        print(f"real-proxy skipped: {absent} Recorded rules are used instead.")
    return 1 if absent else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
