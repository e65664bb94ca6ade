"""The only module that runs Apptainer (or Singularity): inspect, exec, build, pull.

What it says is sorted into "the image is damaged" and "this machine cannot"; only the first marks
an image bad (facts: sif section 4). ``inspect`` is asked only where it reads the metadata
descriptor: without one it would run the image's own shell.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from poolmgr.errors import AlreadyExistsError, BadFileError, MissingToolError, PoolError, ToolFailedError
from poolmgr.model.finding import Finding, Level, Verdict
from poolmgr.sif.check import check, check_file
from poolmgr.sif.child import Done, run_child
from poolmgr.sif.header import GENERIC, JSON, METADATA_NAME, Container, finding, read_container
from poolmgr.sif.image import open_image
from poolmgr.sif.source import FileSource
from poolmgr.temporary import scratch_folder

PROGRAMS = ("apptainer", "singularity")
INSPECT_SECONDS = 60.0
RUN_SECONDS = 120.0
BUILD_SECONDS = 4 * 3600.0
INSTALL = "scripts/install_apptainer.sh installs it on Debian; see https://apptainer.org"
TRUE_PATHS = ("bin/true", "usr/bin/true", "sbin/true", "usr/sbin/true", "usr/local/bin/true")


class Cause(StrEnum):
    """Whose fault a failure is."""

    IMAGE = "image"
    ARCH = "arch"
    ENCRYPTED = "encrypted"
    MACHINE = "machine"
    NO_PROGRAM = "no-program"
    KERNEL = "kernel"
    """The kernel would not mount it: a damaged superblock, or a compressor that it lacks."""
    UNKNOWN = "unknown"


_CAUSES: tuple[tuple[Cause, str], ...] = (
    (Cause.MACHINE, r"/dev/fuse"),
    (Cause.MACHINE, r"squashfuse(_ll)? failed to mount .* in \d+"),
    (Cause.MACHINE, r"no loop devices? (is |are )?available|failed to (find|attach) loop device"),
    (Cause.MACHINE, r"Requesting capability set"),
    (Cause.MACHINE, r"no space left on device|disk quota exceeded"),
    (Cause.MACHINE, r"cannot allocate memory|resource temporarily unavailable|too many open files"),
    (Cause.MACHINE, r"user namespace|setgroups|newuidmap|subuid|fakeroot"),
    (Cause.MACHINE, r"not installed|could not be found|setuid"),
    (Cause.ARCH, r"architecture \(?\S+\)? could not run on the host"),
    (Cause.ENCRYPTED, r"required option --passphrase or --pem-path missing"),
    (Cause.KERNEL, r"kernel reported a bad superblock"),
    (Cause.IMAGE, r"image format not recogni[sz]ed|invalid SIF magic|incompatible SIF version"),
    (Cause.IMAGE, r"reading descriptors?:|makeslice: len out of range"),
    (Cause.IMAGE, r"while checking system partition header"),
    (Cause.IMAGE, r"trying to read the squashfs image|transport endpoint is not connected"),
    (Cause.IMAGE, r"failed to open elf binary .*input/output error|input/output error"),
    (Cause.IMAGE, r"could not mount /dev: invalid argument"),
    (Cause.IMAGE, r"no root filesystem found"),
    (Cause.NO_PROGRAM, r"executable file not found in \$PATH|no such file or directory.*true"),
)
_LEVEL_WORDS = re.compile(r"^(?:\x1b\[\d+m)?(FATAL|ERROR|WARNING|INFO):\s*(?:\x1b\[0m)?\s*", re.MULTILINE)
_URL_SECRETS = re.compile(r"([a-z][a-z0-9+.-]*://)[^/\s@]*@|(\?)[^\s\"']+", re.IGNORECASE)
_CRASHES = frozenset({signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV})
"""Signals by which a program ends whose bytes are damaged, or foreign to the processor."""


@dataclass(frozen=True, slots=True)
class Said:
    """What one look at an image by Apptainer came to."""

    verdict: Verdict
    message: str = ""
    """Why it is not ``OK``."""
    findings: tuple[Finding, ...] = ()
    document: Mapping[str, Any] | None = None
    """The JSON that ``inspect`` printed."""


def cause_of(text: str) -> Cause:
    """Whose fault the failure is that Apptainer told in ``text``."""
    for cause, pattern in _CAUSES:
        if re.search(pattern, text, re.IGNORECASE):
            return cause
    return Cause.UNKNOWN


def last_word(done: Done) -> str:
    """The line in which a child said why it failed; never with a URL's secrets."""
    lines = [line for line in done.err.splitlines() if line.strip()]
    fatal = [line for line in lines if "FATAL" in line or line.startswith("panic:")]
    errors = [line for line in lines if "ERROR" in line]
    plain = [line for line in lines if "WARNING" not in line and "INFO" not in line]
    line = next(iter(fatal or errors[-1:] or plain[-1:]), "") or f"exit status {done.status}"
    line = _LEVEL_WORDS.sub("", line.strip())
    line = _URL_SECRETS.sub(lambda m: m.group(1) or "?…", line)
    return "".join(c if c.isprintable() else " " for c in line)[:500]


