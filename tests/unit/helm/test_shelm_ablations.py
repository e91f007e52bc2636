"""SHELM's ablations: an LSTM that is trained to read its words, and eyes that were never trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fake_worlds
import numpy as np
import pandas as pd
import pytest
import torch

from recollect.artifacts.run import Run
from recollect.common.contract import Inputs, Traced
from recollect.common.distinct_images import DistinctImages
from recollect.common.learning_curve import world_of
from recollect.evaluation.episodic import evaluate
from recollect.helm import ppo_lstm, shelm, shelm_lstm
from recollect.helm.language_history import channels_first
from recollect.helm.on_policy import OnPolicyTrainer
from recollect.helm.vision.clip import SHAPES, Clip
from recollect.helm.vision.untrained import forget
from recollect.helm.vision.vision_language import preprocessed
from recollect.settings.errors import UserError
from recollect.settings.resolve import resolve
from recollect.settings.schema import EnvironmentSettings, EvaluationSettings, MethodSettings, Settings


@pytest.fixture(autouse=True)
def signals(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    fake_worlds.install(monkeypatch)
    monkeypatch.chdir(root)  # the names of models are read from the repository's configuration


def settings_of(module: Any = shelm_lstm, world: str = "signal", **chosen: Any) -> Settings:
    environment = EnvironmentSettings(
        name=world,
        world=world,
        options={"height": 9, "width": 9} if world == "signal" else {},
        evaluation=EvaluationSettings(protocol="episodic", episodes=6),
    )
    small = {"channel_scale": 1, "width": 16, "actor": 8, "critic": 8, "log_every": 1, "steps": 64, "actors": 4}
    lstm = {"units": 8, "sequences": 3} if module is shelm_lstm else {"memory_length": 6}
    own = {"language_model": "random", "token_vocabulary": "random", "topk": 2, "rollout": 4, "batches": 4, **lstm}
    hp = module.Hyperparameters(**{**small, **own, **chosen})
    name = module.__name__.rpartition(".")[2]
    method = MethodSettings(name=name, algorithm=name, data="online", hyperparameters=hp)
    return Settings(scale="smoke", seed=0, environment=environment, method=method)


def trainer_of(inputs: Inputs, **chosen: Any) -> OnPolicyTrainer:
    return shelm_lstm.make_trainer(settings_of(**chosen), inputs)


def images_of(seed: int = 0, count: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3, 9, 9), dtype=np.uint8)


def test_the_lstm_reads_shelms_words_and_the_heads_its_output_in_front_of_the_features(inputs: Inputs) -> None:
    agent: Any = trainer_of(inputs).agent
    of_shelm: Any = shelm.make_trainer(settings_of(shelm), inputs).agent
    words_BKD = of_shelm.history.reader(images_of())
    agent.start(5)
    agent.see(images_of(1))
    agent.act()
    hidden_BU, cell_BU = agent.record()["hidden"], agent.record()["cell"]
    agent.see(images_of())
    torch.testing.assert_close(agent.record()["words"], words_BKD.flatten(1))
    network = agent.network
    with torch.no_grad():
        output_1BU, _ = network.lstm(words_BKD.flatten(1)[None], (hidden_BU[None], cell_BU[None]))
        features_BW = network.encoder(torch.from_numpy(images_of()))
        log_BA, value_B = network.heads(torch.cat([output_1BU[0], features_BW], 1))
    found = agent.act()
    np.testing.assert_allclose(found[0], log_BA, atol=1e-6)
    np.testing.assert_allclose(found[1], value_B, atol=1e-6)


def test_minibatches_are_the_steps_as_they_were_played(inputs: Inputs) -> None:
    """With the weights that played each moment's log-probability and value come out again, also filled up as on a GPU."""
    trainer = trainer_of(inputs, rollout=8, actors=5)
    trainer._play()  # so that states at the start of a rollout are not zero
    moments, done_TE = trainer._play()
    assert done_TE.any() and not done_TE.all()
    agent: Any = trainer.agent
    images, draws = DistinctImages(moments["image"]), np.random.default_rng
    seen: list[int] = []
    with torch.no_grad():
        passed = list(agent.epoch(images, moments, done_TE, 1, draws(0)))
        for rows, log, value in passed:
            seen += rows.tolist()
            chosen = log.gather(1, moments["action"][rows][:, None])[:, 0]
            np.testing.assert_allclose(chosen, moments["log"][rows], atol=1e-6)
            np.testing.assert_allclose(value, moments["value"][rows], atol=1e-6)
        for minibatch, (_, log, _) in zip(agent.minibatches(done_TE, 1, draws(0)), passed, strict=True):
            filled, _ = agent.of_minibatch(images, moments, minibatch)
            np.testing.assert_allclose(filled[minibatch.there.flatten()], log, atol=1e-6)
    assert sorted(seen) == list(range(40))


