"""How a process computes: its threads, and what of a GPU it does without."""

from __future__ import annotations

import os

_used = 1


def used() -> int:
    """How many threads this process was told to use; 1 where nobody said."""
    return _used


def use_threads(count: int) -> None:
    """Let torch, which is imported here, use so many threads; 0: as many as cores. See `settle_cudnn`, too."""
    global _used
    if count:
        os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(count)
    import torch

    _used = count or torch.get_num_threads()
    if count:
        torch.set_num_threads(count)
    settle_cudnn()


def settle_cudnn() -> None:
    """Let this process compute on a GPU as every job does, whoever started it; torch is imported here.

    Attention is computed without cuDNN, which makes a plan for each new length, in tenths of a second. From version
    2.11 on PyTorch prefers it for bfloat16 on Hopper GPUs, and RA-DT acts with hundreds of lengths. (Read in PyTorch's sources
    and in reports on version 2.11, not measured here.) Convolutions and recurrent layers compute in whole float32, as products of
    matrices do, where a method does not ask for TF32: a policy acts in its evaluation as it did in training.
    """
    import torch

    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cudnn.allow_tf32 = False
