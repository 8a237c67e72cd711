# SPDX-License-Identifier: Apache-2.0
"""What root does for another user's kubeconfig, and what it refuses. The bounds of programs that give tokens."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.waiting import until
from tests.unit.kube.test_kubeconfig import write
from tracer.errors import NoObjects
from tracer.kube import kubeconfig, plugin, trust

USER = 1234


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def user_of(**user: Any) -> dict[str, Any]:
    return {"users": [{"name": "u", "user": user}]}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of the user that called sudo; there is no other kubeconfig."""
    if os.geteuid() != 0:
        pytest.skip("only root has rights that another user's kubeconfig could misuse")
    user = SimpleNamespace(pw_uid=USER, pw_dir=str(tmp_path / "somewhere/user"))
    accounts = {"user": user, "toor": SimpleNamespace(pw_uid=0, pw_dir=user.pw_dir)}
    monkeypatch.setattr(pwd, "getpwnam", accounts.__getitem__)
    monkeypatch.setattr(trust, "SYSTEM", ())
    (tmp_path / "somewhere/user/.kube").mkdir(parents=True)
    return tmp_path / "somewhere/user"


def of_user(home: Path, **changes: Any) -> Path:
    path = Path(write(home / ".kube", **changes))
    os.chown(path, USER, USER)
    path.chmod(0o600)
    return path


SUDO = {"HOME": "/nowhere", "SUDO_USER": "user", "SUDO_UID": str(USER)}


def test_the_file_of_the_user_who_called_sudo(home: Path) -> None:
    path = of_user(home)
    access = kubeconfig.find(None, SUDO)
    assert access and access.source == str(path) and access.headers() == {"Authorization": "Bearer secret-token"}
    os.chown(path, 0, 0)
    assert kubeconfig.find(None, SUDO), "made by `sudo kubectl`"


@pytest.mark.parametrize(
    "environment",
    [
        {"SUDO_USER": "../user"}, {"SUDO_USER": "nobody-of-that-name"}, {"SUDO_USER": ""}, {"SUDO_USER": "toor"},
        {"SUDO_USER": "user", "SUDO_UID": "77"}, {"SUDO_USER": "us\0er"},
    ],
)  # fmt: skip
def test_an_invalid_sudo_user(home: Path, environment: dict[str, str]) -> None:
    of_user(home)
    assert kubeconfig.find(None, {"HOME": "/nowhere", **environment}) is None


def test_another_users_program_is_not_run(home: Path, tmp_path: Path) -> None:
    """Another user's file may name any program; root runs it only if that file was given by name."""
    made = tmp_path / "it ran"
    program = {"apiVersion": "v1", "command": script(tmp_path / "steal", f"id -u >'{made}'")}
    path = of_user(home, **user_of(exec=program))
    with pytest.raises(NoObjects, match="root runs that program only if the file is given by --kubeconfig"):
        kubeconfig.find(None, SUDO)
    assert not made.exists()
    own = tmp_path / "root"
    (own / ".kube").mkdir(parents=True)
    named = kubeconfig.find(str(path), SUDO)
    assert named and named.command
    Path(write(own / ".kube", **user_of(exec=program)))
    roots = kubeconfig.find(None, {**SUDO, "HOME": str(own)})
    assert roots and roots.command


@pytest.mark.parametrize(
    ("mode", "owner", "why"),
    [
        (0o620, USER, "other users may write to it"),
        (0o606, USER, "other users may write to it"),
        (0o600, 77, "belongs to user 77"),
    ],
)
def test_a_file_that_other_users_own_or_may_write(home: Path, mode: int, owner: int, why: str) -> None:
    path = of_user(home)
    path.chmod(mode)
    os.chown(path, owner, owner)
    with pytest.raises(NoObjects, match=why):
        kubeconfig.find(None, SUDO)
    (home / "root/.kube").mkdir(parents=True)
    write(home / "root/.kube")
    assert kubeconfig.find(None, {**SUDO, "HOME": str(home / "root")}), "the next place is searched"


def test_a_home_left_by_sudo_is_not_roots(home: Path) -> None:
    """sudo may leave HOME unchanged: the file in it still belongs to that user."""
    of_user(home, **user_of(exec={"apiVersion": "v1", "command": "/bin/true"}))
    with pytest.raises(NoObjects, match="belongs to user 1234"):
        kubeconfig.find(None, {"HOME": str(home)})


@pytest.mark.parametrize("how", ["fifo", "zero", "large", "directory"])
def test_a_kubeconfig_that_is_no_file_or_too_large(home: Path, how: str) -> None:
    path = home / ".kube/config"
    if how == "fifo":
        os.mkfifo(path)
    elif how == "zero":
        path.symlink_to("/dev/zero")
    elif how == "large":
        of_user(home, more="x" * 2_000_000)
    else:
        path.mkdir()
    with pytest.raises(NoObjects, match=r"is not used: it (is not a regular file|has more than 1000000 bytes)"):
        kubeconfig.find(None, SUDO)


def test_secrets_of_root_are_not_sent_for_another(home: Path, tmp_path: Path) -> None:
    """A user's file could name a file that only root can read, and that user's own server."""
    secret, own = tmp_path / "secret", home / "token"
    for path in (secret, own):
        path.write_text("a-token\n")
        path.chmod(0o600)
    os.chown(own, USER, USER)
    of_user(home, **user_of(tokenFile=str(own)))
    access = kubeconfig.find(None, SUDO)
    assert access and access.headers() == {"Authorization": "Bearer a-token"}
    own.unlink()
    own.symlink_to(secret)
    access.renew()
    with pytest.raises(OSError, match="cannot be read: it belongs to user 0"):
        access.headers()
    of_user(home, **user_of(**{"client-certificate": str(secret), "client-key": str(secret)}))
    with pytest.raises(NoObjects, match=r"names a certificate that cannot be used: .*it belongs to user 0"):
        kubeconfig.find(None, SUDO)
    assert kubeconfig.read(write(tmp_path, **user_of(tokenFile=str(secret)))).headers(), "root's own file may name it"


