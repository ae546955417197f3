"""Unpack all shipped results below a cache's folder at the lowest priority, so that no page has to:
`python -m poslens.cache.shipped FOLDER`. The dashboard starts this along with its first page."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from poslens.cache.shipped.layer import Shipped

if __name__ == "__main__":
    if hasattr(os, "nice"):
        os.nice(19)
    Shipped(Path(sys.argv[1])).unpack()
