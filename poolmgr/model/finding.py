"""A finding: one thing wrong with one thing, with a stable code; and the verdicts they add up to.

``CODES`` is the whole vocabulary: docs/findings.md is generated from it, and a test keeps every
``Finding`` that the code can make inside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    ERROR = "error"
    """The thing is bad: it does not pass."""
    WARNING = "warning"
    """Unusual, passes."""
    NOTE = "note"
    """Said for completeness, passes."""


class Verdict(StrEnum):
    """What a check says of one image. Only ``OK`` and ``PARTIAL`` pass."""

    OK = "ok"
    PARTIAL = "partial"
    """Every block was read, but the format carries no checksum: only a hash confirms the bytes."""
    BAD = "bad"
    UNCHECKED = "unchecked"
    """A codec, a permission or a tool is missing, or nobody looked."""
    UNSUPPORTED = "unsupported"
    """A real image of a kind that poolmgr cannot vouch for."""

    @property
    def passes(self) -> bool:
        return self in (Verdict.OK, Verdict.PARTIAL)


class Level(StrEnum):
    """How deep ``verify`` looks; each level includes the ones before (docs/verify.md)."""

    LISTED = "listed"
    HEADER = "header"
    MOUNT = "mount"
    TABLES = "tables"
    DATA = "data"

    depth: int
    """0 for the first; asked for every image of a pool, so it is no search."""

    def __init__(self, _: str) -> None:
        self.depth = len(type(self).__members__)

    def includes(self, other: Level) -> bool:
        return self.depth >= other.depth


@dataclass(frozen=True, slots=True)
class Finding:
    code: str
    """A key of ``CODES``."""
    message: str
    """What was expected and what was found, without the path."""
    severity: Severity = Severity.ERROR
    where: str = ""
    """The place inside the thing, such as ``descriptor 3`` or ``partition 2``."""

    def as_json(self) -> dict[str, str]:
        row = {"code": self.code, "severity": self.severity.value, "message": self.message}
        if self.where:
            row["where"] = self.where
        return row

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


def verdict_of(findings: Iterable[Finding]) -> Verdict:
    """``BAD`` with an error among them, else ``OK``; special verdicts are the check's own to give."""
    return Verdict.BAD if any(f.severity is Severity.ERROR for f in findings) else Verdict.OK


@dataclass(frozen=True, slots=True)
class CodeInfo:
    severity: Severity
    meaning: str
    remedy: str


CODES: dict[str, CodeInfo] = {}


def _define(code: str, severity: Severity, meaning: str, remedy: str) -> None:
    assert code not in CODES, code
    CODES[code] = CodeInfo(severity, meaning, remedy)


_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTE
_FETCH = "Fetch the blob again."
_POOL = "The pool itself holds it so: tell its owner, and ask for a new blob under a new name."

