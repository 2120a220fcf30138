"""CP-SAT's module without pandas: nobody else notices, and its functions on series still work."""

from __future__ import annotations

import subprocess
import sys

import pytest

SOLVE = """
model = cp_model.CpModel()
x = model.new_int_var(0, 9, "x")
model.add(2 * x <= 13)
model.maximize(x)
solver = cp_model.CpSolver()
assert solver.solve(model) == cp_model.OPTIMAL and solver.value(x) == 6
"""
SERIES = """
import pandas
assert pandas.DataFrame({"a": [1, 2]}).a.sum() == 3 and pandas.Index is cp_model.pd.Index
model = cp_model.CpModel()
many = model.new_int_var_series("y", pandas.Index(["a", "b"]), 0, 5)
assert isinstance(many, pandas.Series) and len(many) == 2
model.maximize(sum(many))
solver = cp_model.CpSolver()
assert solver.solve(model) == cp_model.OPTIMAL
assert solver.values(many).tolist() == [5, 5]
"""
LOAD = "import sys\nfrom layoutopt.optimizer.cp_sat import cp_model\n"


def _runs(code: str) -> None:
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    "code",
    [
        LOAD + "assert 'pandas' not in sys.modules" + SOLVE + SERIES + SOLVE,
        # A user of the module alone may ask it for pandas first.
        LOAD + "assert cp_model.pd.Series.__module__.startswith('pandas')" + SERIES,
    ],
)
def test_pandas_is_put_off_until_it_is_asked_for(code: str) -> None:
    _runs(code)


def test_pandas_that_is_loaded_already_is_used() -> None:
    _runs("import pandas\n" + LOAD + "assert cp_model.pd is pandas" + SOLVE + SERIES)


def test_another_thread_never_sees_the_stand_in() -> None:
    wait = (
        "import threading\ndone = threading.Event()\nthreading.Thread(target=done.wait).start()\n"
    )
    body = "assert cp_model.pd is sys.modules['pandas']" + SOLVE + SERIES
    _runs(
        f"{wait}try:\n"
        + "".join(f"    {line}\n" for line in (LOAD + body).splitlines())
        + "finally:\n    done.set()\n"
    )


def test_a_name_that_the_stand_in_lacks_loads_pandas_at_once() -> None:
    """A release of ortools that asks pandas for more while it is loaded gets pandas."""
    _runs(
        "import sys\nfrom layoutopt.optimizer.cp_sat import pandas_put_off\n"
        "with pandas_put_off():\n    pass\n"
        "assert 'pandas' not in sys.modules\n"
        "with pandas_put_off():\n"
        "    import pandas as early\n"
        "    assert early.DataFrame({'a': [1]}).a.sum() == 1\n"
        "import pandas\n"
        "assert early is not pandas and early.Index is pandas.Index\n"
    )
