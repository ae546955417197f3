"""Checks as a JUnit file, which build servers show test by test."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence

from poslens.figures.palettes import printable
from poslens.studies.check.measures import Check


def junit_bytes(checks: Sequence[Check], title: str) -> bytes:
    """One test suite with a test case for each check: passed, failed or skipped (where it could
    not be made or decided)."""
    outcomes = [check.outcome for check in checks]
    counts = {
        "tests": str(len(checks)),
        "failures": str(outcomes.count("fail")),
        "errors": "0",
        "skipped": str(len(checks) - outcomes.count("pass") - outcomes.count("fail")),
    }
    root = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(root, "testsuite", {"name": printable(title), **counts})
    for checked in checks:
        case = ElementTree.SubElement(
            suite, "testcase", {"classname": "poslens.check", "name": checked.name}
        )
        line = printable(checked.line)
        if checked.outcome == "fail":
            ElementTree.SubElement(case, "failure", {"message": line}).text = line
        elif checked.outcome == "pass":
            ElementTree.SubElement(case, "system-out").text = line
        else:
            message = f"{checked.outcome}: {line}"
            ElementTree.SubElement(case, "skipped", {"message": message})
    ElementTree.indent(root)
    written: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return written + b"\n"