# --- a blob as an entry of a folder or listing (plan/coverage, store/local) --------------------
_define("missing", _E, "A task needs this blob and the pool does not hold it.", _FETCH)
_define(
    "other-case", _E, "The pool holds the name only in another case.", "Correct the index or rename the blob."
)
_define("is-directory", _E, "The index names a directory.", "Correct the index: a task needs one file.")
_define("zero-byte", _E, "The file has no bytes.", _FETCH)
_define(
    "below-floor",
    _E,
    "The file is smaller than the manifest's min_bytes.",
    "Look at the file; fetch it again.",
)
_define("wrong-size", _E, "The file's size is not the recorded one.", _FETCH)
_define("wrong-hash", _E, "The file's sha256 is not the recorded one.", _FETCH)
_define(
    "wrong-arch",
    _E,
    "The image is for another architecture.",
    "Use an image built for the pool's architecture.",
)
_define("dangling-link", _E, "A symbolic link that leads nowhere.", "Restore its target or fetch the blob.")
_define(
    "outward-link",
    _E,
    "A symbolic link that leaves the pool.",
    "Put the file itself into the pool: bind mounts do not follow links.",
)
_define(
    "unreadable",
    _E,
    "This user may not read the file or a folder above it.",
    "Ask its owner for read permission.",
)
_define("not-a-file", _E, "The entry is a socket, pipe, device or folder.", "Remove it from the pool.")
_define(
    "unsafe-path",
    _E,
    "A path that would leave the pool or hide in it.",
    "Rename it; poolmgr never touches it.",
)
_define("case-clash", _E, "Two paths differ only in case or Unicode form.", "Rename one of the two.")
_define("orphan", _N, "No variant names this blob.", "Nothing, or 'poolmgr gc' on a mirror.")
_define(
    "directory-full",
    _W,
    "The directory has no room left under the Hub's 10,000 entries.",
    "'poolmgr push' opens the next batch by itself.",
)
_define("bad-transfer", _E, "What arrived is not what the server announced.", _FETCH)
_define("bad-file", _E, "The pool's file cannot be read.", "See the message.")
_define("no-such-file", _E, "The listing has the file, the server does not give it.", _FETCH)
_define("credentials", _E, "The server refused this user the file.", "Log in, or ask for access.")
_define("remote-refused", _E, "The server's answer about the file is final.", "See the server's words.")
_define("remote-trouble", _E, "Passing trouble outlasted the retries.", "Run the same command again.")
_define("quarantined", _E, "The right bytes arrived, and they are no valid image.", _POOL)
_define(
    "changed-since-proven", _E, "The file is not the one that was proven.", "'poolmgr audit' hashes it again."
)
_define(
    "stale-derivation",
    _W,
    "The image was derived from a base that has other bytes now.",
    "Derive it again ('poolmgr derive'), under its new name.",
)
_define(
    "not-checked",
    _W,
    "A check that was asked for could not be carried out.",
    "See the message for what is missing.",
)

# --- a dataset against a variant (plan/coverage) -------------------------------------------------
_define(
    "row-without-assignment",
    _E,
    "The dataset has the task, the variant does not.",
    "Push the task's image, or drop the row.",
)
_define(
    "assignment-without-row",
    _E,
    "The variant has the task, the dataset does not.",
    "Use the dataset that belongs to this variant.",
)
_define("row-without-image", _E, "The row names no image anywhere.", "Rebuild the row's image and record it.")
_define(
    "generic-image",
    _E,
    "Unrelated tasks share a generic base image: their own build failed silently.",
    "Build the tasks' own images.",
)
_define(
    "bare-image",
    _W,
    "One task names a bare operating system as its image.",
    "Look at the task: its own build may have failed silently.",
)
_define("duplicate-row", _E, "Two rows have one task id.", "Drop one of them.")
_define("bad-row", _E, "A row that cannot be read.", "See the message.")
_define(
    "task-count",
    _E,
    "The variant has another number of tasks than the manifest expects.",
    "Update the manifest or find the lost tasks.",
)

# --- a folder that is adopted (plan/adopt) -----------------------------------------------------------
_define(
    "no-file", _E, "No file of the folder is the row's image.", "Pull the image, or correct the map or rule."
)
_define(
    "name-collision",
    _E,
    "Different images have one file, or one file name under the rule: it can be only one of them.",
    "Correct the map, or say in the manifest's aliases that they are one image.",
)
_define("image-conflict", _E, "The map gives one image several files.", "Drop all lines but one.")
_define(
    "ambiguous-name",
    _E,
    "Several files have the name, so it does not say which is meant.",
    "Give the path, or remove all but one.",
)
_define("alias", _N, "One image under several references.", "Nothing.")
_define(
    "unused-line", _N, "A line of the map that no task uses.", "Nothing, if the dataset is the right one."
)
_define("equal-bytes", _N, "Files of different names have the same bytes.", "Nothing; one of them would do.")

# --- what gc leaves where it is (plan/gc) ------------------------------------------------------------
_define("gc-wanted", _N, "A fetch that is running counts on the file.", "Run gc again when it is done.")
_define("gc-not-ours", _N, "fetch did not put the file there.", "Remove it yourself, or give --found-too.")
_define(
    "gc-changed",
    _W,
    "The file is not provably the one that was fetched.",
    "Look at it; 'poolmgr audit --rehash' hashes what a lock names.",
)
_define("gc-unproven", _E, "It is not proven that the pool still holds the blob.", "See the message.")

