"""The list of public addresses: its borders, and that it is never wider than Python's own."""

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given, settings
from hypothesis.strategies import ip_addresses

from dragoman.egress.addresses import (
    METADATA,
    NOT_PUBLIC_4,
    NOT_PUBLIC_6,
    PRIVATE,
    Address,
    embedded,
    is_private,
    is_public,
)


@pytest.mark.parametrize(
    "text",
    [
        "1.1.1.1",
        "8.8.8.8",
        "9.255.255.255",
        "11.0.0.0",
        "93.184.215.14",
        "100.63.255.255",
        "100.128.0.0",
        "168.63.129.15",
        "168.63.129.17",
        "172.15.255.255",
        "172.32.0.0",
        "192.0.1.0",
        "192.167.255.255",
        "192.169.0.0",
        "223.255.255.255",
        "2001:200::1",
        "2001:4860:4860::8888",
        "2003::1",
        "2606:4700::1111",
        "2a00:1450::1",
    ],
)
def test_an_address_of_the_open_internet_is_public(text: str) -> None:
    assert is_public(ip_address(text))


@pytest.mark.parametrize("network", [*NOT_PUBLIC_4, *NOT_PUBLIC_6, *PRIVATE], ids=str)
def test_a_listed_network_is_not_public_to_its_last_address(network: object) -> None:
    assert not is_public(network[0])  # type: ignore[index]  # both kinds of network have an index
    assert not is_public(network[-1])  # type: ignore[index]  # as above


@pytest.mark.parametrize(
    "text",
    [
        "::",
        "::1",
        "::8.8.8.8",
        "::ffff:8.8.8.8",
        "::ffff:0:8.8.8.8",
        "64:ff9b::8.8.8.8",
        "64:ff9b:1::8.8.8.8",
        "100::1",
        "100:0:0:1::1",
        "1fff::1",
        "4000::1",
        "5f00::1",
        "fc00::1",
        "fdff::1",
        "fe80::1",
        "febf::1",
        "fec0::1",
        "ff02::1",
        "2001::1",
        "2001:1ff::1",
        "2002:808:808::1",
        "2606:4700::5efe:808:808",
        "2606:4700::200:5efe:808:808",
        "2606:4700::1111%eth0",
    ],
)
def test_an_ipv6_address_that_is_special_is_not_public(text: str) -> None:
    assert not is_public(ip_address(text))


@given(ip_addresses())
@settings(max_examples=500)
def test_the_list_is_never_wider_than_that_of_python(ip: Address) -> None:
    assert ip.is_global or not is_public(ip)


@pytest.mark.parametrize(
    ("text", "inner"),
    [
        ("::127.0.0.1", "127.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::ffff:0:10.0.0.1", "10.0.0.1"),
        ("64:ff9b::a00:1", "10.0.0.1"),
        ("64:ff9b:1::a00:1", "10.0.0.1"),
        ("2002:a9fe:a9fe::", "169.254.169.254"),
        ("2001:0:4136:e378:8000:63bf:f5ff:fffe", "10.0.0.1"),
        ("2606:4700::5efe:c0a8:1", "192.168.0.1"),
        ("2606:4700::200:5efe:c0a8:1", "192.168.0.1"),
    ],
)
def test_an_ipv4_address_is_found_inside(text: str, inner: str) -> None:
    assert embedded(IPv6Address(text)) == IPv4Address(inner)


@pytest.mark.parametrize("text", ["::", "::1", "2606:4700::1111", "fe80::1", "127.0.0.1"])
def test_where_there_is_none_none_is_found(text: str) -> None:
    assert embedded(ip_address(text)) is None


def test_a_metadata_service_is_not_private() -> None:
    assert not any(is_private(network[0]) or is_private(network[-1]) for network in METADATA)
    assert not is_private(ip_address("fd00:ec2::23")) and is_private(ip_address("fd00:ec3::23"))
    assert not is_private(ip_address("169.254.169.254"))
    assert not is_private(ip_address("168.63.129.16"))


@pytest.mark.parametrize("text", ["127.0.0.1", "10.1.2.3", "192.168.0.1", "::1", "fd00::1"])
def test_loopback_and_private_networks_are_private(text: str) -> None:
    assert is_private(ip_address(text))
