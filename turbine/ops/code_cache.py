"""A cache of compiled code in memory, by a key and by conditions on sizes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, Protocol, TypeVar


class Specialized(Protocol):
    """Code that is valid for some of the calls with its key."""

    def serves(self, sizes: Any, /) -> bool:
        """Whether the code is valid for a call with these sizes."""


Code = TypeVar("Code", bound=Specialized)


class CodeCache(Generic[Code]):
    """Compiles code on the first call; other threads with the same call wait for it."""

    def __init__(self) -> None:
        self._codes: dict[Hashable, list[Code]] = {}
        self._compiling = threading.RLock()

    def __len__(self) -> int:
        return sum(map(len, self._codes.values()))

    def of_key(self, key: Hashable) -> list[Code]:
        """All code with this key."""
        return self._codes.get(key, [])

    def find(self, key: Hashable, sizes: Any) -> Code | None:
        """The code for a call, or None."""
        for code in self._codes.get(key, ()):
            if code.serves(sizes):
                return code
        return None

    def get(self, key: Hashable, sizes: Any, make: Callable[[], Code]) -> Code:
        """The code for a call, made on first use."""
        code = self.find(key, sizes)
        if code is None:
            with self._compiling:
                code = self.find(key, sizes)
                if code is None:
                    code = make()
                    self._codes.setdefault(key, []).append(code)
        return code
