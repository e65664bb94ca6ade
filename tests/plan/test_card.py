"""The table in a pool's card: what is between the markers is ours, everything else is not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from poolmgr.model.blob import Blob
from poolmgr.plan.card import BEGIN, END, table, with_table

BLOBS = {p: Blob(p, 10) for p in ("images/a.sif", "images_b00/b.sif", "derived/c.sif")}
VARIANTS = {"v": {"t": "images/a.sif", "u": "images/a.sif"}, "w": {"t": "derived/c.sif"}}
TEXT = st.text().filter(lambda t: BEGIN not in t and END not in t)


@given(TEXT, TEXT, TEXT)
def test_nothing_outside_the_markers_is_touched(head: str, middle: str, tail: str) -> None:
    card = f"{head}{BEGIN}{middle}{END}{tail}"
    if card.count(BEGIN) != 1 or card.count(END) != 1:
        return
    new = with_table(card, VARIANTS, BLOBS)
    assert new is not None
    assert new.startswith(head + BEGIN)
    assert new.endswith(END + tail)
    assert with_table(new, VARIANTS, BLOBS) == new, "twice is once"


def test_a_card_without_one_pair_of_markers_is_left_alone() -> None:
    for card in ("", BEGIN, END, f"{END}{BEGIN}", f"{BEGIN}{END}{BEGIN}", f"{BEGIN}{END}{END}"):
        assert with_table(card, VARIANTS, BLOBS) is None


def test_what_the_table_says_and_how_it_stays_one() -> None:
    text = table({"a|b<!--": VARIANTS["v"], **VARIANTS}, BLOBS)
    assert "| v | 2 | 1 | 10 |" in text
    assert "| a\\|b&lt;!-- | 2 | 1 | 10 |" in text
    assert "| images/ | 1 |" in text
    assert "images_b00" not in text, "no variant names it"
    assert "2 blobs, 20 bytes." in text
