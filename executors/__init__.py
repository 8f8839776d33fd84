"""Where the functions of nodes run: processes, pools, Dask, Ray, or a place of your own. Start reading at `call.py`.

Only a node's function crosses. `DaskExecutor` is in `.dask`, `RayExecutor` in `.ray`.
"""

from .call import Call, Executor, Flight, Lost
from .given import executor_of
from .processes import ProcessExecutor
from .worker import serve

__all__ = ["Call", "Executor", "Flight", "Lost", "ProcessExecutor", "executor_of", "serve"]
