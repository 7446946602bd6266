"""Hosts that lead to agents."""

import pytest

from dragoman.transports.grpc.hosts import host_of, path_at

DOMAIN = "Example.com"


@pytest.mark.parametrize("path", ["a2a/weather", "agents/weather-2"])
def test_the_host_of_an_agent_leads_to_its_path(path: str) -> None:
    host = host_of(path, DOMAIN)
    assert path_at(host, DOMAIN) == path_at(f"{host.upper()}:8443", DOMAIN) == f"/{path}"


@pytest.mark.parametrize(
    "authority",
    [
        "",
        "example.com",
        "127.0.0.1:8000",
        "[::1]:8000",
        "weather.example.com",
        "weather.tasks.example.com",
        "weather.a2a.example.org",
        "weather.a2a.example.com.",
        "weather.a2a.example.com:x",
        "weather.a2a.example.com/",
        "a/b.a2a.example.com",
        "user@weather.a2a.example.com",
        ".a2a.example.com",
        "one.weather.a2a.example.com",
    ],
)
def test_other_hosts_lead_to_no_agent(authority: str) -> None:
    assert path_at(authority, DOMAIN) == ""
