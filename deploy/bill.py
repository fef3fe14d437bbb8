"""`make sbom`: what the two images carry of others, with licences: CycloneDX files in dist/, and
deploy/third-party.md for people.

    python deploy/bill.py UV

Python's packages are those of uv.lock for each image, with the licence that their own metadata
says; the jars are those of jars.lock. What the base images bring (Debian, Python, OpenJDK) is the
business of their own bills.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from packaging.markers import Marker

from twofold_spark import jars

ROOT: Final = Path(__file__).parents[1]
IMAGES: Final = {
    "connector": ("--package", "twofold"),
    "spark": ("--package", "twofold-spark", "--extra", "spark"),
}
_IMAGE: Final = {"sys_platform": "linux", "platform_system": "Linux", "implementation_name": "cpython"}
LICENCES_OF_JARS: Final = {
    "com.globalmentor": "Apache-2.0",
    "io.delta": "Apache-2.0",
    "org.apache.commons": "Apache-2.0",
    "org.apache.iceberg": "Apache-2.0",
    "org.apache.kafka": "Apache-2.0",
    "org.apache.spark": "Apache-2.0",
    "org.postgresql": "BSD-2-Clause",
    "org.xerial": "Apache-2.0",
}
"""By their group, as its projects say on Maven Central: few jars say it themselves."""
_HEAD: Final = """\
# Third-party parts of the images

`make sbom` writes this page and, for each image, a bill of materials (CycloneDX) in `dist/`.
Twofold itself is under Apache-2.0. The packages and jars contain their licences, also those of the
libraries within `confluent-kafka`, `psycopg-binary` and `pyspark`. The base images (Debian, Python,
OpenJDK under GPL-2.0 with the Classpath Exception) have their own bills.
"""
_TABLE: Final = """
## Image: {image}

| part | version | licence |
|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Part:
    """One package or jar."""

    name: str
    version: str
    licence: str


def main(uv: str) -> None:
    images = {}
    for image, wanted in IMAGES.items():
        bill = _bill(uv, wanted)
        components = bill["components"] = [each for each in bill["components"] if "purl" in each and _for_linux(each)]
        if image == "spark":
            components += _jars()
        images[image] = [_with_licence(each) for each in components]
        (ROOT / f"dist/{image}.cdx.json").write_text(json.dumps(bill, indent=1) + "\n")
    (ROOT / "deploy/third-party.md").write_text(page(images))


def _bill(uv: str, wanted: Iterable[str]) -> dict[str, Any]:
    command = [uv, "export", "--quiet", "--preview", "--frozen", "--no-dev", "--format", "cyclonedx1.5", *wanted]
    made: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, cwd=ROOT).stdout)
    return made


def _for_linux(component: Any) -> bool:
    """uv tells what only other systems install by a marker."""
    markers = [each["value"] for each in component.get("properties", ()) if each["name"] == "uv:package:marker"]
    return all(Marker(each).evaluate(_IMAGE) for each in markers)


def _jars() -> Iterable[dict[str, Any]]:
    for jar in jars.locked():
        purl = f"pkg:maven/{jar.group}/{jar.name}@{jar.version}"
        hashes = [{"alg": "SHA-256", "content": jar.sha256}]
        yield {
            "type": "library",
            "group": jar.group,
            "name": jar.name,
            "version": jar.version,
            "purl": purl,
            "hashes": hashes,
        }


def _with_licence(component: dict[str, Any]) -> Part:
    """The licence goes into the component as well."""
    licence = LICENCES_OF_JARS[component["group"]] if "group" in component else _licence(component["name"])
    component["licenses"] = [{"license": {"name": licence}}]
    return Part(component["name"], component["version"], licence)


def _licence(package: str) -> str:
    """As the package's metadata says it: an expression, the classifier, or its own words."""
    said = metadata.metadata(package)
    classifiers = [each for each in said.get_all("Classifier") or [] if each.startswith("License :: OSI Approved :: ")]
    [expression] = said.get_all("License-Expression") or [""]
    [own_words] = said.get_all("License") or [""]
    found = expression or " and ".join(each.rpartition(" :: ")[2] for each in classifiers)
    found = found or own_words.strip().partition("\n")[0]
    assert found, f"{package} does not say its licence"
    return found


def page(images: dict[str, list[Part]]) -> str:
    """A table for each image."""
    return _HEAD + "".join(
        line for image, parts in images.items() for line in (_TABLE.format(image=image), *_rows(parts))
    )


def _rows(parts: list[Part]) -> Iterable[str]:
    for part in sorted(set(parts), key=lambda part: part.name.lower()):
        yield f"| `{part.name}` | {part.version} | {part.licence} |\n"


if __name__ == "__main__":
    main(sys.argv[1])
