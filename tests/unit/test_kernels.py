"""Test what `benchmark/kernels.py` counts as a kernel and as a wait, and that it knows the phases."""

import pytest
import torch
from torch.profiler import record_function

from modular_fairseq.benchmark.kernels import BACKWARD, FORWARD, UPDATE, counting


def test_a_kernel_is_a_call_of_an_operation_that_is_no_view_and_belongs_to_its_phase():
    x = torch.ones(2, 3, requires_grad=True)
    with counting() as count:
        with record_function("forward"):
            y = (x.t().reshape(2, 3) * 2).view(6).unsqueeze(0)  # clone of the reshape, mul
            torch.empty(3).unsqueeze_(0)
            with record_function("a part"):
                total = y.sum()
        with record_function("backward"):
            total.backward()  # ones_like, mul, and the clone of the reshape
        x.detach().add_(1)
    assert count.kernels[FORWARD] == {"clone": 1, "mul": 1, "sum": 1}
    assert count.kernels[BACKWARD]["mul"] == 1 and count.kernels[BACKWARD]["ones_like"] == 1
    assert count.kernels[UPDATE] == {"add_": 1}
    assert (count.total(FORWARD), count.total_waits()) == (3, 0)
    assert count.total() == sum(count.total(phase) for phase in (FORWARD, BACKWARD, UPDATE))


@pytest.mark.parametrize(
    ("work", "waits"),
    [
        (lambda x: x.sum().item(), {"_local_scalar_dense": 1}),
        (lambda x: bool(x.sum() > 0), {"_local_scalar_dense": 1}),
        (lambda x: x.nonzero(), {"nonzero": 1}),
        (lambda x: x[x > 0], {"index": 1}),
        (lambda x: x[torch.arange(2)], {}),
        (lambda x: x.masked_select(x > 0), {"masked_select": 1}),
        (lambda x: x.tolist(), {"tolist": 1}),
        (lambda x: x.cpu().numpy(), {"cpu": 1, "numpy": 1}),
        (lambda x: torch.tensor([1.0]) + x, {"lift_fresh": 1}),
        (lambda x: torch.equal(x, x + 0), {"equal": 1}),
        (lambda x: x.index_put_((x > 0,), torch.zeros(())), {}),  # torch fills it as `masked_fill_` does
        (lambda x: x.index_put_((x > 0,), x[:2] * 2), {"index_put_": 1}),
        (lambda x: x.masked_fill(x > 0, 0.0), {}),
    ],
)
def test_a_wait_needs_a_value_or_a_number_of_results(work, waits):
    x = torch.tensor([1.0, 2.0])
    with counting() as count:
        work(x)
    assert count.waits[UPDATE] == waits and count.total_waits() == sum(waits.values())


def test_the_operations_of_one_step_are_the_difference_of_a_long_and_a_short_work():
    def work(steps: int):
        with counting() as count:
            x = torch.ones(2).exp()
            for _ in range(steps):
                x = x * 2 + 1
            x.tolist()
        return count

    step = work(5).beyond(work(2), 3)
    assert step.kernels[UPDATE] == {"mul": 1.0, "add": 1.0} and step.total_waits() == 0
