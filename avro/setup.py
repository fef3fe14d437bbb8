"""Compiles the row path when there is a C compiler; without one the package is the same, only
slower.

Wheels that are published have to be compiled: `make wheels` names their platform in
TWOFOLD_WHEEL_PLATFORM. One of them is for CPython 3.11 and all later ones (the limited API).
"""

import os

from Cython.Build import cythonize
from setuptools import Extension, setup  # type: ignore[import-untyped]

COMPILED = ["hashing", "transcode", "wire"]
PLATFORM = os.environ.get("TWOFOLD_WHEEL_PLATFORM")
LIMITED = {"define_macros": [("Py_LIMITED_API", "0x030B0000")], "py_limited_api": True} if PLATFORM else {}
WHEEL = {"bdist_wheel": {"py_limited_api": "cp311", "plat_name": PLATFORM}} if PLATFORM else {}

extensions = cythonize(
    [Extension(f"twofold_avro.{name}", [f"twofold_avro/{name}.py"], **LIMITED) for name in COMPILED], language_level=3
)
for extension in extensions:
    # Set here, because cythonize makes new extensions and forgets it.
    extension.optional = not PLATFORM
    extension.py_limited_api = bool(PLATFORM)

setup(ext_modules=extensions, options=WHEEL)
