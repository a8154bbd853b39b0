"""Code that was compiled so far, found by a key and by the facts that it takes for granted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, Protocol, TypeVar


class Specialized(Protocol):
    """Code that is right for some of the calls that share a key."""

    def serves(self, sizes: Any, /) -> bool:
        """Whether it is right for a call with these sizes."""


Code = TypeVar("Code", bound=Specialized)


class CodeCache(Generic[Code]):
    """Compiles for the first call of a kind; threads that make the same call wait for it."""

    def __init__(self) -> None:
        self._codes: dict[Hashable, list[Code]] = {}
        self._compiling = threading.RLock()

    def __len__(self) -> int:
        return sum(map(len, self._codes.values()))

    def of_key(self, key: Hashable) -> list[Code]:
        """All code that calls with this key have needed."""
        return self._codes.get(key, [])

    def find(self, key: Hashable, sizes: Any) -> Code | None:
        """The code for a call, if there is any."""
        for code in self._codes.get(key, ()):
            if code.serves(sizes):
                return code
        return None

    def get(self, key: Hashable, sizes: Any, make: Callable[[], Code]) -> Code:
        """The code for a call, compiled if there is none."""
        code = self.find(key, sizes)
        if code is None:
            with self._compiling:
                code = self.find(key, sizes)
                if code is None:
                    code = make()
                    self._codes.setdefault(key, []).append(code)
        return code
