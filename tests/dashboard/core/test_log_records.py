"""Untrusted text can't forge a log line or control the terminal that shows it."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from poslens.dashboard.server import log_records


@pytest.fixture
def logged() -> Iterator[tuple[logging.Logger, io.StringIO]]:
    before = logging.getLogRecordFactory()
    stream = io.StringIO()
    logger = logging.Logger("test")  # not used elsewhere
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger.addHandler(handler)
    log_records.install()
    yield logger, stream
    logging.setLogRecordFactory(before)


def test_control_characters_in_a_message_are_escaped(
    logged: tuple[logging.Logger, io.StringIO],
) -> None:
    logger, stream = logged
    logger.error("login failed: %s", "a\x1b[2J\x1b]0;title\x07b\r\nINFO forged\u202e\x9b\ud800 é")
    assert stream.getvalue() == (
        "ERROR login failed: a\\x1b[2J\\x1b]0;title\\x07b\\r\\nINFO forged\\u202e\\x9b\\ud800 é\n"
    )


def test_a_traceback_keeps_its_lines_and_is_escaped(
    logged: tuple[logging.Logger, io.StringIO],
) -> None:
    logger, stream = logged
    try:
        raise ValueError("bad\x1b[31m value")
    except ValueError:
        logger.exception("a section failed")
    lines = stream.getvalue().splitlines()
    assert lines[:2] == ["ERROR a section failed", "Traceback (most recent call last):"]
    assert lines[-1] == r"ValueError: bad\x1b[31m value"
