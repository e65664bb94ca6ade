"""Real images for tests: small roots, squashed by the real mksquashfs, wrapped by the real Apptainer.

``need`` fails in CI and skips elsewhere, with the line that says how to install what is missing.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

COMPRESSORS = ("gzip", "zstd", "xz", "lz4", "lzo", "lzma")
BUSYBOX = Path("/bin/busybox")
_INSTALL = {
    "apptainer": "scripts/install_apptainer.sh",
    "mksquashfs": "apt-get install squashfs-tools",
    "unsquashfs": "apt-get install squashfs-tools",
    "gensquashfs": "apt-get install squashfs-tools-ng",
    "tar2sqfs": "apt-get install squashfs-tools-ng",
    "busybox": "apt-get install busybox-static",
    "openssl": "apt-get install openssl",
    "setpriv": "apt-get install util-linux",
    "docker-registry": "apt-get install docker-registry",
    "skopeo": "apt-get install skopeo",
    "umoci": "apt-get install umoci",
}


def need(*programs: str) -> None:
    """The test goes on only where these programs are installed."""
    for program in programs:
        found = BUSYBOX.exists() if program == "busybox" else shutil.which(program) is not None
        if not found:
            message = f"{program} is not installed: {_INSTALL.get(program, program)}"
            if os.environ.get("CI"):
                pytest.fail(message)
            pytest.skip(message)


def run(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """The output of a program that must succeed."""
    done = subprocess.run(
        [str(c) for c in command], cwd=cwd, capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, **(env or {})},
    )  # fmt: skip
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def make_root(at: Path, *, files: int = 40, seed: str = "") -> Path:
    """A small root that runs ``true`` and ``sh``; its content depends on ``seed`` alone."""
    need("busybox")
    for name in ("bin", "etc", "dev", "proc", "sys", "tmp", "root", "usr/lib/python3/site-packages"):
        (at / name).mkdir(parents=True)
    shutil.copy2(BUSYBOX, at / "bin/busybox")
    for name in ("sh", "true", "cat", "ls"):
        (at / "bin" / name).symlink_to("busybox")
    (at / "etc/os-release").write_text(f"ID=test\nSEED={seed}\n")
    os.link(at / "etc/os-release", at / "etc/hard-linked")
    for number in range(files):
        folder = at / "usr/lib" / f"d{number % 5}"
        folder.mkdir(exist_ok=True)
        text = "".join(f"{seed} {number} {line} {line * number * 7919}\n" for line in range(number * 20))
        (folder / f"file{number}.txt").write_text(text)
    (at / "usr/lib/python3/site-packages/six.py").write_text("x = 6\n")
    for file in at.rglob("*"):
        if not file.is_symlink():
            file.chmod(0o755 if file.is_dir() or file.parent.name == "bin" else 0o644)
    return at


def squash(root: Path, to: Path, compressor: str = "gzip", *options: str) -> Path:
    """A squashfs of ``root`` by the real mksquashfs."""
    need("mksquashfs")
    run("mksquashfs", root, to, "-noappend", "-no-progress", "-comp", compressor, *options)
    return to


def wrap(
    squashfs: Path, to: Path, *, arch: int = 2, overlays: Sequence[Path] = (), files: Sequence[Path] = ()
) -> Path:
    """A SIF around ``squashfs`` by the real ``apptainer sif new`` and ``sif add``."""
    need("apptainer")
    run("apptainer", "sif", "new", to)
    add = ["apptainer", "sif", "add", "--groupid", "1"]
    part = ["--datatype", "4", "--partfs", "1", "--partarch", str(arch)]
    run(*add, *part, "--parttype", "2", to, squashfs)
    for overlay in overlays:
        run(*add, *part, "--parttype", "4", to, overlay)
    for file in files:
        run(*add, "--datatype", "6", to, file)
    to.chmod(to.stat().st_mode & ~stat.S_IXUSR | stat.S_IRUSR | stat.S_IWUSR)
    return to


def build(root: Path, to: Path, *options: str) -> Path:
    """A SIF of a folder, a SIF or an archive by the real ``apptainer build``."""
    need("apptainer")
    run("apptainer", "build", "--fakeroot", "-F", *options, to, root, env={"TMPDIR": str(to.parent)})
    return to
