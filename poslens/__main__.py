"""`python -m poslens`: the program `poslens`."""

from __future__ import annotations

from runpy import run_module

if __name__ == "__main__":
    # By name, because this package does not import the dashboard.
    run_module("poslens.dashboard", run_name="__main__", alter_sys=True)
