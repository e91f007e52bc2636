"""Memory-RL: off-policy agents with transformers and recurrent networks."""
