"""torch.compile where there is a compiler, and the plain function where there is none."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

log = logging.getLogger(__name__)
Given = ParamSpec("Given")
Result = TypeVar("Result")


def compiled(
    function: Callable[Given, Result], device: torch.device | str, *, whole: bool = False
) -> Callable[Given, Result]:
    """The function as torch.compile makes it for tensors of fixed shapes; without a compiler itself, with one warning.

    On GPUs that is Triton, on CPUs a C++ compiler. Whether there is one is tried on a product and its gradient; a function
    that it cannot compile then goes on as it is, with one warning, too.

    Args:
        whole: one that cannot be compiled as one piece goes on as it is. Of pieces, parameters that the result does not depend on
            may get a gradient of 0, where they would get none.
    """
    try:
        x = torch.ones(2, 2, device=device, requires_grad=True)
        torch.compile(lambda x: (x @ x).relu().sum(), dynamic=False)(x).backward()
    except Exception as error:
        _warn(error)
        return function
    chosen = torch.compile(function, dynamic=False, fullgraph=whole)

    def call(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        nonlocal chosen
        try:
            return chosen(*args, **kwargs)
        except torch._dynamo.exc.TorchDynamoException as error:  # of the compiler; before anything was computed
            if chosen is function:
                raise
            _warn(error)
            chosen = function
            return function(*args, **kwargs)

    return call


def _warn(error: Exception) -> None:
    said = str(error).strip().partition("\n")[0] or type(error).__name__
    log.warning("`compile` is left off, as torch.compile does not work here: %s", said)
