"""A manifest: the TOML file that names a pool and its rules (docs/manifest.md).

Everything but ``pool.url`` is optional. Unknown keys are errors that name the nearest known key,
so that a misspelt gate never passes for a gate that was not asked for.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from poolmgr.errors import ManifestInvalidError
from poolmgr.model.blob import INDEX_NAME, path_trouble
from poolmgr.model.digest import parse_sha256
from poolmgr.model.finding import Level
from poolmgr.model.index import name_trouble, nearest

SCHEMA = 1
HUB_HARD_LIMIT = 10_000
"""Entries in one directory at which the Hub rejects a push (facts: hub limits)."""
ARCHS = ("386", "amd64", "arm", "arm64", "ppc64", "ppc64le", "mips", "mipsle", "mips64", "mips64le",
         "s390x", "riscv64", "loong64")  # fmt: skip
_SECRET = re.compile(r"://([^/]*@|.*\?)")
INSPECT = ("off", "available", "required")
_DIGEST = re.compile(r"(sha-?\d+|md5|blake2[bs]?|xxh\w+):|[0-9a-f]{32,}$", re.IGNORECASE)
"""What is meant as a digest, and would be taken for the name of a file."""
BRACES = re.compile(r"\{[^/{}]*,[^/{}]*\}")
NAMING_RULES = ("tmax", "apptainer", "harbor", "sha256")


@dataclass(frozen=True, slots=True)
class VariantRules:
    dataset: str | None = None
    """Address of the dataset that the variant covers."""
    tasks: int | None = None
    """How many tasks the variant is expected to have."""
    require: tuple[str, ...] = ()
    """Paths or globs that every image of the variant must hold."""
    forbid: tuple[str, ...] = ()
    """Paths, globs or ``sha256:…`` of contents that no image of the variant may hold."""
    modules: tuple[str, ...] = ()
    """Python modules that every image of the variant must be able to import."""


@dataclass(frozen=True, slots=True)
class Layout:
    plain: str = "images"
    derived: str = "derived"
    max_entries: int = 9000


@dataclass(frozen=True, slots=True)
class Gates:
    level: Level | None = None
    inspect: str = "available"
    min_bytes: int = 0
    arch: str | None = None
    generic_images: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Naming:
    rule: str = "tmax"
    trailing_hash: bool = False
    """Whether ``resolve`` may match a reference by its trailing hash of 12 or more hex digits."""


@dataclass(frozen=True)
class Manifest:
    """The parsed manifest; ``Manifest()`` holds the defaults of a pool that has none."""

    url: str | None = None
    name: str | None = None
    index: str = INDEX_NAME
    layout: Layout = field(default_factory=Layout)
    variants: Mapping[str, VariantRules] = field(default_factory=dict)
    gates: Gates = field(default_factory=Gates)
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Image-reference pattern -> replacement, in the order of the file."""
    naming: Naming = field(default_factory=Naming)
    environments_limit: int | None = None
    text: str = ""
    """The TOML source, kept word for word in locks."""

    def rules(self, variant: str) -> VariantRules:
        return self.variants.get(variant, VariantRules())

    @staticmethod
    def parse(text: str, source: str) -> Manifest:
        """The manifest in ``text``; raises ``ManifestInvalidError`` naming the key and ``source``."""
        try:
            raw = tomllib.loads(text)
        except (ValueError, RecursionError) as e:  # TOMLDecodeError, and an integer of too many digits
            raise ManifestInvalidError(f"{source}: not TOML: {e}", hint="see docs/manifest.md") from None
        return _Reader(source).manifest(raw, text)