# --- a file that is no SIF (sif/sniff) -----------------------------------------------------------
_AGAIN = "Fetch or build it again."
_BROKEN = "The file is damaged: " + _AGAIN[0].lower() + _AGAIN[1:]
_define("not-sif", _E, "No SIF header, and no kind of file that is known.", _BROKEN)
_define("sif-magic", _E, "The file begins like a SIF and its magic bytes are wrong.", _BROKEN)
_define("zero-head", _E, "The beginning of the file is all zeros: its blocks were never written.", _BROKEN)
_define(
    "shifted-sif", _E, "The SIF magic stands at the wrong place: bytes were added or lost before it.", _BROKEN
)
_define("html-page", _E, "A web page, usually of a login or an error, saved under an image's name.", _AGAIN)
_define("xml-body", _E, "An XML document, usually a storage service's error, saved as an image.", _AGAIN)
_define("json-body", _E, "A JSON document, usually an API's error, saved as an image.", _AGAIN)
_define(
    "lfs-pointer", _E, "A git-lfs pointer: the repository was cloned without git-lfs.", "Run 'git lfs pull'."
)
_define("annex-pointer", _E, "A git-annex pointer whose content is not here.", "Run 'git annex get'.")
_define("gzip-file", _E, "A gzip-compressed file.", "Unpack it first (gunzip).")
_define("tar-file", _E, "A tar archive.", "Build a SIF from it: apptainer build x.sif docker-archive:x.tar")
_LEGACY = "Rebuild it as a SIF (apptainer build new.sif old.img), or allow it with --allow-legacy."
_define("bare-squashfs", _W, "A squashfs filesystem without a SIF around it.", _LEGACY)
_define("singularity2-image", _W, "A squashfs image as Singularity 2 wrote it.", _LEGACY)
_define("ext-image", _W, "A bare ext3 image, as Singularity 2 wrote it.", "Rebuild it as a SIF.")
_define(
    "sandbox-folder", _W, "A container's unpacked folder.", "Build a SIF from it: apptainer build x.sif DIR"
)
_define("oci-sif", _W, "An OCI-SIF of SingularityCE 4, which Apptainer cannot run.", "Build a plain SIF.")
_define(
    "io-error", _W, "The storage failed while the file was read.", "Try again; then ask who runs the disk."
)
_define(
    "short-read", _E, "The file became shorter while it was read.", "Check again when nobody writes to it."
)
_define(
    "sparse-file",
    _W,
    "The file has holes, which read as zeros: a copy may be unfinished.",
    "Check it at level data.",
)

# --- the SIF container (sif/header, level header) -------------------------------------------------
_define("sif-truncated", _E, "The file is shorter than its header promises.", _AGAIN)
_define("sif-trailing", _W, "Bytes follow the end of the data section.", "Compare the file's sha256.")
_define("sif-version", _E, "Not the one SIF version that exists.", _BROKEN)
_define("sif-launch", _W, "The first line is neither the usual one nor empty.", "Compare the file's sha256.")
_define("sif-arch", _E, "The header's architecture is unknown or not that of the primary partition.", _BROKEN)
_define("sif-descr-count", _E, "The number of descriptors is impossible.", _BROKEN)
_define("sif-descr-free", _W, "The count of free descriptors is wrong.", "Compare the file's sha256.")
_define("sif-descr-range", _E, "The descriptors do not lie inside the file.", _BROKEN)
_define("sif-descr-used", _E, "A descriptor is neither used nor unused.", _BROKEN)
_define("sif-descr-id", _E, "An object's id is not the number of its slot.", _BROKEN)
_define("sif-slot", _W, "An unused descriptor holds bytes.", "Compare the file's sha256.")
_define("sif-data-range", _E, "The data section begins or ends at an impossible place.", _BROKEN)
_define("sif-datatype", _E, "An object of a type that does not exist.", _BROKEN)
_define("sif-object-range", _E, "An object lies outside the data section or the file.", _BROKEN)
_define("sif-link", _E, "An object links to one that is not there.", _BROKEN)
_define("sif-overlap", _E, "Two objects share bytes.", _BROKEN)
_define("sif-no-objects", _E, "The file holds no object at all.", _BROKEN)
_define("sif-no-primary", _E, "There is no primary system partition, so nothing to run.", _BROKEN)
_define("sif-two-primaries", _E, "More than one primary partition: Apptainer runs none of them.", _BROKEN)
_define("sif-part-fs", _E, "A partition's filesystem is of a type that cannot be run.", _BROKEN)
_define("sif-part-type", _E, "A partition of a type that does not exist.", _BROKEN)
_define("sif-part-empty", _E, "A partition without bytes.", _BROKEN)
_define("sif-part-align", _E, "A partition begins where no loop device can.", _BROKEN)
_define(
    "sif-fs-magic", _E, "A partition does not begin with the filesystem that its descriptor names.", _BROKEN
)
_define("ext-partition", _W, "An ext3 partition: it can change, and is not read.", "Rebuild without it.")
_define(
    "encrypted-partition", _W, "An encrypted partition, which cannot be looked into.", "Compare the sha256."
)

