import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info

from pucache import devices, threads
from pucache.threads import VALUES_PER_THREAD, limited_threads


def test_limits_hold_inside_and_are_lifted_afterwards_even_after_a_failure(monkeypatch):
    monkeypatch.setattr(threads, "cores", lambda: 8)
    np.ones((2, 2)) @ np.ones((2, 2))  # loads BLAS
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for values, inside in ((1, 1), (8 * VALUES_PER_THREAD, 2)):  # a lower limit in force is kept
            with pytest.raises(ZeroDivisionError), limited_threads(values):
                assert torch.get_num_threads() == inside
                assert blas_threads() == {1}
                raise ZeroDivisionError
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def variables(**given):
    """Environment of a command, as it is when the libraries are loaded."""
    code = (
        "from pucache.threads import set_thread_defaults; set_thread_defaults(); import os, json;"
        "names = ['OMP_NUM_THREADS', 'OMP_WAIT_POLICY', 'OPENBLAS_NUM_THREADS'];"
        "print(json.dumps([os.environ[name] for name in names]))"
    )
    unset = {"OMP_NUM_THREADS", "OMP_WAIT_POLICY", "OPENBLAS_NUM_THREADS"}
    environ = {name: value for name, value in os.environ.items() if name not in unset} | given
    return subprocess.run([sys.executable, "-c", code], env=environ, check=True, capture_output=True, text=True).stdout


def test_defaults_are_set_before_libraries_load_and_do_not_replace_what_is_set():
    assert variables() == f'["{devices.cores()}", "PASSIVE", "1"]\n'
    given = {"OMP_NUM_THREADS": "7", "OMP_WAIT_POLICY": "ACTIVE", "OPENBLAS_NUM_THREADS": "3"}
    assert variables(**given) == '["7", "ACTIVE", "3"]\n'


@pytest.mark.parametrize("count", [1, 3])
def test_workers_return_results_in_order_with_one_torch_thread_and_no_gradients(count):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode(), threads.worker_threads(count) as run_all:
            assert list(run_all([lambda number=number: number for number in range(9)])) == list(range(9))
            states = run_all([lambda: (torch.get_num_threads(), torch.is_inference_mode_enabled())] * 5)
            assert list(states) == [(1, True)] * 5
            with pytest.raises(ZeroDivisionError):
                list(run_all([lambda: 1 / 0]))
    finally:
        torch.set_num_threads(before)


def blas_threads():
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


@pytest.mark.slow
def test_a_classifier_has_the_same_bits_for_any_number_of_threads():
    code = (
        "import hashlib, numpy as np; from helpers.planted import planted; from pucache import PULinearClassifier;"
        "X, s, _ = planted(2000, d=640, labelled=40);"
        "model = PULinearClassifier(device='cpu').fit(X, s);"
        "print(hashlib.sha256(model.coef_.tobytes() + repr(model.neighbours_).encode()).hexdigest(), model.method_)"
    )

    def digest(count):
        environment = {**os.environ, "OMP_NUM_THREADS": count, "PYTHONPATH": os.path.dirname(__file__)}
        environment.pop("OPENBLAS_NUM_THREADS", None)  # as where Python was started without pucache's commands
        command = [sys.executable, "-c", code]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    assert digest("1") == digest("2") == digest("3")
