"""The lab runner, without booting: tables, image names, formats, command lines, a stand-in for QEMU."""

from __future__ import annotations

import itertools
import lzma
import os
import shutil
import stat
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "vagrant"))

from lab import (
    boot,
    box,
    bzimage,
    cache,
    cli,
    cpio,
    guestfiles,
    host,
    kernelimage,
    kernels,
    packages,
    qemu,
    rootfs,
)
from lab.kernels import Kernel
from lab.qemu import Accel, Machine, Wires


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty image cache for each test."""
    path = tmp_path / "cache"
    monkeypatch.setenv("K8SNET_LAB_CACHE", str(path))
    return path


# ---------------------------------------------------------------- tables


def test_kernel_rows_are_complete() -> None:
    assert kernels.names() == ["5.10", "6.1", "6.12", "7.2"]
    assert set(kernels.DEFAULT_BUILD) <= set(kernels.names())
    for name in kernels.names():
        row = kernels.find(name)
        assert row.suite
        assert row.userspace
    with pytest.raises(KeyError):
        kernels.find("2.6")


@pytest.mark.parametrize("suite", sorted({kernel.userspace for kernel in kernels.KERNELS}))
def test_package_lists(suite: str) -> None:
    names = packages.for_suite(suite)
    assert len(names) == len(set(names))
    assert {"python3-bpfcc", "iptables", "nftables", "mount", "passwd"} <= set(names)
    assert ("pwru" in names) == (suite in ("trixie", "sid"))
    assert not [name for name in names if name.startswith("linux-")], "the tracer must work without headers"


def test_a_box_has_what_the_lab_has_and_more() -> None:
    for suite in ("bookworm", "trixie", "sid"):
        assert set(packages.for_suite(suite)) < set(packages.for_box(suite))
    assert {"openssh-server", "sudo", "rsync", "systemd-sysv", "udev"} <= set(packages.for_box("sid"))


def test_what_the_vagrantfile_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K8SNET_BOX_DIR", str(tmp_path / "boxes"))
    told = box.describe(kernels.find("6.1"))
    assert told["built"] is False and told["box"] == f"file://{tmp_path}/boxes/6.1.box"
    assert (told["driver"], told["cpu"]) == ("qemu", qemu.CPU), "no kernel image, so nobody has tried KVM"
    options = str(told["options"]).split()
    assert options[:2] == ["root=/dev/vda", "rw"] and "net.ifnames=0" in options and "mitigations=off" in options
    assert [o for o in options if o.startswith("panic=")] == ["panic=10"], "a person may want to read why"
    (tmp_path / "boxes").mkdir()
    (tmp_path / "boxes/6.1.box").touch()
    assert box.describe(kernels.find("6.1"))["built"] is True


def test_a_boxs_initrd_begins_with_its_own_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = tmp_path / "modules"
    (modules / "kernel").mkdir(parents=True)
    (modules / "kernel/virtio_blk.ko").write_bytes(b"a module")
    (modules / "modules.dep").write_text("kernel/virtio_blk.ko:\n")
    busybox = tmp_path / "busybox"
    busybox.write_bytes(b"static")
    monkeypatch.setattr(host, "static_busybox", lambda: busybox)
    data = box.initrd(modules)
    assert b"switch_root /new /sbin/init" in data and b"a module" in data and b"virtio_blk.ko\n" in data


@pytest.mark.parametrize("command", box.COMMANDS)
def test_commands_find_the_tree_they_are_in(command: str, tmp_path: Path) -> None:
    """Also by a link from elsewhere, as in a box."""
    (tmp_path / command).symlink_to(guestfiles.GUEST / "bin" / command)
    ran = subprocess.run([tmp_path / command, "--help"], capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 0 and command.rstrip("s") in ran.stdout.lower(), ran.stderr


# ---------------------------------------------------------------- image names and the cache


def test_root_image_is_renamed_when_its_packages_change(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {suite: rootfs.image(suite).path for suite in ("bookworm", "trixie")}
    assert before == {suite: rootfs.image(suite).path for suite in ("bookworm", "trixie")}
    more = (*packages.PACKAGES, packages.Package("tshark", suites=("trixie",)))
    monkeypatch.setattr(packages, "PACKAGES", more)
    assert rootfs.image("bookworm").path == before["bookworm"]
    assert rootfs.image("trixie").path != before["trixie"]


def test_kernel_image_is_renamed_when_its_definition_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    row = kernels.find("6.1")
    before = kernelimage.image(row).path
    assert kernelimage.image(Kernel("6.1", "bookworm", "bookworm")).path != before  # no security archive
    monkeypatch.setattr(kernelimage, "INITRD_MODULES", ("virtio_pci",))
    assert kernelimage.image(row).path != before


def test_an_image_is_built_once_and_replaces_older_ones(own_cache: Path) -> None:
    built: list[Path] = []

    def build(scratch: Path) -> Path:
        built.append(scratch)
        (scratch / "result").write_text("new")
        return scratch / "result"

    own_cache.mkdir()
    (own_cache / "root-x-0000000000.ext4").write_text("old")
    (own_cache / "root-xy-0000000000.ext4").write_text("another suite's")
    image = cache.Image("root-x", "1111111111", ".ext4", build)
    assert image.ensure().read_text() == "new"
    image.ensure()
    assert len(built) == 1
    assert sorted(path.name for path in own_cache.glob("root-*")) == [
        "root-x-1111111111.ext4",
        "root-xy-0000000000.ext4",
    ]
    assert not built[0].exists()


def test_a_failed_build_leaves_nothing(own_cache: Path) -> None:
    def build(scratch: Path) -> Path:
        (scratch / "half").write_text("")
        raise host.LabError("no network")

    image = cache.Image("root-x", "1", ".ext4", build)
    with pytest.raises(host.LabError, match="no network"):
        image.ensure()
    assert not image.path.exists()
    assert [path.name for path in own_cache.iterdir()] == [".root-x.lock"]


def test_two_builds_at_once_build_once() -> None:
    built: list[int] = []

    def build(scratch: Path) -> Path:
        built.append(1)
        time.sleep(0.1)
        (scratch / "result").mkdir()
        return scratch / "result"

    image = cache.Image("kernel-x", "1", "", build)
    threads = [threading.Thread(target=image.ensure) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert built == [1]
    assert image.path.is_dir()


# ---------------------------------------------------------------- formats


def bzimage_like(payload: bytes, size: int) -> bytes:
    """A file with a bzImage's header (two set-up sectors) around a payload that unpacks to `size` bytes."""
    header = bytearray(3 * 512)
    header[0x1F1] = 2
    header[0x202:0x206] = b"HdrS"
    code = b"\x90" * 100  # the unpacking code; in it, what looks like a payload but is none
    code += b"\x28\xb5\x2f\xfd"
    struct.pack_into("<II", header, 0x248, len(code), len(payload) + 4)
    return bytes(header) + code + payload + struct.pack("<I", size) + b"what follows"


