"""AMAGO and AMAGO-2: off-policy in-context reinforcement learning on long sequences."""
