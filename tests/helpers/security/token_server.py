"""A token server: whoever asks is given a secret that lives `LIFE_S`, and each time another one.

Kafka's are signed, and the key to check them by is served too. The server knows which secrets have
been accepted by the servers that they are for.
"""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from helpers.security.guards import Handler, served

LIFE_S = 5.0


class TokenServer:
    """The secrets of all servers, by the names of the servers."""

    def __init__(self) -> None:
        self.address = ""
        self.is_down = False
        self.stale: Counter[str] = Counter()
        """So many of the next secrets have expired before they arrive."""
        self.expires: dict[str, float] = {}
        """Every secret that was given."""
        self.accepted: dict[str, set[str]] = {"postgres": set(), "kafka": set(), "registry": set()}
        self.denied: Counter[str] = Counter()
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    @property
    def keys(self) -> str:
        """Where the key is that signatures are checked by."""
        return f"http://{self.address}/keys"

    def judge(self, name: str, secret: str) -> bool:
        """Whether the secret is accepted."""
        may = self.expires.get(secret, 0.0) > time.time()
        self.note(name, secret, accepted=may)
        return may

    def note(self, name: str, secret: str, *, accepted: bool) -> None:
        if accepted:
            self.accepted[name].add(secret)
        else:
            self.denied[name] += 1

    @contextmanager
    def serving(self) -> Iterator[TokenServer]:
        issuer = self

        class Endpoint(Handler):
            def do_GET(self) -> None:
                if issuer.is_down:
                    self.close_connection = True
                    return
                name = self.path.strip("/")
                self.answer((issuer._key_set() if name == "keys" else issuer._issue(name)).encode())

        with served(Endpoint) as port:
            self.address = f"127.0.0.1:{port}"
            yield self

    def _issue(self, name: str) -> str:
        given = time.time()
        expires = given + LIFE_S
        ends = expires
        if self.stale[name] > 0:
            self.stale[name] -= 1
            ends = given - 1
        secret = self._signed(given, ends) if name == "kafka" else f"hunter2-{name}-{secrets.token_hex(12)}"
        self.expires[secret] = ends
        return f"{secret} {expires}"

    def _signed(self, given: float, expires: float) -> str:
        claims = {"sub": "twofold", "jti": secrets.token_hex(8), "iat": given - 2, "exp": expires}
        text = ".".join(_part(json.dumps(part).encode()) for part in ({"alg": "RS256", "kid": "one"}, claims))
        return f"{text}.{_part(self._key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256()))}"

    def _key_set(self) -> str:
        numbers = self._key.public_key().public_numbers()
        key = {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "one", "e": "AQAB", "n": _part(numbers.n.to_bytes(256, "big"))}  # fmt: skip
        return json.dumps({"keys": [key]})


def _part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