@dataclass(frozen=True)
class Apptainer:
    """One installed Apptainer or Singularity."""

    program: str
    """Its path."""

    @staticmethod
    def find() -> Apptainer | None:
        """The one on the PATH, ``apptainer`` before ``singularity``; None without any."""
        for name in PROGRAMS:
            path = shutil.which(name)
            if path is not None:
                return Apptainer(path)
        return None

    @staticmethod
    def need() -> Apptainer:
        """The installed one, or ``MissingToolError``."""
        found = Apptainer.find()
        if found is None:
            raise MissingToolError("neither apptainer nor singularity is installed", hint=INSTALL)
        return found

    @cached_property
    def version(self) -> str:
        """Such as ``apptainer 1.4.5``; ``ToolFailedError`` when it does not start."""
        done = self._run(["version"], timeout=INSPECT_SECONDS)
        if done.status != 0 or not done.out.strip():
            raise ToolFailedError(f"{self.program} does not start: {last_word(done)}", hint=INSTALL)
        return f"{Path(self.program).name} {done.out.split()[0]}"

    def inspect(self, image: Path, *, timeout: float = INSPECT_SECONDS) -> Said:
        """``apptainer inspect``, after the image's own descriptor was found to answer it.

        An image that does not pass ``mount``, or that Apptainer would have to run, is not handed over.
        """
        try:
            with FileSource(image) as source:
                if not check(source, Level.MOUNT).verdict.passes:
                    return _not_done("it does not pass mount")
                if not answers_inspect(read_container(source)):
                    return _not_done("would run the image: it has no metadata descriptor")
        except OSError as e:
            return _not_done(f"reading failed: {e.strerror}")
        done = self._run(["inspect", "--json", str(image.absolute())], timeout=timeout)
        if done.timed_out:
            return _not_done(f"no answer within {timeout:.0f} s")
        if done.status == 0:
            try:
                document = json.loads(done.out)
            except (ValueError, RecursionError):
                return _not_done("its answer is no JSON")
            return Said(Verdict.OK, document=document if isinstance(document, dict) else {})
        return self._failed(done, image, "inspect")

    def run_true(self, image: Path, *, timeout: float = RUN_SECONDS) -> Said:
        """``apptainer exec IMAGE true``: the image is mounted, and a program in it starts."""
        done = self.execute(image, ["true"], timeout=timeout)
        if done.timed_out:
            return _not_done(f"still running after {timeout:.0f} s: slow storage, or a damaged image")
        if done.status == 0:
            return Said(Verdict.OK)
        return self._failed(done, image, "run")

    def execute(
        self,
        image: Path,
        command: Sequence[str],
        *,
        timeout: float = RUN_SECONDS,
        binds: Sequence[tuple[Path, str]] = (),
        options: Sequence[str] = (),
    ) -> Done:
        """Run ``command`` inside ``image``, apart from this machine: no home, no environment.

        ``binds`` are (path here, path inside), read-only.
        """
        words = ["exec", "--containall", "--cleanenv", "--no-home", *options]
        if os.geteuid() == 0:
            words.append("--no-privs")  # where CAP_SYS_RESOURCE is missing, exec as root fails without
        for here, inside in binds:
            words += ["--bind", f"{here.absolute()}:{inside}:ro"]
        return self._run([*words, str(image.absolute()), *command], timeout=timeout)

    def build(
        self,
        spec: Path | str,
        to: Path,
        *,
        scratch: Path,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        fakeroot: bool = True,
        timeout: float = BUILD_SECONDS,
    ) -> None:
        """Build ``to`` from a definition, a folder, a SIF or an address that Apptainer knows.

        ``scratch`` is a folder on the pool's filesystem: unpacked images and caches go there and are
        removed. ``to`` must not exist; it is complete, passes ``tables`` and is on disk when this
        returns. Raises ``ToolFailedError``, ``BadFileError``, ``AlreadyExistsError``.
        """
        words = ["build", *(["--fakeroot"] if fakeroot else []), *options]
        self._produce(words, [str(spec)], to, scratch, env or {}, timeout)

    def pull(
        self,
        ref: str,
        to: Path,
        *,
        scratch: Path,
        options: Sequence[str] = (),
        cache: Path | None = None,
        stop: threading.Event | None = None,
        timeout: float = BUILD_SECONDS,
    ) -> None:
        """Pull ``ref`` (``docker://…``, ``oras://…``) into the new file ``to``; otherwise like ``build``.

        ``cache`` is a folder whose layers are used again; it may serve one pull at a time, and is to
        be removed after a pull that failed. The user's home is not seen: a login comes by ``options``
        (``--authfile``), and the layer index there has made pulls hang (facts: sif section 6).
        """
        self._produce(["pull", *options], [ref], to, scratch, {}, timeout, cache=cache, stop=stop, home=False)

    def _produce(
        self,
        words: list[str],
        source: list[str],
        to: Path,
        scratch: Path,
        env: Mapping[str, str],
        timeout: float,
        *,
        cache: Path | None = None,
        stop: threading.Event | None = None,
        home: bool = True,
    ) -> None:
        if to.exists() or to.is_symlink():
            raise AlreadyExistsError(f"{to} exists already")
        with scratch_folder(scratch.absolute()) as own:  # Apptainer finds no mount point for relative ones
            made = own / "made.sif"
            (own / "tmp").mkdir()
            cache = cache.absolute() if cache is not None else own / "cache"
            cache.mkdir(exist_ok=True)
            env = env if home else {**env, "HOME": str(own)}
            done = self._run(
                [*words, str(made), *source],
                timeout=timeout,
                env={"APPTAINER_TMPDIR": str(own / "tmp"), "APPTAINER_CACHEDIR": str(cache),
                     "SINGULARITY_TMPDIR": str(own / "tmp"), "SINGULARITY_CACHEDIR": str(cache),
                     "TMPDIR": str(own / "tmp"), **env},
                network=True,
                stop=stop,
            )  # fmt: skip
            what = f"{Path(self.program).name} {words[0]} of {_URL_SECRETS.sub('', source[0])}"
            if done.stopped:
                raise ToolFailedError(f"{what} was stopped")
            if done.timed_out:
                raise ToolFailedError(f"{what} was ended after {timeout:.0f} s", details=_tail(done))
            if done.status != 0:
                raise ToolFailedError(f"{what} failed: {last_word(done)}", details=_tail(done))
            # an exit status of 0 proves nothing: mksquashfs has been seen to crash unnoticed
            report = check_file(made, Level.TABLES)
            if not report.verdict.passes:
                why = "; ".join(str(f) for f in report.findings)
                raise BadFileError(f"{what} said it succeeded, but what it made is not valid: {why}")
            with FileSource(made) as file:
                os.fsync(file.fd)
            try:
                os.link(made, to)
            except FileExistsError:
                raise AlreadyExistsError(f"{to} appeared meanwhile") from None
            except OSError:
                if to.exists():
                    raise AlreadyExistsError(f"{to} appeared meanwhile") from None
                made.rename(to)
        to.chmod(0o644)

    def _failed(self, done: Done, image: Path, check_name: str) -> Said:
        said = last_word(done)
        cause = cause_of(done.err)
        name = Path(self.program).name
        if cause is Cause.ARCH:
            return Said(Verdict.BAD, said, (finding("wrong-arch", f"{name}: {said}"),))
        if cause is Cause.IMAGE:
            return Said(Verdict.BAD, said, (finding("apptainer-refuses", f"{name} {check_name}: {said}"),))
        if cause is Cause.NO_PROGRAM and _has_true(image):
            words = f"{name} {check_name} does not find 'true', although the image holds it: {said}"
            return Said(Verdict.BAD, said, (finding("apptainer-refuses", words),))
        if cause is Cause.NO_PROGRAM:
            return _not_done("the image holds no program 'true'")
        if cause is Cause.ENCRYPTED:
            return Said(Verdict.UNSUPPORTED, said, (finding("encrypted-partition", f"{name}: {said}"),))
        if cause is Cause.KERNEL:
            if not check_file(image, Level.TABLES).verdict.passes:
                return Said(
                    Verdict.BAD, said, (finding("apptainer-refuses", f"{name} {check_name}: {said}"),)
                )
            return _not_done(f"this kernel does not mount it, perhaps for want of its compressor: {said}")
        if cause is Cause.MACHINE:
            return _not_done(f"this machine cannot: {said}")
        number = done.status - 128
        if check_name == "run" and number in _CRASHES:
            words = f"{name} run: 'true' in the image died of signal {number}"
            if check_file(image, Level.DATA).verdict is Verdict.BAD:
                return Said(Verdict.BAD, words, (finding("apptainer-refuses", words),))
            return _not_done(f"{words}: a damaged program, or one that this processor cannot run")
        return _not_done(f"{name} failed, and it cannot be told why: {said}")

    def _run(
        self,
        words: list[str],
        *,
        timeout: float,
        env: Mapping[str, str] | None = None,
        network: bool = False,
        stop: threading.Event | None = None,
    ) -> Done:
        with scratch_folder() as own:
            settings = {"HOME": str(own), "TMPDIR": str(own), "APPTAINER_TMPDIR": str(own), "NO_COLOR": "1"}
            if network and "HOME" in os.environ:
                del settings["HOME"]
            settings |= dict(env or {})
            try:
                return run_child(
                    [self.program, *words], timeout=timeout, env=settings, network=network, stop=stop
                )
            except OSError as e:
                raise ToolFailedError(
                    f"{self.program} cannot be started: {e.strerror}", hint=INSTALL
                ) from None


def answers_inspect(container: Container) -> bool:
    """Whether ``apptainer inspect`` would read the image's metadata rather than run its shell."""
    return any(d.name == METADATA_NAME and d.datatype in (JSON, GENERIC) for d in container.objects)


def _not_done(why: str) -> Said:
    return Said(Verdict.UNCHECKED, why)


def _has_true(image: Path) -> bool:
    try:
        with FileSource(image) as source:
            opened = open_image(source)
            return any(opened.find(path) is not None for path in TRUE_PATHS)
    except (PoolError, OSError):
        return True  # what cannot be read is no excuse


def _tail(done: Done) -> list[str]:
    return [_URL_SECRETS.sub(lambda m: m.group(1) or "?…", line) for line in done.err.splitlines()[-20:]]
