"""Recent values are computed once, shared, and dropped when newer ones need the space."""

from __future__ import annotations

from poslens.cache.lru_cache import SLOW_S, WAIT, LRUCache, StampedCache, forget_made


def test_values_are_made_once_and_the_least_recently_used_is_dropped() -> None:
    made: list[str] = []

    def ask(kept: LRUCache[str], key: str) -> str:
        return kept.get(key, lambda: made.append(key) or f"value of {key}")  # type: ignore[func-returns-value]

    kept: LRUCache[str] = LRUCache(2)
    assert [ask(kept, key) for key in "abab"] == [f"value of {key}" for key in "abab"]
    assert made == ["a", "b"]
    ask(kept, "a")
    ask(kept, "c")  # b was the least recently used
    ask(kept, "a")
    assert made == ["a", "b", "c"]
    ask(kept, "b")
    assert made == ["a", "b", "c", "b"]


def test_the_total_weight_is_bounded() -> None:
    kept: LRUCache[bytes] = LRUCache(100, weigh=len)
    for number in range(50):
        kept.keep(number, b"x" * 30)
        assert kept.weight <= 100
    assert [number for number in range(50) if kept.find(number)] == [47, 48, 49]
    kept.keep(47, b"y" * 90)
    assert kept.weight == 90 and kept.find(47) == b"y" * 90 and kept.find(49) is None
    kept.keep("more than all", b"z" * 101)
    assert kept.weight == 0
    kept.keep(1, b"x")
    kept.clear()
    assert kept.weight == 0 and kept.find(1) is None


def test_only_values_that_can_be_recomputed_are_forgotten() -> None:
    figures: LRUCache[str] = LRUCache(2)
    checks: LRUCache[str] = LRUCache(2, made_again=False)
    figures.keep("a", "figure")
    checks.keep("a", "check")
    forget_made()
    assert figures.find("a") is None and checks.find("a") == "check"


def test_values_are_recomputed_after_changes_but_slow_ones_less_often() -> None:
    now, takes = [100.0], [SLOW_S / 2]
    kept: StampedCache[str] = StampedCache(4, clock=lambda: now[0])

    def ask(stamp: str) -> str:
        def make() -> str:
            now[0] += takes[0]
            return f"of {stamp}"

        return kept.get("mean", stamp, make)

    assert [ask(stamp) for stamp in "aab"] == ["of a", "of a", "of b"]
    takes[0] = SLOW_S
    assert ask("c") == "of c"
    now[0] += WAIT * SLOW_S - 0.1
    assert ask("d") == "of c"
    now[0] += 0.1
    assert ask("d") == "of d"
