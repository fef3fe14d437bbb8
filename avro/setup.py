"""Compiles the row path when there is a C compiler; without one the package is the same, only slower."""

from Cython.Build import cythonize
from setuptools import Extension, setup  # type: ignore[import-untyped]

COMPILED = ["transcode", "wire"]

extensions = cythonize(
    [Extension(f"twofold_avro.{name}", [f"twofold_avro/{name}.py"]) for name in COMPILED], language_level=3
)
for extension in extensions:
    # Set here, because cythonize makes new extensions and forgets it.
    extension.optional = True

setup(ext_modules=extensions)
