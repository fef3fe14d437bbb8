"""Compiles the row path when there is a C compiler; without one the package is the same, only slower."""

from Cython.Build import cythonize
from setuptools import Extension, setup  # type: ignore[import-untyped]

COMPILED = ["transcode", "wire"]

setup(
    ext_modules=cythonize(
        [Extension(f"twofold_avro.{name}", [f"twofold_avro/{name}.py"], optional=True) for name in COMPILED],
        language_level=3,
    )
)
