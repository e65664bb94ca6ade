"""Quarantine: bytes that are the pool's own and yet no valid image, kept by sha256 with the reasons."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from poolmgr import __version__
from poolmgr.model.blob import Blob
from poolmgr.model.finding import Finding, Severity
from poolmgr.sif.check import Report
from poolmgr.store.files import mapped_os_errors, replace, write_durable


class Quarantine:
    """The folder of one mirror; nothing is created before something is held."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def hashes(self) -> set[str]:
        """The sha256 of everything that is held."""
        try:
            return {n.removesuffix(".json") for n in os.listdir(self.folder) if n.endswith(".json")}
        except FileNotFoundError:
            return set()

    def file(self, sha256: str | None) -> Path:
        return self.folder / f"{sha256}.sif"

    def hold(self, blob: Blob, path: Path, sha256: str, report: Report) -> tuple[Finding, ...]:
        """Move ``path`` here, with what ``report`` found beside it; returns the findings of the blob."""
        held = self.file(sha256)
        with mapped_os_errors(held):
            self.folder.mkdir(parents=True, exist_ok=True)
        replace(path, held)
        row = {
            "schema": 1,
            "kind": "quarantine",
            "path": blob.path,
            "size": blob.size,
            "sha256": sha256,
            "verdict": report.verdict.value,
            "findings": [f.as_json() for f in report.findings],
            "version": __version__,
            "time": time.time(),
        }
        note = json.dumps(row, indent=1, ensure_ascii=False) + "\n"
        write_durable(held.with_suffix(".json"), note.encode())
        return quarantine_findings(blob, report.findings)

    def forget(self, sha256: str | None) -> None:
        """What was held is in its place now."""
        self.file(sha256).with_suffix(".json").unlink(missing_ok=True)


def quarantine_findings(blob: Blob, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """That the blob is in quarantine, then ``findings``, which say why."""
    why = "; ".join(str(f) for f in findings if f.severity is Severity.ERROR) or "no valid image"
    first = Finding(
        "quarantined",
        f"the bytes are the pool's (sha256 {blob.sha256 or 'not recorded'}), the image is not valid: {why}",
    )
    return (first, *findings)
