"""How much memory a worker has taken of the device that it computes on."""

from pathlib import Path

import torch

from kairos_ros.core.errors import PolicyError

MIB = 2**20
STATUS = Path("/proc/self/status")
PEAK = "VmHWM:"
"""Line of the largest resident set so far, in KiB."""


def most_taken_mib(device: torch.device) -> int:
    """The most since this process began, rounded up.

    Of a GPU it is what PyTorch's allocator took; what CUDA itself takes for every process comes on
    top. Of a CPU it is the process's resident memory, with all that it has imported. Raises
    PolicyError where the kernel does not say.
    """
    if device.type == "cuda":
        reserved: int = torch.cuda.max_memory_reserved(device)
        return -(-reserved // MIB)
    for line in STATUS.read_text().splitlines():
        if line.startswith(PEAK):
            return -(-int(line.split()[1]) // 1024)
    raise PolicyError(f"{STATUS} has no {PEAK}; this kernel does not say how much memory is taken")
