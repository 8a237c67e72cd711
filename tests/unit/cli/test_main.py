# SPDX-License-Identifier: Apache-2.0
"""The command line: each error is one sentence on stderr with its own status, never a traceback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support import captures
from tracer import __version__, errors, render
from tracer.cli import main
from tracer.errors import BadOption, TraceError
from tracer.model.filter import Filter, parse_host
from tracer.pipeline.sinks import OutputSpec
from tracer.selection.filter_options import FilterOptions

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Ended:
    status: int
    out: str
    err: str


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the command in this process, as a user who is not root: nothing is ever attached."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    def command(*args: str) -> Ended:
        with pytest.raises(SystemExit) as e:
            main.main(list(args))
        printed = capsys.readouterr()
        return Ended(int(e.value.code or 0), printed.out, printed.err)

    return command


@pytest.mark.parametrize(
    ("args", "status", "sentence"),
    [
        (["--port", "99999"], 2, r"Port 99999 does not exist: ports go from 1 to 65535\."),
        (["--port", "http"], 2, r"--port 'http' is no list of ports: write 80, 80,443 or 30000-32767\."),
        (["--host", "10.0.0"], 2, r"'10\.0\.0' is no IP address or CIDR\."),
        (["--port", "443-80"], 2, r"--port '443-80' is no range: the first port is higher than the last one\."),
        (["--dport", "80,0"], 2, r"Port 0 does not exist: ports go from 1 to 65535\."),
        (["--not-port", "80-"], 2, r"--not-port '80-' is no list of ports: .*"),
        (["--src", "web"], 2, r"'web' is no IP address or CIDR\."),
        (["--tcp-flags", "SYN,not-SYN"], 2, r"--tcp-flags 'SYN,not-SYN' contradicts itself: no packet can match\."),
        (["--tcp-flags", "SYNC"], 2, r"--tcp-flags 'SYNC' is no list of TCP flags: choose from FIN, .*, as in SYN,not-ACK\."),
        (["--filter", "tcp prot 80"], 2, r"--filter 'tcp prot 80' is no pcap-filter expression: .*syntax error.*\."),
        (["--filter", "ip[8] < 5"], 2, r"--filter 'ip\[8\] < 5' reads parts of the packet that are recorded only with .*\."),
        (["--workload", "web"], 2, r"--workload 'web' is no workload: write deploy/NAME or NS/deploy/NAME; also .*\."),
        (["-l", "app in (a)"], 2, r"-l 'app in \(a\)' is no label selector: write app=web, .*\."),
        (["--namespace", "Shop"], 2, r"--namespace 'Shop' is no name of a namespace\."),
        (["--namespace", "a", "--namespace", "b", "--pod", "x"], 2, r"'x' has no namespace, .*: write NS/x\."),
        (["--src", "pod/a/b", "--no-kube"], 2, r"--service, .* need Kubernetes' objects: leave --no-kube out\."),
        (["--dst", "vm/a/b"], 2, r"--dst 'vm/a/b' is no name: write pod/NS/NAME, svc/NS/NAME, .*\."),
        (["--dst", "svc/a/b", "--dst", "10.0.0.0/8"], 2, r"--dst takes names or addresses, not both in one run\."),
        (["--namespace", "a", "--namespace", "b", "--src", "po/x"], 2, r"'po/x' has no namespace, .*: write KIND/NS/NAME\."),
        (["-r", "x", "-l", "a=b", "--port", "1"], 2, r"--service, .* cannot be combined with --port or --host\."),
        (["--proto", "quic"], 2, r".*'quic' is not one of .*'tcp'.*"),
        (["--iface", "nosuch0"], 2, r"There is no interface 'nosuch0' here \(there are: .*\)\."),
        (["--service", "Shop Cart"], 2, r"--service 'Shop Cart' is no name: write namespace/name or namespace/name:port\."),
        (["--pod", "a/b:c"], 2, r"--pod 'a/b:c' is no name: write namespace/name\."),
        (["--node-port", "70000"], 2, r"--node-port 70000 does not exist: ports go from 1 to 65535\."),
        (["--service", "a/b", "--port", "1"], 2, r"--service, .* cannot be combined with --port or --host\."),
        (
            ["--pod", "a/b", "--no-kube"],
            2,
            r"--service, .* and names in --src and --dst need Kubernetes' objects: leave --no-kube out\.",
        ),
        (["--objects", "/no/file", "--no-kube"], 2, r"--objects, --kubeconfig and --no-kube exclude each other\."),
        (["--objects", "/no/file"], 8, r"--objects /no/file cannot be read: No such file or directory\."),
        (["--kubeconfig", "/no/file"], 8, r"The kubeconfig /no/file cannot be read: No such file or directory\."),
        (["-r", "a", "-w", "b"], 2, r"-r replays a finished run from a capture: it cannot be combined with --write\."),
        (["-r", "a", "--duration", "3", "--", "true"], 2, r"-r replays .*: it cannot be combined with --duration, a command\."),
        (["--netns", "nosuch"], 2, r"There is no network namespace 'nosuch' \(known: .*\)\."),
        (["--count", "-1"], 2, r".*-1 is not in the range.*"),
        (["-o", "xml"], 2, rf"There is no output format 'xml': choose one of {', '.join(render.FORMATS)}\."),
        (["--bogus"], 2, r".*No such option:? '?--bogus.*"),
        (["--port"], 2, r".*requires an argument\."),
        (["doctor", "--port", "1"], 2, r".*No such option:? '?--port.*"),
        (["doctr"], 2, r"No such command 'doctr', did you mean doctor\? A program to run goes after --\."),
        (["help"], 2, r"No such command 'help', did you mean --help\? .*"),
        (["tcp", "port", "80"], 2, r"No such command 'tcp', did you mean top\? A program to run goes after --\."),
        (["--port", "80", "curl"], 2, r"No such command 'curl'\. A program to run goes after --\."),
        (["--port", "80", "curl", "--", "true"], 2, r"No such command 'curl'\. A program to run goes after --\."),
        (["--port", "80", "doctor"], 2, r"The command doctor must be the first word: k8snet-trace doctor \[OPTIONS\]\."),
        (["trace", "curl"], 2, r"No such command 'curl'\. .*"),
        (["record", "x.k8st", "curl"], 2, r"No such command 'curl'\. .*"),
        (["record", "--", "x.k8st"], 2, r"Missing (argument|parameter).*"),
        (["explain", "--from", "10.0.0.1", "--to", "10.0.0.2:80", "--live", "curl"], 2, r"No such command 'curl'\. .*"),
        (["-", "true"], 2, r"No such command '-'\. .*"),
        (["", "true"], 2, r"No such command ''\. .*"),
        (["--service", "--", "true"], 2, r".*requires an argument\."),
        (["--port", "80"], 3, r"Tracing needs root: run it with sudo\."),
        ([], 3, r"Tracing needs root: run it with sudo\."),
        (["--port", "80", "--", "curl", "-m", "2", "http://10.0.0.1/"], 3, r"Tracing needs root: run it with sudo\."),
    ],
)
def test_each_error_is_one_sentence(run: Any, args: list[str], status: int, sentence: str) -> None:
    ended: Ended = run(*args)
    assert (ended.status, ended.out) == (status, "")
    assert re.fullmatch(rf"k8snet-trace: {sentence}\n", ended.err), ended.err


def test_an_impossible_filter_is_reported_before_anything_else(run: Any) -> None:
    """A user who is not root gets this error too, before the error about root."""
    assert run("--port", "0", "--", "true").status == 2


@pytest.mark.parametrize(
    ("args", "most"),
    [(["--help"], 56), (["-h"], 56), (["trace", "--help"], 56), (["--help-all"], 95), (["doctor", "--help"], 24)],
)
def test_help_is_short(run: Any, args: list[str], most: int) -> None:
    ended: Ended = run(*args)
    assert (ended.status, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert len(lines) <= most
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith("Usage: k8snet-trace ")


def test_help_names_every_option_and_every_other_command(run: Any) -> None:
    text = run("--help-all").out
    assert text.startswith("Usage: k8snet-trace [OPTIONS] [-- CMD [ARG]...]\n"), "the default command is not named"
    _, _, others = text.partition("Commands, each with its own --help:\n")
    for name in {name for name, each in main.command.commands.items() if not each.hidden} - {"trace"}:
        assert re.search(rf"^  {name} +[A-Z].*[^.]$", others, re.M), name
    for option in ("--port", "--host", "--service", "--pod", "--node-port", "--host-port",
                   "--kubeconfig", "--objects", "--no-kube", "--proto", "-4", "-6",
                   "--sport", "--dport", "--src", "--dst", "--not-port", "--not-host", "--workload", "--selector",
                   "--namespace", "--tcp-flags", "--filter", "--pid", "--comm",
                   "--iface", "--netns", "--drops-only", "--count", "--duration",
                   "--output", "--verbose", "--attach", "--no-rules", "--follow", "--write", "--read",
                   "--ready-file", "--version"):  # fmt: skip
        assert option in text, option


def test_version(run: Any) -> None:
    assert run("--version") == Ended(0, f"k8snet-trace, version {__version__}\n", "")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.BadOption, 2), (errors.NotRoot, 3), (errors.NoBtf, 4), (errors.NoBcc, 5), (errors.NoProbe, 6),
        (errors.CompileFailed, 7), (errors.NoObjects, 8), (errors.NoSuchObject, 9), (errors.CommandNotFound, 127),
        (errors.OutputNotWritten, 20), (errors.CaptureUnreadable, 21), (errors.NewerCapture, 22),
        (errors.DamagedCapture, 23), (errors.NoLibrary, 24), (errors.BadQuery, 25), (errors.UnknownTable, 26),
        (errors.NoTerminal, 27), (errors.Interrupted, 130),
    ],
)  # fmt: skip
def test_every_error_has_its_status(run: Any, monkeypatch: pytest.MonkeyPatch, error: type[TraceError], status: int) -> None:
    def fail(cmd: tuple[str, ...], **options: Any) -> int:
        raise error("It cannot be:\n  for this reason.")

    monkeypatch.setattr("tracer.commands.trace.trace", fail)
    assert run("--port", "80") == Ended(status, "", "k8snet-trace: It cannot be: for this reason.\n")


def test_statuses_differ() -> None:
    kinds = TraceError.__subclasses__()
    assert len({kind.status for kind in kinds}) == len(kinds) == 22


@pytest.mark.parametrize("status", [0, 10, 11, 12])
def test_the_status_of_a_run_is_the_status_of_the_command(run: Any, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    monkeypatch.setattr("tracer.commands.trace.trace", lambda cmd, **options: status)
    assert run("--port", "80").status == status


def test_options_and_command_are_separated(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[tuple[str, ...], dict[str, Any]]] = []
    monkeypatch.setattr("tracer.commands.trace.trace", lambda cmd, **options: given.append((cmd, options)))
    run("-p", "80", "--port", "443", "-6", "-n", "3", "--duration", "1.5", "--", "curl", "-o", "json", "--port", "1")
    ((cmd, options),) = given
    assert cmd == ("curl", "-o", "json", "--port", "1")
    parsed = {name: options[name] for name in ("ports", "family", "count", "duration", "outputs", "attach", "verbose")}
    assert parsed == {
        "ports": ("80", "443"), "family": 6, "count": 3, "duration": 1.5, "outputs": (OutputSpec("text"),),
        "attach": "auto", "verbose": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    "words", [["--"], ["trace", "--"], ["record", "x.k8st", "--"], ["record", "--port", "1", "x.k8st", "--"]]
)  # fmt: skip
def test_the_words_after_two_dashes_are_the_program(run: Any, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    given: list[tuple[str, ...]] = []
    monkeypatch.setattr("tracer.commands.trace.trace", lambda cmd, **options: given.append(cmd))
    run(*words, "doctor", "--", "-x")
    run(*words)
    assert given == [("doctor", "--", "-x"), ()]


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """The node's namespace and the different one of this process; there are no others."""
    node, own = 4026531840, 4026531999
    inodes = {Path("/proc/1/ns/net"): node, Path("/proc/self/ns/net"): own, Path("/proc/77/ns/net"): own}
    monkeypatch.setattr("tracer.node.namespaces._inode", lambda path: inodes.get(path, 0))
    monkeypatch.setattr("tracer.node.namespaces._processes", lambda: iter([1, 77]))
    return node, own