def test_a_value_that_is_only_asked_for_is_of_the_words_that_would_be_read_and_changes_nothing(inputs: Inputs) -> None:
    agent: Any = trainer_of(inputs).agent
    agent.start(5)
    agent.see(images_of())
    agent.act()
    before = {name: value.clone() for name, value in agent.record().items()}
    peeked = agent.value(images_of(1))
    assert all(torch.equal(value, before[name]) for name, value in agent.record().items())
    agent.see(images_of(1))
    np.testing.assert_allclose(agent.act()[1], peeked, atol=1e-6)


def test_updates_train_network_and_lstm_and_no_words(inputs: Inputs) -> None:
    trainer = trainer_of(inputs)
    embeddings_VD = trainer.agent.reader.embeddings_VD.clone()  # type: ignore[attr-defined]
    before = {name: value.detach().clone() for name, value in trainer.agent.network.named_parameters()}
    moments, done_TE = trainer._play()
    assert not moments["words"].requires_grad and moments["words"].shape == (16, 2 * embeddings_VD.shape[1])
    trainer.rollouts += 1
    trainer._learn(moments, done_TE)
    after = dict(trainer.agent.network.named_parameters())
    assert any(name.startswith("lstm.") for name in after)
    assert not any(torch.equal(value, after[name]) for name, value in before.items())
    assert torch.equal(embeddings_VD, trainer.agent.reader.embeddings_VD)  # type: ignore[attr-defined]


def test_a_stopped_run_goes_on_bit_exactly_and_its_policy_scores_alike_when_loaded(
    inputs: Inputs, tmp_path: Path
) -> None:
    settings = settings_of()

    def run_in(name: str) -> Run:
        return Run(tmp_path / name, tmp_path / name / "checkpoints", settings_text="same")

    straight = shelm_lstm.train(settings, inputs, run_in("straight"))
    for stop in (1, 3):
        first, run = shelm_lstm.make_trainer(settings, inputs), run_in(f"stopped_{stop}")
        while first.rollouts < stop:
            first.advance(run)
        run.save(first.steps, *first.saved())
        first.advance(run)  # work that is lost
        again = run_in(f"stopped_{stop}")
        policy = shelm_lstm.train(settings, inputs, again)
        assert again.resumed
        for name, value in straight.arrays().items():
            assert policy.arrays()[name].tobytes() == value.tobytes(), (stop, name)
    loaded = shelm_lstm.load_policy(settings, straight.arrays(), inputs)
    tables = [evaluate(each, settings.environment, method="m", seed=0, step=1) for each in (straight, loaded)]
    pd.testing.assert_frame_equal(*tables)


def test_pages_show_the_words_that_were_read(inputs: Inputs) -> None:
    settings = settings_of()
    policy = shelm_lstm.load_policy(settings, shelm_lstm.make_trainer(settings, inputs).agent.learned(), inputs)
    assert isinstance(policy, Traced)
    policy.start(np.arange(5, dtype=np.uint64), 3, 1)
    policy.act(images_of(), np.zeros(5, np.float32), np.zeros(5, bool))
    agent: Any = policy.agent
    facts = policy.traced(np.array([0, 3]))
    assert facts["tokens"].shape == facts["token_scores"].shape == (2, 2)
    words_KD = agent.reader.embeddings_VD[torch.from_numpy(facts["tokens"][1])]
    assert torch.equal(words_KD.flatten(), agent.record()["words"][3])
    assert policy.words([41, 7]) == [agent.vocabulary[41], agent.vocabulary[7]] and policy.maps(np.array([0])) == {}


def test_images_that_were_read_come_back_with_a_runs_state(inputs: Inputs) -> None:
    """What the eyes make of an image can differ in the last bit from what they made of it beside others."""
    agent: Any = trainer_of(inputs).agent
    agent.start(5)
    agent.see(images_of())
    again: Any = trainer_of(inputs).agent
    looked: list[int] = []
    again.reader.cache.function = lambda images: looked.append(len(images))
    again.load(agent.arrays(), images_of())
    assert not looked and torch.equal(again.record()["words"], agent.record()["words"])


def test_words_of_another_language_model_and_worlds_without_images_are_refused(inputs: Inputs) -> None:
    with pytest.raises(UserError, match="words are of the language model 'random'"):
        trainer_of(inputs, language_model="minilm")
    with pytest.raises(UserError, match="see images, and this world shows none"):
        trainer_of(inputs, world="dark_room")


# ---- untrained eyes


