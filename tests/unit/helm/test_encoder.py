"""Our encoder is the one of transformers: same weights, same states."""

import pytest
import torch

from recollect.helm.encoder import Encoder

SHAPE = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "layer_norm_eps": 1e-6,
}


def pair(kind: str):
    """A model of transformers with lively random weights, and ours with the same."""
    from transformers import BertConfig, BertModel, RobertaConfig, RobertaModel

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = BertModel(BertConfig(**SHAPE)) if kind == "bert" else RobertaModel(RobertaConfig(**SHAPE))
        for weight in model.parameters():
            weight.data.normal_(0.0, 0.3)
    model = model.eval().requires_grad_(False)
    return model, Encoder(model.state_dict(), heads=4, norm_eps=1e-6, first_position=2 if kind == "roberta" else 0)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_states_are_those_of_transformers_with_padding_and_without(kind):
    model, encoder = pair(kind)
    x = torch.randn(4, 9, 16, generator=torch.Generator().manual_seed(1))
    for lengths in ([9, 9, 9, 9], [1, 9, 4, 6]):
        lengths_B = torch.tensor(lengths)
        mask_BT = torch.arange(9) < lengths_B[:, None]
        positions = torch.arange(9) + (2 if kind == "roberta" else 0)
        expected = model(inputs_embeds=x, attention_mask=mask_BT.long(), position_ids=positions[None]).last_hidden_state
        states, maps = encoder.read(x, lengths_B)
        torch.testing.assert_close(states[mask_BT], expected[mask_BT], rtol=0, atol=2e-5)
        assert (states[~mask_BT] == 0).all()
        newest, newest_maps = encoder.read(x, lengths_B, last=True)
        torch.testing.assert_close(newest[:, 0], expected[torch.arange(4), lengths_B - 1], rtol=0, atol=2e-5)
        assert [tuple(m.shape) for m in newest_maps] == [(4, 4, 9, 9), (4, 4, 9, 9), (4, 4, 1, 9)]
        torch.testing.assert_close(newest_maps[2][:, :, 0], maps[2][torch.arange(4), :, lengths_B - 1])


def test_padding_is_never_attended_to():
    _, encoder = pair("bert")
    x = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(1))
    lengths_B = torch.tensor([3, 6])
    _, maps = encoder.read(x, lengths_B)
    assert all((m[0, :, :3, 3:] == 0).all() for m in maps)
    changed = x.clone()
    changed[0, 3:] = float("nan")
    assert torch.equal(encoder.read(changed, lengths_B)[0], encoder.read(x, lengths_B)[0])
