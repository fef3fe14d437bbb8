"""Images of others have a version and a digest: whoever may move a tag would run their own programs
where ours have secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from fixtures import containers

ROOT = Path(__file__).parents[3]
OURS = ["twofold-connector", "twofold-spark"]
PINNED = re.compile(r"[a-z/-]+:v?\d+\.\d+(\.\d+)?(-[a-z-]+)?@sha256:[0-9a-f]{64}")


def images_of(described: object) -> Iterator[str]:
    """Those of a file for compose, Kubernetes or GitHub, where a job may have a `container`."""
    if isinstance(described, list):
        for each in described:
            yield from images_of(each)
    elif isinstance(described, dict):
        for key, value in described.items():
            if key in {"image", "container"} and isinstance(value, str):
                yield value
            elif key == "uses" and str(value).startswith("docker://"):
                yield value.removeprefix("docker://")
            else:
                yield from images_of(value)


def found() -> Iterator[tuple[str, str]]:
    """Each image, with the file that names it."""
    described = [ROOT / "docker-compose.yml", *ROOT.glob(".github/workflows/*.yml"), *ROOT.glob("deploy/**/*.yaml")]
    # They become YAML when they are rendered, into the manifest.
    described = [path for path in described if path.parent.name != "templates"]
    for file in described:
        for document in yaml.safe_load_all(file.read_text()):
            yield from ((image, file.name) for image in images_of(document))
    for file in ROOT.glob("deploy/*Dockerfile"):
        yield from ((image, file.name) for image in re.findall(r"^FROM (\S+)", file.read_text(), re.MULTILINE))
        yield from ((image, file.name) for image in re.findall(r"--from=(\S+[:/@]\S+)", file.read_text()))
    for image in (containers.KAFKA, containers.REGISTRY, containers.RYUK, *containers.POSTGRES.values()):
        yield image, "containers.py"


IMAGES = sorted({(image, name) for image, name in found() if image not in OURS})


def test_images_are_found_where_they_are_named() -> None:
    assert {name for _, name in IMAGES} == {
        "docker-compose.yml",
        "connector.Dockerfile",
        "spark.Dockerfile",
        "containers.py",
    }


@pytest.mark.parametrize(("image", "name"), IMAGES, ids=lambda word: word.partition("@")[0])
def test_an_image_has_a_version_and_a_digest(image: str, name: str) -> None:
    assert PINNED.fullmatch(image), f"{name} names {image} without a digest"


def test_a_version_of_an_image_has_one_digest() -> None:
    digests = dict(image.split("@") for image, _ in IMAGES)
    assert {f"{tag}@{digest}" for tag, digest in digests.items()} == {image for image, _ in IMAGES}
