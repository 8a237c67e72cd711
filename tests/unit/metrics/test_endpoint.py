# SPDX-License-Identifier: Apache-2.0
"""The HTTP server: what it answers, where it listens, and clients that are slow, many or hostile."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse

import pytest

from tests.support.waiting import until
from tracer.cli import node_agent
from tracer.errors import BadOption, MetricsNotServed
from tracer.metrics import endpoint
from tracer.metrics.endpoint import ListenAddress, MetricsEndpoint, listen_address
from tracer.metrics.health import AgentHealth
from tracer.util.reading_limit import reading_limit
from tracer.util.worker import ThreadDeaths, Warnings


class Asked:
    """Stands for the metrics: keeps what it was asked for. error: what it raises, None = nothing."""

    def __init__(self) -> None:
        self.accepts, self.error = list[str](), None

    def __call__(self, accept: str) -> tuple[str, bytes]:
        self.accepts.append(accept)
        if self.error:
            raise self.error
        return "application/openmetrics-text", b"# EOF\n"


@pytest.fixture
def deaths() -> ThreadDeaths:
    return ThreadDeaths()


@pytest.fixture
def health(deaths: ThreadDeaths) -> AgentHealth:
    return AgentHealth(deaths)


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def served(health: AgentHealth, asked: Asked) -> Iterator[ListenAddress]:
    with MetricsEndpoint(ListenAddress("127.0.0.1", 0), health, asked) as server:
        yield server.address


def get(address: ListenAddress, path: str, method: str = "GET", **headers: str) -> tuple[int, str, HTTPResponse]:
    connection = HTTPConnection(address.host, address.port, timeout=60)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), answer


def test_metrics_in_the_form_that_the_client_accepts(served: ListenAddress, asked: Asked) -> None:
    status, text, answer = get(served, "/metrics?x=1", Accept="application/openmetrics-text; version=1.0.0")
    assert (status, text, answer.headers["Content-Type"]) == (200, "# EOF\n", "application/openmetrics-text")
    assert asked.accepts == ["application/openmetrics-text; version=1.0.0"]
    assert answer.headers["Server"].strip() == "k8snet-trace", "no version of Python"
    assert get(served, "/metrics", "HEAD")[:2] == (200, "") and get(served, "/metrics", "POST")[0] == 501
    assert get(served, "/")[0] == 404


def test_readiness_and_health(
    served: ListenAddress, health: AgentHealth, deaths: ThreadDeaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert get(served, "/readyz")[:2] == (503, "The probes are not attached.\n") and get(served, "/healthz")[:2] == (
        200,
        "ok\n",
    )
    health.begin()
    assert get(served, "/readyz")[:2] == (200, "ok\n")
    monkeypatch.setattr(reading_limit, "text", "The budget is exceeded.")
    assert get(served, "/healthz")[:2] == (200, "ok\nThe budget is exceeded.\n")
    monkeypatch.setattr(reading_limit, "text", "")
    deaths.add("rules")
    assert get(served, "/healthz")[:2] == (503, "These threads have ended by an error: rules.\n")
    health.end()
    assert get(served, "/readyz")[0] == 503


def test_an_error_in_the_metrics_is_reported_and_the_next_request_is_answered(
    served: ListenAddress, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings = Warnings()
    monkeypatch.setattr(endpoint, "user_warnings", warnings)
    asked.error = ValueError("bad")  # type: ignore[assignment]
    with pytest.raises(OSError):
        get(served, "/metrics")
    until(lambda: warnings.failures)
    (sentence,) = warnings.read()
    assert sentence.startswith("An unexpected error in an answer of the metrics endpoint")
    asked.error = None
    assert get(served, "/metrics")[0] == 200


@pytest.mark.parametrize(
    "sent",
    [b"\x00\xff\r\n\r\n", b"GET /metrics", b"GET " + b"/" * 100_000, b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 300 + b"\r\n"],
)
def test_hostile_requests_do_not_stop_it(served: ListenAddress, sent: bytes) -> None:
    with socket.create_connection((served.host, served.port)) as client:
        client.sendall(sent)
    assert get(served, "/healthz")[0] == 200


def test_many_slow_clients_do_not_keep_others_out_for_ever(served: ListenAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = [socket.create_connection((served.host, served.port)) for _ in range(endpoint.MOST_CONNECTIONS)]
    for client in clients:
        client.sendall(b"GET /")

    def is_answered() -> bool:
        try:
            return get(served, "/healthz")[0] == 200
        except OSError:
            return False

    monkeypatch.setattr(endpoint, "CONNECTION_SECONDS", 0.2)
    until(is_answered, pause=0.1)
    for client in clients:
        client.close()


def test_a_silent_client_is_hung_up_on(served: ListenAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint._Handler, "timeout", 0.1)
    with socket.create_connection((served.host, served.port)) as client:
        client.settimeout(60)
        assert client.recv(10) == b""


def test_ipv6_in_brackets_or_without(health: AgentHealth, asked: Asked) -> None:
    assert listen_address("[::1]:9849") == listen_address("::1:9849") == ListenAddress("::1", 9849)
    assert str(ListenAddress("::1", 9849)) == "[::1]:9849" and str(listen_address("10.0.0.1:80")) == "10.0.0.1:80"
    try:
        server = MetricsEndpoint(ListenAddress("::1", 0), health, asked)
    except MetricsNotServed:
        pytest.skip("there is no IPv6 here")
    with server:
        assert get(server.address, "/healthz")[0] == 200


@pytest.mark.parametrize(
    "text", ["", "9849", ":9849", "localhost:80", "1.2.3.4", "1.2.3.4:", "1.2.3.4:65536", "1.2.3.4:x", "[::1]"]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(BadOption, match="is no ADDRESS:PORT"):
        listen_address(text)


def test_an_address_in_use_is_one_sentence_with_its_own_status(
    served: ListenAddress, health: AgentHealth, asked: Asked
) -> None:
    with pytest.raises(MetricsNotServed) as e:
        MetricsEndpoint(served, health, asked)
    assert e.value.status == 30
    assert (
        str(e.value)
        == f"The metrics cannot be served at {served}: Address already in use. Choose another address with --metrics."
    )


def test_the_end_of_the_block_closes_the_port(health: AgentHealth, asked: Asked) -> None:
    with MetricsEndpoint(ListenAddress("127.0.0.1", 0), health, asked) as server:
        address = server.address
    with pytest.raises(ConnectionRefusedError):
        get(address, "/healthz")
    with MetricsEndpoint(address, health, asked):
        assert get(address, "/healthz")[0] == 200, "the address can be used again at once"


def test_the_default_of_the_option_is_an_address_of_this_machine_alone() -> None:
    assert listen_address(node_agent.DEFAULT_ADDRESS).host == "127.0.0.1"
    assert node_agent.DEFAULT_ADDRESS == endpoint.DEFAULT_ADDRESS
