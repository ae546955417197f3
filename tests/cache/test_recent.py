"""What was made lately is made once, shared, and let go when newer things need the room."""

from __future__ import annotations

from cache.recent import Recent, forget_made


def test_the_same_is_made_once_and_the_least_recently_used_goes() -> None:
    made: list[str] = []

    def ask(kept: Recent[str], key: str) -> str:
        return kept.get(key, lambda: made.append(key) or f"value of {key}")  # type: ignore[func-returns-value]

    kept: Recent[str] = Recent(2)
    assert [ask(kept, key) for key in "abab"] == [f"value of {key}" for key in "abab"]
    assert made == ["a", "b"]
    ask(kept, "a")
    ask(kept, "c")  # b was used least lately
    ask(kept, "a")
    assert made == ["a", "b", "c"]
    ask(kept, "b")
    assert made == ["a", "b", "c", "b"]


def test_what_values_weigh_is_bounded() -> None:
    kept: Recent[bytes] = Recent(100, weigh=len)
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


def test_only_what_can_be_made_again_is_forgotten() -> None:
    figures: Recent[str] = Recent(2)
    checks: Recent[str] = Recent(2, made_again=False)
    figures.keep("a", "figure")
    checks.keep("a", "check")
    forget_made()
    assert figures.find("a") is None and checks.find("a") == "check"
