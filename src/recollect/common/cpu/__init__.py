"""Pieces that PyTorch runs slowly on CPUs, written by hand with their own backward; each must equal the plain version.

- `kernels`: `linear` equals `F.linear`, `gelu` equals `F.gelu`.
- `attention`: `CPUAttention` equals `recollect.common.attention.PlainAttention`; `attention_kernels` and `packing` serve it.
- `dropout`: `Dropout` draws as `F.dropout` does, from a stream of its own.
"""