def test_filter_of_options(elsewhere: tuple[int, int]) -> None:
    node, own = elsewhere
    assert FilterOptions().kernel_filter() == Filter()
    options = FilterOptions(ports=("80",), hosts=("10.244.0.0/16",), proto="udp", family=4, netns="node", drops_only=True)
    assert options.kernel_filter() == Filter((80,), (parse_host("10.244.0.0/16"),), 17, 4, node, drops_only=True)
    found = FilterOptions(iface="lo").kernel_filter()
    assert (found.ifindex, found.if_netns, found.netns) == (1, own, 0)


def test_an_interface_belongs_to_the_current_namespace(elsewhere: tuple[int, int]) -> None:
    node, own = elsewhere
    for name in ("node", str(node)):
        with pytest.raises(BadOption, match=r"^--iface needs an interface of the current namespace: for another namespace"):
            FilterOptions(iface="lo", netns=name).kernel_filter()
    found = FilterOptions(iface="lo", netns="pid:77").kernel_filter()
    assert (found.ifindex, found.if_netns, found.netns) == (1, own, own)


def test_the_command_as_a_process() -> None:
    """The process exits with the status, and --help does not import the kernel side."""
    bad = subprocess.run([sys.executable, "-m", "tracer", "--port", "70000"], cwd=ROOT, capture_output=True, text=True)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr == "k8snet-trace: Port 70000 does not exist: ports go from 1 to 65535.\n"
    code = "import sys; from tracer.cli import main; assert 'numpy' not in sys.modules; main.main(['--help'])"
    helped = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (helped.returncode, helped.stderr) == (0, "")


