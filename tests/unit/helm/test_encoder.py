"""Our encoder is the one of transformers: same weights, same states."""

import pytest
import torch

from recollect.helm.language.encoder import Encoder

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


@pytest.mark.parametrize("last", [False, True])
def test_padding_that_is_computed_too_changes_nothing_and_the_host_is_asked_nothing(last):
    _, encoder = pair("bert")
    x = torch.randn(4, 9, 16, generator=torch.Generator().manual_seed(1))
    lengths_B = torch.tensor([1, 9, 4, 6])
    for packed, whole in zip(
        encoder.read(x, lengths_B, last=last)[1], encoder.read(x, lengths_B, last=last, packed=False)[1], strict=True
    ):
        real = torch.ones_like(packed, dtype=torch.bool)
        if packed.shape[2] > 1:
            real = real & (torch.arange(9) < lengths_B[:, None])[:, None, :, None]
        torch.testing.assert_close(whole[real], packed[real], rtol=0, atol=1e-5)
    states, whole_states = (encoder.read(x, lengths_B, last=last, packed=packed)[0] for packed in (True, False))
    torch.testing.assert_close(whole_states, states, rtol=0, atol=1e-5)
    meta = Encoder(
        {name: value.to("meta") for name, value in pair("bert")[0].state_dict().items()}, heads=4, norm_eps=1e-6
    )
    assert meta.read(x.to("meta"), lengths_B.to("meta"), last=last, packed=False)[0].shape == states.shape


def test_matrices_in_bfloat16_move_states_little():
    model, encoder = pair("bert")
    half = Encoder(model.state_dict(), heads=4, norm_eps=1e-6, dtype=torch.bfloat16)
    x, lengths_B = torch.randn(4, 9, 16, generator=torch.Generator().manual_seed(1)), torch.tensor([1, 9, 4, 6])
    expected, found = encoder.read(x, lengths_B)[0], half.read(x, lengths_B)[0]
    assert found.dtype == torch.float32 and 0 < (found - expected).norm() / expected.norm() < 0.02
