"""A stand-in for the Hugging Face Hub on loopback, for the real client: two ports, faults, a log.

In a test: the ``hub`` fixture (tests/conftest.py). As a process of its own, for benchmarks:
``python -m tests.loopback.hub ROOT`` serves every ROOT/{models,datasets}/ORG/NAME folder and
prints one line of JSON with its addresses.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import ssl
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.loopback.faults import Fault, Faults, instead, spoil, without
from tests.loopback.httpd import FilePart, Request, Response, Server
from tests.loopback.repos import PAGE, Commit, Content, Entry, RefusalError, Repo, row

TOKEN = "hf_loopbackWriteToken"
SIGNATURE = "X-Amz-Signature=secretsignature"
KINDS = ("models", "datasets", "spaces")


@dataclass(frozen=True, slots=True)
class Logged:
    """One request as it came in."""

    origin: str
    method: str
    target: str
    range: str | None
    auth: bool
    """Whether it carried an Authorization header."""
    agent: str


class Hub:
    """``add_repo`` fills it, ``fault`` spoils it, ``log`` remembers. ``url`` is its HF_ENDPOINT."""

    def __init__(
        self, *, port: int = 0, tokens: Mapping[str, str] | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.tokens = dict(tokens or {TOKEN: "acme"})
        """Token -> name of its user; who has one may write and sees private and gated repositories."""
        self.outsiders: set[str] = set()
        """Tokens that are valid and have no right to private and gated repositories."""
        self.repos: dict[tuple[str, str], Repo] = {}
        self.log: list[Logged] = []
        self.ratelimit: Callable[[Request], dict[str, str]] = lambda request: {}
        """Headers for every answer of the API port, such as RateLimit."""
        self.xet_root: Path | None = None
        self.faults = Faults()
        self.api = Server("api", self._handle, port, tls)
        self.cdn = Server("cdn", self._handle, tls=tls)
        self.url = self.api.url

    def close(self) -> None:
        self.api.close()
        self.cdn.close()

    # --- for tests -----------------------------------------------------------------------------------

    def add_repo(
        self,
        kind: str,
        name: str,
        files: Mapping[str, Content] | None = None,
        *,
        private: bool = False,
        gated: bool = False,
    ) -> Repo:
        """A repository with one commit of ``files``; ``kind`` as in URLs (``datasets``)."""
        assert kind in KINDS
        repo = self.repos[kind, name] = Repo(kind, name, private=private, gated=gated)
        if files:
            repo.add(files)
        return repo

    def serve_xet(self, root: Path) -> None:
        """Keep the LFS files of every repository in a local Xet store below ``root`` too, from now on.

        hf_xet takes a ``local://`` address for its storage server, so its real code runs offline.
        """
        import hf_xet

        self.xet_root = root
        session = hf_xet.XetSession()
        for repo in self.repos.values():
            with session.new_upload_commit(
                endpoint=f"local://{root}", token="x", token_expiry_unix_secs=1 << 32
            ) as commit:
                handles = {
                    sha256: commit.start_upload_bytes(_bytes(content), sha256=sha256)
                    for sha256, content in repo.lfs.items()
                }
            repo.xet = {sha256: handle.result().xet_info.hash for sha256, handle in handles.items()}
            for made in repo.commits.values():
                made.pages.clear()
                for entry in made.files.values():
                    entry.xet = repo.xet.get(entry.sha256 or "")

    def expect_xet(self, repo: Repo, content: bytes) -> None:
        """Say what a Xet upload will bring: the Hub finds it in its storage, this stand-in cannot."""
        repo.promised[hashlib.sha256(content).hexdigest()] = content

    def fault(self, contains: str = "", **what: object) -> Fault:
        """Add a fault (tests/loopback/faults.py): ``hub.fault("a.sif", origin="cdn", truncate=9)``."""
        return self.faults.add(Fault(contains, **what))  # type: ignore[arg-type]

    def env(self, token: str | None = TOKEN) -> dict[str, str]:
        """What a process needs in its environment to take this for the Hub."""
        env = {"HF_ENDPOINT": self.url, "HF_HUB_DISABLE_TELEMETRY": "1"}
        return env if token is None else {**env, "HF_TOKEN": token}

    def requests(
        self, contains: str = "", method: str | None = None, origin: str | None = None
    ) -> list[Logged]:
        return [
            r
            for r in self.log
            if contains in unquote(r.target) and method in (None, r.method) and origin in (None, r.origin)
        ]

    # --- serving -------------------------------------------------------------------------------------

    def _handle(self, request: Request) -> Response:
        headers = request.headers
        self.log.append(
            Logged(
                request.origin, request.method, request.target, headers.get("range"),
                "authorization" in headers, headers.get("user-agent", ""),
            )
        )  # fmt: skip
        fault = self.faults.take(request)
        if fault is not None:
            answer = instead(fault)
            if answer is not None:
                return answer
            if fault.lose:
                request.body = without(request.body, fault.lose)
            if fault.ignore_range:
                headers.pop("range", None)
        try:
            answer = self._cdn(request) if request.origin == "cdn" else self._api(request)
        except RefusalError as r:
            answer = Response(
                r.status, {"X-Error-Message": r.message}, json.dumps({"error": r.message}).encode()
            )
            if r.code:
                answer.headers["X-Error-Code"] = r.code
        except (KeyError, ValueError, StopIteration) as e:
            answer = Response(400, {}, json.dumps({"error": f"bad request: {e!r}"}).encode())
        if request.origin == "api":
            answer.headers.update(self.ratelimit(request))
        return answer if fault is None else spoil(fault, answer)

    def _cdn(self, request: Request) -> Response:
        if "authorization" in request.headers:
            return Response(400, {}, b"Only one auth mechanism allowed")
        url = urlsplit(request.target)
        if SIGNATURE not in url.query:
            return Response(403, {}, b"<Error><Code>AccessDenied</Code></Error>")
        _, verb, kind, owner, name, sha256 = url.path.split("/", 5)
        repo = self.repos[kind, f"{owner}/{name}"]
        if verb == "upload":
            if hashlib.sha256(request.body).hexdigest() != sha256:
                return Response(400, {}, b"<Error><Code>BadDigest</Code></Error>")
            repo.lfs[sha256] = request.body
            return Response(200, {"ETag": f'"{sha256}"'})
        return _ranged(repo.lfs[sha256], request, {"ETag": f'"{sha256}"'})

    def _user(self, request: Request) -> str | None:
        """The token's user; None without a token; a wrong token is refused."""
        auth = request.headers.get("authorization")
        if auth is None:
            return None
        token = auth.removeprefix("Bearer ")
        if token in self.outsiders:
            return "outsider"
        if token not in self.tokens:
            raise RefusalError(401, "Invalid credentials in Authorization header")
        return self.tokens[token]

    def _repo(self, kind: str, name: str, user: str | None, *, bytes_: bool, write: bool = False) -> Repo:
        repo = self.repos.get((kind, name))
        member = user is not None and user != "outsider"
        if repo is None or (repo.private and not member):
            raise RefusalError(401 if user is None else 404, "Repository not found", "RepoNotFound")
        if repo.gated and bytes_ and not member:
            raise RefusalError(
                401 if user is None else 403,
                f"Access to dataset {name} is restricted and you are not in the authorized list."
                f" Visit https://huggingface.co/{kind}/{name} to ask for access.",
                "GatedRepo",
            )
        if write and not member:
            raise RefusalError(401 if user is None else 403, "You need write access to this repository")
        return repo

    def _api(self, request: Request) -> Response:
        path, _, query = request.target.partition("?")
        user = self._user(request)
        parts = path.split("/")[1:]
        if parts[0] != "api":
            return self._files(request, parts, user)
        args = {k: v[-1] for k, v in parse_qs(query).items()}
        match parts[1:]:
            case ["whoami-v2"]:
                if user is None:
                    raise RefusalError(401, "Invalid username or password.")
                return _json({"type": "user", "name": user, "orgs": [], "auth": {"type": "access_token"}})
            case ["validate-yaml"]:
                return _json({"errors": [], "warnings": []})
            case ["repos", "create"]:
                return self._create(json.loads(request.body), user)
            case ["repos", "delete"]:
                asked = json.loads(request.body)
                key = (
                    f"{asked.get('type') or 'model'}s",
                    f"{asked.get('organization') or user}/{asked['name']}",
                )
                if self.repos.pop(key, None) is None:
                    raise RefusalError(404, "Repository not found", "RepoNotFound")
                return _json({})
            case [kind, owner, name, *rest] if kind in KINDS:
                write = request.method != "GET" and not _proposes(rest, args)
                repo = self._repo(kind, f"{owner}/{name}", user, bytes_=False, write=write)
                return self._repo_api(request, repo, [unquote(p) for p in rest], args)
        raise RefusalError(404, "Not found")

    def _create(self, asked: dict[str, str], user: str | None) -> Response:
        if user is None:
            raise RefusalError(401, "Invalid username or password.")
        kind, name = (
            f"{asked.get('type') or 'model'}s",
            f"{asked.get('organization') or user}/{asked['name']}",
        )
        url = f"{self.url}/{'' if kind == 'models' else kind + '/'}{name}"
        if (kind, name) in self.repos:
            return _json({"error": "You already created this repo", "url": url}, 409)
        self.add_repo(kind, name, private=asked.get("visibility") == "private" or bool(asked.get("private")))
        return _json({"url": url})

    def _repo_api(self, request: Request, repo: Repo, rest: list[str], args: dict[str, str]) -> Response:
        match request.method, rest:
            case "GET", []:
                return _json(self._info(repo, repo.resolve("main")))
            case "GET", ["revision", revision]:
                return _json(self._info(repo, repo.resolve(revision)))
            case "GET", ["tree", revision, *folder]:
                return self._tree(request, repo.resolve(revision), "/".join(folder), args)
            case "POST", ["paths-info", revision]:
                paths = parse_qs(request.body.decode()).get("paths", [])
                if len(paths) > PAGE:
                    raise RefusalError(413, "too many parameters")
                files = repo.resolve(revision).files
                return _json([row(p, files[p]) for p in paths if p in files])
            case "POST", ["preupload", revision]:
                return _json({"files": repo.preupload(json.loads(request.body)["files"], revision)})
            case "POST", ["commit", revision]:
                commit, pr = repo.commit(request.body, revision, "create_pr" in args)
                web = f"{self.url}/{'' if repo.kind == 'models' else repo.kind + '/'}{repo.name}"
                answer = {"success": True, "commitOid": commit.oid, "commitUrl": f"{web}/commit/{commit.oid}"}
                if pr is not None:
                    answer["pullRequestUrl"] = f"{web}/discussions/{pr}"
                return _json(answer)
            case "GET", ["refs"]:
                return _json(self._refs(repo, "include_prs" in args))
            case "GET", ["commits", revision]:
                return _json(self._history(repo, revision))
            case "GET", ["discussions"]:
                pulls = [repo.pulls[n] for n in sorted(repo.pulls, reverse=True)]
                return _json({"count": len(pulls), "start": 0, "discussions": pulls})
            case "POST", ["discussions"]:
                asked = json.loads(request.body)
                return _json({"num": repo.open_pull(asked["title"], self._user(request) or "")})
            case "GET", ["discussions", number]:
                return _json(repo.pulls[int(number)])
            case "POST", ["discussions", number, "status"]:
                status = json.loads(request.body)["status"]
                pull = repo.pulls[int(number)]
                pull["status"] = status
                event = {
                    "id": "0", "type": "status-change", "createdAt": pull["createdAt"],
                    "author": pull["author"], "data": {"status": status},
                }  # fmt: skip
                return _json({"newStatus": event})
            case "POST", ["branch", name]:
                start = json.loads(request.body or b"{}").get("startingPoint", "main")
                repo.refs[name] = repo.resolve(start).oid
                return _json({})
            case "DELETE", ["branch", name]:
                repo.refs.pop(name)
                return _json({})
            case "POST", ["tag", revision]:
                repo.tags[json.loads(request.body)["tag"]] = repo.resolve(revision).oid
                return _json({})
            case "DELETE", ["tag", name]:
                repo.tags.pop(name)
                return _json({})
            case "GET", [("xet-read-token" | "xet-write-token"), _] if self.xet_root is not None:
                token, until, cas = "xet", int(time.time()) + 3600, f"local://{self.xet_root}"
                answer = _json({"accessToken": token, "exp": until, "casUrl": cas})
                answer.headers |= {
                    "X-Xet-Access-Token": token, "X-Xet-Token-Expiration": str(until), "X-Xet-Cas-Url": cas,
                }  # fmt: skip
                return answer
        raise RefusalError(404, "Not found")

    def _info(self, repo: Repo, commit: Commit) -> dict[str, object]:
        now = "2026-01-01T00:00:00.000Z"
        return {
            "_id": "0", "id": repo.name, "author": repo.name.split("/")[0], "sha": commit.oid,
            "private": repo.private, "gated": "manual" if repo.gated else False, "disabled": False,
            "tags": [], "downloads": 0, "likes": 0, "createdAt": now, "lastModified": now,
            "siblings": [{"rfilename": p} for p in list(commit.files)[:PAGE]],  # cut, as the real ones are
        }  # fmt: skip

    def _tree(self, request: Request, commit: Commit, folder: str, args: dict[str, str]) -> Response:
        rows = commit.tree(folder, args.get("recursive", "").lower() == "true")
        page = min(int(args.get("limit", PAGE)), 50 if args.get("expand", "").lower() == "true" else PAGE)
        start = int(args.get("cursor", 0))
        answer = _json(rows[start : start + page])
        if start + page < len(rows):
            path = request.target.partition("?")[0]
            kept = "&".join(f"{k}={quote(v)}" for k, v in args.items() if k != "cursor")
            answer.headers["Link"] = f'<{self.url}{path}?{kept}&cursor={start + page}>; rel="next"'
        return answer

    def _refs(self, repo: Repo, pull_requests: bool) -> dict[str, object]:
        branches = [(n, o) for n, o in repo.refs.items() if not n.startswith("refs/pr/")]
        answer: dict[str, object] = {
            "branches": [{"name": n, "ref": f"refs/heads/{n}", "targetCommit": o} for n, o in branches],
            "tags": [{"name": n, "ref": f"refs/tags/{n}", "targetCommit": o} for n, o in repo.tags.items()],
            "converts": [],
        }
        if pull_requests:
            answer["pullRequests"] = [
                {"name": n, "ref": n, "targetCommit": o}
                for n, o in repo.refs.items()
                if n.startswith("refs/pr/")
            ]
        return answer

    def _history(self, repo: Repo, revision: str) -> list[dict[str, object]]:
        out: list[dict[str, object]] = []
        commit: Commit | None = repo.resolve(revision)
        while commit is not None:
            out.append(
                {
                    "id": commit.oid,
                    "title": commit.title,
                    "message": "",
                    "authors": [],
                    "date": "2026-01-01T00:00:00.000Z",
                }
            )
            commit = repo.commits[commit.parent] if commit.parent else None
        return out

    # --- files and LFS ---------------------------------------------------------------------------------

    def _files(self, request: Request, parts: list[str], user: str | None) -> Response:
        kind = parts.pop(0) if parts[0] in KINDS else "models"
        owner, name, *rest = parts
        if name.endswith(".git"):
            repo = self._repo(kind, f"{owner}/{name[:-4]}", user, bytes_=True, write=True)
            return self._lfs(request, repo, rest)
        if rest[:1] != ["resolve"]:
            raise RefusalError(404, "Not found")
        repo = self._repo(kind, f"{owner}/{name}", user, bytes_=True)
        commit = repo.resolve(unquote(rest[1]))
        path = unquote("/".join(rest[2:]))
        entry = commit.files.get(path)
        if entry is None:
            answer = Response(404, {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"})
            answer.headers["X-Repo-Commit"] = commit.oid
            return answer
        return self._resolve(request, repo, commit, path, entry)

    def _resolve(self, request: Request, repo: Repo, commit: Commit, path: str, entry: Entry) -> Response:
        if entry.sha256 is None:
            return _ranged(entry.content, request, {"ETag": f'"{entry.oid}"', "X-Repo-Commit": commit.oid})
        headers = {
            "Location": self._cdn_url("lfs", repo, entry.sha256, path),
            "X-Linked-Size": str(entry.size),
            "X-Linked-Etag": f'"{entry.sha256}"',
            "X-Repo-Commit": commit.oid,
        }
        if entry.xet is not None:
            headers["X-Xet-Hash"] = entry.xet
            token = f"{self.url}/api/{repo.kind}/{repo.name}/xet-read-token/{commit.oid}"
            headers["Link"] = f'<{token}>; rel="xet-auth"'
        return Response(302, headers)

    def _cdn_url(self, verb: str, repo: Repo, sha256: str, path: str = "") -> str:
        return f"{self.cdn.url}/{verb}/{repo.kind}/{repo.name}/{sha256}?{SIGNATURE}&path={quote(path)}"

    def _lfs(self, request: Request, repo: Repo, rest: list[str]) -> Response:
        asked = json.loads(request.body)
        if rest[-1] == "verify":
            if asked["oid"] not in repo.lfs:
                raise RefusalError(404, "Object does not exist")
            return _json({})
        objects = []
        for item in asked["objects"]:
            oid = item["oid"]
            answer: dict[str, object] = {"oid": oid, "size": item["size"]}
            if oid not in repo.lfs:
                prefix = "" if repo.kind == "models" else repo.kind + "/"
                answer["actions"] = {
                    "upload": {"href": self._cdn_url("upload", repo, oid), "header": {}},
                    "verify": {
                        "href": f"{self.url}/{prefix}{repo.name}.git/info/lfs/objects/verify",
                        "header": {},
                    },
                }
            objects.append(answer)
        return _json({"transfer": "basic", "objects": objects})


def _json(value: object, status: int = 200) -> Response:
    return Response(status, {"Content-Type": "application/json"}, json.dumps(value).encode())


def _ranged(content: Content, request: Request, headers: dict[str, str]) -> Response:
    """All of a file, or the one range asked for."""
    size = len(content) if isinstance(content, bytes) else content.stat().st_size
    headers["Accept-Ranges"] = "bytes"
    asked = request.headers.get("range", "")
    start, end, status = 0, size - 1, 200
    if asked.startswith("bytes=") and "," not in asked:
        first, _, last = asked[6:].partition("-")
        if first:
            start, end = int(first), min(int(last) if last else size - 1, size - 1)
        else:
            start = max(0, size - int(last))
        if start >= size or start > end:
            return Response(416, {**headers, "Content-Range": f"bytes */{size}"})
        status = 206
        headers["Content-Range"] = f"bytes {start}-{end}/{size}"
    length = end - start + 1
    if isinstance(content, bytes):
        return Response(status, headers, content if status == 200 else content[start : end + 1])
    return Response(status, headers, FilePart(content, start, length))


def _proposes(rest: list[str], args: dict[str, str]) -> bool:
    """Whether a request is one that people who may only read can make: look-ups and pull requests."""
    what, *more = [unquote(p) for p in rest] or [""]
    return (
        what in ("paths-info", "discussions")
        or "create_pr" in args
        or (what in ("preupload", "commit") and more[0].startswith("refs/pr/"))
    )


def _bytes(content: Content) -> bytes:
    return content if isinstance(content, bytes) else content.read_bytes()


def serve_folder(hub: Hub, root: Path) -> None:
    """Every ``ROOT/{models,datasets}/ORG/NAME`` folder becomes a repository of the hub."""
    for kind in KINDS:
        for folder in sorted((root / kind).glob("*/*")):
            files: dict[str, Content] = {
                str(f.relative_to(folder)): f for f in sorted(folder.rglob("*")) if f.is_file()
            }
            hub.add_repo(kind, f"{folder.parent.name}/{folder.name}", files)


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve folders as a Hugging Face Hub on loopback.")
    parser.add_argument("root", type=Path, help="holds {models,datasets}/ORG/NAME/…")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    hub = Hub(port=options.port)
    serve_folder(hub, options.root)
    print(json.dumps({"url": hub.url, "cdn": hub.cdn.url, "token": TOKEN, "pid": os.getpid()}), flush=True)
    sys.stdin.read()  # until whoever started it goes away


if __name__ == "__main__":
    main()
