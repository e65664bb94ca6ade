"""Wheels go into an image as pip puts them: against the real pip, and into images with interpreters."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from poolmgr.errors import DeriveFailedError
from poolmgr.model.pin import parse_pin
from poolmgr.ops.pip_lock import close
from poolmgr.ops.wheels import Wheel, install_wheel, supported_tags
from poolmgr.sif.derived import Base
from poolmgr.sif.draft import Draft
from poolmgr.sif.image import Image, open_image
from poolmgr.sif.python import Interpreter, find_interpreter
from poolmgr.sif.source import BytesSource
from poolmgr.sif.write import write_sif
from poolmgr.sif.write_node import Kind, Link, Node, directory, file, symlink
from tests.ops.wheel_kit import PYTHON, make_wheel, python_image_bytes


def elf(loader: str, *more: bytes) -> bytes:
    """The least that names a program interpreter."""
    name = loader.encode() + b"\0"
    head = (
        b"\x7fELF\x02\x01\x01"
        + bytes(9)
        + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    )
    program = struct.pack("<IIQQQQQQ", 3, 4, 120, 120, 120, len(name), len(name), 1)
    return head + program + name + b"\0" + b"\0".join(more)


GLIBC = file(b"x GNU C Library (Debian GLIBC 2.36-9+deb12u4) stable release version 2.36.\n")
LOADER = "/lib64/ld-linux-x86-64.so.2"
LIBC = "lib/x86_64-linux-gnu/libc.so.6"
Tree = dict[str, Node | Link]


def image_of(tree: Tree, arch: str = "amd64") -> bytes:
    buffer = io.BytesIO()
    write_sif(buffer, tree, arch=arch)
    return buffer.getvalue()


def opened(tree: Tree) -> Image:
    return open_image(BytesSource(image_of(tree)))


DEBIAN: Tree = {
    "usr/bin/python3.11": file(elf(LOADER, b"3.11.2", b"")),
    "usr/bin/python3": symlink("python3.11"),
    "usr/lib/python3/dist-packages": directory(),
    "usr/lib/python3.11/os.py": file(),
    "usr/lib/x86_64-linux-gnu/libc.so.6": GLIBC,
    "lib": symlink("usr/lib"),
}
DOCKER: Tree = {
    "usr/local/bin/python3.12": file(elf(LOADER)),
    "usr/local/bin/python3": symlink("python3.12"),
    "usr/local/lib/python3.12/site-packages": directory(),
    "usr/local/lib/libpython3.12.so.1.0": file(b"\x003.12.4\0"),
    LIBC: GLIBC,
}
VENV: Tree = {
    **DEBIAN,
    "opt/venv/bin/python": symlink("/usr/bin/python3"),
    "opt/venv/bin/python3": symlink("python"),
    "opt/venv/pyvenv.cfg": file(b"home = /usr/bin\n"),
    "opt/venv/lib/python3.11/site-packages": directory(),
}
ALPINE: Tree = {
    "usr/bin/python3.12": file(elf("/lib/ld-musl-x86_64.so.1", b"3.12.8", b"")),
    "usr/bin/python3": symlink("python3.12"),
    "usr/lib/python3.12/os.py": file(),
    "lib/ld-musl-x86_64.so.1": file(b"musl\x001.2.5\0"),
}
CONDA: Tree = {
    "opt/conda/bin/python3.13t": file(elf(LOADER, b"3.13.1", b"")),
    "opt/conda/bin/python": symlink("python3.13t"),
    "opt/conda/lib/python3.13t/os.py": file(),
    LIBC: GLIBC,
}


LOCAL = "/usr/local"
CASES = [
    (
        DEBIAN,
        "/usr/bin/python3",
        "cp311-glibc_2_36-x86_64",
        "3.11.2",
        f"{LOCAL}/lib/python3.11/dist-packages",
    ),
    (
        DOCKER,
        f"{LOCAL}/bin/python3",
        "cp312-glibc_2_36-x86_64",
        "3.12.4",
        f"{LOCAL}/lib/python3.12/site-packages",
    ),
    (
        VENV,
        "/opt/venv/bin/python3",
        "cp311-glibc_2_36-x86_64",
        "3.11.2",
        "/opt/venv/lib/python3.11/site-packages",
    ),
    (ALPINE, "/usr/bin/python3", "cp312-musl_1_2-x86_64", "3.12.8", "/usr/lib/python3.12/site-packages"),
    (
        CONDA,
        "/opt/conda/bin/python",
        "cp313t-glibc_2_36-x86_64",
        "3.13.1",
        "/opt/conda/lib/python3.13t/site-packages",
    ),
]


@pytest.mark.parametrize(("tree", "path", "key", "full", "site"), CASES)
def test_an_interpreter_is_told_from_its_files(tree: Tree, path: str, key: str, full: str, site: str) -> None:
    found = find_interpreter(opened(tree), path)
    assert (found.key, found.full_version, found.site) == (key, full, site)
    assert found.scripts == site.partition("/lib/")[0] + "/bin"


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({}, "not in the image"),
        ({"usr/bin/python3": file(b"#!/bin/sh\n")}, "not named"),
        (
            {"usr/bin/python3.11": file(b"#!/bin/sh\n"), "usr/bin/python3": symlink("python3.11")},
            "not a program",
        ),
        ({"usr/bin/python3": symlink("python3")}, "not in the image"),
        ({k: v for k, v in DEBIAN.items() if "libc" not in k}, "C library"),
        ({k: v for k, v in DOCKER.items() if "site-packages" not in k}, "site-packages"),
    ],
)
def test_an_interpreter_that_cannot_be_told_is_refused(tree: Tree, words: str) -> None:
    path = "/usr/local/bin/python3" if "usr/local/bin/python3" in tree else "/usr/bin/python3"
    with pytest.raises(DeriveFailedError, match=words):
        find_interpreter(opened(tree), path)


def test_tags_of_this_machine_are_those_that_pip_would_take() -> None:
    """The image holds this machine's own python3, so its packaging must agree."""
    found = find_interpreter(open_image(BytesSource(python_image_bytes())), "/usr/bin/python3")
    version = subprocess.run(
        [PYTHON, "-c", "import platform; print(platform.python_version())"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert found.full_version == version
    code = "import platform; print('_'.join(platform.libc_ver()[1].split('.')[:2]))"
    libc = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert found.libc == f"glibc_{libc}"
    tags = {str(tag) for tag in supported_tags(found)}
    assert {
        "py3-none-any",
        f"cp3{found.version[1]}-cp3{found.version[1]}-manylinux_2_17_x86_64",
    } <= tags


def find(tree: Tree, path: str) -> Interpreter:
    return find_interpreter(opened(tree), path)


def draft_of(tree: Tree) -> Draft:
    return Draft(Base(BytesSource(image_of(tree)), "base"))


def added(draft: Draft) -> dict[str, Node]:
    return {b"/".join(path).decode(): node for path, node in draft.changes.add.items()}


RICH = {
    "rich/data.bin": bytes(range(256)),
    "rich-2.0.data/scripts/tool": b"#!python\nprint('tool')\n",
    "rich-2.0.data/data/share/rich/notes.txt": b"notes\n",
    "rich-2.0.data/purelib/extra_module.py": b"x = 1\n",
}


def test_a_wheel_is_installed_as_pip_installs_it(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "w", "rich", "2.0", RICH, scripts={"rich-cli": "rich:main"})
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    site = venv / "lib" / version / "site-packages"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        venv / "bin/python",
        "install",
        "--no-index",
        "--no-compile",
        "-q",
    ]
    subprocess.run([*pip, "--disable-pip-version-check", wheel], check=True)
    inside = str(venv).lstrip("/")
    tree: Tree = {
        **DEBIAN,
        f"usr/bin/{version}": file(elf(LOADER, f"{version[6:]}.1".encode(), b"")),
        "usr/bin/python3": symlink(version),
        f"{inside}/bin/python": symlink(f"/usr/bin/{version}"),
        f"{inside}/pyvenv.cfg": file(),
        f"{inside}/lib/{version}/site-packages": directory(),
    }
    draft = draft_of(tree)
    found = Wheel.of(wheel)
    assert found is not None
    install_wheel(draft, found, find_interpreter(draft.image, f"{venv}/bin/python"), requested=True)
    ours = added(draft)
    theirs = {
        str(p).lstrip("/"): p
        for p in [*site.rglob("*"), venv / "bin/tool", venv / "bin/rich-cli"]
        if p.is_file()
    }
    theirs |= {str(p).lstrip("/"): p for p in (venv / "share").rglob("*") if p.is_file()}
    info = f"{inside}/lib/{version}/site-packages/rich-2.0.dist-info"
    apart = {f"{info}/INSTALLER", f"{info}/RECORD", f"{info}/direct_url.json"}
    assert set(ours) == set(theirs) - {f"{info}/direct_url.json"}
    for path in set(ours) - apart:
        if path.endswith("bin/rich-cli"):
            # two writers of one template: both start the interpreter and call the entry point
            assert ours[path].data.splitlines()[0] == theirs[path].read_bytes().splitlines()[0]
            assert b"from rich import main" in ours[path].data
        else:
            assert ours[path].data == theirs[path].read_bytes(), path
        assert (ours[path].mode & 0o111 != 0) == (theirs[path].stat().st_mode & 0o111 != 0), path

    def record(text: bytes) -> set[bytes]:
        return {line.split(b",")[0] for line in text.splitlines()}

    assert record(ours[f"{info}/RECORD"].data) == record(theirs[f"{info}/RECORD"].read_bytes()) - {
        b"rich-2.0.dist-info/direct_url.json"
    }


def test_another_version_makes_way_by_its_own_record(tmp_path: Path) -> None:
    site = "usr/local/lib/python3.11/dist-packages"
    tree: Tree = {
        **DEBIAN,
        f"{site}/one/__init__.py": file(b"old"),
        f"{site}/one/gone.py": file(b"old"),
        f"{site}/one-1.0.dist-info/RECORD": file(
            b"one/__init__.py,,\none/gone.py,,\n../../../bin/one,,\n../../../../../etc/passwd,,\none-1.0.dist-info/RECORD,,\n"
        ),
        "usr/local/bin/one": file(b"old"),
        "etc/passwd": file(b"root"),
    }
    draft = draft_of(tree)
    interpreter = find_interpreter(draft.image, "/usr/bin/python3")
    for version in ("2.0", "3.0"):
        wheel = Wheel.of(make_wheel(tmp_path, "one", version))
        assert wheel is not None
        install_wheel(draft, wheel, interpreter, requested=False)
    gone = {b"/".join(p).decode() for p in draft.changes.remove}
    assert gone >= {f"{site}/one/gone.py", f"{site}/one-1.0.dist-info", "usr/local/bin/one"}
    assert "etc/passwd" not in gone
    new = added(draft)
    assert new[f"{site}/one/__init__.py"].data == b"VERSION = '3.0'\n"
    assert f"{site}/one-3.0.dist-info/RECORD" in new
    assert not any("one-2.0" in path for path in new)
    assert all(node.kind is Kind.FILE for node in new.values())


@pytest.mark.parametrize(
    ("tag", "python", "words"),
    [
        ("cp312-cp312-manylinux_2_17_x86_64", "", "does not fit"),
        ("cp311-cp311-manylinux_2_40_x86_64", "", "does not fit"),
        ("cp311-cp311-musllinux_1_2_x86_64", "", "does not fit"),
        ("cp311-cp311-manylinux_2_17_aarch64", "", "does not fit"),
        ("py3-none-win_amd64", "", "does not fit"),
        ("py3-none-any", ">=3.12", "needs Python"),
    ],
)
def test_a_wheel_that_does_not_fit_is_refused(tmp_path: Path, tag: str, python: str, words: str) -> None:
    draft = draft_of(DEBIAN)
    wheel = Wheel.of(make_wheel(tmp_path, "one", "1", tag=tag, python=python))
    assert wheel is not None
    with pytest.raises(DeriveFailedError, match=words):
        install_wheel(draft, wheel, find_interpreter(draft.image, "/usr/bin/python3"), requested=False)
    assert not draft.changes.add


def test_a_wheel_that_fits_by_its_best_tag_is_taken(tmp_path: Path) -> None:
    interpreter = find(DEBIAN, "/usr/bin/python3")
    tags = supported_tags(interpreter)
    linux = "manylinux_2_17_x86_64"
    order = ["cp311-cp311-manylinux_2_36_x86_64", "cp311-cp311-manylinux2014_x86_64"]
    order += [f"cp311-abi3-{linux}", f"cp38-abi3-{linux}", "py3-none-any"]
    ranks = []
    for tag in order:
        wheel = Wheel.of(make_wheel(tmp_path, "one", "1", tag=tag))
        assert wheel is not None
        rank = wheel.rank(tags)
        assert rank is not None, tag
        ranks.append(rank)
    assert ranks == sorted(ranks)


def test_a_wheel_that_is_damaged_or_escapes_is_refused(tmp_path: Path) -> None:
    interpreter = find(DEBIAN, "/usr/bin/python3")
    for n, (name, data) in enumerate({"../../evil.py": b"x", "one-1.data/scripts/../../../e": b"x"}.items()):
        path = make_wheel(tmp_path / str(n), "one", "1", {name: data})
        wheel = Wheel.of(path)
        assert wheel is not None
        draft = draft_of(DEBIAN)
        with pytest.raises(DeriveFailedError):
            install_wheel(draft, wheel, interpreter, requested=False)
    path = make_wheel(tmp_path / "x", "one", "1")
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"VERSION = '1'", b"VERSION = '2'"))
    damaged = Wheel.of(path)
    assert damaged is not None
    with pytest.raises(DeriveFailedError, match="not a sound wheel"):
        install_wheel(draft_of(DEBIAN), damaged, interpreter, requested=False)
    path.write_bytes(raw[:200])
    cut = Wheel.of(path)
    assert cut is not None
    with pytest.raises(DeriveFailedError):
        install_wheel(draft_of(DEBIAN), cut, interpreter, requested=False)


