"""poolmgr keeps pools of environment images: fetch, audit, resolve, grow.

The front door is ``Pool`` (poolmgr/pool.py), imported on first use so that ``import poolmgr``
stays light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from poolmgr.errors import PoolError as PoolError
    from poolmgr.pool import Pool as Pool

__all__ = ["Pool", "PoolError", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "Pool":
        from poolmgr.pool import Pool

        return Pool
    if name == "PoolError":
        from poolmgr.errors import PoolError

        return PoolError
    raise AttributeError(f"module 'poolmgr' has no attribute {name!r}")