ELF = b"\x7fELF" + bytes(range(256)) * 300


@pytest.mark.parametrize("packer", ["xz", "zstd", "lz4"])
def test_vmlinux_out_of_a_bzimage(packer: str) -> None:
    if packer == "xz":
        payload = lzma.compress(ELF, check=lzma.CHECK_CRC32)
    elif shutil.which(packer) is None:
        pytest.skip(f"no {packer} here")
    else:
        options = {"zstd": ["-qc"], "lz4": ["-qcl"]}[packer]  # the kernel has lz4's legacy format
        payload = subprocess.run([packer, *options], input=ELF, stdout=subprocess.PIPE, check=True).stdout
    assert bzimage.vmlinux(bzimage_like(payload, len(ELF))) == ELF


def test_no_vmlinux_in_other_files() -> None:
    assert bzimage.vmlinux(b"") is None
    assert bzimage.vmlinux(ELF) is None
    assert bzimage.vmlinux(bzimage_like(b"unknown format", 9)) is None
    assert bzimage.vmlinux(bzimage_like(lzma.compress(b"no ELF file"), 11)) is None


def members(archive: bytes) -> dict[str, tuple[int, bytes]]:
    """Name -> (mode, data) of a newc archive, up to its trailer."""
    found: dict[str, tuple[int, bytes]] = {}
    at = 0
    while True:
        assert archive[at : at + 6] == b"070701"
        fields = [int(archive[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        name = archive[at + 110 : at + 110 + fields[11] - 1].decode()
        data_at = (at + 110 + fields[11] + 3) & ~3
        if name == cpio.TRAILER:
            return found
        found[name] = (fields[1], archive[data_at : data_at + fields[6]])
        at = (data_at + fields[6] + 3) & ~3


def test_cpio_archive() -> None:
    archive = cpio.archive(
        [
            cpio.directory("bin"),
            cpio.file("bin/x", b"12345", 0o755),
            cpio.symlink("bin/sh", "x"),
            cpio.file("e", b""),
        ]
    )
    assert len(archive) % 512 == 0
    assert members(archive) == {
        "bin": (stat.S_IFDIR | 0o755, b""),
        "bin/x": (stat.S_IFREG | 0o755, b"12345"),
        "bin/sh": (stat.S_IFLNK | 0o777, b"x"),
        "e": (stat.S_IFREG | 0o644, b""),
    }


def test_module_load_order() -> None:
    modules_dep = (
        "kernel/fs/ext4/ext4.ko: kernel/lib/crc16.ko kernel/fs/mbcache.ko kernel/fs/jbd2/jbd2.ko\n"
        "kernel/fs/jbd2/jbd2.ko:\n"
        "kernel/fs/mbcache.ko:\n"
        "kernel/drivers/virtio-pci.ko: kernel/drivers/virtio.ko\n"
    )
    order = kernelimage.load_order(modules_dep, ("virtio_pci", "built_in", "jbd2", "ext4"))
    assert [Path(path).stem for path in order] == ["virtio", "virtio-pci", "jbd2", "mbcache", "crc16", "ext4"]


def test_kernel_packages_of_one_and_of_several() -> None:
    depends = """\
linux-image-cloud-amd64
  Depends: linux-image-6.1.0-56-cloud-amd64
linux-image-6.1.0-56-cloud-amd64
  Depends: kmod
linux-image-6.1.0-56-cloud-amd64-unsigned
kmod
linux-base
"""
    assert kernelimage.kernel_packages(depends) == ["linux-image-6.1.0-56-cloud-amd64"]
    several = "linux-image-7.2.13+deb14-cloud-amd64\nlinux-modules-7.2.13+deb14-cloud-amd64\nlinux-base\n"
    assert len(kernelimage.kernel_packages(several)) == 2
    assert kernelimage.kernel_packages("") == []


def test_what_is_taken_from_a_kernel_package() -> None:
    take = kernelimage.destination
    assert take("./boot/vmlinuz-6.1.0") == "vmlinuz"
    assert take("./usr/lib/modules/7.2/vmlinuz") == "vmlinuz"
    assert take("./lib/modules/6.1/kernel/net/x.ko.xz") == "lib/modules/6.1/kernel/net/x.ko.xz"
    assert take("./usr/lib/modules/7.2/modules.order") == "lib/modules/7.2/modules.order"
    for name in ("./boot/System.map-6.1.0", "./lib/modules/6.1/build", "./usr/share/doc/x", "./lib/modules/"):
        assert take(name) is None


def test_a_dynamic_program_is_told_from_a_static_one() -> None:
    def elf(*segments: int) -> bytes:
        header = bytearray(64)
        struct.pack_into("<Q", header, 0x20, 64)
        struct.pack_into("<HH", header, 0x36, 56, len(segments))
        return bytes(header) + b"".join(struct.pack("<I52x", kind) for kind in segments)

    assert host.is_dynamic(elf(1, host.PT_INTERP, 2))
    assert not host.is_dynamic(elf(1, 2))


# ---------------------------------------------------------------- what the guest is told

AWKWARD = ["a b", "it's", "$HOME", "", "new\nline", "*", "--", "-n", "ü", "\udcff", 'q"q', "\\"]


def test_arguments_arrive_as_given(tmp_path: Path) -> None:
    script = tmp_path / "command"
    show = "import os, sys; sys.stdout.buffer.write(b'\\0'.join(map(os.fsencode, sys.argv[1:])))"
    script.write_bytes(guestfiles.script([sys.executable, "-c", show, *AWKWARD]))
    out = subprocess.run(["sh", str(script)], stdout=subprocess.PIPE, check=True).stdout
    assert out.split(b"\0") == [os.fsencode(argument) for argument in AWKWARD]


def test_environment() -> None:
    user = {"TERM": "xterm-256color", "COLUMNS": "7", "FORCE_COLOR": "1", "SECRET": "x"}
    plain = guestfiles.environment("6.1", "bookworm", host=user)
    assert plain["PATH"].startswith("/mnt/share/vagrant/lab/guest/bin:")
    assert (plain["LAB_KERNEL"], plain["LAB_SUITE"], plain["LANG"]) == ("6.1", "bookworm", "C.UTF-8")
    assert (plain["TERM"], plain["COLUMNS"], plain["FORCE_COLOR"]) == ("dumb", "7", "1")
    assert "LINES" not in plain
    assert "SECRET" not in plain
    size = os.terminal_size((132, 43))
    on_terminal = guestfiles.environment("6.1", "bookworm", host={"TERM": "xterm"}, terminal=size)
    assert (on_terminal["TERM"], on_terminal["COLUMNS"], on_terminal["LINES"]) == ("xterm", "132", "43")


def test_environment_survives_the_shell(tmp_path: Path) -> None:
    script = tmp_path / "environment"
    script.write_bytes(guestfiles.exports({"A": "it's $HOME\n*", "B": ""}) + b'printf \'%s|\' "$A" "$B"')
    out = subprocess.run(["sh", str(script)], stdout=subprocess.PIPE, check=True).stdout
    assert out == b"it's $HOME\n*||"


def test_archive_for_one_boot() -> None:
    found = members(guestfiles.archive(["true"], {"A": "b"}, share=True, shell=False))
    assert found["lab/options"][1] == b"MODE=run\nSHARE=1\n"
    assert found["lab/command"][1] == b"exec true\n"
    assert found["init"][0] & 0o111
    interactive = members(guestfiles.archive(["sh"], {}, share=False, shell=True))
    assert interactive["lab/options"][1] == b"MODE=shell\nSHARE=0\n"


@pytest.mark.parametrize("name", ["init", "init2", "bin/k8snet-trace"])
def test_guest_scripts_parse(name: str) -> None:
    subprocess.run(["sh", "-n", str(guestfiles.GUEST / name)], check=True)


# ---------------------------------------------------------------- the machine's command line

MACHINE = Machine(
    name="lab-6.1",
    kernel=Path("/k/vmlinux"),
    initrd=Path("/t/initrd"),
    root=Path("/c/ro,ot"),
    modules=Path("/k/modules"),
    accel=Accel("tcg", 2_400_000),
    memory=1024,
    cpus=3,
    append="quiet",
)
WIRES = Wires(status=10, output=(11, 12), console=Path("/t/console"), share=Path("/t/share"))


def values(argv: list[str], option: str) -> list[str]:
    """Every value of an option."""
    return [value for name, value in itertools.pairwise(argv) if name == option]


def test_command_line_of_an_emulated_machine() -> None:
    argv = qemu.command_line(MACHINE, WIRES)
    assert values(argv, "-accel")[0].startswith("tcg,")
    assert "cx16=off" in values(argv, "-cpu")[0].split(",")
    assert "la57=off" in values(argv, "-cpu")[0].split(",")
    root, modules = values(argv, "-drive")
    assert "file=/c/ro,,ot," in root
    assert "snapshot=on" in root
    assert "readonly=on" in modules
    assert (values(argv, "-m"), values(argv, "-smp")) == (["1024"], ["3"])
    assert "-no-reboot" in argv
    kernel = values(argv, "-append")[0].split()
    assert {"tsc=reliable", "tsc_early_khz=2400000", "panic=-1", "quiet"} <= set(kernel)
    assert values(argv, "-add-fd") == ["fd=10,set=10", "fd=11,set=11", "fd=12,set=12"]
    assert "memory-backend-memfd,id=mem,size=1024M,share=on" in argv
    assert any("tag=share" in value for value in values(argv, "-device"))


def test_command_line_with_kvm_without_share_interactive() -> None:
    machine = Machine(**{**vars(MACHINE), "accel": Accel("kvm")})
    argv = qemu.command_line(machine, Wires(10, None, Path("/t/console"), None))
    assert values(argv, "-accel") == ["kvm"]
    assert "tsc" not in values(argv, "-append")[0]
    assert "stdio,id=console,signal=off" in argv
    assert values(argv, "-add-fd") == ["fd=10,set=10"]
    assert "memory-backend" not in " ".join(argv)


# ---------------------------------------------------------------- a run, with a stand-in for QEMU


def test_status_lines() -> None:
    status = boot.Status()
    status.feed(b"boot 4.")
    assert status.booted is None
    status.feed(b"25\nnonsense\n\nstat")
    status.feed(b"us 7\n")
    assert vars(status) == {"booted": 4.25, "status": 7, "done": False, "_rest": b""}
    status.feed(b"done\n")
    assert status.done


FAKE_QEMU = """\
#!{python}
import os, sys, time
fds = [int(value.split(",")[0][3:]) for name, value in zip(sys.argv, sys.argv[1:]) if name == "-add-fd"]
status, out, err = fds
console = next(value.split("path=")[1] for value in sys.argv if value.startswith("file,id=console"))
initrd = open(sys.argv[sys.argv.index("-initrd") + 1], "rb").read()
{body}
"""


def run_fake(body: str, own_cache: Path, monkeypatch: pytest.MonkeyPatch, timeout: float | None = 20.0) -> boot.Outcome:
    """A run in which `body` (Python) stands for the machine."""
    kernel = kernels.find("6.1")
    image = kernelimage.image(kernel).path
    image.mkdir(parents=True)
    (image / kernelimage.INITRD).write_bytes(b"the image's initrd")
    programs = own_cache / "programs"
    programs.mkdir()
    fake = programs / "qemu-system-x86_64"
    fake.write_text(FAKE_QEMU.format(python=sys.executable, body=body))
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(own_cache))
    monkeypatch.setattr("tempfile.tempdir", None)
    outcome = boot.run(boot.Request(kernel, ("echo", "hello"), Accel("tcg", 1), timeout=timeout))
    assert not list(own_cache.glob("k8snet-lab-*")), "the scratch directory is still there"
    return outcome


def test_output_and_status_pass_through(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    body = """
assert initrd.startswith(b"the image's initrd") and b"exec echo hello" in initrd
os.write(status, b"boot 3.5\\n")
for _ in range(300): os.write(out, b"o" * 10_000)
os.write(err, b"e" * 5000)
os.write(status, b"status 7\\n")
os.write(out, b"end")      # still in the guest's pipe when the command ended
os.write(status, b"done\\n")
time.sleep(60)             # powering off takes its time: nobody waits for it
"""
    outcome = run_fake(body, own_cache, monkeypatch)
    assert (outcome.status, outcome.booted, outcome.problem) == (7, 3.5, "")
    assert outcome.seconds < 15
    out, err = capfdbinary.readouterr()
    assert out == b"o" * 3_000_000 + b"end"
    assert err == b"e" * 5000


def test_time_out(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "os.write(status, b'boot 1\\n')\nwhile True: os.write(out, b'.'); time.sleep(0.01)"
    outcome = run_fake(body, own_cache, monkeypatch, timeout=0.7)
    assert outcome.status == boot.TIMED_OUT == 124
    assert "0.7 s" in outcome.problem


def test_a_dead_machine_shows_its_console(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "open(console, 'w').write('Kernel panic'); sys.stderr.write('no memory'); sys.exit(1)"
    outcome = run_fake(body, own_cache, monkeypatch)
    assert outcome.status == boot.VM_DIED == 125
    assert outcome.booted is None
    assert "Kernel panic" in outcome.problem
    assert "no memory" in outcome.problem


DIED = (None, boot.VM_DIED)
ENDED = (3.5, 7)


@pytest.mark.parametrize(
    ("ways", "boots"), [((ENDED,), 1), ((DIED, ENDED), 2), ((DIED,) * 3, 3), (((3.5, boot.VM_DIED),), 1), (((None, 124),), 1)]
)
def test_only_a_machine_that_died_in_boot_is_booted_again(
    monkeypatch: pytest.MonkeyPatch, ways: tuple[tuple[float | None, int], ...], boots: int
) -> None:
    left = [boot.Outcome(status, booted, 1.0) for booted, status in ways]
    asked = []

    def run(request: boot.Request) -> boot.Outcome:
        asked.append(request)
        return left.pop(0)

    monkeypatch.setattr(boot, "run", run)
    request = boot.Request(kernels.find("6.1"), ("true",), Accel("tcg", 1))
    assert cli.run(request).status == ways[-1][1]
    assert asked == [request] * boots


# ---------------------------------------------------------------- the command


def test_command_follows_two_dashes() -> None:
    options, command = cli.parse(["run", "--kernel=6.1", "--mem=512", "--", "sh", "-c", "x", "--", "--mem"])
    assert (options.action, options.kernel, options.mem) == ("run", ["6.1"], 512)
    assert command == ["sh", "-c", "x", "--", "--mem"]
    assert options.share == Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["boot"],
        ["run", "--kernel", "6.1"],
        ["run", "--", "true"],
        ["run", "--kernel", "6.2", "--", "true"],
        ["run", "--kernel", "6.1", "--kernel", "6.12", "--", "true"],
        ["list", "--", "true"],
    ],
)
def test_wrong_usage_is_status_2(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.parse(argv)
    assert ended.value.code == 2


def test_a_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(host, "SYSTEM_PATH", "/nonexistent")
    with pytest.raises(host.LabError, match=r"missing mke2fs, depmod: apt-get install .*e2fsprogs kmod"):
        host.require(("mke2fs", "depmod"))
    assert set(host.RUN_TOOLS) | set(host.BUILD_TOOLS) | set(host.BOX_TOOLS) == set(host.TOOLS)


def test_list_tells_what_is_not_built(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == kernels.names()
    assert all("not built" in line for line in lines)
