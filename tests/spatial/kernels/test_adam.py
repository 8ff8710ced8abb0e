"""Adam against torch.optim.Adam; rows that are not visible stand still."""

from __future__ import annotations

import math

import pytest
import torch

from spatial.kernels import reference
from spatial.kernels.adam import adam_step

FUNCTIONS = [adam_step, reference.adam.adam_step]


def random_state(*shape, dtype=torch.float64, seed=0):
    """Parameter, gradient, first and second moment."""
    g = torch.Generator().manual_seed(seed)
    parameter, gradient, first, second = (torch.randn(shape, generator=g).to(dtype) for _ in range(4))
    return [parameter, gradient, 0.1 * first, 0.01 * second.square()]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_equals_torch(instruction_set, dtype, assert_near, function):
    parameter, *_ = random_state(70, 3, dtype=dtype)
    theirs = torch.nn.Parameter(parameter.double().clone())
    optimizer = torch.optim.Adam([theirs], lr=0.01, betas=(0.8, 0.99), eps=1e-8)
    first, second = torch.zeros_like(parameter), torch.zeros_like(parameter)
    for step in range(1, 21):
        gradient = random_state(70, 3, dtype=dtype, seed=step)[1]
        function(parameter, gradient, first, second, step=step, lr=0.01, betas=(0.8, 0.99), eps=1e-8)
        theirs.grad = gradient.double()
        optimizer.step()
    assert_near(parameter, theirs.detach())
    assert_near(first, optimizer.state[theirs]["exp_avg"])
    assert_near(second, optimizer.state[theirs]["exp_avg_sq"])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_hand_values(instruction_set, dtype, function):
    """From rest, the first step goes lr against the gradient's sign, whatever its size."""
    parameter = torch.tensor([[1.0, 1.0, 1.0]], dtype=dtype)
    gradient = torch.tensor([[1e-6, -3.0, 0.0]], dtype=dtype)
    first, second = torch.zeros_like(parameter), torch.zeros_like(parameter)
    function(parameter, gradient, first, second, step=1, lr=0.25)
    torch.testing.assert_close(parameter, torch.tensor([[0.75, 1.25, 1.0]], dtype=dtype), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(first, 0.1 * gradient)
    torch.testing.assert_close(second, 0.001 * gradient**2, rtol=1e-4, atol=0)


@pytest.mark.parametrize("shape", [(1,), (1000,), (333, 3), (100, 15, 3), (3, 4000)], ids=str)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_native_equals_reference(instruction_set, dtype, assert_near, shape, masked, scaled):
    row_size = math.prod(shape[1:])
    visible = torch.rand(shape[0], generator=torch.Generator().manual_seed(1)) > 0.4 if masked else None
    columns = max(1, row_size // 2)
    lr_scales = torch.linspace(0.5, 2, columns).to(dtype) if scaled else None
    ours, expected = random_state(*shape, dtype=dtype), random_state(*shape)
    adam_step(*ours, step=7, lr=0.02, visible=visible, lr_scales=lr_scales)
    double_scales = lr_scales.double() if scaled else None
    reference.adam.adam_step(*expected, step=7, lr=0.02, visible=visible, lr_scales=double_scales)
    for name, a, b in zip(("parameter", "gradient", "exp_avg", "exp_avg_sq"), ours, expected, strict=True):
        assert_near(a, b, name)
    before = random_state(*shape, dtype=dtype)
    for actual, old in zip(ours, before, strict=True):
        if masked:
            assert torch.equal(actual[~visible], old[~visible])
        if scaled:
            assert torch.equal(actual.reshape(shape[0], -1)[:, columns:], old.reshape(shape[0], -1)[:, columns:])


def test_rows_that_nobody_sees_stand_still(instruction_set, dtype):
    state, before = random_state(50, 3, dtype=dtype), random_state(50, 3, dtype=dtype)
    adam_step(*state, step=3, lr=0.1, visible=torch.zeros(50, dtype=torch.bool))
    assert all(torch.equal(a, b) for a, b in zip(state, before, strict=True))


def test_no_rows(instruction_set, dtype):
    adam_step(*random_state(0, 3, dtype=dtype), step=1, lr=0.1, visible=torch.zeros(0, dtype=torch.bool))


def test_gradients_of_extreme_sizes_stay_finite(instruction_set, dtype):
    parameter, first, second = (
        torch.ones(3, 1, dtype=dtype),
        torch.zeros(3, 1, dtype=dtype),
        torch.zeros(3, 1, dtype=dtype),
    )
    gradient = torch.tensor([[0.0], [1e-30], [1e15]], dtype=dtype)
    adam_step(parameter, gradient, first, second, step=1, lr=0.1)
    assert parameter.isfinite().all() and parameter[0] == 1


def test_same_bits_for_any_number_of_threads(instruction_set, dtype, each_thread_count):
    visible = torch.rand(20000, generator=torch.Generator().manual_seed(1)) > 0.4

    def run():
        state = random_state(20000, 4, dtype=dtype)
        adam_step(*state, step=2, lr=0.1, visible=visible)
        return state

    each_thread_count(run)


@pytest.mark.parametrize("which", [0, 1, 2, 3], ids=["parameter", "gradient", "exp_avg", "exp_avg_sq"])
def test_what_is_not_contiguous_is_refused(without_shape_checks, which):
    """It is changed in place: a silent copy would lose the step."""
    state = random_state(6, 4)
    state[which] = state[which].T.contiguous().T
    with pytest.raises(ValueError, match="contiguous"):
        adam_step(*state, step=1, lr=0.1)


def test_a_visible_mask_need_not_be_contiguous(instruction_set):
    strided = (torch.arange(20) % 5 > 1)[::2]
    state, expected = random_state(10, 3), random_state(10, 3)
    adam_step(*state, step=1, lr=0.1, visible=strided)
    adam_step(*expected, step=1, lr=0.1, visible=strided.contiguous())
    assert torch.equal(state[0], expected[0])


def test_lr_scales_need_not_be_contiguous_but_of_the_same_dtype(instruction_set):
    state, expected = random_state(10, 3), random_state(10, 3)
    scales = torch.tensor([[1.0, 9], [2.0, 9], [0.5, 9]]).double()[:, 0]
    adam_step(*state, step=1, lr=0.1, lr_scales=scales)
    adam_step(*expected, step=1, lr=0.1, lr_scales=scales.clone())
    assert torch.equal(state[0], expected[0])
    with pytest.raises(TypeError, match=r"lr_scales is torch\.float32"):
        adam_step(*state, step=1, lr=0.1, lr_scales=scales.float())