GONE = """
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from tracer.cli import main as cli_main
from tracer.commands import trace
from tracer.pipeline import builder
from tracer.render.text import TextOutput

class Kernel:
    release, symbols = "6.1", SimpleNamespace(containing=str)
    drop_reasons = dict
    running = classmethod(lambda cls: cls())

    def free(self):
        pass

class Run:
    def __init__(self, source, assembler, stages, output, limits, summary):
        self.output = output
    def begin(self):
        pass
    def run(self, stop, command):
        self.output.summary(self.summary)
    summary = SimpleNamespace(packets=1, seconds=1.0, outcomes={"dropped": 1}, incomplete=0, lost=0, events=1, findings=[],
                             causes={}, differences=[], timelines={}, unexplained=0, unaddressed=0, not_written=[],
                             drops_without_finding=0, joined=0)

trace.require_tracing = lambda: None
trace.give_up = lambda *but: None
trace.Kernel, builder.Run = Kernel, Run
trace.Session = lambda *args, **options: nullcontext(SimpleNamespace(planned=[], refused=[], extensions=()))
cli_main.main(["--port", "80"])
"""


def test_a_closed_output_pipe_is_no_error() -> None:
    """As in `k8snet-trace | head -1`: click would exit with status 1."""
    reads, writes = os.pipe()
    os.close(reads)
    try:
        ended = subprocess.run([sys.executable, "-c", GONE], cwd=ROOT, stdout=writes, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(writes)
    said = [line for line in ended.stderr.splitlines() if not line.startswith("Ready after")]  # after a slow start
    assert (ended.returncode, len(said)) == (0, 1), ended.stderr
    assert said[0].startswith("k8snet-trace "), "the start line, and nothing after it"


@pytest.mark.parametrize("words", [["stats"], ["findings"], ["-r"]], ids=" ".join)
def test_a_closed_output_pipe_is_no_error_when_reading_a_capture(tmp_path: Path, words: list[str]) -> None:
    """The status is not 1: with status 1 `diff` reports different captures."""
    made = captures.capture(tmp_path / "a.k8st", captures.some_batches(8))
    reads, writes = os.pipe()
    os.close(reads)
    try:
        command = [sys.executable, "-m", "tracer", *words, str(made.path)]
        ended = subprocess.run(command, cwd=ROOT, stdout=writes, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(writes)
    assert ended.returncode == 0 and "Traceback" not in ended.stderr, ended.stderr


@pytest.mark.parametrize("where", ["/dev/full", "/dev/null"])
def test_an_output_without_room_is_one_sentence(where: str) -> None:
    """The status is that of k8snet-trace, not Python's status for a buffer that could not be written."""
    with open(where, "w") as out:
        ended = subprocess.run([sys.executable, "-c", GONE], cwd=ROOT, stdout=out, stderr=subprocess.PIPE, text=True)
    last = ended.stderr.splitlines()[-1]
    full = where == "/dev/full"
    assert ended.returncode == (20 if full else 0), ended.stderr
    assert (last == "k8snet-trace: The output stops here: No space left on device.") == full and "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["audit", "--objects", "/nonexistent"], 8, "--objects /nonexistent cannot be read"),
        (["explain", "--from", "10.0.0.1", "--to", "10.0.0.2"], 2, "needs a port for tcp"),
        (["explain", "--from", "here", "--to", "10.0.0.2:80"], 2, "--from here is no address"),
        (["explain", "--from", "10.0.0.1", "--to", "10.0.0.2:80", "--duration", "5"], 2, "need --live"),
        (["explain", "--to", "10.0.0.2:80"], 2, "--from"),
        (["explain", "--from", "10.0.0.1", "--to", "10.0.0.2:80", "--iface", "nosuch0"], 2, "There is no interface 'nosuch0'"),
    ],
)
def test_audit_and_explain_report_errors_in_one_sentence(
    arguments: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(arguments)
    err = capsys.readouterr().err
    assert ended.value.code == status and message in err and err.count("\n") == 1 and err.startswith("k8snet-trace: ")


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&-"])
@pytest.mark.parametrize("args", ["doctor", "--port 80", "-r nosuch.k8st"])
def test_without_standard_output_it_ends_at_once(args: str, closed: str) -> None:
    command = f"exec {sys.executable} -m tracer {args} {closed}"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True)
    expected = "" if "2>&-" in closed else "k8snet-trace: Standard output is closed: no results can be printed.\n"
    assert (done.returncode, done.stdout, done.stderr) == (20, "", expected)


def test_a_file_never_takes_the_place_of_a_closed_standard_error() -> None:
    """A library's output to descriptor 2 must not be written into a capture."""
    code = (
        "import os, sys; from tracer.cli import standard_streams; standard_streams.complete();"
        " print(os.open('/etc/passwd', 0) > 2, sys.stderr)"
    )
    done = subprocess.run(["sh", "-c", f'exec {sys.executable} -c "{code}" 2>&- <&-'], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.startswith("True <_io.TextIOWrapper"), done
