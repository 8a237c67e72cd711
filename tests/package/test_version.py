# SPDX-License-Identifier: Apache-2.0
"""The version of a tree: from the tag, and also without tags, without git and offline."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from importlib import metadata
from pathlib import Path

import pytest

from package.version import format_version, release, version
from tracer import RELEASE

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        ("v0.2.0-0-g83d62017", "0.2.0"),
        ("v0.2.0", "0.2.0"),
        ("v0.2.0-12-g83d62017", "0.2.0+12.g83d62017"),
        ("v0.2.0-0-g83d62017-dirty", "0.2.0+dirty"),
        ("v0.2.0-12-g83d62017-dirty", "0.2.0+12.g83d62017.dirty"),
        ("83d62017", "0.1.0+g83d62017"),
        ("83d62017-dirty", "0.1.0+g83d62017.dirty"),
        ("", "0.1.0"),
        ("; id", "0.1.0"),
    ],
)
def test_versions(described: str, expected: str) -> None:
    assert format_version(described, "0.1.0") == expected
    packaging = pytest.importorskip("packaging.version")
    assert str(packaging.Version(expected)) == expected


def git(where: Path, *words: str) -> str:
    settings = ("-c", "user.name=a", "-c", "user.email=a@example.invalid", "-c", "init.defaultBranch=main")
    return subprocess.run(["git", *settings, *words], cwd=where, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Path]:
    """A clone with the files that have the version, and one commit."""
    if not shutil.which("git"):
        pytest.skip("git is not installed")
    tree = tmp_path / "tree"
    (tree / "tracer").mkdir(parents=True)
    for name in (".gitattributes", ".git_archival.txt", "tracer/__init__.py"):
        shutil.copy(ROOT / name, tree / name)
    git(tree, "init", "-q")
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "one")
    yield tree


def test_the_version_of_a_clone(clone: Path) -> None:
    def commit() -> str:
        return "g" + git(clone, "rev-parse", "--short=8", "HEAD")

    assert version(clone) == f"{RELEASE}+{commit()}"
    git(clone, "tag", "-a", "v3.1.4", "-m", "a release")
    assert version(clone) == "3.1.4"
    git(clone, "commit", "-q", "--allow-empty", "-m", "two")
    git(clone, "tag", "unrelated")
    assert version(clone) == f"3.1.4+1.{commit()}"
    (clone / "tracer/__init__.py").write_text('RELEASE = "0.1.0"\n')
    assert version(clone) == f"3.1.4+1.{commit()}.dirty"


def test_a_shallow_clone_has_the_commit(clone: Path, tmp_path: Path) -> None:
    git(clone, "tag", "v3.1.4")
    git(clone, "commit", "-q", "--allow-empty", "-m", "two")
    git(tmp_path, "clone", "-q", "--depth=1", "--no-tags", f"file://{clone}", "shallow")
    assert version(tmp_path / "shallow") == f"{RELEASE}+g{git(clone, 'rev-parse', '--short=8', 'HEAD')}"


def test_an_archive_of_git_has_the_tag(clone: Path, tmp_path: Path) -> None:
    def archived(name: str) -> str:
        tree = tmp_path / name
        tree.mkdir()
        git(clone, "archive", f"--output={tmp_path}/a.tar", "HEAD")
        subprocess.run(["tar", "-xf", tmp_path / "a.tar"], cwd=tree, check=True)
        return version(tree)

    commit = git(clone, "rev-parse", "--short", "HEAD")
    assert archived("untagged") == f"{RELEASE}+g{commit[:8]}"
    git(clone, "tag", "v3.1.4")
    assert archived("tagged") == "3.1.4"


def test_a_copy_without_git_has_the_release_or_what_a_build_wrote(clone: Path) -> None:
    shutil.rmtree(clone / ".git")
    assert version(clone) == release(clone) == RELEASE
    (clone / "tracer/VERSION").write_text("3.1.4+7.g83d62017\n")
    assert version(clone) == "3.1.4+7.g83d62017"
    (clone / "tracer/__init__.py").write_text("")
    with pytest.raises(ValueError):
        release(clone)


def test_a_clone_of_another_project_around_a_copy_is_not_asked(clone: Path) -> None:
    git(clone, "tag", "v9.9.9")
    (clone / "inside/tracer").mkdir(parents=True)
    shutil.copy(ROOT / "tracer/__init__.py", clone / "inside/tracer")
    assert version(clone / "inside") == RELEASE


def test_the_installed_program_names_the_version_of_its_build(tmp_path: Path) -> None:
    tree = tmp_path / "tracer"
    tree.mkdir()
    shutil.copy(ROOT / "tracer/__init__.py", tree)
    show = [sys.executable, "-c", "import tracer; print(tracer.__version__)"]

    def shown() -> str:
        return subprocess.run(show, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()

    assert shown() == RELEASE
    (tree / "VERSION").write_text("3.1.4\n")
    assert shown() == "3.1.4"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel that is built from the source archive, and the archive; without an index of packages."""
    try:
        if tuple(map(int, metadata.version("hatchling").split(".")[:2])) < (1, 27):
            pytest.skip("hatchling is older than 1.27")
    except metadata.PackageNotFoundError:
        pytest.skip("hatchling is not installed")
    place = tmp_path_factory.mktemp("built")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(place)]
    subprocess.run([*build, "-t", "sdist"], cwd=ROOT, check=True, capture_output=True)
    (archive,) = place.glob("*.tar.gz")
    subprocess.run(["tar", "-xzf", archive], cwd=place, check=True)
    subprocess.run([*build, "-t", "wheel"], cwd=place / archive.name.removesuffix(".tar.gz"), check=True, capture_output=True)
    (wheel,) = place.glob("*.whl")
    return wheel, archive


def test_the_wheel_has_the_program_and_its_metadata(built: tuple[Path, Path]) -> None:
    wheel, archive = built
    assert archive.stat().st_size < 4 << 20
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        (named,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        head = message_from_bytes(file.read(named))
        assert file.read("tracer/VERSION").decode().strip() == head["Version"] == version(ROOT)
    assert {"tracer/bpf/tracer.c", "tracer/render/schema.json", "tracer/cli/completion/k8snet-trace.fish"} <= set(names)
    assert {name.split("/")[0] for name in names} == {"tracer", named.split("/")[0]}
    assert (
        head["License-Expression"] == "Apache-2.0 AND (Apache-2.0 OR GPL-2.0-only)"
        and len(head.get_all("License-File", [])) == 3
    )
    assert head["Keywords"] and len(head.get_all("Classifier", [])) > 10 and head["Summary"]
    assert head.get_all("Project-URL") is None and head["Home-page"] is None, "there is no address to name"
    assert not any(each.startswith("License ::") for each in head.get_all("Classifier", [])), "the expression names the licence"


def test_a_build_leaves_the_checkout_as_it_was(built: tuple[Path, Path]) -> None:
    assert built[0].exists() and not (ROOT / "tracer/VERSION").exists()


def test_the_version_script_prints_it() -> None:
    ran = subprocess.run([sys.executable, ROOT / "package/version.py"], cwd="/", capture_output=True, text=True)
    assert (ran.returncode, ran.stdout.strip(), ran.stderr) == (0, version(ROOT), "")