@pytest.mark.parametrize("name", ["fifo", "/dev/zero", "large", "."])
def test_files_that_a_kubeconfig_names(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "large").write_text("x" * 2_000_000)
    access = kubeconfig.read(write(tmp_path, **user_of(tokenFile=name)))
    with pytest.raises(OSError, match=r"not a regular file|more than"):
        access.headers()
    cluster = {"server": "https://10.0.0.1", "certificate-authority": name}
    with pytest.raises(NoObjects, match=r"not a regular file|more than"):
        kubeconfig.read(write(tmp_path, clusters=[{"name": "c", "cluster": cluster}]))


@pytest.mark.parametrize("text", ["a b", "a\nX-Other: b", "", "\x1b[2J", "töken"])
def test_an_invalid_token(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)
    with pytest.raises(OSError) as e:
        kubeconfig.read(write(tmp_path, **user_of(tokenFile="token"))).headers()
    assert str(e.value) == f"the file {tmp_path}/token has no token"
    if text:
        with pytest.raises(NoObjects, match=r"no usable cluster: token is missing or wrong\."):
            kubeconfig.read(write(tmp_path, **user_of(token=text)))


@pytest.mark.parametrize(
    "user",
    [
        {"token": ["x"]}, {"tokenFile": 1}, {"username": {}}, {"client-certificate": []}, {"exec": "x"}, [], "x",
        {"exec": {"command": "x", "apiVersion": 1, "env": [{"name": "A", "value": 1}]}},
        {"exec": {"command": ["x"], "apiVersion": "v"}},
        {"exec": {"command": "x", "apiVersion": "v", "args": [1]}},
    ],
)  # fmt: skip
def test_values_of_another_kind(tmp_path: Path, user: Any) -> None:
    try:
        access = kubeconfig.read(write(tmp_path, users=[{"name": "u", "user": user}]))
    except NoObjects as e:
        assert "names no usable cluster" in str(e)
    else:
        assert access.headers() == {}


@pytest.mark.parametrize(
    "server", [1, "https://[", "http://a:b", "http://a:99999", None, "ftp://a", "10.0.0.1:6443", "http:///x"]
)
def test_an_invalid_server(tmp_path: Path, server: Any) -> None:
    with pytest.raises(NoObjects):
        kubeconfig.read(write(tmp_path, clusters=[{"name": "c", "cluster": {"server": server}}]))


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
        "[" * 5000,
        "a: " + "[" * 60 + "]" * 60,
        "- " * 3000 + "x",
        '{"a":' * 100_000,
        "\x00",
    ],
)
def test_texts_that_grow_or_are_deeply_nested(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(NoObjects, match="is not valid YAML"):
        kubeconfig.read(str(tmp_path / "config"))


def test_an_incomplete_account(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    with pytest.raises(NoObjects, match=r"The pod's account in .* cannot be used"):
        kubeconfig.in_cluster({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path)


def test_a_program_that_does_not_end(tmp_path: Path) -> None:
    """The process that it has started does not end either, and holds the pipe open."""
    pids = tmp_path / "pids"
    command = [script(tmp_path / "a", f"sleep 86400 & echo $! >{pids}; sleep 86400")]
    with pytest.raises(OSError, match=r"took longer than 0.5 s"):
        plugin.token(command, {}, 0.5)
    until(lambda: not alive(pids))


def test_a_program_that_leaves_a_process_behind(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    command = [script(tmp_path / "a", f"sleep 86400 & echo $! >{pids}; echo '{{}}'")]
    with pytest.raises(OSError, match=r"took longer than 0.5 s"):
        plugin.token(command, {}, 0.5)
    until(lambda: not alive(pids))


def alive(pids: Path) -> bool:
    """Whether the process with the number in this file runs; it may have been killed before it wrote the number."""
    try:
        return Path(f"/proc/{int(pids.read_text())}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, ValueError):
        return False


def test_a_program_that_prints_without_end(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="prints more than 1000000 bytes"):
        plugin.token(["yes"], {}, 60)


@pytest.mark.parametrize(
    ("printed", "message"),
    [
        ("", "gave no token"),
        ("[1]", "gave no token"),
        ('{"status":{"token":5}}', "gave no token"),
        ('{"status":{"token":"a\\nb"}}', "gave no token"),
        ("[" * 100_000, "gave no token"),
    ],
)
def test_programs_that_give_no_token(tmp_path: Path, printed: str, message: str) -> None:
    (tmp_path / "out").write_text(printed)
    with pytest.raises(OSError, match=message):
        plugin.token(["cat", str(tmp_path / "out")], {})


def test_programs_that_cannot_be_run(tmp_path: Path) -> None:
    for command, message in (
        (["/no/program"], "No such file"),
        (["a\0b"], "cannot be run"),
        (["false"], "its exit status is 1"),
    ):
        with pytest.raises(OSError, match=message):
            plugin.token(command, {})
    secret = json.dumps({"status": {"token": "secret token"}})
    with pytest.raises(OSError) as e:
        plugin.token(["echo", secret], {})
    assert "secret" not in str(e.value)
