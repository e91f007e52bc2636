#!/usr/bin/env bash
# Run by Snakemake inside the new conda environment, from the workflow's working directory: the repository's root.
set -eu
root="${RECOLLECT_ROOT:-$PWD}"
if [ ! -f "$root/envs/setup.py" ]; then
    echo "envs/setup.py is not in $root: run snakemake from the repository's root, or set RECOLLECT_ROOT to it" >&2
    exit 1
fi
exec "$CONDA_PREFIX/bin/python" "$root/envs/setup.py" --here --family cpu
