"""What was made lately is made once, shared, and let go when newer things need the room."""

from __future__ import annotations

from dashboard.core.recent import Recent


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
