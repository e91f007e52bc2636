"""The networks that the hyperparameters of Memory-RL's off-policy methods describe."""

from __future__ import annotations

import torch

from recollect.common.contract import Facts
from recollect.common.feedforward import TokenEmbedder
from recollect.memory_rl.heads import Head
from recollect.memory_rl.history_policy import HistoryNetwork
from recollect.memory_rl.hyperparameters import OffPolicyHyperparameters
from recollect.memory_rl.sequence import HistoryEncoder, make_sequence_model
from recollect.settings.seeding import seed_of


def make_encoder(hp: OffPolicyHyperparameters, facts: Facts, *, seed: int) -> HistoryEncoder:
    """The history encoder that the hyperparameters describe, for an environment. Images get the paper's encoder."""
    embedder = TokenEmbedder(
        facts.actions,
        facts.observation_size,
        action_size=facts.action_size,
        action_embedding=hp.action_embedding,
        reward_embedding=hp.reward_embedding,
        observation_embedding=hp.observation_embedding,
        image_shape=facts.image_shape or None,
        observation_first=hp.observation_first,
        generator=torch.Generator().manual_seed(seed_of("embedder weights", seed)),
    )
    n = hp.window(facts.horizon)
    sequence = make_sequence_model(hp.sequence, embedder.width, context=n + 1, slides=n < facts.horizon, seed=seed)
    # A recurrent state that is rounded at each of a thousand steps would remember less than the published one: `Learner.products`.
    recurrent = hp.precision == "auto" and hp.sequence.kind != "gpt"
    return HistoryEncoder(embedder, sequence, precision="tf32" if recurrent else hp.precision)


def make_history_network(
    hp: OffPolicyHyperparameters, facts: Facts, outputs: int, *, last_range: float, draws: str, seed: int
) -> HistoryNetwork:
    """A history encoder and a head for an environment; `draws` names the stream of the head's first weights."""
    encoder = make_encoder(hp, facts, seed=seed)
    generator = torch.Generator().manual_seed(seed_of(draws, seed))
    head = Head(encoder.output_width, outputs, hp.head, last_range=last_range, fan=hp.head_fan, generator=generator)
    return HistoryNetwork(encoder, head)
