"""Stands in for Cython in an uncompiled run, where Cython need not be installed: its declarations
do nothing.

The compiled modules do `import cython` where it exists, and import this under the same name where
it does not. Compiled, neither is imported. mypy always reads this one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

compiled: bool = False

bint: TypeAlias = bool
uchar: TypeAlias = int
uint: TypeAlias = int
longlong: TypeAlias = int
ulonglong: TypeAlias = int
Py_ssize_t: TypeAlias = int
double: TypeAlias = float
p_uchar: TypeAlias = Any
"""A `bytes` or a `bytearray` that is read or written by index; compiled, a pointer into it."""


def _same(thing: T) -> T:
    return thing


cclass = final = cfunc = inline = _same


def cdivision(_: bool) -> Callable[[T], T]:
    return _same


def address(thing: Any) -> Any:
    return thing


def declare(_: Any, value: T) -> T:
    return value