def test_the_closure_follows_requirements_markers_and_extras(tmp_path: Path) -> None:
    interpreter = find(DEBIAN, "/usr/bin/python3")
    make_wheel(
        tmp_path, "top", "1.0", extras=("more",),
        requires=("low>=1", 'old; python_version < "3.10"', 'deep; extra == "more"', "mid[x]"),
    )  # fmt: skip
    for version in ("1.0", "1.5", "2.0", "2.1rc1"):
        make_wheel(tmp_path, "low", version)
    make_wheel(tmp_path, "mid", "1.0", requires=("low<2", 'deep2; extra == "x"'), extras=("x",))
    make_wheel(tmp_path, "deep", "1.0")
    make_wheel(tmp_path, "deep2", "1.0")
    names = lambda wheels: {(w.name, w.version) for w in wheels}  # noqa: E731
    plain = close([parse_pin("top==1.0")], interpreter, tmp_path, None)
    assert names(plain) == {("top", "1.0"), ("low", "1.5"), ("mid", "1.0"), ("deep2", "1.0")}
    more = close([parse_pin("top[more]==1.0")], interpreter, tmp_path, None)
    assert names(more) == names(plain) | {("deep", "1.0")}
    with pytest.raises(DeriveFailedError, match="low") as e:
        close([parse_pin("top==1.0"), parse_pin("low==2.0")], interpreter, tmp_path, None)
    assert any("mid" in line for line in e.value.details)
    with pytest.raises(DeriveFailedError, match="no wheel of absent"):
        close([parse_pin("absent==1")], interpreter, tmp_path, None)


