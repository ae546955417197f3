"""Network access: the address the server listens on, its host names, and how it identifies users.

On the loopback address, the default, every request is treated as this machine's user. On any other
address, users must be identified: by a login, by a proxy that logs users in, or by an option that
explicitly allows anonymous access.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from poslens.attribution.errors import UserError
from poslens.compute.settings import PEOPLE

LOOPBACK = "127.0.0.1"
OWN_HOSTS = (LOOPBACK, "localhost")
USER_HEADER = "X-Forwarded-User"
"""The header in which most authenticating proxies pass the user's name."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NAME = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
_PATH = re.compile(r"[A-Za-z0-9._~-]+(/[A-Za-z0-9._~-]+)*")
_HEADER = re.compile(r"[A-Za-z0-9-]+")

BEYOND = (
    "PosLens needs to know who has access from other machines: add --login (OpenID Connect), "
    "--trusted-proxy ADDRESS of a proxy that handles logins, or --no-login if everyone who can "
    "reach the server may use it."
)


@dataclass(frozen=True, slots=True)
class Access:
    """How the server is reached. `base_path` has no leading or trailing slash; `hosts` are the
    accepted host names. With `proxies`, only these addresses are served, and they pass the user's
    name in `user_header`."""

    host: str = LOOPBACK
    base_path: str = ""
    hosts: tuple[str, ...] = OWN_HOSTS
    login: bool = False
    proxies: tuple[Network, ...] = ()
    user_header: str = USER_HEADER

    @property
    def knows_people(self) -> bool:
        """Whether users are identified by name."""
        return self.login or bool(self.proxies)

    @property
    def beyond_this_machine(self) -> bool:
        """Whether users other than this machine's may connect."""
        elsewhere = not ipaddress.ip_address(self.host).is_loopback
        return elsewhere or bool(self.proxies) or any(map(_foreign, self.hosts))

    @property
    def root(self) -> str:
        """The URL path of the first page."""
        return f"/{self.base_path}/" if self.base_path else "/"

    def url(self, port: int) -> str:
        """The dashboard's URL for a browser on this machine."""
        host = self.host
        if ipaddress.ip_address(host).is_unspecified:
            host = LOOPBACK
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{port}/{self.base_path}".rstrip("/")


current = Access()
"""The access settings of this process's server, which `serve` sets. Read it from the module."""


def access_of(
    host: str = LOOPBACK,
    base_path: str = "",
    allowed_hosts: Sequence[str] = (),
    login: bool | None = None,
    trusted_proxies: Sequence[str] = (),
    user_header: str | None = None,
) -> Access:
    """The access settings for the options of `run`. `login` is None if the option wasn't given.

    Raises:
        UserError: an option is invalid, two contradict each other, or users of other machines could
            connect without being identified.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise UserError(
            f"--host must be an address of this machine, such as {LOOPBACK} or 0.0.0.0, not "
            f"{host!r}."
        ) from None
    if trusted_proxies and login is not None:
        raise UserError(
            "--trusted-proxy already determines who has access: remove --login and --no-login."
        )
    if user_header is not None and not trusted_proxies:
        raise UserError(
            "--user-header names a header that a proxy sends: use it with --trusted-proxy."
        )
    if user_header is not None and not _HEADER.fullmatch(user_header):
        raise UserError(f"--user-header must be the name of a header, not {user_header!r}.")
    named = tuple(map(_host, allowed_hosts))
    listening = () if address.is_unspecified else (str(address),)
    access = Access(
        host=host,
        base_path=_base_path(base_path),
        hosts=tuple(dict.fromkeys((*named, *OWN_HOSTS, *listening))),
        login=bool(login),
        proxies=tuple(map(_network, trusted_proxies)),
        user_header=user_header or USER_HEADER,
    )
    if access.beyond_this_machine and not access.knows_people and login is None:
        raise UserError(BEYOND)
    if access.beyond_this_machine and not access.knows_people and PEOPLE.get():
        raise UserError(
            f"{PEOPLE.name} restricts access by name, but without a login PosLens doesn't know "
            f"names: add --login or --trusted-proxy ADDRESS, or unset {PEOPLE.name}."
        )
    if address.is_unspecified and not named:
        raise UserError(
            f"With --host {host}, specify the host names that browsers may use: --allowed-host "
            "NAME, as in --allowed-host poslens.example.org."
        )
    return access


def address_of(peer: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The IP address of a peer, with IPv4-mapped IPv6 converted to IPv4; None if it isn't one."""
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _foreign(host: str) -> bool:
    """Whether a host name doesn't refer to this machine."""
    address = address_of(host)
    return host != "localhost" if address is None else not address.is_loopback


def _host(given: str) -> str:
    name = given.strip().lower().rstrip(".")
    if address_of(name) is None and not _NAME.fullmatch(name):
        raise UserError(
            "--allowed-host must be a host name without scheme, port or path, such as "
            f"poslens.example.org or *.example.org, not {given!r}."
        )
    return name


def _base_path(given: str) -> str:
    path = given.removeprefix("/").removesuffix("/")
    if path and (not _PATH.fullmatch(path) or {".", ".."} & set(path.split("/"))):
        raise UserError(
            "--base-url-path must be one or more names separated by single slashes, such as "
            f"poslens or tools/poslens, not {given!r}."
        )
    return path


def _network(given: str) -> Network:
    try:
        return ipaddress.ip_network(given)
    except ValueError:
        raise UserError(
            "--trusted-proxy must be the proxy's address or network, such as 127.0.0.1 or "
            f"10.1.2.0/24, not {given!r}."
        ) from None