# --- a squashfs filesystem (sif/squashfs, level mount) ----------------------------------------------
_define("sq-magic", _E, "No squashfs begins where the descriptor says.", _BROKEN)
_define("sq-version", _E, "A squashfs version that no kernel of today mounts.", _BROKEN)
_define("sq-compressor", _E, "The number of the compressor is unknown.", _BROKEN)
_define("sq-lzma", _W, "Compressed with lzma, which Linux cannot mount.", "Rebuild with gzip or zstd.")
_define("sq-block-size", _E, "The block size is impossible.", _BROKEN)
_define("sq-truncated", _E, "The filesystem is longer than its partition.", _BROKEN)
_define(
    "sq-unpadded",
    _E,
    "The filesystem ends inside a disk sector, so a kernel mount loses its last bytes (squashfuse does not).",
    "Make it without -nopad.",
)
_define("sq-counts", _E, "A count in the superblock is impossible.", _BROKEN)
_define("sq-root", _E, "The root directory cannot be found.", _BROKEN)
_define("sq-index", _E, "An index table does not lie where its neighbours leave room for it.", _BROKEN)
_define("sq-range", _E, "A position outside the filesystem.", _BROKEN)
_define("sq-meta", _E, "A metadata block is impossible.", _BROKEN)
_define("sq-decompress", _E, "A compressed block does not unpack.", _BROKEN)
_define("sq-options", _E, "The compressor's options are impossible.", _BROKEN)

# --- its tables (sif/tables, level tables) ----------------------------------------------------------
_define(
    "sq-bomb",
    _E,
    "The metadata unpacks to or names far more than a file of this size needs.",
    "Do not use it.",
)
_define("sq-inode", _E, "An inode is impossible, or their number is wrong.", _BROKEN)
_define("sq-directory", _E, "A directory or one of its entries is impossible.", _BROKEN)
_define("sq-reference", _E, "A reference leads to no metadata.", _BROKEN)
_define("sq-fragment", _E, "A fragment is impossible.", _BROKEN)
_define("sq-xattr", _E, "Extended attributes are impossible.", _BROKEN)
_define("sq-export", _E, "The export table does not agree with the inodes.", _BROKEN)
_define("sq-block", _E, "A data block's place or size is impossible.", _BROKEN)
_define("sq-overlap", _E, "Data blocks share bytes.", _BROKEN)

