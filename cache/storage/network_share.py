"""Detection of network shares, on which SQLite's write-ahead log must not be used."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import psutil

from poslens.attribution.errors import UserError

_SHARED = frozenset(
    "nfs nfs4 cifs smb3 smbfs ncpfs afs ceph lustre gpfs beegfs orangefs pvfs2 ocfs2 gfs2 "
    "glusterfs davfs fuse.glusterfs fuse.sshfs fuse.s3fs fuse.rclone fuse.gcsfuse fuse.blobfuse2 "
    "fuse.goofys fuse.juicefs fuse.davfs2 fuse.ceph-fuse".split()
)


def refuse_network_share(folder: Path) -> None:
    """Raise an error if `folder`, which must exist, is on a file system shared by several hosts.

    The log's index is in memory shared by the processes of one host, so writers on two hosts would
    corrupt the database. An unknown file system is accepted.

    Raises:
        UserError: the folder is on a network share; the message says what to do instead.
    """
    kind = _kind(str(folder.resolve()))
    if kind in _SHARED:
        raise UserError(
            f"The cache can't be used, because its folder is on a network share ({kind}): set "
            "POSLENS_HOME to a folder on a local disk, and share results as Parquet parts "
            "(`precompute --parts`)."
        )


@lru_cache(maxsize=256)
def _kind(folder: str) -> str:
    """File system type of the mount that contains `folder`; empty if unknown."""
    try:
        mounts = psutil.disk_partitions(all=True)
    except (OSError, psutil.Error):
        return ""
    longest, kind = -1, ""
    for mount in mounts:
        # Of two mounts at the same mount point, the later one is visible.
        if Path(folder).is_relative_to(mount.mountpoint) and len(mount.mountpoint) >= longest:
            longest, kind = len(mount.mountpoint), mount.fstype
    return kind
