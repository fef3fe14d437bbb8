"""What is fetched is what was locked, whole; and what can go wrong says what to do."""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.security.guards import Handler, served
from twofold_common import artifacts
from twofold_common.artifacts import Artifact, ArtifactError, ArtifactUnreachableError, fetch, read_lock

CONTENT = b"a jar" * 100_000


@pytest.fixture
def maven(tmp_path: Path) -> Path:
    """A folder in Maven's layout."""
    return tmp_path / "maven"


def publish(maven: Path, name: str, content: bytes = CONTENT) -> Artifact:
    artifact = Artifact("org.example", name, "1.0", "", "jar", hashlib.sha256(content).hexdigest())
    place = maven / artifact.path
    place.parent.mkdir(parents=True)
    place.write_bytes(content)
    return artifact


def test_a_lock_file_names_all_that_maven_can_name() -> None:
    sha = "0" * 64
    plain, classified = read_lock(f"# a comment\n\ng.h:a:1.0 {sha}  # why\ng:b:2:all:tar.gz {sha}\n")
    assert plain.path == "g/h/a/1.0/a-1.0.jar"
    assert classified.path == "g/b/2/b-2-all.tar.gz"


@pytest.mark.parametrize("line", ["g:a:1.0", "g:a 00", "g:a:1.0 " + "0" * 63, "a b c"])
def test_a_malformed_line_is_named(line: str) -> None:
    with pytest.raises(ArtifactError, match="line 1 of a lock file"):
        read_lock(line)


def test_a_second_start_downloads_nothing(maven: Path, tmp_path: Path) -> None:
    wanted = [publish(maven, name) for name in ("one", "two", "three")]
    first_out, second_out = io.StringIO(), io.StringIO()
    first = fetch(wanted, cache=tmp_path / "cache", maven_url=maven.as_uri(), out=first_out)
    second = fetch(wanted, cache=tmp_path / "cache", maven_url="file:///nowhere", out=second_out)
    assert first == second
    assert [path.name for path in first] == ["one-1.0.jar", "two-1.0.jar", "three-1.0.jar"]
    assert all(path.read_bytes() == CONTENT for path in first)
    assert "3 done, 1.5 MB" in first_out.getvalue()
    assert second_out.getvalue() == ""


def test_a_sum_that_differs_is_refused_and_nothing_is_kept(maven: Path, tmp_path: Path) -> None:
    artifact = publish(maven, "one")
    (maven / artifact.path).write_bytes(b"something else")
    with pytest.raises(
        ArtifactError, match=r"the sha256 of .*one-1.0.jar is .*, the lock file says .*: do not use it; try"
    ):
        fetch([artifact], cache=tmp_path / "cache", maven_url=maven.as_uri(), out=io.StringIO())
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


def test_a_server_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "_PAUSE_S", 0.0)
    missing = Artifact("org.example", "one", "1.0", "", "jar", "0" * 64)
    with pytest.raises(ArtifactUnreachableError, match=r"cannot be reached .*set TWOFOLD_MAVEN_URL"):
        fetch([missing], cache=tmp_path, maven_url="http://127.0.0.1:9", out=io.StringIO())


def test_an_address_that_is_none_is_named(tmp_path: Path) -> None:
    missing = Artifact("org.example", "one", "1.0", "", "jar", "0" * 64)
    with pytest.raises(ArtifactError, match="give an https://"):
        fetch([missing], cache=tmp_path, maven_url="maven.example.org", out=io.StringIO())


@pytest.fixture
def shaky_server() -> Iterator[str]:
    """Answers 503, then ends in the middle, then serves the whole."""
    answers = iter(["503", "half"])

    class Shaky(Handler):
        def do_GET(self) -> None:
            what = next(answers, "whole")
            self.send_response(503 if what == "503" else 200)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write(CONTENT if what == "whole" else CONTENT[: len(CONTENT) // 2])

    with served(Shaky) as port:
        yield f"http://127.0.0.1:{port}"


def test_a_shaky_server_is_asked_again(shaky_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "_PAUSE_S", 0.0)
    artifact = Artifact("org.example", "one", "1.0", "", "jar", hashlib.sha256(CONTENT).hexdigest())
    (path,) = fetch([artifact], cache=tmp_path, maven_url=shaky_server, out=io.StringIO())
    assert path.read_bytes() == CONTENT


def test_a_full_disk_is_named(maven: Path, tmp_path: Path) -> None:
    """On a real file system of 64 kB in a namespace of its own; where the kernel allows none, under
    a limit of file size.
    """
    artifact = publish(maven, "one")
    cache = tmp_path / "small"
    cache.mkdir()
    program = (
        "from twofold_common.artifacts import *\nfrom pathlib import Path\nimport sys\n"
        f"wanted = read_lock('org.example:one:1.0 {artifact.sha256}')\n"
        f"try: fetch(wanted, cache=Path('{cache}'), maven_url='{maven.as_uri()}')\n"
        "except ArtifactError as error: sys.exit(str(error))\n"
    )
    namespace = ["unshare", "-rm", "sh", "-c"]
    limit = f"mount -t tmpfs -o size=64k none {cache}"
    if shutil.which("unshare") is None or subprocess.run([*namespace, limit], check=False).returncode != 0:
        namespace, limit = ["sh", "-c"], "ulimit -f 64"
    done = subprocess.run(
        [*namespace, f'{limit} && exec {sys.executable} -c "$0"', program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"no free disk in {cache}")
    assert "set TWOFOLD_CACHE to a folder with room" in last
