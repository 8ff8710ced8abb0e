"""Training of Gaussians from photos: one photo a step, L1 + SSIM, Adam on what the photo sees (Kerbl 2023, sec. 5–7)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import lightning
import torch
import torch.nn.functional as F
from torch import Tensor

from representations.gaussians.exposure import Exposure
from representations.gaussians.model import GaussianModel
from representations.gaussians.optimization import VisibleAdam
from representations.gaussians.pruning import ViewPruning
from representations.gaussians.rendering import rasterization
from spatial.errors import SpatialError
from spatial.kernels.image_loss import l1_ssim_loss
from spatial.structures import Gaussians


@runtime_checkable
class Densification(Protocol):
    """What a density-control strategy does around a step; see ``densification.py`` and ``mcmc.py``."""

    absgrad: bool
    max_gaussians: int

    def prepare(self, meta: dict[str, Any]) -> None: ...
    def observe(self, meta: dict[str, Any]) -> None: ...
    def update(
        self, step: int, max_steps: int, model: GaussianModel, optimizer: VisibleAdam, *, extent: float,
        generator: torch.Generator,
    ) -> None: ...  # fmt: skip


class LitGaussians(lightning.LightningModule):
    """Lightning's side of training: a step, its learning rates, its checks. The scene itself is ``self.model``.

    Args:
        gaussians: where training starts.
        densification: how Gaussians come and go.
        pruning: which of them go because the photos do not show them; None for none beyond the densification's.
        max_steps: length of the schedules (the trainer's own limit may be lower, never higher).
        extent: size of the scene in world units; learning rates of positions scale with it.
        view_names: names of the training photos, for messages and for exposures.
        means_lr, means_lr_final: of positions, times ``extent``, falling exponentially.
        sh_rest_factor: learning rate of the bands beyond the first, relative to ``sh_lr``.
        final_factor: what the other learning rates have fallen to, exponentially, at the end.
        sh_degree_until: share of the training after which all SH bands are in use, one more at a time.
        coarse_until: share of the training before which images are smaller: 1/4, then 1/2, then full.
        ssim_weight: of the loss; the rest is L1.
        opacity_reg, scale_reg: weights of mean opacity and of mean scale / extent, which make superfluous Gaussians fade.
        random_background: behind what is not part of the scene, so that black things do not vanish on black.
        exposure: learn a colour transform a photo (for captures whose exposure changes).
    """

    def __init__(
        self,
        gaussians: Gaussians,
        densification: Densification,
        *,
        max_steps: int,
        extent: float,
        view_names: list[str],
        pruning: ViewPruning | None = None,
        means_lr: float = 1.6e-4,
        means_lr_final: float = 1.6e-6,
        scales_lr: float = 5e-3,
        quats_lr: float = 1e-3,
        opacities_lr: float = 5e-2,
        sh_lr: float = 2.5e-3,
        sh_rest_factor: float = 0.05,
        final_factor: float = 0.1,
        sh_degree_until: float = 0.5,
        coarse_until: float = 0.3,
        coarsest: int = 4,
        ssim_weight: float = 0.2,
        opacity_reg: float = 0.0,
        scale_reg: float = 0.0,
        random_background: bool = False,
        exposure: bool = False,
        seed: int = 42,
    ):
        super().__init__()
        self.automatic_optimization = False
        self.model = GaussianModel(gaussians)
        self.densification = densification
        self.pruning = pruning
        self.schedule_steps, self.extent, self.view_names = max_steps, extent, view_names
        self.means_lr, self.means_lr_final = means_lr * extent, means_lr_final * extent
        self.learning_rates = {
            "quats": quats_lr, "log_scales": scales_lr, "logit_opacities": opacities_lr, "sh": sh_lr,
        }  # fmt: skip
        self.sh_rest_factor, self.final_factor, self.sh_degree_until = sh_rest_factor, final_factor, sh_degree_until
        self.coarse_until, self.coarsest = coarse_until, coarsest
        self.ssim_weight, self.opacity_reg, self.scale_reg = ssim_weight, opacity_reg, scale_reg
        self.random_background = random_background
        self.exposure = Exposure(len(view_names)) if exposure else None
        self.generator = torch.Generator().manual_seed(seed)
        self.max_sh_degree = gaussians.sh_degree
        self.psnr: float | None = None

    @property
    def num_gaussians(self) -> int:
        return len(self.model)

    def configure_optimizers(self) -> VisibleAdam | list[torch.optim.Optimizer]:
        groups = [{"params": [self.model.means], "name": "means", "lr": self.means_lr}]
        groups += [
            {"params": [getattr(self.model, name)], "name": name, "lr": lr} for name, lr in self.learning_rates.items()
        ]
        gaussians = VisibleAdam(groups)
        return [gaussians, torch.optim.Adam(self.exposure.parameters(), lr=1e-3)] if self.exposure else gaussians

    def training_step(self, batch: Any, batch_idx: int) -> None:
        step = self._steps_done()
        optimizer, *others = self._optimizers()
        self._set_learning_rates(optimizer.optimizer, step)
        target, mask, K = self._at_resolution(batch, self.resolution_divisor(step))
        background = torch.rand(3, generator=self.generator) if self.random_background else torch.zeros(3)
        if mask is not None:  # what is not part of the scene looks like the background, to SSIM's windows too
            target, mask = torch.where(mask[..., None], target, background), None if self.random_background else mask

        image, meta = self._render(batch.viewmat, K, target.shape[1], target.shape[0], background, step)
        self.densification.prepare(meta)
        if self.exposure:
            image = self.exposure(image, batch.index)
        loss = l1_ssim_loss(
            image[None], target[None], None if mask is None else mask[None], ssim_weight=self.ssim_weight
        )
        total = loss + self._regularisation()
        if not math.isfinite(total.item()):
            raise SpatialError(self._explain_non_finite(batch.name))
        for parameter in self.parameters():
            parameter.grad = None
        total.backward()
        self.densification.observe(meta)
        optimizer.step(visible=(meta["radii"][..., 0] > 0).any(0))
        for other in others:
            other.optimizer.step()  # not Lightning's wrapper: a step of training is one step of the Gaussians
        self.densification.update(
            step + 1, self.schedule_steps, self.model, optimizer.optimizer, extent=self.extent, generator=self.generator
        )
        if self.pruning:
            self.pruning.update(step + 1, self.schedule_steps, self.model, optimizer.optimizer, self.generator)
        if not len(self.model):
            raise SpatialError("no Gaussian is left: pruning removed all; lower model.densification.min_opacity")
        self._log(step + 1, loss, image, target, mask)

    def resolution_divisor(self, step: int) -> int:
        """Images are this many times smaller at a step: ``coarsest``, halved at equal intervals until ``coarse_until``."""
        stages = int(math.log2(self.coarsest))
        progress = step / max(1.0, self.coarse_until * self.schedule_steps)
        return 1 if stages == 0 or progress >= 1 else self.coarsest >> int(progress * stages)

    def sh_degree(self, step: int) -> int:
        """Bands in use at a step: one more at equal intervals until ``sh_degree_until``."""
        progress = step / max(1.0, self.sh_degree_until * self.schedule_steps)
        return min(self.max_sh_degree, int(progress * (self.max_sh_degree + 1)))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["max_gaussians"] = self.densification.max_gaussians  # which may have followed the memory at hand

    def on_load_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        self.model.resize(len(checkpoint["state_dict"]["model.means"]))
        self.densification.max_gaussians = checkpoint["max_gaussians"]
        for name, value in checkpoint["state_dict"].items():  # buffers of the strategy grow with the Gaussians
            if name.startswith("densification."):
                setattr(self.densification, name.removeprefix("densification."), torch.zeros_like(value))

    def _render(self, viewmat, K, width, height, background, step) -> tuple[Tensor, dict[str, Any]]:
        model = self.model
        colors, _, meta = rasterization(
            model.means, model.quats, model.log_scales.exp(), model.logit_opacities.sigmoid(), model.sh,
            viewmat[None], K[None], width, height, sh_degree=self.sh_degree(step), backgrounds=background[None],
            absgrad=self.densification.absgrad, rasterize_mode="antialiased" if model.antialiased else "classic",
        )  # fmt: skip
        return colors[0], meta

    def _at_resolution(self, batch: Any, divisor: int) -> tuple[Tensor, Tensor | None, Tensor]:
        """Target [H, W, 3] in [0, 1], mask and intrinsics at 1/divisor of the batch's size, averaged by area."""
        target = batch.image.float().mul_(1 / 255)
        if divisor == 1:
            return target, batch.mask, batch.K
        height, width = target.shape[0] // divisor, target.shape[1] // divisor
        if min(height, width) < 16:
            return target, batch.mask, batch.K
        small = F.avg_pool2d(target[: height * divisor, : width * divisor].permute(2, 0, 1)[None], divisor)
        K = batch.K.clone()
        K[:2] /= divisor
        mask = batch.mask
        if mask is not None:
            share = F.avg_pool2d(mask[: height * divisor, : width * divisor].float()[None, None], divisor)
            mask = share[0, 0] > 0.999
        return small[0].permute(1, 2, 0).contiguous(), mask, K

    def _regularisation(self) -> Tensor | float:
        total: Tensor | float = 0.0
        if self.opacity_reg:
            total = total + self.opacity_reg * self.model.logit_opacities.sigmoid().mean()
        if self.scale_reg:
            total = total + self.scale_reg * self.model.log_scales.exp().mean() / self.extent
        if self.exposure:
            total = total + self.exposure.regularisation()
        return total

    def _set_learning_rates(self, optimizer: VisibleAdam, step: int) -> None:
        progress = min(1.0, step / self.schedule_steps)
        optimizer.param_groups[0]["lr"] = self.means_lr ** (1 - progress) * self.means_lr_final**progress
        for group, lr in zip(optimizer.param_groups[1:], self.learning_rates.values(), strict=True):
            group["lr"] = lr * self.final_factor**progress
        bases = (self.sh_degree(step) + 1) ** 2
        scales = torch.full((3 * bases,), self.sh_rest_factor)
        scales[:3] = 1
        optimizer.param_groups[4]["lr_scales"] = scales

    def _steps_done(self) -> int:
        return self.trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress.total.completed

    def _optimizers(self) -> list:
        optimizers: Any = self.optimizers()
        return optimizers if isinstance(optimizers, list) else [optimizers]

    def _log(self, step: int, loss: Tensor, image: Tensor, target: Tensor, mask: Tensor | None) -> None:
        if step % 25:
            return
        with torch.no_grad():
            squared = (image.clamp(0, 1) - target) ** 2
            mse = (squared if mask is None else squared[mask]).mean().clamp_min(1e-10)
        psnr = -10 * math.log10(mse.item())
        self.psnr = psnr if self.psnr is None else 0.9 * self.psnr + 0.1 * psnr
        self._check_parameters()
        values = {"train/loss": loss.item(), "train/psnr": psnr, "train/num_gaussians": float(len(self.model))}
        for logger in self.loggers:
            logger.log_metrics(values, step)

    def _check_parameters(self) -> None:
        for name, parameter in self.model.named_parameters():
            bad = (~parameter.isfinite()).reshape(len(parameter), -1).any(-1)
            if bad.any():
                raise SpatialError(
                    f"{int(bad.sum())} Gaussians have {name} that are not finite: the last checkpoint is whole; resume "
                    f"with a lower learning rate (model.{name}_lr)"
                )

    def _explain_non_finite(self, photo: str) -> str:
        for name, parameter in self.model.named_parameters():
            if not parameter.isfinite().all():
                return f"the loss on {photo} is not finite because {name} is not; the last checkpoint is whole"
        return f"the loss on {photo} is not finite; check that photo and its camera; the last checkpoint is whole"
