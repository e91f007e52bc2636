"""The version of all that is written: sealed files, their manifests, checkpoints, tables, histories, indexes.

Code that writes and reads files is no part of a run's identity, so an edit there makes nothing stale. This number is.
Raise it when what stands on disk changes its meaning or its bytes; then everything is made again.
`tests/unit/artifacts/test_formats.py` fails when bytes change and the number does not.
"""

VERSION = 1