def test_shelm_with_untrained_eyes_reads_the_same_words_otherwise_chosen(inputs: Inputs) -> None:
    trained, one, same, other = (
        shelm.make_trainer(settings_of(shelm, untrained_images=seed), inputs).agent.history.reader  # type: ignore[union-attr, attr-defined]
        for seed in (None, 0, 0, 1)
    )
    images = images_of(count=40)
    chosen = [reader(images) for reader in (trained, one, same, other)]
    assert torch.equal(chosen[1], chosen[2])
    assert not any(torch.equal(chosen[1], chosen[n]) for n in (0, 3))
    assert torch.equal(trained.vocabulary.embeddings_VW, one.vocabulary.embeddings_VW)


@pytest.mark.parametrize("network", sorted(SHAPES))
def test_an_untrained_clip_is_drawn_as_pytorch_and_clips_code_would(network: str) -> None:
    """Deviations of every kind of weight; texts keep theirs."""
    with torch.device("meta"):
        clip = Clip(SHAPES[network])
    clip = clip.to_empty(device="cpu")
    for value in clip.state_dict().values():
        value.fill_(7)
    state = torch.random.get_rng_state()
    forget(clip.visual, 0)
    assert torch.equal(state, torch.random.get_rng_state())
    assert all((value == 7).all() for name, value in clip.state_dict().items() if not name.startswith("visual."))
    weights = {name: value.float() for name, value in clip.visual.state_dict().items()}
    assert not any((value == 7).all() for value in weights.values())
    norms = [name for name in weights if "ln_" in name or "bn" in name or "downsample.1" in name]
    assert norms and all(weights[name].unique().numel() == 1 for name in norms)
    if network == "clip_vit_b16":
        expected = {
            "conv1.weight": (3 * 3 * 16 * 16) ** -0.5,
            "class_embedding": 768**-0.5,
            "positional_embedding": 768**-0.5,
            "proj": 768**-0.5,
            "transformer.resblocks.3.mlp.c_fc.weight": (3 * 768) ** -0.5,
            "transformer.resblocks.3.mlp.c_proj.weight": (3 * 4 * 768) ** -0.5,
            "transformer.resblocks.3.attn.in_proj_weight": (2 / (768 + 3 * 768)) ** 0.5,
            "transformer.resblocks.3.attn.out_proj.weight": (3 * 768) ** -0.5,
        }
    else:
        expected = {
            "conv2.weight": (3 * 32 * 9) ** -0.5,
            "layer2.0.conv2.weight": (3 * 128 * 9) ** -0.5,
            "attnpool.positional_embedding": 2048**-0.5,
            "attnpool.c_proj.weight": (3 * 2048) ** -0.5,
        }
    for name, deviation in expected.items():
        assert float(weights[name].std()) == pytest.approx(deviation, rel=0.08), name


@pytest.mark.slow
@torch.inference_mode()
def test_an_untrained_clip_hardly_tells_images_apart() -> None:
    """As docs/helm.md says of 39 images of MiniGrid-Memory; random directions stand for words."""
    world = world_of(resolve("paper", "mini_grid_MemoryS11", "shelm", 0).environment, "train", "x", 0, 4)
    draws, (observation, _) = np.random.default_rng(0), world.reset()
    frames = []
    for _ in range(60):
        frames.append(observation)
        action = draws.integers(world.single_action_space.n, size=4)  # type: ignore[attr-defined]
        observation, _, terminated, truncated, _ = world.step(action)
        if (terminated | truncated).any():
            observation, _ = world.reset(options={"reset_mask": terminated | truncated})
    images = np.unique(np.concatenate(frames), axis=0)
    with torch.device("meta"):
        clip = Clip(SHAPES["clip_vit_b16"])
    clip = clip.to_empty(device="cpu").eval()
    forget(clip.visual, 0)
    fitted = preprocessed(channels_first(images).float() / 255, 224, "crop")
    seen_NW = torch.cat([clip.visual(part) for part in fitted.split(4)])
    assert len(images) == 39
    for words, distinct in ((5_000, 2), (13_000, 1)):
        word_VW = torch.randn(words, 512, generator=torch.Generator().manual_seed(1))
        word_VW = torch.nn.functional.normalize(word_VW, dim=1)
        assert len((seen_NW @ word_VW.T).argmax(1).unique()) == distinct


def test_lstm_ppo_itself_reads_features_alone(inputs: Inputs) -> None:
    settings = settings_of()
    hp = ppo_lstm.Hyperparameters(**{n: getattr(settings.method.hyperparameters, n) for n in ("width", "units")})
    method = settings.method.model_copy(update={"hyperparameters": hp, "algorithm": "ppo_lstm"})
    agent = ppo_lstm.make_trainer(settings.model_copy(update={"method": method}), inputs).agent
    assert agent.network.lstm.input_size == 16 and agent.network.actor.hidden.in_features == 8
