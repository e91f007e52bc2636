"""HELM, HELMv2 and SHELM: what images become, that nothing frozen is trained, and that a stopped run goes on exactly."""

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
from recollect.environments.registry import tasks as tasks_of
from recollect.evaluation import rollouts
from recollect.evaluation.episodic import evaluate, play_split
from recollect.figures.input_distances import distances
from recollect.helm import eyes, helm, helmv2, shelm
from recollect.helm.eyes import Features, Pixels
from recollect.helm.language import language_memory as memories
from recollect.helm.on_policy import OnPolicyTrainer
from recollect.helm.vision.vision_language import RandomModel
from recollect.settings.errors import UserError
from recollect.settings.schema import EnvironmentSettings, EvaluationSettings, MethodSettings, Settings

MODULES: dict[str, Any] = {"helm": helm, "helmv2": helmv2, "shelm": shelm}
OWN: dict[str, dict[str, Any]] = {
    "helm": {},
    "helmv2": {"vision_language_model": "random"},
    "shelm": {"token_vocabulary": "random", "topk": 2},
}
TINY = {"channel_scale": 1, "width": 16, "actor": 8, "critic": 8, "log_every": 1}
METHODS = sorted(MODULES)


@pytest.fixture(autouse=True)
def signals(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    fake_worlds.install(monkeypatch)
    monkeypatch.chdir(root)  # the names of models are read from the repository's configuration


def settings_of(method: str, seed: int = 0, **chosen: Any) -> Settings:
    environment = EnvironmentSettings(
        name="signal",
        world="signal",
        options={"height": 9, "width": 9},
        evaluation=EvaluationSettings(protocol="episodic", episodes=6),
    )
    small: dict[str, Any] = {**TINY, "steps": 64, "actors": 4, "rollout": 4, "batches": 4, **OWN[method], **chosen}
    if method != "shelm":
        small = {"mem_len": "config", **small}
    hp = MODULES[method].Hyperparameters(**{"language_model": "random", "memory_length": 6, **small})
    shell = MethodSettings(name=method, algorithm=method, data="online", hyperparameters=hp)
    return Settings(scale="smoke", seed=seed, environment=environment, method=shell)


def trainer_of(method: str, inputs: Inputs, **chosen: Any) -> OnPolicyTrainer:
    return MODULES[method].make_trainer(settings_of(method, **chosen), inputs)


def images_of(seed: int = 0, count: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3, 9, 9), dtype=np.uint8)


def run_in(folder: Path) -> Run:
    return Run(folder, folder / "checkpoints", settings_text="same")


# ---- what images become


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_helm_mixes_words_by_the_formula_of_the_specification(similarity: str, inputs: Inputs) -> None:
    reader = trainer_of("helm", inputs, beta=10.0, similarity=similarity).agent.history.reader
    images = images_of()
    images[3] = 0
    E, P = reader.hopfield.embeddings_VD.double(), reader.hopfield.projection_DI.double()
    for image, mixed in zip(images, reader(images)[:, 0], strict=True):
        q = P @ torch.from_numpy(image.astype(np.float64) / 255).mean(0).flatten()
        norms = [q.norm() * e.norm() + 1e-8 if similarity == "cosine" else 1.0 for e in E]
        alike = torch.stack([(q @ e) / norm for e, norm in zip(E, norms, strict=True)])
        torch.testing.assert_close(mixed.double(), (10 * alike).softmax(0) @ E, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(reader(images)[3, 0], E.mean(0).float(), atol=1e-5, rtol=1e-4)  # a black image
    found = reader.traced(np.array([3, 1]))
    weights = reader.hopfield.weights(reader.eyes.prepare(images[[1]]))[0]
    assert found["tokens"][1, 0] == int(weights.argmax())
    assert found["token_scores"][1, 0] == pytest.approx(float(weights.max()))
    assert found["token_entropy"][0] == pytest.approx(np.log(len(E)), rel=1e-4)
    assert found["token_entropy"][1] == pytest.approx(-float((weights * weights.log()).sum()), rel=1e-4)


def test_a_seed_has_a_random_matrix_of_its_own(inputs: Inputs) -> None:
    one, same, other = (
        trainer_of("helm", inputs, seed=seed).agent.history.reader.hopfield.projection_DI for seed in (0, 0, 1)
    )
    assert torch.equal(one, same) and not (one == other).any()


def test_images_with_channels_last_are_averaged_over_their_first_axis_as_released() -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 6, 5, 3), dtype=np.uint8)
    pixels = Pixels((6, 5, 3), "cpu")
    np.testing.assert_allclose(pixels.prepare(images), images.mean(1).reshape(2, 15) / 255, rtol=1e-5)
    assert pixels.width == 15


