"""The configuration's reference, its example, and its secrets."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from settings_page import reference
from twofold.cli import twofold
from twofold.config import Config, load
from twofold.errors import UsageError

DOCS = Path(__file__).parents[3] / "docs/reference"
MISSPELT = '{"sasl.username": "visible", "sasl.pasword": "hunter2-misspelt", "linger.ms": 4711}'
SECRETS = {
    "TWOFOLD_SOURCE__DSN": "host=db dbname=bank password=hunter2-dsn",
    "TWOFOLD_SOURCE__PRIMARY_DSN": "postgresql://me:hunter2-primary@db/bank",
    "TWOFOLD_KAFKA__OPTIONS": '{"sasl.pasword": "hunter2-kafka", "ssl.key.pem": "hunter2-pem"}',
    "TWOFOLD_REGISTRY__PASSWORD": "hunter2-registry",
    "TWOFOLD_REGISTRY__TOKEN": "hunter2-token",
    "TWOFOLD_STATUS__TOKEN": "hunter2-status",
}
"""Secrets in settings: each is refused."""


def test_the_reference_is_up_to_date() -> None:
    assert (DOCS / "configuration.md").read_text() == reference(), (
        "run: python deploy/settings_page.py > docs/reference/configuration.md"
    )


def test_the_example_is_usable_and_says_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load(DOCS / "twofold.toml")
    plain = Config(
        name=config.name, source=config.source, kafka=config.kafka, registry=config.registry, prepared=config.prepared
    )
    assert (config.spool, config.status) == (plain.spool, plain.status)
    required = {"dsn": "", "bootstrap": "", "url": ""}
    for part in ("source", "kafka", "prepared"):
        model = type(getattr(config, part))
        given = tomllib.loads((DOCS / "twofold.toml").read_text())[part]
        for name, value in given.items():
            field = model.model_fields[name]
            if name not in {*required, "password_file", "options", "tables", "rules"}:
                assert value == field.get_default(), f"{part}.{name} is not the default"


def test_config_show_masks_what_may_be_a_misspelt_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOFOLD_KAFKA__OPTIONS", MISSPELT)
    shown = CliRunner().invoke(twofold, ["-c", str(DOCS / "twofold.toml"), "config", "show"])
    assert shown.exit_code == 0
    assert "visible" in shown.output
    assert "4711" in shown.output
    assert "hunter2" not in shown.output
    assert "hunter2" not in repr(load(DOCS / "twofold.toml"))


def test_a_mistake_is_told_without_the_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TWOFOLD_PREPARED__HOLD", "100")
    monkeypatch.setenv("TWOFOLD_LOG__LEVEL", "loud")
    with pytest.raises(UsageError) as raised:
        load(DOCS / "twofold.toml")
    told = str(raised.value)
    assert "log.level" in told
    for setting in (
        "source.dsn",
        "source.primary_dsn",
        "kafka.options",
        "registry.password",
        "registry.token",
        "status.token",
    ):
        assert f"\n  {setting}: " in told
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("url", ["https://me:hunter2@registry:8081", "https://hunter2@registry/apis"])
def test_a_password_in_the_registrys_address_is_refused_and_not_shown(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TWOFOLD_REGISTRY__URL", url)
    with pytest.raises(UsageError, match=r"registry\.password_file") as raised:
        load(DOCS / "twofold.toml")
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "dsn", ["host=db password=my hunter2", "postgresql://u:hunter2 x@h/db", "postgresql://u:%ZZhunter2@h/db"]
)
def test_a_connection_string_that_libpq_does_not_take_is_told_without_it(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TWOFOLD_SOURCE__DSN", dsn)
    shown = CliRunner().invoke(twofold, ["-c", str(DOCS / "twofold.toml"), "config", "check"])
    assert isinstance(shown.exception, UsageError)
    assert re.search(r"source\.dsn: .*libpq does not understand it", str(shown.exception))
    assert "hunter2" not in str(shown.exception)
    assert shown.exception.__cause__ is None


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("TWOFOLD_SOURCE__DSN", "host=a,b load_balance_hosts=random", "load_balance_hosts"),
        ("TWOFOLD_SOURCE__DSN", "host=a replication=database", "replication"),
        ("TWOFOLD_KAFKA__OPTIONS", '{"acks": "1"}', "acks"),
        ("TWOFOLD_KAFKA__OPTIONS", '{"sasl.password": hunter2}', "JSON"),
        ("TWOFOLD_KAFKA__PASSWORD_FILE", "/nowhere", "/nowhere"),
        ("TWOFOLD_SOURCE__PASSWORD_FILE", "/nowhere", "/nowhere"),
        ("TWOFOLD_SOURCE__TABLES", '["accounts"]', "accounts"),
        ("TWOFOLD_KAFKA__REPLICATION", "1", "kafka.min_insync_replicas"),
        ("TWOFOLD_PREPARD__HOLD", "5", "environment TWOFOLD_PREPARD__HOLD: there is no such section"),
        ("twofold_prepared__hald", "5", "prepared.hald: there is no such setting; did you mean hold?"),
        ("TWOFOLD_SOURCE__TABLES", "public.x", "TWOFOLD_SOURCE__TABLES: not JSON, and lists and tables are JSON there"),
        ("TWOFOLD_SOURCE__TABLES", '"public.x"', 'source.tables: must be a list, for example ["public.*"]'),
        ("TWOFOLD_SOURCE__TWO_PHASE", "maybe", "source.two_phase: must be true or false"),
        ("TWOFOLD_KAFKA__PARTITIONS", "six", "kafka.partitions: must be an integer"),
        ("TWOFOLD_KAFKA__PARTITIONS", "0", "kafka.partitions: must be greater than or equal to 1"),
        ("TWOFOLD_PREPARED__HOLD", "soon", "prepared.hold: must be a number"),
        (
            "TWOFOLD_PREPARED__GID_PATTERNS",
            '["pay-(?P<global>.+"]',
            "prepared.gid_patterns: 'pay-(?P<global>.+' is not a regular expression: missing ), unterminated subpattern",
        ),
        (
            "TWOFOLD_PREPARED__GID_PATTERNS",
            '["(?P<branch>.+)-(.+)"]',
            "lacks the group global: name both, such as 'pay-(?P<global>[0-9]+)-(?P<branch>[a-z]+)'",
        ),
        ("TWOFOLD_PREPARED__GID_PATTERNS", '["bank-.+"]', "lacks the group global and the group branch: name both"),
        (
            "TWOFOLD_OUTBOX",
            '[{"table": "public.outbox"}, {"table": "public.outbox", "topic_column": "audience"}]',
            "outbox: public.outbox is the table of two [[outbox]]",
        ),
        ("TWOFOLD_GROUP", '{"name": "bank"}', "group: a group needs both settings"),
        ("TWOFOLD_GROUP", '{"name": "bank", "members": ["bank"]}', "name two prefixes or more, each once"),
        (
            "TWOFOLD_GROUP",
            '{"name": "bank", "members": ["east", "west"]}',
            "group.members is east, west, without this connector's prefix bank",
        ),
        ("TWOFOLD_LOG__LEVEL", "loud", "log.level: must be 'debug', 'info', 'warning' or 'error'"),
        ("TWOFOLD_KAFKA__BOOTSTRAP", "http//db:9092", "kafka.bootstrap: must be host:port of one or more brokers"),
        ("TWOFOLD_KAFKA__BOOTSTRAP", "db:abc", "kafka.bootstrap: must be host:port of one or more brokers"),
        ("TWOFOLD_REGISTRY__URL", "127.0.0.1:7081", "registry.url: must be http://host:port or https://host:port"),
        ("TWOFOLD_REGISTRY__URL", "https://r/?apikey=hunter2", "registry.url must have no query"),
        ("TWOFOLD_REGISTRY__PASSWORD_FILE", "/nowhere", "the file of registry.password_file, /nowhere, cannot be read"),
        ("TWOFOLD_STATUS__LISTEN", "0.0.0.0:1", "\n  status.listen is 0.0.0.0:1, which others reach"),
        ("TWOFOLD_NAME", "bänk", "name: must be 1 to 40 of a-z, 0-9 and _"),
        ("TWOFOLD_KAFKA__PREFIX", "a b", "kafka.prefix: must be 1 to 100 of A-Z, a-z, 0-9, '.', '_' and '-'"),
    ],
)
def test_config_check_names_what_would_break_a_promise_and_what_cannot_be_read(
    name: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "password").write_text("hunter2")
    for section in ("SOURCE", "KAFKA", "REGISTRY"):
        monkeypatch.setenv(f"TWOFOLD_{section}__PASSWORD_FILE", str(tmp_path / "password"))
    monkeypatch.setenv(name, value)
    shown = CliRunner().invoke(twofold, ["-c", str(DOCS / "twofold.toml"), "config", "check"])
    assert isinstance(shown.exception, UsageError)
    assert words in str(shown.exception)
    assert "hunter2" not in str(shown.exception)


@pytest.mark.parametrize(
    "bootstrap", ["db", "db:9092", "a:1, b:2", "SASL_SSL://a-1.b_c:9092,[::1]:9092", "PLAINTEXT://[fe80::1]:9092"]
)
def test_addresses_of_brokers(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOFOLD_KAFKA__BOOTSTRAP", bootstrap)
    assert load(DOCS / "twofold.toml").kafka.bootstrap == bootstrap


def test_no_configuration_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"there is no configuration: twofold\.toml is not in this folder; .* -c FILE"):
        load()
    (tmp_path / "twofold.toml").write_text("name = bank")
    with pytest.raises(UsageError, match=r"twofold\.toml is not TOML: .*; text needs double quotes"):
        load()
    (tmp_path / "twofold.toml").write_text('[source]\ntables = ["public.a", "public.b"\n[kafka]\n')
    with pytest.raises(UsageError, match=r"Unclosed array .*; a list ends with \]"):
        load()
    (tmp_path / "twofold.toml").write_bytes(b'name = "B\xe4r"')
    with pytest.raises(UsageError, match="is not UTF-8, which TOML is: byte 9"):
        load()
    (tmp_path / "twofold.toml").write_text('name = "bank"\nkafka = 3', "utf-8-sig")
    with pytest.raises(UsageError, match=r"\n  source: is missing\n  kafka: must be a section of its own\n"):
        load()


def test_variables_that_are_no_settings_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TWOFOLD_CACHE", "TWOFOLD_PORT_8787_TCP", "OTHER__HOLD"):
        monkeypatch.setenv(name, "x")
    assert load(DOCS / "twofold.toml").prepared.hold == 30


def test_secrets_are_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = ("kafka.password", "registry.password", "registry.token", "status.token")
    for name in names:
        (tmp_path / name).write_text(f"hunter2-{name}\nnot this\n")
        monkeypatch.setenv(f"TWOFOLD_{name.upper().replace('.', '__')}_FILE", str(tmp_path / name))
    monkeypatch.setenv("TWOFOLD_STATUS__LISTEN", "0.0.0.0:8787")
    config = load(DOCS / "twofold.toml")
    given = {source.setting: source.ask() for source in config.secrets if "source" not in source.setting}
    assert given == {f"{name}_file": f"hunter2-{name}" for name in names}
    assert "hunter2" not in repr(config) + config.model_dump_json()


@pytest.mark.parametrize("listen", ["0.0.0.0:8787", "db.example.org:8787", "[::]:8787"])
def test_beyond_loopback_the_page_needs_a_token(listen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOFOLD_STATUS__LISTEN", listen)
    with pytest.raises(UsageError, match=r"set status\.token_file"):
        load(DOCS / "twofold.toml")
    monkeypatch.setenv("TWOFOLD_STATUS__TOKEN_FILE", "/run/secrets/token")
    assert load(DOCS / "twofold.toml").status.port == 8787


@pytest.mark.parametrize(
    "setting",
    ["source.password_file", "kafka.password_file", "registry.password_file", "registry.token_file", "status.token_file", "kafka.options_file"],
)  # fmt: skip
def test_an_empty_secret_is_refused_wherever_it_stands(
    setting: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whoever gives none would have an empty token."""
    (tmp_path / "secret").write_text("hunter2")
    (tmp_path / "empty").write_text('"ssl.key.password" = ""' if setting == "kafka.options_file" else " \nhunter2\n")
    for name in ("SOURCE", "KAFKA", "REGISTRY"):
        monkeypatch.setenv(f"TWOFOLD_{name}__PASSWORD_FILE", str(tmp_path / "secret"))
    monkeypatch.setenv(f"TWOFOLD_{setting.upper().replace('.', '__')}", str(tmp_path / "empty"))
    shown = CliRunner().invoke(twofold, ["-c", str(DOCS / "twofold.toml"), "config", "check"])
    assert isinstance(shown.exception, UsageError)
    assert setting in str(shown.exception)
    assert "empty" in str(shown.exception)
    assert "hunter2" not in str(shown.exception)
