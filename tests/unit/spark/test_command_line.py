"""The jobs' command line before Spark starts: what it says of words that it does not know."""

from __future__ import annotations

from pathlib import Path

import pytest

from twofold_spark import __version__
from twofold_spark.job.arguments import build_parser

NEEDED = ["--warehouse", "lake", "--prefix", "bank", "--bootstrap", "kafka:9092", "--registry", "http://registry"]


@pytest.mark.parametrize(
    ("words", "meant"),
    [(["mirrot", *NEEDED], "mirror"), (["mirror", *NEEDED, "--trigerr=once"], "--trigger"), (["verfy"], "verify")],
)
def test_the_word_that_was_meant_is_named(words: list[str], meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(words)
    assert capsys.readouterr().err.endswith(f"did you mean {meant}?\n")


def test_a_misspelt_option_is_named_before_the_missing_one(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--boostrap=x" if word == "kafka:9092" else word for word in NEEDED if word != "--bootstrap"]
    with pytest.raises(SystemExit):
        build_parser().parse_args(["mirror", *words])
    said = capsys.readouterr().err
    assert said.endswith("required: --bootstrap; --boostrap is unknown, did you mean --bootstrap?\n")
    with pytest.raises(SystemExit):
        build_parser().parse_args(["mirror", "--boot", "x"])
    assert "is unknown" not in capsys.readouterr().err, "a beginning is enough for argparse"


def test_what_is_like_nothing_gets_no_advice(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["zzz"])
    assert "did you mean" not in capsys.readouterr().err


def test_it_tells_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["--version"])
    assert capsys.readouterr().out == f"twofold-spark {__version__}\n"


LOGIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="";'


@pytest.mark.parametrize(
    ("option", "line"),
    [
        ("--kafka-file", "ssl.key.password ="),
        ("--kafka-file", f"sasl.jaas.config={LOGIN}"),
        ("--catalog-file", "credential="),
        ("--catalog-file", "s3.secret-access-key = "),
        ("--kafka", "ssl.keystore.password="),
    ],
)
def test_an_empty_secret_is_refused(option: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "secrets").write_text(f"security.protocol=SASL_SSL\n{line}\n")
    value = line if option == "--kafka" else str(tmp_path / "secrets")
    with pytest.raises(SystemExit):
        build_parser().parse_args(["mirror", *NEEDED, option, value])
    assert f"{line.partition('=')[0].strip()}, which is empty" in capsys.readouterr().err
    (tmp_path / "secrets").write_text(line.replace('""', '"x"').replace("= ", "=").removesuffix("=") + "=x\n")
    build_parser().parse_args(["mirror", *NEEDED, "--kafka-file", str(tmp_path / "secrets")])


@pytest.mark.parametrize("option", ["--kafka-file", "--catalog-file"])
def test_a_file_of_secrets_is_read_in_utf_8_in_each_locale(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, file = ["mirror", *NEEDED, option, str(tmp_path / "secrets")], tmp_path / "secrets"
    file.write_bytes("ssl.key.password=schlüssel".encode("utf-8-sig"))
    read = vars(build_parser().parse_args(words))
    assert read[option.removeprefix("--").replace("-", "_")] == {"ssl.key.password": "schlüssel"}
    file.write_bytes("ssl.key.password=schlüssel".encode("latin-1"))
    with pytest.raises(SystemExit):
        build_parser().parse_args(words)
    assert "secrets: it is not UTF-8 at byte 21\n" in capsys.readouterr().err


def test_an_address_with_a_password_is_not_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["--sink", "jbdc=postgresql://me:hunter2@db/shop"], ["--kafka", "sasl.password:hunter2"]):
        with pytest.raises(SystemExit):
            build_parser().parse_args(["mirror", *NEEDED, *wrong])
        said = capsys.readouterr().err
        assert "must be" in said
        assert "hunter2" not in said
