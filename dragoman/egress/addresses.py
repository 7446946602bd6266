"""Which addresses are public, by a list of our own.

The standard library has such a list too, and it differs between the versions of Python: some pass
192.0.0.192, where a metadata service answers. This one is the same everywhere.
"""

from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_network

from dragoman.config.hosts import Address

NOT_PUBLIC_4 = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this host
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # behind a carrier's NAT
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # the host agent of Azure, at a public number
        "169.254.0.0/16",  # link-local, and most metadata services
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # AMT relays
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)

# Only this part of IPv6 is handed out. Outside of it lie loopback, private, link-local, site-local,
# multicast and discard addresses, and those with an IPv4 inside: mapped, compatible and NAT64.
PUBLIC_6 = IPv6Network("2000::/3")
NOT_PUBLIC_6 = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments, with Teredo, benchmarks and ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4
        "2620:4f:8000::/48",  # AS112
        "3ffe::/16",  # given back
        "3fff::/20",  # documentation
    )
)

# What a developer's machine and its neighbours have.
PRIVATE = tuple(
    IPv4Network(text)
    for text in ("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
) + tuple(IPv6Network(text) for text in ("::1/128", "fc00::/7"))

# Services that hand out the machine's own credentials, at addresses that look private.
METADATA = tuple(
    ip_network(text)
    for text in ("100.100.100.200/32", "fd00:ec2::/32", "fd00:42::42/128", "fd20:ce::254/128")
)

# Compatible, mapped, translated and the two of NAT64. A network of its own kind may place the IPv4
# of the last one elsewhere; read from the end such an address begins with zeros and is not public.
LAST_32_BITS = tuple(
    IPv6Network(text)
    for text in ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48")
)
SIX_TO_FOUR = IPv6Network("2002::/16")
TEREDO = IPv6Network("2001::/32")
# The interface part of an ISATAP address, but for its two bits of scope, is 5EFE and an IPv4.
ISATAP, ISATAP_MASK = 0x0000_5EFE, 0xFCFF_FFFF


def is_public(ip: Address) -> bool:
    """Say whether an address is one of the open internet's, and nothing but that.

    An IPv6 address that carries an IPv4 one is not: where it leads is decided by a relay.
    """
    if isinstance(ip, IPv4Address):
        return not any(ip in network for network in NOT_PUBLIC_4)
    if ip.scope_id or embedded(ip) is not None:
        return False
    return ip in PUBLIC_6 and not any(ip in network for network in NOT_PUBLIC_6)


def is_private(ip: Address) -> bool:
    """Say whether an address is loopback or of a private network, and no metadata service."""
    if any(ip in network for network in METADATA):
        return False
    return any(ip in network for network in PRIVATE)


def embedded(ip: Address) -> IPv4Address | None:
    """Return the IPv4 address inside an IPv6 one; of Teredo, the client's."""
    if isinstance(ip, IPv4Address):
        return None
    bits = int(ip)
    if ip in SIX_TO_FOUR:
        return IPv4Address(bits >> 80 & 0xFFFF_FFFF)
    if ip in TEREDO:
        return IPv4Address(~bits & 0xFFFF_FFFF)
    # ::1 and :: are addresses of their own, not those of 0.0.0.1 and 0.0.0.0.
    in_a_prefix = any(ip in network for network in LAST_32_BITS) and bits > 1
    if in_a_prefix or bits >> 32 & ISATAP_MASK == ISATAP:
        return IPv4Address(bits & 0xFFFF_FFFF)
    return None
