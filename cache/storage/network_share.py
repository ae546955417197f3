"""Whether a folder lies on a network share, where SQLite's write-ahead log must not be used."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import psutil

from poslens.attribution.errors import UserError

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
    damage the database. Where the file system is not known, nothing is refused.

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
        mounts = psutil.disk_partitions(all=True)
    except (OSError, psutil.Error):
        return ""
    longest, kind = -1, ""
    for mount in mounts:
        # Of two mounts at one point the later one is on top.
        if Path(folder).is_relative_to(mount.mountpoint) and len(mount.mountpoint) >= longest:
            longest, kind = len(mount.mountpoint), mount.fstype
    return kind
