"""``poolmgr verify``: whether images are really valid."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from poolmgr.cli import options, text
from poolmgr.cli.output import Output
from poolmgr.errors import BadFileError, Exit, NothingComparedError, UsageError
from poolmgr.model.attestation import CHECKS, LEVELS
from poolmgr.model.digest import parse_sha256
from poolmgr.model.finding import Level, Severity, Verdict
from poolmgr.ops.targets import Finder, Target, read_sums, unmet_sums
from poolmgr.ops.verified import Result, Verified, Wish
from poolmgr.ops.verify import Verifier
from poolmgr.ops.verify_merge import merge
from poolmgr.ops.view import open_pool
from poolmgr.plan.shard import ArrayTask, parse_shard
from poolmgr.settings import Settings, slurm_array
from poolmgr.sif.header import host_arch

STYLES = {
    Verdict.OK: "green",
    Verdict.PARTIAL: "green",
    Verdict.BAD: "red",
    Verdict.UNCHECKED: "yellow",
    Verdict.UNSUPPORTED: "yellow",
}
MAX_LIST = 64 << 20
WIDTH = 11
"""Columns of the longest verdict."""


@click.command("verify")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@options.pool
@options.level
@click.option("--hash", "hashing", is_flag=True, help="Compare with the sha256 on record, and signatures.")
@click.option("--sha256", metavar="HEX", help="The sha256 that the one PATH must have (implies --hash).")
@click.option("--sums", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Hashes as sha256sum writes them (implies --hash).")  # fmt: skip
@click.option("--inspect", is_flag=True, help="'apptainer inspect' must pass too.")
@click.option("--run", "running", is_flag=True, help="'apptainer exec IMAGE true' must pass too.")
@click.option("--identity", is_flag=True, help="Show the sha256 of file, partition and tree of each image.")
@click.option("--allow-legacy", is_flag=True, help="Take bare and Singularity 2 squashfs images for valid.")
@click.option("--shard", metavar="I/N", help="Only the I-th of N stable slices; auto/N in a Slurm array.")
@click.option("--merge", "merging", is_flag=True, help="Look at nothing: join what all shards found.")
@options.arch
@options.attest
@options.jobs()
@options.output(lines=True)
def verify(
    paths: tuple[str, ...], pool: str | None, level: str | None, hashing: bool, sha256: str | None,
    sums: Path | None, inspect: bool, running: bool, identity: bool, allow_legacy: bool, shard: str | None,
    merging: bool, arch: str | None, attest: Path | None, jobs: int | None, out: Output,
) -> Exit:  # fmt: skip
    """Say whether images are valid: the bytes themselves are read, Apptainer is not needed.

    PATH is a file, a folder (its images), or '-' for a list on stdin; with -p POOL, a blob or a
    folder of that pool, which may be remote, and without any PATH all its blobs. Without options
    level mount is looked at: all that the kernel checks when it mounts the image. Exit 3 when
    anything is bad or could not be checked, or nothing was looked at.
    """
    settings = Settings.read()
    words = _words(paths)
    if not paths and pool is None:
        raise UsageError("no PATH was given", hint="name files or folders, or a pool with -p")
    if merging and (shard or inspect or running):
        raise UsageError("--merge looks at nothing, so --shard, --inspect and --run do not go with it")
    part = parse_shard(shard, _array()) if shard is not None else None
    wish = Wish(
        level=Level(level) if level is not None else Level.MOUNT,
        hashing=hashing or sha256 is not None or sums is not None,
        inspect=inspect,
        run=running,
        identities=identity,
        arch=arch or host_arch(),
        allow_legacy=allow_legacy,
        jobs=jobs,
        processes=True,
    )
    finder = Finder(attest, keep=part is not None or merging or attest is not None)
    if pool is not None:
        view = open_pool(pool, settings, attest=attest, on_retry=out.note)
        found: Iterable[Target] = finder.in_pool(view, words)
    else:
        found = finder.find(words)
    targets = list(found)
    listed_only = 0
    if wish.hashing and not (sha256 is None and sums is None):
        by_name = read_sums(sums) if sums is not None else {}
        wish = replace(wish, sums=_sums(sha256, sums, by_name, targets, by_path=pool is not None))
        if sums is not None:
            absent, listed_only = unmet_sums(sums, by_name, words, targets, in_pool=pool is not None)
            targets += absent
    targets = [t for t in targets if part is None or part.holds(t.path or t.shown)]
    if merging:
        result = merge(targets, wish)
        for one in result.results:
            _show(out, one)
    else:
        verifier = Verifier(wish, out.progress())
        results = []
        with closing(verifier.results(targets)) as found_results:
            for one in found_results:
                results.append(one)
                _show(out, one)
        notes = tuple(dict.fromkeys(verifier.notes))
        result = Verified(wish, tuple(results), notes, verifier.versions)
    if listed_only:
        said = f"{sums} lists {text.counted(listed_only, 'file')} more"
        result = replace(result, notes=(*result.notes, f"{said}, not looked at"))
    _summary(out, result, str(part) if part is not None else None)
    if not result.results:
        where = ", ".join(words) or str(pool)
        raise NothingComparedError(
            f"nothing was looked at: no image in {where}" + (f" is in shard {part}" if part else ""),
            hint="images are files named *.sif, *.simg, *.img, *.sqfs or *.squashfs, and what an index names",
        )
    return Exit.GOOD if result.passed else Exit.BAD


def _words(paths: tuple[str, ...]) -> list[str]:
    """The paths, with what stdin lists in place of ``-``."""
    words: list[str] = []
    for path in paths:
        if path != "-":
            words.append(path)
            continue
        data = sys.stdin.buffer.read(MAX_LIST + 1)
        if len(data) > MAX_LIST:
            raise BadFileError(f"the list on stdin is larger than {MAX_LIST >> 20} MiB")
        listed = data.split(b"\0" if b"\0" in data else b"\n")
        words += [line.decode("utf-8", "surrogateescape") for line in listed if line.strip()]
    return words


def _array() -> ArrayTask | None:
    found = slurm_array()
    return ArrayTask(**found) if found is not None else None


def _sums(
    sha256: str | None,
    sums: Path | None,
    by_name: Mapping[str, str],
    targets: Sequence[Target],
    *,
    by_path: bool,
) -> dict[str, str]:
    """Target, as it is shown -> the sha256 that ``--sha256`` or ``--sums`` gives for it.

    Names in FILE are relative to its folder; of a blob in a pool that was named with -p, they may
    also be its path there.
    """
    given: dict[str, str] = {}
    if sums is not None:
        by_file = {os.path.abspath(sums.parent / name): value for name, value in by_name.items()}
        for t in targets:
            value = by_file.get(os.path.abspath(t.file)) if t.file is not None else None
            if value is None and by_path and t.path is not None:
                value = by_name.get(t.path)
            if value is not None:
                given[t.shown] = value
    if sha256 is not None:
        if len(targets) > 1:
            raise UsageError(
                f"--sha256 is of one file, and {len(targets)} are named", hint="--sums FILE takes many"
            )
        try:
            given |= {t.shown: parse_sha256(sha256) for t in targets}
        except ValueError as e:
            raise UsageError(f"--sha256: {e}") from None
    return given


def _show(out: Output, result: Result) -> None:
    verdict = result.verdict
    if out.json:
        _show_row(out, result, verdict)
    elif not verdict.passes:
        out.only_quiet(result.path)
    if out.is_text:
        _show_lines(out, result, verdict)


def _show_row(out: Output, result: Result, verdict: Verdict) -> None:
    row: dict[str, Any] = {
        "path": result.path,
        "size": result.size,
        "verdict": verdict.value,
        "checks": {name: result.checks[name].value for name in CHECKS if name in result.checks},
        "not_checked": dict(result.reasons),
        "arch": result.arch,
        "findings": [f.as_json() for f in result.findings],
    }
    if result.sha256 is not None:
        row["sha256"] = result.sha256
    if result.identities:
        row["identities"] = dict(result.identities)
    out.row("image", **row)


def _show_lines(out: Output, result: Result, verdict: Verdict) -> None:
    done = ", ".join(n for n, v in result.checks.items() if n in ("hash", "inspect", "run") and v.passes)
    levels = [n for n in LEVELS if n in result.checks]
    deepest = levels[-1] if levels else "nothing"
    what = f"{deepest}, {done}" if done else deepest
    said = [f"{f.code}: {f}" for f in sorted(result.findings, key=_gravity)]
    said += [f"{name} {value}" for name, value in result.identities.items()]
    said += [f"{name} not checked: {why}" for name, why in result.reasons.items()]
    lines = [f" {text.name(result.path)}  [{what}]", *(text.name(s) for s in said)]
    if said and len(out.folded(both := "  ".join(lines[:2]), WIDTH)) == 1:
        lines[:2] = [both]  # one line an image, for grep and for wide terminals
    out.line(
        out.styled(f"{verdict.value:<{WIDTH}}", STYLES[verdict])
        + "".join(lines[:1])
        + "".join(f"\n{'':{WIDTH}} {part}" for line in lines[1:] for part in out.folded(line, WIDTH + 1))
    )


def _gravity(found: Any) -> int:
    return [Severity.ERROR, Severity.WARNING, Severity.NOTE].index(found.severity)


def _summary(out: Output, result: Verified, shard: str | None) -> None:
    counts = {v.value: n for v in Verdict if (n := result.counts[v])}
    out.row(
        "summary",
        images=len(result.results),
        verdicts=counts,
        checks=list(result.wish.asked),
        left_out=list(result.wish.left_out),
        arch=result.wish.arch,
        shard=shard,
        versions=dict(result.versions),
        notes=list(result.notes),
        verdict="passed" if result.passed else "failed",
        exit=int(Exit.GOOD if result.passed else Exit.BAD),
    )
    if result.results:
        said = ", ".join(f"{n:,} {name}" for name, n in counts.items())
        out.line(f"{text.counted(len(result.results), 'image')}: {said}")
        left = ", ".join(result.wish.left_out)
        out.line(f"looked at: {', '.join(result.wish.asked)}" + (f"; not looked at: {left}" if left else ""))
    for note in result.notes:
        out.warn(note)