def test_what_is_missing_is_downloaded_and_what_a_dropped_version_wanted_is_not_kept(tmp_path: Path) -> None:
    interpreter = find(DEBIAN, "/usr/bin/python3")
    make_wheel(tmp_path, "a", "1", requires=("b", "c"))
    make_wheel(tmp_path, "b", "2", requires=("only-of-b2",))
    make_wheel(tmp_path, "b", "1")
    make_wheel(tmp_path, "c", "1", requires=("b<2",))
    asked = []

    def download(requirement: str, _: Interpreter, folder: Path) -> None:
        asked.append(requirement)
        make_wheel(folder, "only_of_b2", "1")

    found = close([parse_pin("a==1")], interpreter, tmp_path, download)
    assert {(w.name, w.version) for w in found} == {("a", "1"), ("b", "1"), ("c", "1")}
    assert asked == ["only-of-b2"]


def test_a_wheel_that_unpacks_without_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poolmgr.ops.wheels.MAX_WHEEL", 10_000)
    path = make_wheel(tmp_path, "one", "1", {"one/big": bytes(20_000)})
    with zipfile.ZipFile(path) as archive:
        assert sum(e.file_size for e in archive.infolist()) > 10_000
    wheel = Wheel.of(path)
    assert wheel is not None
    with pytest.raises(DeriveFailedError, match="unpacks to more"):
        install_wheel(draft_of(DEBIAN), wheel, find(DEBIAN, "/usr/bin/python3"), requested=False)
