"""Freed memory stays with a process that computes."""

import platform
import subprocess
import sys

import pytest

ROUNDS = 20
WORK = """
import resource, sys
from recollect.artifacts.freed_memory import keep_freed_memory
assert sys.argv[1] == "as it is" or keep_freed_memory()
import torch
torch.set_num_threads(1)
x = torch.rand(4 << 20)  # 16 MiB
def work():
    for _ in range({rounds}):
        [x + step for step in range(6)]
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    told = [sys.executable, "-c", WORK.format(rounds=ROUNDS), how]
    return int(subprocess.run(told, check=True, capture_output=True, text=True).stdout)


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="this is glibc's")
def test_a_block_that_was_freed_is_taken_again_without_page_faults():
    kept = max(faults("kept") for _ in range(2))
    # Where a small block happens to lie on top of the heap, glibc cannot give back what is below it. So several are asked.
    assert any(10 * kept < faults("as it is") for _ in range(10))
