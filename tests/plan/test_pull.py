"""Which images a pull comes to, under which names, and what it refuses."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from poolmgr.model.blob import fold, path_trouble
from poolmgr.model.manifest import Manifest, Naming
from poolmgr.plan.pull import PullPlan, Wanted, parse_list, plan_pull
from poolmgr.plan.shard import Shard

HEX64 = "ab" * 32


def plan(*references: str, manifest: Manifest | None = None) -> PullPlan:
    return plan_pull([Wanted(r) for r in references], manifest or Manifest())


def test_one_image_is_pulled_once_however_it_is_written() -> None:
    aliases = {"mirror.local:5000/env-v3/{tag}:latest": "acme/env-v3:{tag}"}
    found = plan(
        "acme/env-v3:17c682d5c609", "docker://acme/env-v3:17c682d5c609",
        "mirror.local:5000/env-v3/17c682d5c609",
        "ubuntu", "docker.io/library/ubuntu:latest", f"acme/x:v1@sha256:{HEX64}", f"acme/x@sha256:{HEX64}",
        manifest=Manifest(aliases=aliases),
    )  # fmt: skip
    assert [(i.name, i.source, len(i.given)) for i in found.items] == [
        ("acme__env-v3__17c682d5c609.sif", "docker.io/acme/env-v3:17c682d5c609", 3),
        ("ubuntu.sif", "docker.io/library/ubuntu:latest", 2),
        (f"acme__x__v1__sha256__{HEX64}.sif", f"docker.io/acme/x:v1@sha256:{HEX64}", 2),
    ]
    assert not found.refused


def test_the_rule_of_the_manifest_names_the_files() -> None:
    found = plan("acme/env:1", manifest=Manifest(naming=Naming("apptainer")))
    assert [i.name for i in found.items] == ["env_1.sif"]


def test_images_that_would_share_a_name_are_all_refused() -> None:
    found = plan("acme/tool:v1", "acme__tool:v1", "acme/t:V1", "acme/t:v1", "acme/fine:1")
    assert [i.name for i in found.items] == ["acme__fine__1.sif"]
    assert {(r.given, r.error.code) for r in found.refused} == {
        ("acme/tool:v1", "name-collision"),
        ("acme__tool:v1", "name-collision"),
        ("acme/t:V1", "name-collision"),
        ("acme/t:v1", "name-collision"),
    }
    told = next(r.error for r in found.refused if r.given == "acme/tool:v1")
    assert "acme__tool:v1" in told.message
    assert "acme__tool__v1.sif" in told.message


def test_a_list_may_give_names_and_they_collide_as_others_do() -> None:
    rows = parse_list(
        "acme/a:1\tfirst.sif\nacme/b:1\tFIRST.sif\nacme/c:1\tc.sif\nacme/c:1\td.sif\nacme/e:1\n\n"
        "acme/f:1\tacme__e__1.sif\nacme/g:1\tg.sif\ndocker://acme/g:1\tg.sif\r\n",
        "l.tsv",
    )
    found = plan_pull(rows, Manifest())
    assert [(i.name, i.given) for i in found.items] == [("g.sif", ("acme/g:1", "docker://acme/g:1"))]
    assert {r.given for r in found.refused} == {"acme/a:1", "acme/b:1", "acme/c:1", "acme/e:1", "acme/f:1"}
    assert all(r.error.code == "name-collision" for r in found.refused)


def test_a_bad_line_is_told_by_its_number_and_refuses_itself_alone() -> None:
    text = (
        "ref\tfile\nacme/a:1\t../a.sif\n\tx.sif\nacme/b:1\tb.sif\tmore\nacme/Bad:1\nacme/ok:1\n"
        + "x" * 5000
        + "\nlibrary://a/b\n./c.sif\n"
    )
    found = plan_pull(parse_list(text, "l.tsv"), Manifest())
    assert [i.name for i in found.items] == ["acme__ok__1.sif"]
    told = "\n".join(r.error.message for r in found.refused)
    for part in (*(f"l.tsv:{n}: " for n in (1, 2, 3, 4, 5, 7, 8, 9)), "'Bad'", "library://", "./c.sif"):
        assert part in told
    assert {r.error.code for r in found.refused} == {"bad-reference"}


def test_what_is_no_image_of_a_registry_is_refused() -> None:
    for text in (
        "/pool/a.sif",
        "./a",
        "~/x",
        "pool/a.sif",
        "oras://h.example/a:1",
        "library://a/b",
        "https://h/a",
    ):
        (refused,) = plan(text).refused
        assert refused.error.code == "bad-reference", text


def test_tasks_follow_their_image() -> None:
    found = plan_pull(
        [
            Wanted("acme/a:1", task="t1"),
            Wanted("docker.io/acme/a:1", task="t2"),
            Wanted("", task="t3", where="row 3", trouble="names no image"),
            Wanted("acme/A:1", task="t4"),
        ],
        Manifest(),
    )
    assert [i.tasks for i in found.items] == [("t1", "t2")]
    assert sorted(r.tasks for r in found.refused) == [("t3",), ("t4",)]


REFERENCES = st.lists(
    st.from_regex(r"(acme/)?[aA]?[ab_.]{1,3}(__|/)?b(:[vV1_.-]{1,3})?(@sha256:(00|11){32})?", fullmatch=True),
    max_size=12,
)


@given(REFERENCES, st.integers(1, 4))
def test_every_mention_is_in_one_item_or_refused_and_names_are_safe_and_apart(
    references: list[str], count: int
) -> None:
    whole = plan(*references)
    seen = [g for i in whole.items for g in i.given]
    assert len(seen) == len(set(seen))
    refused = {r.given for r in whole.refused}
    told = {g for r in whole.refused for g in [r.given]}
    assert not set(seen) & refused
    assert len({fold(i.name) for i in whole.items}) == len(whole.items)
    assert len({i.reference.pullable for i in whole.items}) == len(whole.items)
    assert all(path_trouble(i.name) is None for i in whole.items)
    assert told <= set(references)
    shards = [plan_pull([Wanted(r) for r in references], Manifest(), Shard(n, count)) for n in range(count)]
    assert sorted(i.name for s in shards for i in s.items) == sorted(i.name for i in whole.items)
    assert all(s.elsewhere + len(s.items) == len(whole.items) for s in shards)


@given(st.text(max_size=200))
def test_any_list_is_read(text: str) -> None:
    found = plan_pull(parse_list(text, "x"), Manifest())
    assert all(path_trouble(i.name) is None for i in found.items)
