"""Training where PyTorch has started the ranks and reduces the gradients: each rank runs the engine of one rank on its
own part of the parameters, and the ranks agree by torch.distributed. See docs/distributed.md."""
