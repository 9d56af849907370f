import torch

from pucache.heads import precision
from pucache.heads.precision import full_precision, reduced_precision

CPU = torch.device("cpu")


def test_reduced_precision_is_given_back_even_after_a_failure():
    backend = torch.backends.mkldnn.matmul
    before = backend.fp32_precision
    for failure in (None, KeyboardInterrupt):
        try:
            with reduced_precision(CPU):
                inside = backend.fp32_precision
                if failure is not None:
                    raise failure
        except KeyboardInterrupt:
            assert failure is not None
        assert backend.fp32_precision == before != inside
        assert inside == ("bf16" if precision.multiplies_bfloat16(CPU) else "ieee")


def test_full_precision_holds_within_reduced_precision():
    backend = torch.backends.mkldnn.matmul
    with reduced_precision(CPU):
        reduced = backend.fp32_precision
        with full_precision(CPU):
            assert backend.fp32_precision == "ieee"
        assert backend.fp32_precision == reduced
