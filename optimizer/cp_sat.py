"""CP-SAT's Python module, loaded without pandas, which it imports and we never use.

pandas is four fifths of the time that loading ``cp_model`` takes. The module needs two names of it
while it is loaded (``Index`` and ``Series``, in annotations), the rest only in functions that
return series. So a stand-in is put in pandas' place for that moment, and taken away again; what
``cp_model`` then holds as ``pd`` loads pandas when something of it is asked for, so that functions
on series work as ever.

Imported inside functions alone: a question that needs no solver does not load it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = ["cp_model"]

_PANDAS = "pandas"


class _PutOff(ModuleType):
    """pandas, loaded when a name is asked for that the stand-in does not have itself."""

    def __getattr__(self, name: str) -> Any:
        self.leave()
        return getattr(import_module(_PANDAS), name)

    def leave(self) -> None:
        """Whoever imports pandas from now on gets pandas."""
        if sys.modules.get(_PANDAS) is self:
            del sys.modules[_PANDAS]


@contextmanager
def pandas_put_off() -> Iterator[None]:
    """Whatever is imported meanwhile gets a stand-in for pandas.

    Only where nobody else can see it: pandas is not loaded yet, and no other thread is alive that
    could import it meanwhile. Else nothing is done.
    """
    if _PANDAS in sys.modules or threading.active_count() > 1:
        yield
        return
    stand_in = _PutOff(_PANDAS)
    own = {name: type(name, (), {}) for name in ("Index", "Series")}
    stand_in.__dict__.update(own)
    sys.modules[_PANDAS] = stand_in
    try:
        yield
    finally:
        stand_in.leave()
        for name in own:
            stand_in.__dict__.pop(name)


with pandas_put_off():
    from ortools.sat.python import cp_model
