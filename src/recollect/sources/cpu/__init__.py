"""Gradients of the ensembles' networks and of PPO's loss, written out by hand: many tiny networks are trained at once, where
autograd would cost more than the arithmetic. `plain` has what each of them must equal, and tests hold it to that."""
