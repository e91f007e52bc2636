"""Batched environments, one file per world. Importing it registers ``recollect/DarkRoom-v0`` and the others."""

from recollect.environments import registry

registry.register()
