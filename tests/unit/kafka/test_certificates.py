"""What is said of a broker's certificate: librdkafka has one message for all that can be wrong."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from helpers.security.certificates import Authority
from twofold.errors import SetupError
from twofold.kafka.client import KafkaSettings
from twofold.kafka.metadata import ask_brokers


@contextmanager
def listening(certificate: Path, key: Path) -> Iterator[int]:
    """A server that shakes hands and says nothing; its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    plain, _ = server.accept()
                except OSError:
                    return  # it was closed
                with plain:
                    try:
                        context.wrap_socket(plain, server_side=True).close()
                    except OSError:
                        continue  # the client refused the certificate

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("expired", "has expired; remedy: renew it"),
        ("another host", "is for another address; remedy: name the broker"),
        ("another authority", "not trusted here; remedy: set ssl.ca.location in kafka.options"),
    ],
)
def test_what_is_wrong_with_a_certificate_is_said(tmp_path: Path, wrong: str, said: str) -> None:
    ours, other = tmp_path / "ours", tmp_path / "other"
    for folder in (ours, other):
        folder.mkdir()
    authority = Authority(ours)
    signed = authority.sign(
        "broker", address="192.0.2.1" if wrong == "another host" else "127.0.0.1", hours=-1 if wrong == "expired" else 6
    )
    trusted = Authority(other) if wrong == "another authority" else authority
    with listening(*signed) as port:
        settings = KafkaSettings(
            {
                "bootstrap.servers": f"127.0.0.1:{port}",
                "security.protocol": "SSL",
                "ssl.ca.location": str(trusted.certificate),
            },
            call_timeout_s=1,
        )
        with pytest.raises(SetupError, match=f"Kafka at 127.0.0.1:{port}: the broker's certificate .*{said}"):
            ask_brokers(settings)
