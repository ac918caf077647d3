"""Devices of torch."""

import torch


def check_device(device: str | None) -> None:
    """Raise ValueError if torch cannot use a device. None is valid."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        why = str(error).strip().splitlines()[0]
        problem = f"device {device} cannot be used ({why})"
        raise ValueError(f"{problem}: leave it out, or take cpu") from None
