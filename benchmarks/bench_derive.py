"""Deriving one image: poolmgr against Apptainer (an added wheel) and against squashfs-tools (a removal).

    PYTHONPATH=. python benchmarks/bench_derive.py [--megabytes 100] [--repeat 3]

Needs apptainer, mksquashfs, unsquashfs, busybox and Debian's python3. The base is a gzip image of
about the asked size, made of this machine's own /usr/lib. All ways run in one go on one machine;
look at the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from poolmgr.ops.derive import Derive
from poolmgr.ops.derive_facts import Request
from poolmgr.ops.view import open_folder
from poolmgr.sif.header import read_container
from poolmgr.sif.image import open_image
from poolmgr.sif.source import FileSource
from poolmgr.sif.write import PartType, blob, metadata, partition, write_container

ORACLE = os.urandom(60_000)
WHEEL = "tiny-1.0-py3-none-any.whl"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-derive-", dir=os.environ.get("BENCH_DIR")) as name:
        return run(Path(name), options.megabytes << 20, options.repeat)


def run(folder: Path, size: int, repeat: int) -> int:
    root = make_root(folder / "root", size)
    pool = folder / "pool"
    (pool / "images").mkdir(parents=True)
    base = pool / "images/base.sif"
    wrap(root, base, folder)
    (pool / "task_to_blob.json").write_text(json.dumps({"v": {"t": "images/base.sif"}}))
    with FileSource(base) as source:
        inodes = open_image(source).parts[0].tree.tables.fs.sb.inodes
    print(f"base: {base.stat().st_size / 2**20:.0f} MiB, gzip, {inodes:,} inodes; {os.cpu_count()} cores")
    make_wheel(folder / "overlay/wheels")
    write_recipe(folder / "overlay", '[[step]]\npip = ["tiny==1.0"]\n')
    write_recipe(
        folder / "rebuild", '[[step]]\nremove = ["/app/oracle"]\n[expect]\nforbid = ["/app/oracle"]\n'
    )
    Derive(open_folder(pool), Request(folder / "overlay/recipe.toml", folder)).lock(None)

    def ours(kind: str) -> Callable[[int], Path]:
        def derive(n: int) -> Path:
            to = folder / f"{kind}-{n}"
            one = Derive(
                open_folder(pool), Request(folder / kind / "recipe.toml", to, jobs=1, identity=False)
            )
            done = one.carry_out(one.plan())
            if done.exit:
                raise SystemExit(f"derive failed: {[o.error for o in done.outcomes]}")
            return to / done.outcomes[0].planned.name

        return derive

    overlay, overlay_file = measure(ours("overlay"), repeat, warm=True)
    peer_overlay, _ = measure(lambda n: apptainer(folder, base, n), max(1, repeat - 1), warm=False)
    rebuild, rebuilt_file = measure(ours("rebuild"), repeat, warm=True)
    peer_rebuild, peer_file = measure(
        lambda n: squashfs_tools(folder, base, n), max(1, repeat - 1), warm=False
    )

    print(f"{'':34} {'seconds':>9} {'ratio':>7}")
    print(f"{'apptainer build --fakeroot, a wheel':34} {peer_overlay:9.2f}")
    print(f"{'poolmgr derive, overlay':34} {overlay:9.2f} {peer_overlay / overlay:6.1f}x")
    print(f"{'unsquashfs, mksquashfs, a removal':34} {peer_rebuild:9.2f}")
    print(f"{'poolmgr derive, rebuild':34} {rebuild:9.2f} {peer_rebuild / rebuild:6.1f}x")
    new = overlay_file.stat().st_size - base.stat().st_size
    share = 100 * differing(base, overlay_file) / overlay_file.stat().st_size
    print(f"overlay adds {new:,} bytes; {share:.3f} % of its pages are not the base's")
    print(f"rebuilt: {rebuilt_file.stat().st_size:,} bytes; by mksquashfs: {peer_file.stat().st_size:,}")
    held = rebuilt_file.read_bytes()
    left = sum(ORACLE[i : i + 32] in held for i in range(0, len(ORACLE) - 32, 997))
    print(f"samples of the removed file that are left in the rebuilt image: {left}")
    return 0


def measure(work: Callable[[int], Path], repeat: int, *, warm: bool) -> tuple[float, Path]:
    """(median seconds, the last result)."""
    if warm:
        work(-1)
    times = []
    for n in range(repeat):
        start = time.perf_counter()
        result = work(n)
        times.append(time.perf_counter() - start)
    return statistics.median(times), result


def make_root(root: Path, size: int) -> Path:
    """A root whose image will have about ``size`` bytes, with a Python that runs."""
    for name in (
        "app",
        "bin",
        "dev",
        "etc",
        "proc",
        "sys",
        "tmp",
        "root",
        "usr/bin",
        "usr/lib/python3/dist-packages",
    ):
        (root / name).mkdir(parents=True)
    (root / "app/oracle").write_bytes(ORACLE)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    busybox = shutil.which("busybox")
    python = Path("/usr/bin/python3").resolve()
    assert busybox, "apt-get install busybox-static"
    shutil.copy(busybox, root / "bin/busybox")
    for name in ("sh", "true", "cat", "mkdir", "rm"):
        (root / "bin" / name).symlink_to("busybox")
    shutil.copy(python, root / "usr/bin")
    (root / "usr/bin/python3").symlink_to(python.name)
    said = subprocess.run(["ldd", python], capture_output=True, text=True, check=True).stdout
    for library in re.findall(r"(/\S+)", said):
        target = root / library.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)
    shutil.copytree(f"/usr/lib/{python.name}", root / f"usr/lib/{python.name}", symlinks=True)
    left = int(size * 2.6)
    for path in sorted(Path("/usr/lib").rglob("*")):
        info = path.lstat()
        if path.is_symlink() or not path.is_file() or info.st_size > 30 << 20 or left < info.st_size:
            continue
        target = root / "opt/payload" / path.relative_to("/usr/lib")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
        left -= info.st_size
    return root


def wrap(root: Path, sif: Path, folder: Path) -> None:
    image = folder / "base.squashfs"
    command = ["mksquashfs", root, image, "-no-progress", "-comp", "gzip", "-all-root"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with sif.open("xb") as out, image.open("rb") as source:
        part = partition(PartType.PRIMARY, "amd64", lambda target: shutil.copyfileobj(source, target))
        write_container(out, [blob(0x4006, "inspect-metadata.json", metadata({})), part], "amd64")
    image.unlink()


def make_wheel(folder: Path) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from tests.ops.wheel_kit import make_wheel as make

    folder.mkdir(parents=True)
    made = make(folder, "tiny", "1.0")
    with zipfile.ZipFile(made) as archive:
        archive.testzip()


def write_recipe(folder: Path, steps: str) -> None:
    folder.mkdir(exist_ok=True)
    head = 'schema = 1\nname = "bench"\nbase = { blob = "images/base.sif" }\n'
    (folder / "recipe.toml").write_text(head + steps)


def apptainer(folder: Path, base: Path, n: int) -> Path:
    """The same wheel, unpacked by the image's own Python: less work than pip would do."""
    target = folder / f"apptainer-{n}.sif"
    site = "/usr/local/lib/python3/dist-packages"
    definition = folder / "wheel.def"
    definition.write_text(
        f"Bootstrap: localimage\nFrom: {base}\n%files\n    {folder}/overlay/wheels/{WHEEL} /opt/{WHEEL}\n"
        f"%post\n    mkdir -p {site}\n    python3 -m zipfile -e /opt/{WHEEL} {site}\n    rm /opt/{WHEEL}\n"
    )
    command = ["apptainer", "build", "--fakeroot", target, definition]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return target


def squashfs_tools(folder: Path, base: Path, n: int) -> Path:
    with FileSource(base) as source:
        primary = read_container(source).primary
    assert primary
    out, image = folder / f"tools-{n}", folder / f"tools-{n}.squashfs"
    unpack = ["unsquashfs", "-no-progress", "-q", "-o", str(primary.offset), "-d", out, base]
    subprocess.run(unpack, check=True, stdout=subprocess.DEVNULL)
    (out / "app/oracle").unlink()
    subprocess.run(
        ["mksquashfs", out, image, "-no-progress", "-comp", "gzip"], check=True, stdout=subprocess.DEVNULL
    )
    shutil.rmtree(out)
    return image


def differing(base: Path, derived: Path) -> int:
    """Bytes of 4 KiB pages of ``derived`` that are not the base's page at that place."""
    count = 0
    with base.open("rb") as one, derived.open("rb") as two:
        while page := two.read(4096):
            count += len(page) if one.read(4096) != page else 0
    return count


if __name__ == "__main__":
    raise SystemExit(main())
