"""A diffusion transformer by its class of diffusers, with the loss that trains it. Used by end_to_end_worker.py."""

import types

import torch
from diffusers.models import DiTTransformer2DModel

TIMES = 1000  # of the noise, and of the network's embedding


class Denoiser(torch.nn.Module):
    """Predicts the noise that was added to latents, as DDPM's (Ho et al., 2020). ``config``: of the network."""

    def __init__(self, config: dict):
        super().__init__()
        self.network = DiTTransformer2DModel(**config, num_embeds_ada_norm=TIMES)

    def forward(self, latents, noise, times, classes):
        """``latents`` and ``noise``: [rows, channels, height, width]; ``times``, below TIMES, and ``classes``: [rows].
        Returns an object with the mean squared error as ``loss``."""
        kept = torch.linspace(1e-4, 0.02, TIMES, device=times.device).neg().add(1).cumprod(0)[times].view(-1, 1, 1, 1)
        mixed = (kept.sqrt() * latents + (1 - kept).sqrt() * noise).to(latents.dtype)
        found = self.network(mixed, timestep=times, class_labels=classes).sample[:, : latents.shape[1]]
        return types.SimpleNamespace(loss=torch.nn.functional.mse_loss(found.float(), noise.float()))