def test_helmv2_gives_features_the_mean_and_spread_of_the_embeddings(inputs: Inputs) -> None:
    reader = trainer_of("helmv2", inputs).agent.history.reader
    x = reader(images_of(count=7), learn=True)[:, 0]
    E = reader.rescaling.target_mean_W, reader.rescaling.target_std_W
    torch.testing.assert_close(x.mean(0), E[0], atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(x.std(0), E[1], atol=1e-4, rtol=1e-3)


def test_features_as_wide_as_the_embeddings_are_not_mixed_up(inputs: Inputs) -> None:
    E = torch.randn(50, 32, generator=torch.Generator().manual_seed(0))
    model, images = RandomModel(32, 0, "cpu"), images_of()
    same = helmv2.FeatureReader(Features(model), E, "batch", seed=0, frames=9)
    assert same.matrix_WD is None
    torch.testing.assert_close(same.cache(images), model.images(torch.from_numpy(images)))
    wider = helmv2.FeatureReader(Features(model), E[:, :20], "batch", seed=0, frames=9)
    assert wider(images, learn=False).shape == (5, 1, 20)


def test_helm_with_a_vision_language_model_mixes_words_by_the_features_of_images(inputs: Inputs) -> None:
    reader, images = trainer_of("helm", inputs, vision_language_model="random").agent.history.reader, images_of()
    features = reader.eyes.images(torch.from_numpy(images))
    torch.testing.assert_close(reader(images)[:, 0], reader.hopfield(features))
    heaviest = reader.hopfield.weights(features).argmax(1)
    assert reader.traced(np.arange(5))["tokens"][:, 0].tolist() == heaviest.tolist()


def test_helmv2_without_a_vision_language_model_reads_pixels_on_the_scale_of_words(inputs: Inputs) -> None:
    reader, images = trainer_of("helmv2", inputs, vision_language_model=None).agent.history.reader, images_of(count=7)
    pixels = torch.from_numpy(images.mean(1).reshape(7, 81) / 255).float()
    torch.testing.assert_close(reader.cache(images), pixels @ reader.matrix_WD)
    found = reader(images, learn=True)[:, 0]
    torch.testing.assert_close(found.mean(0), reader.rescaling.target_mean_W, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(found.std(0), reader.rescaling.target_std_W, atol=1e-4, rtol=1e-3)


def test_a_calibration_plays_the_tasks_of_training(inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    splits: list[str] = []
    known = helmv2.world_of
    monkeypatch.setattr(
        helmv2,
        "world_of",
        lambda environment, split, *rest: (splits.append(split), known(environment, split, *rest))[1],
    )
    trainer_of("helmv2", inputs, statistics="frozen", calibration=10)
    assert splits == ["train"]


def test_a_helmv2_policy_plays_alone_with_the_statistics_of_its_training(inputs: Inputs, tmp_path: Path) -> None:
    for statistics in ("batch", "running", "frozen"):
        settings = settings_of("helmv2", statistics=statistics, calibration=10, played_statistics="trained")
        trainer = helmv2.make_trainer(settings, inputs)
        seen: list[np.ndarray] = []
        reader = trainer.agent.history.reader
        before = reader.training_statistics.count
        features = reader.cache.function
        reader.cache.function = lambda images, features=features, seen=seen: (seen.append(images), features(images))[1]
        arrays = trainer.train(run_in(tmp_path / statistics))
        policy = helmv2.load_policy(settings, arrays, inputs)
        own = policy.agent.history.reader.rescaling  # type: ignore[union-attr]
        assert own.statistics == "frozen" and own.count == reader.training_statistics.count
        assert own.count == (12 if statistics == "frozen" else before + 64)  # 4 games: three steps, or the whole run
        policy.start(np.zeros(1, np.uint64), 3, 1)
        policy.act(images_of(count=1), np.zeros(1, np.float32), np.zeros(1, bool))
        assert np.isfinite(policy.traced(np.array([0]))["value"]).all()
        assert policy.arrays()["history/reader/count"] == own.count  # playing adds nothing


def test_a_helmv2_policy_is_played_as_it_was_trained_with_the_statistics_of_the_games_beside_it(
    inputs: Inputs, tmp_path: Path
) -> None:
    settings = settings_of("helmv2")
    arrays = helmv2.make_trainer(settings, inputs).train(run_in(tmp_path))
    trained = settings_of("helmv2", played_statistics="trained")
    assert helmv2.load_policy(trained, arrays, inputs).rows_at_once is None
    policy = helmv2.load_policy(settings, arrays, inputs)
    assert policy.rows_at_once == 3  # of six episodes, four games in training: two threes
    history: Any = policy.agent.history
    policy.start(np.zeros(6, np.uint64), 3, 1)
    policy.act(images_of(count=6), np.zeros(6, np.float32), np.zeros(6, bool))
    read, target = history._newest_BKD[:, 0], history.reader.rescaling
    torch.testing.assert_close(read.mean(0), target.target_mean_W, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(read.std(0), target.target_std_W, atol=1e-5, rtol=1e-3)
    assert all(np.array_equal(value, arrays[name]) for name, value in policy.arrays().items())
    evaluation = settings.environment.evaluation.model_copy(update={"episodes": 100})
    of_paper = settings.model_copy(
        update={"environment": settings.environment.model_copy(update={"evaluation": evaluation})}
    )
    sixteen = of_paper.method.hyperparameters.model_copy(update={"actors": 16})
    of_paper = of_paper.model_copy(update={"method": of_paper.method.model_copy(update={"hyperparameters": sixteen})})
    assert (
        helmv2.load_policy(of_paper, arrays, inputs).rows_at_once == 17
    )  # five times 17 and 15: about 16, as in training


def test_an_evaluation_of_helmv2_never_ends_with_a_game_that_has_no_other_beside_it(
    inputs: Inputs, tmp_path: Path
) -> None:
    """273 episodes are sixteen times 17 and one more, whose image alone has no spread."""
    settings = settings_of("helmv2", actors=16, steps=128)
    evaluation = settings.environment.evaluation.model_copy(update={"episodes": 273})
    environment = settings.environment.model_copy(update={"evaluation": evaluation})
    settings = settings.model_copy(update={"environment": environment})
    policy = helmv2.load_policy(settings, helmv2.make_trainer(settings, inputs).train(run_in(tmp_path)), inputs)
    assert 273 % policy.rows_at_once == 1
    only = tasks_of("signal", environment.options, "eval")
    _, scores = play_split(policy, environment, "eval", seed=0)
    steps = rollouts.episodic(policy, environment, only, None, seed=0, listed=len(only))  # plays in the same rounds
    assert steps["reward"].reshape(273, -1).sum(1).tolist() == scores.return_E.tolist()


def test_rows_are_played_at_once_as_their_memories_fit_and_at_small_scales_all(
    inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    history: Any = trainer_of("helm", inputs, language_model="random-transfo-xl").agent.history
    assert history.memory.row_bytes == sum(kv.nbytes for kv in history.memory.cache.layers) // 4
    assert history.rows_at_once > 10_000
    for slots, rows in ((511, 53), (1021 + 3, 26), (2045 + 3, 13)):
        monkeypatch.setattr(history.memory, "row_bytes", 4 * 2 * 18 * 16 * 64 * slots)
        assert history.rows_at_once == rows


def test_history_vectors_are_scaled_by_the_statistics_of_training(inputs: Inputs, tmp_path: Path) -> None:
    settings = settings_of("shelm", history_scale=0.5, memory_length=2)
    trainer = shelm.make_trainer(settings, inputs)
    history, raw = trainer.agent.history, []
    step = history.memory.step
    history.memory.step = lambda x: (raw.append(step(x)), raw[-1])[1]
    for seed in range(6):
        found = history.read(images_of(seed, 4))
    vectors = torch.cat([trainer_of("shelm", inputs, memory_length=2).agent._history_BH, *raw]).double()
    expected = 0.5 * (raw[-1] - vectors.mean(0)) / vectors.std(0)
    torch.testing.assert_close(found, expected.float(), rtol=0, atol=1e-4)
    before = history.learned()
    history.peek(images_of(9, 4))
    assert all(np.array_equal(value, before[name]) for name, value in history.learned().items())
    arrays = shelm.make_trainer(settings, inputs).train(run_in(tmp_path))
    policy = shelm.load_policy(settings, arrays, inputs)
    policy.start(np.zeros(1, np.uint64), 3, 1)
    policy.act(images_of(count=1), np.zeros(1, np.float32), np.zeros(1, bool))
    assert policy.arrays()["history/vectors/count"] == 4 + 64  # of training: playing alone adds nothing


def test_shelm_reads_the_words_most_like_an_image_best_first(inputs: Inputs) -> None:
    trainer = trainer_of("shelm", inputs)
    reader, memory = trainer.agent.history.reader, trainer.agent.history.memory
    images = images_of()
    vocabulary = reader.vocabulary
    cosines = torch.nn.functional.normalize(reader.model.images(torch.from_numpy(images)), dim=1)
    ranked = (cosines @ vocabulary.embeddings_VW.T).sort(1, descending=True)
    x = reader(images)
    assert x.shape == (5, 2, memory.width)
    for k in range(2):
        torch.testing.assert_close(x[:, k], memory.embeddings_VD[40 + ranked.indices[:, k]])
    found = reader.traced(np.array([4, 0]))
    np.testing.assert_array_equal(found["tokens"], 40 + ranked.indices[[4, 0], :2])
    np.testing.assert_allclose(found["token_scores"], ranked.values[[4, 0], :2], rtol=1e-4)


def test_words_of_another_language_model_are_refused(inputs: Inputs) -> None:
    with pytest.raises(UserError, match="words are of the language model 'random'"):
        trainer_of("shelm", inputs, language_model="minilm")


# ---- memory


def test_only_helm_and_helmv2_remember_511_as_released() -> None:
    for method in ("helm", "helmv2"):
        chosen = MODULES[method].Hyperparameters(memory_length=15)
        assert chosen.remembered == 511
        assert chosen.model_copy(update={"mem_len": "config"}).remembered == 15
    assert shelm.Hyperparameters(memory_length=15).remembered == 15


@pytest.mark.parametrize("method", METHODS)
def test_the_history_is_that_of_the_episode_alone(method: str, inputs: Inputs) -> None:
    chosen = {"statistics": "frozen"} if method == "helmv2" else {}
    history = trainer_of(method, inputs, **chosen).agent.history
    frames = [images_of(seed, 2) for seed in range(4)]
    history.start(2)
    for t in range(3):
        if t == 2:
            history.reset(np.array([False, True]))
        together = history.read(frames[t])
    peeked = history.peek(frames[3])
    again = history.read(frames[3])
    torch.testing.assert_close(peeked, again)
    history.start(1)
    alone = history.read(frames[2][1:])
    torch.testing.assert_close(alone[0], together[1], atol=1e-4, rtol=1e-3)
    history.start(1)
    for t in range(4):
        alone = history.read(frames[t][:1])
    torch.testing.assert_close(alone[0], again[0], atol=1e-4, rtol=1e-3)
    assert (again[0] - again[1]).abs().max() > 1e-3


def test_what_an_agent_has_read_comes_back_with_its_state(inputs: Inputs) -> None:
    agents = [trainer_of("helm", inputs).agent for _ in range(3)]
    agent, again = agents[:2]
    for one in agents:
        one.start(5)
    agent.see(images_of())
    again.load_state({name: torch.as_tensor(value).clone() for name, value in agent.state_arrays().items()})
    for one in agents:
        one.see(images_of()[::-1].copy())
    expected, found, other = (one.act()[0] for one in agents)
    np.testing.assert_array_equal(found, expected)
    assert not np.array_equal(other, expected)


def test_images_that_only_a_value_is_asked_of_are_not_remembered(inputs: Inputs) -> None:
    """As those behind a time limit."""
    agents: list[Any] = [trainer_of("helm", inputs).agent for _ in range(3)]
    asked, other, seeing = agents
    seeing.see(images_of(1, 4))
    np.testing.assert_allclose(asked.value(images_of(1, 4)), seeing.act()[1], atol=1e-5)
    for agent in agents:
        agent.see(images_of(2, 4))
    torch.testing.assert_close(asked._history_BH, other._history_BH)
    assert (asked._history_BH - seeing._history_BH).abs().max() > 1e-3


# ---- training


@pytest.mark.parametrize("method", METHODS)
def test_updates_train_the_network_and_nothing_that_is_frozen(
    method: str, inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of(method, inputs)
    history = trainer.agent.history
    embeddings = history.memory.embeddings_VD.clone()
    trained = {id(p) for p in trainer.optimiser.parameters}
    assert trained == {id(p) for p in trainer.agent.network.parameters()}
    moments, done_TE = trainer._play()
    assert not moments["history"].requires_grad and moments["history"].shape == (16, history.width)
    monkeypatch.setattr(type(history), "read", lambda *_: pytest.fail("an update ran the language model"))
    monkeypatch.setattr(type(history), "peek", lambda *_: pytest.fail("an update ran the language model"))
    before = [p.detach().clone() for p in trainer.agent.network.parameters()]
    trainer.rollouts += 1
    trainer._learn(moments, done_TE)
    assert all(not torch.equal(a, b) for a, b in zip(before, trainer.agent.network.parameters(), strict=True))
    assert torch.equal(embeddings, history.memory.embeddings_VD)


@pytest.mark.parametrize("method", METHODS)
def test_stored_history_vectors_are_those_that_were_acted_on(method: str, inputs: Inputs) -> None:
    trainer = trainer_of(method, inputs)
    trainer._play()
    moments, _ = trainer._play()
    with torch.no_grad():
        log, value = trainer.agent.network(moments["image"], moments["history"])
    chosen = log.gather(1, moments["action"][:, None])[:, 0]
    torch.testing.assert_close(chosen, moments["log"], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(value, moments["value"], atol=1e-5, rtol=1e-4)


@pytest.mark.quick("helmv2-{'history_scale': 0.3}")
@pytest.mark.parametrize(
    ("method", "chosen"),
    [
        *[(method, {"history_scale": scale}) for method in METHODS for scale in (None, 0.3)],
        ("helm", {"language_model": "random-transfo-xl"}),  # of its ring a checkpoint holds what was written
        ("helm", {"vision_language_model": "random"}),
        ("helmv2", {"vision_language_model": None}),
    ],
    ids=str,
)
def test_a_stopped_run_goes_on_bit_exactly(method: str, chosen: dict[str, Any], inputs: Inputs, tmp_path: Path) -> None:
    settings, module = settings_of(method, **chosen), MODULES[method]
    straight = run_in(tmp_path / "straight")
    expected = module.train(settings, inputs, straight).arrays()
    for stop in (1, 3):
        folder = tmp_path / f"stopped_{stop}"
        first, run = module.make_trainer(settings, inputs), run_in(folder)
        while first.rollouts < stop:
            first.advance(run)
        run.save(first.steps, *first.saved())
        first.advance(run)  # work that is lost
        again = run_in(folder)
        policy = module.train(settings, inputs, again)
        assert again.resumed
        for name, value in expected.items():
            assert policy.arrays()[name].tobytes() == value.tobytes(), (stop, name)
        pd.testing.assert_frame_equal(again.table(), straight.table())


# ---- the policy


@pytest.mark.parametrize("method", METHODS)
def test_a_policy_is_loaded_scored_and_traced(method: str, inputs: Inputs, tmp_path: Path) -> None:
    settings = settings_of(method, memory_length=5)  # of the oldest of SHELM's steps it remembers one word of two
    policy = MODULES[method].train(settings, inputs, run_in(tmp_path))
    again = MODULES[method].load_policy(settings, policy.arrays(), inputs)
    tables = [evaluate(each, settings.environment, method=method, seed=0, step=1) for each in (policy, again)]
    pd.testing.assert_frame_equal(*tables)
    assert isinstance(policy, Traced)
    policy.start(np.arange(5, dtype=np.uint64), 3, 1)
    action = policy.act(images_of(), np.zeros(5, np.float32), np.zeros(5, bool))
    facts = policy.traced(np.array([0, 3]))
    assert facts["action"].tolist() == action[[0, 3]].tolist() and facts["outputs"].shape == (2, 2)
    words = {"helm": (2, 4), "helmv2": None, "shelm": (2, 2)}[method]
    assert (facts["tokens"].shape == facts["token_scores"].shape == words) if words else "tokens" not in facts
    history, maps = policy.agent.history, policy.maps(np.array([0, 3]))
    read = 2 if method == "shelm" else 1
    np.testing.assert_array_equal(maps["inputs"], history.reader(images_of(), learn=False)[[0, 3]])  # type: ignore[union-attr, attr-defined]
    assert maps["history_attention"].shape == (2, 2, -(-5 // read))
    seen = maps["history_attention"].astype(float).sum(2)  # the rest is on what stands in front of the window
    assert (seen > 0.1).all() and (seen < 1.005).all() and not maps["history_attention"][:, :, :-1].any()
    if words:
        names = history.memory.vocabulary  # type: ignore[union-attr, attr-defined]
        assert policy.words([41, 7]) == [names[41], names[7]]


def test_distances_of_traced_inputs_are_those_of_what_was_read_at_small_beta(inputs: Inputs) -> None:
    """There all images become nearly the mean word, and little tells apart those that differ in a few pixels."""
    history: Any = trainer_of("helm", inputs, beta=1.0).agent.history
    images = np.repeat(images_of(count=1), 5, 0)
    for n, image in enumerate(images):
        image[:, :n] = 0
    history.start(5)
    history.read(images)
    traced = distances(history.maps(np.arange(5))["inputs"])
    np.testing.assert_allclose(traced, distances(history.reader(images).numpy()), rtol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_rows_of_a_policy_do_not_depend_on_each_other(method: str, inputs: Inputs, tmp_path: Path) -> None:
    policy = MODULES[method].train(
        settings_of(method, **({"played_statistics": "trained"} if method == "helmv2" else {})),
        inputs,
        run_in(tmp_path),
    )
    draws = np.random.default_rng(0)
    images = draws.integers(0, 256, (6, 4, 3, 9, 9), dtype=np.uint8)
    done_TB = draws.random((6, 4)) < 0.25
    seeds = np.arange(10, 14, dtype=np.uint64)

    def played(rows: list[int]) -> tuple[np.ndarray, np.ndarray]:
        policy.start(seeds[rows], 6, 1)
        actions, values = [], []
        for t in range(6):
            actions.append(policy.act(images[t, rows], np.zeros(len(rows), np.float32), done_TB[t, rows]))
            values.append(policy.traced(np.arange(len(rows)))["value"])
        return np.stack(actions), np.stack(values)

    actions, values = played([0, 1, 2, 3])
    for rows in ([2], [3, 0]):
        alone = played(rows)
        np.testing.assert_array_equal(actions[:, rows], alone[0])
        np.testing.assert_allclose(values[:, rows], alone[1], atol=1e-4)


def test_the_language_model_is_the_one_that_the_settings_name(inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    real = memories.language_memory
    monkeypatch.setattr(
        "recollect.helm.language_history.language_memory",
        lambda name, **chosen: (asked.update(chosen, name=name), real(name, **chosen))[1],
    )
    own: dict[str, Any] = {"language_precision": "bfloat16", "language_graph": False, "pooling": "last"}
    trainer_of("shelm", inputs, layers=1, topk=4, memory_length=9, **own)
    expected = {"name": "random", "layers": 1, "batch_tokens": 4, "memory_length": 9, "model": None, "pooling": "last"}
    expected |= {"precision": "bfloat16", "graphed": False}
    assert {name: asked[name] for name in expected} == expected


@pytest.mark.parametrize(("method", "module"), [("helmv2", eyes), ("shelm", shelm)])
def test_images_are_seen_as_the_runs_scale_says(
    method: str, module: Any, inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run's provenance has what its scale says of the vision-language model."""
    asked: list[tuple[Any, ...]] = []
    known = module.vision_language_model
    monkeypatch.setattr(
        module, "vision_language_model", lambda *given, **rest: (asked.append(given), known(*given, **rest))[1]
    )
    trainer_of(method, inputs)
    assert asked == [("random", "smoke")]


def test_words_are_mixed_in_the_precision_that_is_set(inputs: Inputs) -> None:
    for precision, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        history: Any = trainer_of("helm", inputs, mixture_precision=precision).agent.history
        assert history.reader.hopfield._table_VD.dtype == dtype


@pytest.mark.parametrize("method", METHODS)
def test_a_world_without_images_is_refused_before_anything_is_made_of_them(method: str, inputs: Inputs) -> None:
    settings = settings_of(method, **({"statistics": "frozen"} if method == "helmv2" else {}))
    room = settings.environment.model_copy(update={"world": "dark_room", "options": {}})
    with pytest.raises(UserError, match="HELM and its baselines see images, and this world shows none"):
        MODULES[method].make_trainer(settings.model_copy(update={"environment": room}), inputs)


@pytest.mark.parametrize("statistics", ["batch", "running"])
def test_images_that_only_a_value_is_asked_of_are_in_no_statistics(statistics, inputs):
    history = trainer_of("helmv2", inputs, statistics=statistics).agent.history
    before = history.learned()
    history.peek(images_of(9, 4))
    after = history.learned()
    assert before.keys() == after.keys() and before
    assert all(np.array_equal(before[name], after[name]) for name in before)
    history.read(images_of(9, 4))
    assert after["reader/count"] + 4 == history.learned()["reader/count"]


def test_a_seed_has_a_projection_of_features_of_its_own(inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eyes, "vision_language_model", lambda *name, **given: RandomModel(7, 0, "cpu"))
    one, same, other = (trainer_of("helmv2", inputs, seed=seed).agent.history.reader.matrix_WD for seed in (0, 0, 1))
    assert one is not None and torch.equal(one, same) and not (one == other).any()


def test_a_calibration_plays_at_random_by_its_seed_and_begins_ended_episodes_anew(
    inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, ended, begun = list[np.ndarray](), list[np.ndarray](), list[Any]()
    known = helmv2.world_of

    def watched(*given: Any) -> Any:
        world = known(*given)
        step, reset = world.step, world.reset

        def stepped(actions: np.ndarray) -> Any:
            found = step(actions)
            taken.append(actions)
            if (found[2] | found[3]).any():
                ended.append(found[2] | found[3])
            return found

        def again(**options: Any) -> Any:
            if options:
                begun.append(options["options"]["reset_mask"])
            return reset(**options)

        monkeypatch.setattr(world, "step", stepped)
        monkeypatch.setattr(world, "reset", again)
        return world

    monkeypatch.setattr(helmv2, "world_of", watched)
    for seed in (0, 0, 1):
        trainer_of("helmv2", inputs, seed=seed, statistics="frozen", calibration=80)
    assert ended and len(begun) == len(ended)
    assert all(np.array_equal(one, other) for one, other in zip(begun, ended, strict=True))
    one, same, other = np.stack(taken).reshape(3, 20, 4)
    assert np.array_equal(one, same) and not np.array_equal(one, other)


@pytest.mark.parametrize("method", METHODS)
def test_as_many_images_are_kept_as_the_settings_say(method: str, inputs: Inputs) -> None:
    history: Any = trainer_of(method, inputs, cached_frames=3).agent.history
    history.reader(images_of())
    assert len(history.reader.cache.arrays()["keys"]) == 3


def test_images_that_were_read_are_not_read_again_after_a_resume(
    inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, again = (trainer_of("helm", inputs).agent for _ in range(2))
    for one in (agent, again):
        one.start(5)
    agent.see(images_of())
    again.load_state({name: torch.as_tensor(value).clone() for name, value in agent.state_arrays().items()})
    monkeypatch.setattr(again.history.reader.cache, "function", lambda queries: pytest.fail("read again"))
    again.see(images_of())


def test_attention_on_a_step_is_that_on_all_its_inputs_and_the_newest_step_is_whole(
    inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SHELM's two words make a step; a memory of odd length holds the second word alone of its oldest step."""
    agent = trainer_of("shelm", inputs).agent
    agent.start(5)
    agent.see(images_of())
    monkeypatch.setattr(agent.history.memory, "attention", lambda rows: torch.tensor([[[1.0, 2, 4, 8, 16]]]))
    assert agent.history.maps(np.array([3]))["history_attention"].tolist() == [[[1, 6, 24]]]