# --- its data, and the signatures' digests (sif/data, sif/signature, level data) ---------------------
_define("sq-data", _E, "A data block does not unpack to what its file needs.", _BROKEN)
_define(
    "data-partial",
    _N,
    "Some data carries no checksum in the file (zstd, lz4, lzo, lzma, stored blocks).",
    "Compare the sha256 (--hash) where one is recorded.",
)
_define("sig-object", _E, "An object's bytes are not the ones that were signed.", _BROKEN)
_define("sig-descriptor", _E, "A descriptor is not the one that was signed.", _BROKEN)
_define("sig-header", _E, "The header is not the one that was signed.", _BROKEN)
_define("sig-missing", _E, "A signed object is not in the file.", _BROKEN)
_define(
    "sig-unread",
    _W,
    "A signature of a form that is not known; its digests were not compared.",
    "Run 'apptainer verify'.",
)
_define("oci-digest", _E, "An OCI blob's bytes are not those that its descriptor names.", _BROKEN)
# --- a task dataset and its environments (harbor/tasks, harbor/source) ---------------------------
_define("no-task-toml", _N, "A folder without task.toml.", "Nothing: it is no task.")
_define("bad-task-toml", _E, "A task.toml that is not TOML or that Harbor refuses.", "Correct the key named.")
_define(
    "task-incomplete",
    _E,
    "A task without its environment folder, instruction.md or a step's folder: Harbor skips it in silence.",
    "Restore what is missing, or remove the folder.",
)
_define(
    "task-link",
    _E,
    "A link under tests/, solution/ or steps/ that leaves the task or loops: Harbor drops such a task.",
    "Put the file itself into the task.",
)
_define("task-unreadable", _E, "A file or folder of the task cannot be read.", "Ask for read permission.")
_define(
    "task-digest",
    _E,
    "A task's files are not those that the digest in its dataset.toml records.",
    "Restore the files, or record the change: 'harbor sync' writes the digests again.",
)
_define("duplicate-task", _E, "Two tasks of one dataset have one name.", "Rename or drop one of them.")
_define(
    "bad-dataset",
    _E,
    "Nothing at this address is or could hold a task.",
    "Correct the address; see the message.",
)
_define("bad-archive", _E, "A Parquet file that is no task archive.", "See the message; pack it again.")
_define(
    "bad-archive-row", _E, "A row of a task archive that cannot be read or trusted.", "Pack the task again."
)
_define(
    "not-local",
    _N,
    "A registry entry whose task lies in another repository.",
    "Download the dataset with Harbor and name its folder.",
)
_define(
    "env-unreadable", _E, "A file of the environment cannot be read, so it has no hash.", "See the message."
)
_define(
    "env-too-large",
    _E,
    "A file of 4 GiB or more, on which the hash of Harbor up to 0.22 fails.",
    "Take the file out of the environment, or use a newer Harbor.",
)
_define(
    "env-not-utf8",
    _E,
    "A file name of the environment is not UTF-8: Harbor's own hash fails on it.",
    "Rename the file.",
)
_define(
    "env-special-file", _E, "A FIFO, socket or device in the environment; no hash covers it.", "Remove it."
)
_define("env-link-loop", _E, "A symbolic link of the environment leads round in a loop.", "Remove it.")
_define(
    "env-outward-link",
    _W,
    "A symbolic link of the environment leads out of the task; it is not followed.",
    "Put the file itself into the environment.",
)
_define(
    "env-undefined",
    _E,
    "No Dockerfile, no docker-compose.yaml and no docker_image: Harbor refuses to start the task.",
    "Add one of them.",
)
_define(
    "dockerfile-unparsed",
    _E,
    "BuildKit cannot parse the Dockerfile; the environment is counted by its hash all the same.",
    "Correct the Dockerfile.",
)
_define(
    "copy-source-missing",
    _W,
    "COPY or ADD names a file that the environment does not hold: the build fails.",
    "Restore the file or drop the instruction.",
)
_define(
    "add-not-uploaded",
    _W,
    "ADD takes a file of the environment: Daytona's SDK uploads COPY sources only.",
    "Write COPY in its place.",
)

# --- what Apptainer says (sif/apptainer) -------------------------------------------------------------
_define("apptainer-refuses", _E, "Apptainer refuses the image for a fault in it.", _BROKEN)

# --- what an image holds (sif/rules) ---------------------------------------------------------------
_define("content-missing", _E, "A path that the manifest requires is not in the image.", "Rebuild the image.")
_define("content-forbidden", _E, "The image holds what the manifest forbids.", "Derive an image without it.")
_define(
    "content-hidden",
    _E,
    "An overlay hides a forbidden file, whose bytes are still in the image.",
    "Derive it again with method rebuild, which leaves the bytes out.",
)
_define("module-missing", _E, "A required Python module is in no package folder.", "Derive an image with it.")
