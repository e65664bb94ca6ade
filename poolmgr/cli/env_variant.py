"""``poolmgr env count -p POOL --variant NAME``: how many distinct images a variant's blobs are."""

from __future__ import annotations

from dataclasses import asdict

from poolmgr.cli import text
from poolmgr.cli.output import Output
from poolmgr.errors import Exit
from poolmgr.ops.blob_hashes import sha256_of, trees_of
from poolmgr.ops.view import open_pool
from poolmgr.plan.sharing import sharing
from poolmgr.settings import Settings


def count_pool(pool: str, variant: str, limit: int | None, out: Output, manifest: str | None = None) -> Exit:
    """Print the count of ``variant``; ``limit`` (else the manifest's) holds for its distinct blobs."""
    view = open_pool(pool, Settings.read(), manifest=manifest, on_retry=out.progress().note)
    limit = view.manifest.environments_limit if limit is None else limit
    assignments = view.index.variant(variant)
    found = sharing(assignments, sha256_of(view, set(assignments.values())), trees_of(view))
    out.line(out.styled(text.name(variant), "bold") + f": {text.counted(found.tasks, 'task')}")
    rows = [
        [
            "files",
            text.number(found.blobs),
            f"largest {found.largest:,} tasks, single-use {found.single_use:,}",
        ]
    ]
    for what, distinct, known in (
        ("contents", found.sha256, found.with_sha256), ("trees", found.trees, found.with_tree)
    ):  # fmt: skip
        word = "of all files" if known == found.blobs else f"of the {known:,} files on record"
        rows.append(
            [f"distinct {what}", text.number(distinct) if known else "unknown", word if known else ""]
        )
    out.table(rows, right=[1], indent=2)
    for path in dict.fromkeys(assignments.values()):
        out.only_quiet(path)
    over = limit is not None and found.blobs > limit
    if over:
        out.line(f"over the limit of {limit:,}")
    facts = asdict(found)
    if not found.with_sha256:
        facts["sha256"] = None
    if not found.with_tree:
        facts["trees"] = None
    out.document(
        {"kind": "env-count-variant", "variant": variant, "limit": limit, "passed": not over, **facts}
    )
    return Exit.BAD if over else Exit.GOOD
