"""What a GPU does with each kind of work of the papers, in under ten minutes: `make gpu`.

Every line of `lines.LINES` runs in a process of its own with a time limit, so that a crash or a hang loses that line alone. A
line builds the real method with the settings of scale `paper` and data made up in the right shapes, and is timed in each of
its variants (`lines.Variant`: settings changed by name, TF32 on or off). Before them the device's own fastest matrix product
and copy are measured; a share of the roofline is against these, never against a vendor's numbers.

`lines` is the table of what is timed, `one_line` measures one of them, `__main__` runs them all, `table` prints, `speeds` writes
what `recollect forecast` reads (config/speeds/*.yaml).
"""
