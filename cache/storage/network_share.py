"""Whether a folder lies on a network share, where SQLite's write-ahead log must not be used."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from attribution.errors import UserError

_MOUNTS = Path("/proc/self/mountinfo")
_SHARED = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "ncpfs",
    "afs",
    "ceph",
    "lustre",
    "gpfs",
    "beegfs",
    "orangefs",
    "pvfs2",
    "ocfs2",
    "gfs2",
    "glusterfs",
    "fuse.glusterfs",
    "fuse.sshfs",
    "fuse.s3fs",
    "fuse.rclone",
    "fuse.gcsfuse",
    "fuse.blobfuse2",
    "fuse.goofys",
    "fuse.juicefs",
    "davfs",
    "fuse.davfs2",
    "fuse.ceph-fuse",
}


def refuse_network_share(folder: Path) -> None:
    """Raise where `folder`, which exists, lies on a file system that several hosts share.

    The log's index is memory shared by the processes of one host; writers on two hosts would
    damage the database. Known from Linux's table of mounts; elsewhere nothing is refused.

    Raises:
        UserError: it does; the sentence says what to do instead.
    """
    kind = _kind(str(folder.resolve()))
    if kind in _SHARED:
        raise UserError(
            f"The cache could not be used, since its folder is a network share ({kind}): set "
            "POSLENS_HOME to a local disk, and share results as Parquet parts, which any number "
            "of hosts may write."
        )


@lru_cache(maxsize=256)
def _kind(folder: str) -> str:
    """File system type of the mount that `folder` lies on; empty where it is not known."""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    best, kind = -1, ""
    for line in lines:
        # proc(5): "... mount-point options [tags] - type source super-options".
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        # Spaces and the like are written as octal numbers.
        point = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), fields[4])
        inside = folder == point or folder.startswith(point.rstrip("/") + "/")
        # Of two mounts at one point the later one is on top.
        if inside and len(point) >= best:
            best, kind = len(point), after.split(" ")[0]
    return kind
