"""Kafka's secrets, which may change: a password from a file or a command, a token from a callable.

librdkafka does not ask for a password with each connection. So the password is read when a client
is made, and again when a broker denies the client: librdkafka connects again by itself, with the
new password. librdkafka asks for a token by itself, before the former token expires.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient

from twofold.errors import Unreachable, UsageError
from twofold_common.secret_sources import SecretSource

_log = logging.getLogger(__name__)
_Client = TypeVar("_Client", Producer, Consumer, AdminClient)

DENIED = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})  # noqa: SLF001
_MILLISECONDS_FROM = 10**11
"""The greatest time of expiry in seconds, in the year 5000: above, it is milliseconds."""


@dataclass(frozen=True, slots=True)
class KafkaSecrets:
    """Gives a client its secret."""

    password: SecretSource | None = None
    token_provider: Callable[[str], tuple[Any, ...]] | None = None

    def open(self, kind: type[_Client], client: Mapping[str, Any]) -> _Client:
        """Make a client of librdkafka with these settings, and with the secret of this moment."""
        settings: dict[str, Any] = {**client}
        if self.token_provider is not None:
            settings["oauth_cb"] = self._token
        if self.password is None:
            return kind(settings)
        renewal = _Renewal(self.password, settings)
        settings |= {"sasl.password": self.password.ask(), "error_cb": renewal}
        # A subclass, because librdkafka's own classes cannot be referenced weakly.
        renewed: type[_Client] = type(kind.__name__, (kind,), {})
        made = renewed(settings)
        renewal.client = weakref.ref(made)
        return made

    def _token(self, config: str) -> tuple[Any, ...]:
        """Return the callable's token, with its expiry in seconds."""
        assert self.token_provider is not None
        try:
            token, expires, *rest = self.token_provider(config)
            if not (token and str(token).strip()):
                raise ValueError
            return (str(token), float(expires) / (1000 if expires > _MILLISECONDS_FROM else 1), *rest)
        except Exception as error:
            # Its words may hold the secret. librdkafka asks again after ten seconds.
            failed = type(error).__name__
        _log.warning("kafka.token_provider gave no token (%s); it is asked again in 10 s", failed)
        raise Unreachable("kafka.token_provider gave no token")


class _Renewal:
    """The error callback of one client: after a denied password it reads the secret again.

    It refers to its client weakly: a client in a reference cycle lives until Python collects
    garbage.
    """

    def __init__(self, password: SecretSource, settings: Mapping[str, Any]) -> None:
        self._password = password
        self._username = str(settings.get("sasl.username", ""))
        self._error_cb = settings.get("error_cb")
        self._asking = False
        self.client: Callable[[], Any] = lambda: None

    def __call__(self, error: KafkaError) -> None:
        if error.code() in DENIED and not self._asking:
            _log.warning("Kafka denies the password; %s is asked again", self._password.setting)
            # A call of the client from its own callback would end the process (CallState_get).
            self._asking = True
            threading.Thread(target=self._renew, name="kafka-password", daemon=True).start()
        if self._error_cb is not None:
            self._error_cb(error)

    def _renew(self) -> None:
        try:
            password = self._password.ask()
            if (client := self.client()) is not None:
                client.set_sasl_credentials(self._username, password)
        except Unreachable as failure:
            _log.warning("%s", failure)
        finally:
            self._asking = False


def load_token_provider(name: str) -> Callable[[str], tuple[Any, ...]]:
    """Return the callable that `module:function` names."""
    try:
        found = EntryPoint("token_provider", name, "twofold").load()
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"kafka.token_provider {name!r} cannot be loaded ({type(error).__name__}): name a callable of an installed package as module:function"
        ) from None
    if not callable(found):
        raise UsageError(f"kafka.token_provider {name!r} is not callable: name a function as module:function")
    return found  # type: ignore[no-any-return]
