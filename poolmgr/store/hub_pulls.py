"""Pull requests of a repository on the Hub: found again by their title, opened as drafts, made ready.

A draft is opened before its first commit, so that what an interrupted push left in it is found by
the next one, and nobody merges what is not whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from poolmgr.store.hub import HubStore

_LIVE = ("draft", "open")


def find(store: HubStore, title: str) -> int | None:
    """The number of this user's own unmerged pull request of that title; the newest of several."""
    api = store.client.api

    def look() -> list[Any]:
        return list(
            api.get_repo_discussions(store.repo_id, repo_type=store.repo_type, discussion_type="pull_request")
        )

    found = store.client.call("listing the pull requests", look)
    mine = [d for d in found if d.title == title and d.status in _LIVE]
    if not mine:
        return None
    me = store.client.call("asking whose token this is", api.whoami).get("name")
    return max((int(d.num) for d in mine if d.author == me), default=None)


def create(store: HubStore, title: str, description: str) -> int:
    """A new pull request, a draft; its number. Tried once: a lost answer is found by its title next time."""
    made = store.client.once(
        "opening a pull request",
        lambda: store.client.api.create_pull_request(
            store.repo_id, title, description=description, repo_type=store.repo_type
        ),
    )
    return int(made.num)


def make_ready(store: HubStore, number: int) -> None:
    """No draft any more: it may be merged."""
    api = store.client.api
    details = store.client.call(
        "looking at the pull request",
        lambda: api.get_discussion_details(store.repo_id, number, repo_type=store.repo_type),
    )
    if details.status == "draft":
        store.client.call(
            "making the pull request ready",
            lambda: api.change_discussion_status(store.repo_id, number, "open", repo_type=store.repo_type),
        )


def revision_of(number: int) -> str:
    return f"refs/pr/{number}"


def url_of(store: HubStore, number: int) -> str:
    kind = {"dataset": "datasets/", "space": "spaces/"}.get(store.repo_type, "")
    return f"{store.client.endpoint}/{kind}{store.repo_id}/discussions/{number}"
