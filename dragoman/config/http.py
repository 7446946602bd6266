"""The settings of the HTTP edge."""

from typing import Annotated

import msgspec

from dragoman.config.formats import (
    each,
    read_header,
    read_listen_address,
    read_listen_addresses,
    read_network,
    read_origin,
    read_rate,
    unless_empty,
)
from dragoman.config.group import SettingsGroup, about


class HttpSettings(SettingsGroup, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Addresses, TLS, proxies, and the limits on requests."""

    listen: Annotated[
        list[str],
        about(
            "The addresses to listen on, `host:port`; port 0 takes a free one.",
            check=read_listen_addresses,
        ),
    ] = msgspec.field(default_factory=lambda: ["127.0.0.1:8000"])
    grpc_listen: Annotated[
        list[str],
        about(
            "Addresses that take gRPC and nothing else, `host:port`. Those of `listen` take it "
            "too.",
            check=each(read_listen_address),
        ),
    ] = msgspec.field(default_factory=list[str])
    tls_cert: Annotated[str, about("A certificate (PEM) to speak TLS with. Empty: plain HTTP.")] = (
        ""
    )
    tls_key: Annotated[str, about("Its private key (PEM), if that is in a file of its own.")] = ""
    client_ca: Annotated[
        str, about("Authorities (PEM): callers need a certificate of one of them.")
    ] = ""
    client_crl: Annotated[
        str,
        about(
            "Certificates that those authorities have revoked (PEM or DER), read again when the "
            "file changes. While the list is out of date, every caller is refused."
        ),
    ] = ""
    proxies: Annotated[
        list[str],
        about(
            "Addresses or networks of trusted proxies. The proxy headers of other senders are "
            "ignored.",
            check=each(read_network),
        ),
    ] = msgspec.field(default_factory=list[str])
    proxy_cert_header: Annotated[
        str,
        about(
            "The header in which those proxies pass on a caller's certificate: `Client-Cert` "
            "(RFC 9440), `X-Forwarded-Client-Cert` (Envoy), or any other, with a URL-encoded PEM. "
            "The proxy must remove it from what callers send.",
            check=unless_empty(read_header),
        ),
    ] = ""
    hosts: Annotated[
        list[str],
        about(
            "Names that callers may use in `Host`. Empty: any name; a server that only this "
            "machine reaches then takes its local names and that of `public_url`, and no others."
        ),
    ] = msgspec.field(default_factory=list[str])
    cors: Annotated[
        list[str],
        about(
            "Origins whose pages may call the server from a browser; `*`: all. Empty: none.",
            check=each(read_origin),
        ),
    ] = msgspec.field(default_factory=list[str])
    keepalive: Annotated[
        float, about("Seconds of silence before a stream gets a comment.", gt=0)
    ] = 15.0
    max_body_bytes: Annotated[int, about("The largest request body.", ge=1024)] = 10 * 1024 * 1024
    max_json_values: Annotated[
        int,
        about(
            "Values in one JSON body of a caller, or in one answer or event of an agent that a "
            "gateway forwards to: objects, arrays, texts, numbers and names of members. They are "
            "counted before they are created; beyond that "
            "the body is refused (400, `-32700`).",
            ge=1_000,
        ),
    ] = 200_000
    max_connections: Annotated[
        int,
        about("Open connections of one process. At the limit, idle ones are closed first.", ge=1),
    ] = 10_500
    max_connections_per_address: Annotated[
        int,
        about(
            "Open connections of one process from one address. 0: no limit, which is right behind "
            "a proxy: all connections have its address.",
            ge=0,
        ),
    ] = 0
    max_streams: Annotated[int, about("Open streams; further ones are refused.", ge=1)] = 10_000
    max_requests_per_caller: Annotated[
        int,
        about(
            "Requests of one caller at once, including open streams. Without "
            "authentication, of one address that is not of this machine.",
            ge=1,
        ),
    ] = 256
    max_bytes_per_caller: Annotated[
        int,
        about(
            "Bytes that all requests of one caller hold at once, until their answers are read. "
            "For each request the longer of body and answer counts. Beyond that it "
            "gets 429. Callers that do not authenticate are counted by address. A single request "
            "of any size is admitted.",
            ge=64 * 1024,
        ),
    ] = 256 * 1024 * 1024
    max_streams_per_caller: Annotated[
        int,
        about(
            "Open streams of one caller; without authentication, of one address that is not of "
            "this machine. On PostgreSQL, over all replicas.",
            ge=1,
        ),
    ] = 100
    rate_limit: Annotated[
        str,
        about(
            "Requests that one caller may make, `100/60s`: that many at once, and as many in "
            "each 60 seconds. Empty: no limit. This and the other rates: processes on one file "
            "count separately, replicas on PostgreSQL count together.",
            check=read_rate,
        ),
    ] = ""
    rate_limit_agent: Annotated[
        str,
        about(
            "Requests that a caller may make for one agent, which it names in `X-Source-Agent`. "
            "Empty: no limit.",
            check=read_rate,
        ),
    ] = ""
    rate_limit_address: Annotated[
        str,
        about(
            "Requests that may come from one address, authenticated or not; of IPv6, from one /64. "
            "Behind a proxy, name the proxy in `proxies`. Empty: no limit.",
            check=read_rate,
        ),
    ] = ""
    rate_limit_failures: Annotated[
        str,
        about(
            "Invalid credentials from one remote address; beyond that, callers "
            "from there are refused for a while. `off`: no limit.",
            check=read_rate,
        ),
    ] = "20/60s"
    quota: Annotated[
        str,
        about(
            "Tasks that one caller may begin: `1000/d`. Runs of workflows count, and so do each of "
            "their steps, each agent of a race, and calls between agents of the same process. On "
            "one file each process counts anew when it starts; on PostgreSQL the count is of all "
            "replicas and survives restarts. Empty: no limit.",
            check=read_rate,
        ),
    ] = ""
