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
        str, about("Authorities (PEM): only callers with a certificate of one of them are let in.")
    ] = ""
    client_crl: Annotated[
        str,
        about(
            "Certificates that those authorities have revoked (PEM or DER), read again when the "
            "file changes. With a list that is out of date, no caller is let in."
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
            "The header in which those proxies hand over a caller's certificate: `Client-Cert` "
            "(RFC 9440), `X-Forwarded-Client-Cert` (Envoy), or any other, with a URL-encoded PEM. "
            "The proxy must remove it from what callers send.",
            check=unless_empty(read_header),
        ),
    ] = ""
    hosts: Annotated[
        list[str],
        about(
            "Names that callers may use in `Host`. Empty: any, except that a server that only this "
            "machine reaches accepts its local names and that of `public_url`."
        ),
    ] = msgspec.field(default_factory=list[str])
    cors: Annotated[
        list[str],
        about(
            "Origins whose pages may call us from a browser; `*`: all. Empty: none.",
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
            "counted before any of them is made; more are refused as no JSON that is accepted "
            "(400, `-32700`).",
            ge=1_000,
        ),
    ] = 200_000
    max_connections: Annotated[
        int, about("Open connections of one process; those that wait make room first.", ge=1)
    ] = 10_500
    max_connections_per_address: Annotated[
        int,
        about(
            "Open connections of one process from one address; 0: no limit, as behind a proxy, "
            "where all come from one.",
            ge=0,
        ),
    ] = 0
    max_streams: Annotated[int, about("Open streams; further ones are refused.", ge=1)] = 10_000
    max_requests_per_caller: Annotated[
        int,
        about(
            "Requests of one principal that are answered at once, open streams among them. Without "
            "authentication, of one address that is not of this machine.",
            ge=1,
        ),
    ] = 256
    max_bytes_per_caller: Annotated[
        int,
        about(
            "Bytes that all requests of one principal hold at once, from their first byte until "
            "the answer is taken: of each its body or its answer, whichever is longer. Beyond that "
            "it is told to come back (429). Callers that do not authenticate share those of their "
            "address. One request alone is let in whatever its size.",
            ge=64 * 1024,
        ),
    ] = 256 * 1024 * 1024
    max_streams_per_caller: Annotated[
        int,
        about(
            "Open streams of one principal, or of such an address. On PostgreSQL, over all "
            "replicas.",
            ge=1,
        ),
    ] = 100
    rate_limit: Annotated[
        str,
        about(
            "Requests one principal may make, `100/60s`: that many at once, and as many in each 60 "
            "seconds. Empty: no limit, since only you know how fast your agents work together, and "
            "overload is refused anyway. Processes on one file count each for itself, replicas on "
            "PostgreSQL together, as for all rates and the quota.",
            check=read_rate,
        ),
    ] = ""
    rate_limit_agent: Annotated[
        str,
        about(
            "Requests a principal may make for one agent, which it names in `X-Source-Agent`. "
            "Empty: no limit.",
            check=read_rate,
        ),
    ] = ""
    rate_limit_address: Annotated[
        str,
        about(
            "Requests that may come from one address, authenticated or not; of IPv6, from one /64. "
            "Behind a proxy name it in `proxies`. Empty: no limit.",
            check=read_rate,
        ),
    ] = ""
    rate_limit_failures: Annotated[
        str,
        about(
            "Invalid credentials from one address that is not of this machine: beyond that no "
            "caller from there is let in for a while. `off`: no limit.",
            check=read_rate,
        ),
    ] = "20/60s"
    quota: Annotated[
        str,
        about(
            "Tasks one principal may begin, `1000/d`, in whatever way: also runs of workflows and "
            "each of their steps, each agent of a race, and what agents of the same process are "
            "called for. Counted since the process started; on PostgreSQL over all replicas and "
            "through restarts. Empty: no limit.",
            check=read_rate,
        ),
    ] = ""