class _Reader:
    """Reads tables key by key; what is left over in a table is unknown."""

    def __init__(self, source: str) -> None:
        self.source = source

    def fail(self, where: str, what: str, hint: str = "see docs/manifest.md") -> ManifestInvalidError:
        return ManifestInvalidError(f"{self.source}: {where}: {what}", hint=hint)

    def manifest(self, raw: dict[str, Any], text: str) -> Manifest:
        self.known(
            raw, "", ("schema", "pool", "layout", "variants", "gates", "aliases", "naming", "environments")
        )
        if type(raw.get("schema")) is not int or raw["schema"] != SCHEMA:  # True and 1.0 equal 1
            raise self.fail(
                "schema", f"expected {SCHEMA}, found {raw.get('schema')!r}", "begin the file with: schema = 1"
            )
        pool = self.table(raw, "pool", ("name", "url", "index"))
        url = self.text(pool, "pool", "url")
        if not url:
            raise self.fail("pool.url", "missing: the one key that every manifest needs")
        self.no_secret("pool.url", url)
        index = self.text(pool, "pool", "index") or INDEX_NAME
        if index != INDEX_NAME and path_trouble(index):
            raise self.fail("pool.index", f"the path {index!r} {path_trouble(index)}")
        variants = {}
        for name, rules in self.table(raw, "variants", None).items():
            where = f"variants.{name}"
            if trouble := name_trouble(name):
                raise self.fail("variants", f"the name {name!r} {trouble}")
            if not isinstance(rules, dict):
                raise self.fail(where, f"expected a table, found {rules!r}")
            self.known(rules, where, ("dataset", "tasks", "require", "forbid", "modules"))
            variants[name] = VariantRules(
                dataset=self.text(rules, where, "dataset"),
                tasks=self.number(rules, where, "tasks", 1),
                require=self.texts(rules, where, "require"),
                forbid=self.texts(rules, where, "forbid"),
                modules=self.texts(rules, where, "modules"),
            )
            self.no_secret(f"{where}.dataset", variants[name].dataset or "")
            self.content_rules(where, variants[name])
        aliases = self.table(raw, "aliases", None)
        for key, value in aliases.items():
            if not isinstance(value, str):
                raise self.fail(f"aliases.{key}", f"expected text, found {value!r}")
        env = self.table(raw, "environments", ("limit",))
        return Manifest(
            url=url,
            name=self.text(pool, "pool", "name"),
            index=index,
            layout=self.layout(self.table(raw, "layout", ("plain", "derived", "max_entries"))),
            variants=MappingProxyType(variants),
            gates=self.gates(
                self.table(raw, "gates", ("level", "inspect", "min_bytes", "arch", "generic_images"))
            ),
            aliases=MappingProxyType(aliases),
            naming=self.naming(self.table(raw, "naming", ("rule", "trailing_hash"))),
            environments_limit=self.number(env, "environments", "limit", 0),
            text=text,
        )

    def layout(self, t: dict[str, Any]) -> Layout:
        default = Layout()
        result = Layout(
            plain=self.text(t, "layout", "plain") or default.plain,
            derived=self.text(t, "layout", "derived") or default.derived,
            max_entries=self.number(t, "layout", "max_entries", 1) or default.max_entries,
        )
        for key, value in (("plain", result.plain), ("derived", result.derived)):
            if path_trouble(value):
                raise self.fail(f"layout.{key}", f"the path {value!r} {path_trouble(value)}")
        if result.max_entries >= HUB_HARD_LIMIT:
            raise self.fail(
                "layout.max_entries", f"{result.max_entries} is not under the Hub's hard limit of 10,000"
            )
        return result

    def gates(self, t: dict[str, Any]) -> Gates:
        level = self.choice(t, "gates", "level", tuple(Level))
        return Gates(
            level=Level(level) if level else None,
            inspect=self.choice(t, "gates", "inspect", INSPECT) or "available",
            min_bytes=self.number(t, "gates", "min_bytes", 0) or 0,
            arch=self.choice(t, "gates", "arch", ARCHS),
            generic_images=self.texts(t, "gates", "generic_images"),
        )

    def naming(self, t: dict[str, Any]) -> Naming:
        rule = self.choice(t, "naming", "rule", NAMING_RULES) or "tmax"
        trailing = t.get("trailing_hash", False)
        if not isinstance(trailing, bool):
            raise self.fail("naming.trailing_hash", f"expected true or false, found {trailing!r}")
        return Naming(rule, trailing)

    def no_secret(self, where: str, address: str) -> None:
        """Locks and reports keep a manifest word for word, so it may hold no credentials."""
        if _SECRET.search(address):
            raise self.fail(
                where,
                "the URL holds user info or a query, which may be secret",
                "give credentials to the backend in its own way (AWS_PROFILE, HF_TOKEN, a netrc file)",
            )

    def known(self, table: Mapping[str, Any], where: str, keys: tuple[str, ...]) -> None:
        for key in table:
            if key not in keys:
                close = nearest(key, keys, 1)
                hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(keys)}"
                raise self.fail(f"{where}.{key}" if where else key, "unknown key", hint)

    def table(self, raw: Mapping[str, Any], key: str, keys: tuple[str, ...] | None) -> dict[str, Any]:
        value = raw.get(key, {})
        if not isinstance(value, dict):
            raise self.fail(key, f"expected a table, found {value!r}")
        if keys is not None:
            self.known(value, key, keys)
        return value

    def text(self, table: Mapping[str, Any], where: str, key: str) -> str | None:
        value = table.get(key)
        if value is not None and (not isinstance(value, str) or not value):
            raise self.fail(f"{where}.{key}", f"expected text, found {value!r}")
        return value

    def content_rules(self, where: str, rules: VariantRules) -> None:
        """Rules that no image could ever break, or obey, are mistakes: they would compare nothing."""
        for key, entries in (("require", rules.require), ("forbid", rules.forbid)):
            for entry in entries:
                if key == "forbid" and entry.startswith("sha256:"):
                    try:
                        parse_sha256(entry)
                    except ValueError as e:
                        raise self.fail(f"{where}.{key}", str(e)) from None
                elif _DIGEST.match(entry):
                    hint = "for a content: forbid = ['sha256:<64 hex digits>']; a path begins with '/'"
                    raise self.fail(f"{where}.{key}", f"a path expected, found the digest {entry!r}", hint)
                elif ".." in entry.split("/"):
                    raise self.fail(f"{where}.{key}", f"{entry!r}: no path in an image leads over '..'")
                elif BRACES.search(entry):
                    hint = "write one entry for each; wildcards are *, ?, […] and **"
                    raise self.fail(f"{where}.{key}", f"{entry!r}: braces are no wildcard", hint)
        for module in rules.modules:
            if not all(part.isidentifier() for part in module.split(".")):
                hint = "as it is imported: modules = ['yaml', 'google.protobuf']"
                raise self.fail(f"{where}.modules", f"{module!r} is no name of a Python module", hint)

    def texts(self, table: Mapping[str, Any], where: str, key: str) -> tuple[str, ...]:
        value = table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(v, str) and v for v in value):
            raise self.fail(f"{where}.{key}", f"expected a list of texts, found {value!r}")
        return tuple(value)

    def number(self, table: Mapping[str, Any], where: str, key: str, least: int) -> int | None:
        value = table.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise self.fail(f"{where}.{key}", f"expected a whole number from {least}, found {value!r}")
        return value

    def choice(self, table: Mapping[str, Any], where: str, key: str, choices: tuple[str, ...]) -> str | None:
        value = self.text(table, where, key)
        if value is not None and value not in choices:
            close = nearest(value, choices, 1)
            raise self.fail(
                f"{where}.{key}", f"expected one of {', '.join(choices)}; found {value!r}",
                f"did you mean {close[0]!r}?" if close else "see docs/manifest.md",
            )  # fmt: skip
        return value
