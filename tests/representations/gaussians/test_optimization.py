"""Adam over rows: equal to PyTorch's where all rows are seen, untouched where they are not."""

from __future__ import annotations

import torch

from representations.gaussians.optimization import VisibleAdam


def make(num: int = 6) -> tuple[list[torch.nn.Parameter], VisibleAdam]:
    generator = torch.Generator().manual_seed(0)
    parameters = [
        torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in [(num, 3), (num,), (num, 4, 3)]
    ]
    names = ("means", "opacities", "sh")
    return parameters, VisibleAdam(
        [
            {"params": [p], "name": name, "lr": 0.1 * 3**i}
            for i, (p, name) in enumerate(zip(parameters, names, strict=True))
        ]
    )


def set_gradients(parameters: list[torch.nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def snapshot(parameters: list[torch.nn.Parameter], optimizer: VisibleAdam) -> list[torch.Tensor]:
    """Values and both moments of each parameter."""
    state = optimizer.state
    return [t.detach().clone() for p in parameters for t in (p, state[p]["exp_avg"], state[p]["exp_avg_sq"])]


def test_equals_torch_where_all_rows_are_visible() -> None:
    ours, optimizer = make()
    theirs, _ = make()
    reference = torch.optim.Adam([{"params": [p], "lr": 0.1 * 3**i} for i, p in enumerate(theirs)], eps=1e-15)
    for step in range(12):
        for parameters in (ours, theirs):
            set_gradients(parameters, step)
        optimizer.step(visible=torch.ones(6, dtype=torch.bool) if step % 2 else None)
        reference.step()
        for one, other in zip(ours, theirs, strict=True):
            # 1 − beta2 is rounded to float32: up to 7e-6 of each step's length, at most 0.9.
            assert torch.allclose(one, other, rtol=0, atol=1e-5 * (step + 1)), step


def test_rows_that_no_camera_saw_stand_still_with_their_moments() -> None:
    parameters, optimizer = make()
    set_gradients(parameters, 1)
    optimizer.step()
    before = snapshot(parameters, optimizer)
    visible = torch.tensor([True, False, True, False, False, True])
    set_gradients(parameters, 2)
    optimizer.step(visible=visible)
    for old, new in zip(before, snapshot(parameters, optimizer), strict=True):
        assert torch.equal(old[~visible], new[~visible])
        assert (old[visible] != new[visible]).all()


def test_only_the_first_numbers_of_a_row_move_where_so_scaled() -> None:
    parameters, optimizer = make()
    sh = parameters[2]
    before = sh.detach().clone().reshape(6, -1)
    optimizer.param_groups[2]["lr_scales"] = torch.tensor([1.0, 1.0, 1.0, 0.1, 0.1, 0.1])
    set_gradients(parameters, 3)
    optimizer.step()
    moved = (sh.detach().reshape(6, -1) - before).abs()
    # Adam's first step is lr in size, whatever the gradient.
    assert torch.allclose(moved[:, :3], torch.tensor(0.9), rtol=1e-4)
    assert torch.allclose(moved[:, 3:6], torch.tensor(0.09), rtol=1e-3)
    assert not moved[:, 6:].any()


def test_rows_take_their_moments_along() -> None:
    parameters, optimizer = make()
    set_gradients(parameters, 4)
    optimizer.step()
    before = snapshot(parameters, optimizer)
    index, fresh = torch.tensor([5, 0, 0, 2]), torch.tensor([False, False, True, False])
    optimizer.take_rows(index, fresh)
    for number, (old, new) in enumerate(zip(before, snapshot(parameters, optimizer), strict=True)):
        want = old[index]
        if number % 3:  # a moment
            want[fresh] = 0
        assert torch.equal(new, want)
    assert all(parameter.grad is None for parameter in parameters)
    set_gradients(parameters, 5)
    optimizer.step(visible=torch.ones(4, dtype=torch.bool))


def test_forgetting_touches_one_parameter_alone() -> None:
    parameters, optimizer = make()
    set_gradients(parameters, 4)
    optimizer.step()
    optimizer.forget(parameters[1], torch.tensor([1, 3]))
    moments = optimizer.state[parameters[1]]["exp_avg"]
    assert not moments[[1, 3]].any() and (moments[[0, 2, 4, 5]] != 0).all()
    assert (optimizer.state[parameters[0]]["exp_avg"] != 0).all()


def test_state_goes_to_disk_and_back(tmp_path) -> None:
    parameters, optimizer = make()
    optimizer.param_groups[2]["lr_scales"] = torch.tensor([1.0, 0.5])
    for step in range(3):
        set_gradients(parameters, step)
        optimizer.step()
    torch.save({"optimizer": optimizer.state_dict(), "values": [p.data for p in parameters]}, tmp_path / "a.ckpt")
    saved = torch.load(tmp_path / "a.ckpt", weights_only=True)
    others, resumed = make()
    for parameter, value in zip(others, saved["values"], strict=True):
        parameter.data = value
    resumed.load_state_dict(saved["optimizer"])
    for values, adam in ((parameters, optimizer), (others, resumed)):
        set_gradients(values, 9)
        adam.step(visible=torch.tensor([True, True, False, True, False, True]))
    for one, other in zip(snapshot(parameters, optimizer), snapshot(others, resumed), strict=True):
        assert torch.equal(one, other)
