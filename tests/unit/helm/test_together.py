"""HELM's seeds trained together: each run's numbers are those of the run alone, and what befalls one run befalls no other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import fake_worlds
import numpy as np
import pandas as pd
import pytest
import torch

from recollect.artifacts.run import Run
from recollect.common.contract import Inputs
from recollect.helm import helm, helmv2, ppo_cnn, ppo_lstm, shelm, together
from recollect.helm.language.language_memory import LanguageMemory, language_memory
from recollect.helm.language.shared_memory import SharedMemory, ring_of
from recollect.helm.on_policy import OnPolicyTrainer
from recollect.settings.errors import UserError
from recollect.settings.resolve import resolve, scale_settings
from recollect.settings.schema import EnvironmentSettings, EvaluationSettings, MethodSettings, Settings
from recollect.stages import packs

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # benchmarks is no part of the package
from benchmarks.gpu.pretend import PretendGpu

SEEDS = (3, 4, 5)
MODULES: dict[str, Any] = {"helm": helm, "helmv2": helmv2, "shelm": shelm, "ppo_cnn": ppo_cnn, "ppo_lstm": ppo_lstm}
OWN: dict[str, dict[str, Any]] = {
    "helm": {"mem_len": "config"},
    "helmv2": {"mem_len": "config", "vision_language_model": "random"},
    "shelm": {"token_vocabulary": "random", "topk": 2},
    "ppo_cnn": {},
    "ppo_lstm": {"units": 12, "sequences": 3},
}
XL = "random-transfo-xl"


@pytest.fixture(autouse=True)
def signals(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    fake_worlds.install(monkeypatch)
    monkeypatch.chdir(root)  # the names of models are read from the repository's configuration


@pytest.fixture(autouse=True)
def words_of_the_transformer_xl(monkeypatch: pytest.MonkeyPatch) -> None:
    known = shelm.token_vocabulary
    monkeypatch.setattr(shelm, "token_vocabulary", lambda name: known(name).model_copy(update={"language_model": XL}))


def settings_of(method: str, seed: int, **chosen: Any) -> Settings:
    environment = EnvironmentSettings(
        name="signal",
        world="signal",
        options={"height": 9, "width": 9},
        evaluation=EvaluationSettings(protocol="episodic", episodes=4),
    )
    small: dict[str, Any] = {"channel_scale": 1, "width": 16, "actor": 8, "critic": 8, "log_every": 1}
    small |= {"steps": 64, "actors": 4, "rollout": 4, "batches": 4, "checkpoint_every": 10**9, **OWN[method]}
    if method in ("helm", "helmv2", "shelm"):
        small |= {"language_model": XL, "memory_length": 6}
    hp = MODULES[method].Hyperparameters(**{**small, **chosen})
    shell = MethodSettings(name=method, algorithm=method, data="online", hyperparameters=hp)
    return Settings(scale="smoke", seed=seed, environment=environment, method=shell)


class Company:
    """Runs of one method that differ in their seed, in folders of their own."""

    def __init__(self, method: str, folder: Path, inputs: Inputs, **chosen: Any) -> None:
        self.method, self.folder, self.inputs = method, folder, inputs
        self.settings = [settings_of(method, seed, **chosen) for seed in SEEDS]
        self.runs = [self.run(place) for place in range(len(SEEDS))]
        self.policies: dict[int, dict[str, np.ndarray]] = {}

    def run(self, place: int) -> Run:
        folder = self.folder / str(place)
        return Run(folder, folder / "checkpoints", settings_text="same")

    def train(self) -> dict[int, Exception]:
        """All of them together, in new processes so to say."""
        self.runs = [self.run(place) for place in range(len(SEEDS))]

        def finished(place: int, policy: Any) -> None:
            self.policies[place] = policy.arrays()

        failed: dict[int, Exception] = MODULES[self.method].train_together(
            self.settings, self.inputs, self.runs, finished
        )
        return failed

    def train_alone(self, place: int) -> None:
        self.runs[place] = self.run(place)
        policy = MODULES[self.method].train(self.settings[place], self.inputs, self.runs[place])
        self.policies[place] = policy.arrays()


def alone(method: str, folder: Path, inputs: Inputs, **chosen: Any) -> Company:
    """The same, one after the other."""
    company = Company(method, folder, inputs, **chosen)
    for place in range(len(SEEDS)):
        company.train_alone(place)
    return company


def assert_same(some: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray]) -> None:
    assert some.keys() == others.keys()
    for name, value in others.items():
        assert some[name].tobytes() == value.tobytes(), name


def assert_near(some: Company, others: Company) -> None:
    for place in range(len(SEEDS)):
        for name, value in others.policies[place].items():
            np.testing.assert_allclose(some.policies[place][name], value, rtol=1e-3, atol=1e-5)
        rows, wanted = some.runs[place].table(), others.runs[place].table()
        assert rows.drop(columns="value").equals(wanted.drop(columns="value"))
        np.testing.assert_allclose(rows["value"], wanted["value"], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_seeds_whose_games_other_processes_play_see_and_learn_the_same(
    tmp_path: Path, in_other_processes: Callable[[str], None]
) -> None:
    """Steps of all seeds go out together, and so do the beginnings of episodes."""
    rooms = EnvironmentSettings(
        name="rooms",
        world="mini_grid",
        options={"task": "MemoryS5", "moves_only": True},
        evaluation=EvaluationSettings(protocol="episodic", episodes=4),
    )
    wanted, found = (Company("ppo_cnn", tmp_path / name, Inputs(), steps=512, rollout=32) for name in ("here", "there"))
    for company in (wanted, found):
        company.settings = [settings.model_copy(update={"environment": rooms}) for settings in company.settings]
    assert wanted.train() == {}
    in_other_processes("mini_grid")
    assert found.train() == {}
    for place in range(len(SEEDS)):
        assert_same(found.policies[place], wanted.policies[place])
        assert found.runs[place].table().equals(wanted.runs[place].table())
        assert len(found.runs[place].table())


class Stopped(Exception):
    pass


def stop_behind(monkeypatch: pytest.MonkeyPatch, seed: int, rollouts: int, error: type[Exception] = Stopped) -> None:
    """Let the run of a seed break in the middle of its next rollout after so many."""
    begin_step = OnPolicyTrainer.begin_step

    def stepped(trainer: OnPolicyTrainer, *said: Any) -> np.ndarray:
        if trainer.seed == seed and trainer.rollouts == rollouts and trainer.rollout.t == 2:
            raise error("here")
        return begin_step(trainer, *said)

    monkeypatch.setattr(OnPolicyTrainer, "begin_step", stepped)


# ---- one memory for all


def memory_of(rows: int, inputs: torch.Tensor) -> LanguageMemory:
    """A memory that has read some inputs [T, B, K, D], of which a row was forgotten on the way."""
    memory = language_memory(XL, memory_length=5, batch_tokens=2)
    memory.start(rows)
    for t, x_BKD in enumerate(inputs):
        if t == 2:
            memory.reset(torch.arange(rows) == 1)
        memory.step(x_BKD)
    return memory


@pytest.mark.parametrize("lengths", [(4, 4, 4), (7, 3, 0)])
def test_what_memories_read_as_one_is_what_each_reads_alone(lengths: tuple[int, ...]) -> None:
    """Also where they have read so many inputs that the newest lie in other slots of their rings."""
    draws = torch.Generator().manual_seed(0)
    width = language_memory(XL, memory_length=5).width
    before = [torch.randn(length, 2, 2, width, generator=draws) for length in lengths]
    own, others = ([memory_of(2, inputs) for inputs in before] for _ in range(2))
    shared = SharedMemory([ring_of(memory) for memory in others])
    for t in range(9):
        if t in (3, 4):
            mask_B = torch.tensor([t == 3, True])
            own[t - 3].reset(mask_B)
            shared.shares[t - 3].reset(mask_B)
        x = {n: torch.randn(2, 2, width, generator=draws) for n in range(3)}
        found = shared.step(x)
        for n, memory in enumerate(own):
            torch.testing.assert_close(found[n], memory.step(x[n]), atol=1e-5, rtol=1e-4)
    attention_LNM, rows_N = own[1].attention(), torch.tensor([1])
    assert attention_LNM is not None
    torch.testing.assert_close(shared.shares[1].attention(), attention_LNM, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(shared.shares[1].attention(rows_N), attention_LNM[:, rows_N], atol=1e-5, rtol=1e-4)
    x_BKD = torch.randn(2, 2, width, generator=draws)
    for n, memory in enumerate(own):  # and each can go on by itself
        again = language_memory(XL, memory_length=5, batch_tokens=2)
        again.load(shared.shares[n].arrays())
        torch.testing.assert_close(again.step(x_BKD), memory.step(x_BKD), atol=1e-5, rtol=1e-4)


def test_a_memory_goes_from_one_ring_to_another() -> None:
    """As where a run of the one group has ended, and one of the other group takes its place."""
    draws = torch.Generator().manual_seed(0)
    width = language_memory(XL, memory_length=5).width
    own, others = ([memory_of(2, torch.zeros(0)) for _ in range(4)] for _ in range(2))
    rings = [SharedMemory([ring_of(memory) for memory in pair]) for pair in (others[:2], others[2:])]
    for t in range(7):  # the second has read more
        for number, ring in enumerate(rings):
            x = {n: torch.randn(2, 1, width, generator=draws) for n in range(2)}
            if t < 3 and number == 0:
                continue
            ring.step(x)
            for n in range(2):
                own[2 * number + n].step(x[n])
    again = [SharedMemory([rings[0].shares[1], rings[1].shares[0]]), SharedMemory([rings[1].shares[1]])]
    for _ in range(6):
        x = {n: torch.randn(2, 1, width, generator=draws) for n in range(3)}
        found = [*again[0].step({0: x[0], 1: x[1]}).values(), *again[1].step({0: x[2]}).values()]
        for n, memory in enumerate(own[1:]):
            torch.testing.assert_close(found[n], memory.step(x[n]), atol=1e-5, rtol=1e-4)


def test_memories_of_one_process_share_the_networks_weights() -> None:
    """And have networks of their own where they keep other layers of it, or another precision."""
    one, two, shorter = (language_memory(XL, memory_length=5, layers=layers) for layers in (None, None, 1))
    assert one.embeddings_VD is two.embeddings_VD is not shorter.embeddings_VD
    half: Any = language_memory(XL, memory_length=5, precision="bfloat16")
    held = [memory.cache.model.layers[0].qkv.weight.dtype for memory in (one, half)]  # type: ignore[attr-defined]
    assert held == [torch.float32, torch.bfloat16]


def test_a_lost_share_disturbs_no_other() -> None:
    draws = torch.Generator().manual_seed(0)
    memory, width = memory_of(2, torch.zeros(0)), language_memory(XL, memory_length=5).width
    shared = SharedMemory([ring_of(memory_of(2, torch.zeros(0))) for _ in range(2)])
    for t in range(4):
        x_BKD = torch.randn(2, 1, width, generator=draws)
        found = shared.step({1: x_BKD} if t > 1 else {0: x_BKD * 2, 1: x_BKD})
        torch.testing.assert_close(found[1], memory.step(x_BKD), atol=1e-5, rtol=1e-4)


# ---- whole runs


@pytest.fixture(params=[1, 2])
def groups(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All members step together, or in two groups as on a GPU."""
    monkeypatch.setitem(together.GROUPS, "cpu", request.param)


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize(("method", "chosen"), [("ppo_cnn", {"keep_best": True}), ("ppo_lstm", {})])
@pytest.mark.quick("2-ppo_lstm-chosen1")
def test_runs_without_a_language_model_end_with_the_bytes_of_the_runs_alone(
    method: str, chosen: dict[str, Any], inputs: Inputs, tmp_path: Path
) -> None:
    company = Company(method, tmp_path / "together", inputs, **chosen)
    wanted = alone(method, tmp_path / "alone", inputs, **chosen)
    assert company.train() == {}
    for place in range(len(SEEDS)):
        assert_same(company.policies[place], wanted.policies[place])
        pd.testing.assert_frame_equal(company.runs[place].table(), wanted.runs[place].table())


@pytest.mark.quick("1-shelm-chosen2")
@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize(
    ("method", "chosen"),
    [
        ("helm", {}),
        ("helmv2", {}),
        ("shelm", {}),
        ("helm", {"vision_language_model": "random"}),
        ("helmv2", {"vision_language_model": None}),
    ],
)
def test_runs_with_a_language_model_have_the_rows_and_the_policies_of_the_runs_alone(
    method: str, chosen: dict[str, Any], inputs: Inputs, tmp_path: Path
) -> None:
    company = Company(method, tmp_path / "together", inputs, **chosen)
    wanted = alone(method, tmp_path / "alone", inputs, **chosen)
    assert company.train() == {}
    assert_near(company, wanted)


def test_the_language_model_takes_one_step_for_all(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    read = SharedMemory.step

    def stepped(shared: SharedMemory, given: Mapping[int, torch.Tensor]) -> Any:
        rows.append(sum(len(x_BKD) for x_BKD in given.values()))
        return read(shared, given)

    monkeypatch.setattr(SharedMemory, "step", stepped)
    Company("helm", tmp_path, inputs).train()
    assert rows == [12] * 16


@pytest.mark.slow
def test_while_one_group_is_read_for_the_other_one_plays(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a GPU is asked for one group it is asked before the host waits for the other."""
    monkeypatch.setitem(together.GROUPS, "cpu", 2)
    done: list[tuple[str, int]] = []
    read, fetched, begun = SharedMemory.step, together.Fetched, OnPolicyTrainer.begin_step

    class Noted(fetched):  # type: ignore[misc,valid-type]
        def numpy(self) -> np.ndarray:
            done.append(("waits", len(self._on_host)))
            found: np.ndarray = super().numpy()
            return found

    def stepped(shared: SharedMemory, given: Mapping[int, torch.Tensor]) -> Any:
        done.append(("reads", len(given)))
        return read(shared, given)

    def plays(trainer: OnPolicyTrainer, *said: Any) -> np.ndarray:
        done.append(("plays", SEEDS.index(trainer.seed)))
        return begun(trainer, *said)

    monkeypatch.setattr(together, "Fetched", Noted)
    monkeypatch.setattr(SharedMemory, "step", stepped)
    monkeypatch.setattr(OnPolicyTrainer, "begin_step", plays)
    assert Company("helm", tmp_path, inputs).train() == {}
    two = [("waits", 2), ("plays", 0), ("plays", 1), ("reads", 2)]
    one = [("waits", 1), ("plays", 2)]  # which reads alone
    assert done == [*two, *one] * 16


@pytest.mark.slow
def test_on_a_gpu_a_rollout_waits_for_nothing_but_what_agents_say(inputs: Inputs, tmp_path: Path) -> None:
    wanted = alone("helm", tmp_path / "alone", inputs)
    with PretendGpu() as gpu:
        company = Company("helm", tmp_path / "together", Inputs(device="cuda"))
        assert company.train() == {}
        waited = {where for _, where in gpu.waits}
    assert_near(company, wanted)
    assert not [where for where in waited if "together.py" in where]


@pytest.mark.quick("shelm")
@pytest.mark.parametrize("method", ["helm", "helmv2", "shelm"])
def test_new_images_of_all_seeds_are_read_at_once(
    method: str, inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This world has two images. The first is read by each seed as it begins; the second by one call for the three."""
    company, sizes = Company(method, tmp_path, inputs), []
    begin = together.Together.begin

    def begun(self: together.Together, place: int) -> None:
        begin(self, place)
        cache = self.trainers[place].agent.history.reader.cache  # type: ignore[union-attr]
        read = cache.function

        def counted(asked: torch.Tensor) -> torch.Tensor:
            sizes.append(len(asked))
            return read(asked)

        cache.function = counted

    monkeypatch.setattr(together.Together, "begin", begun)
    company.train()
    assert sizes == [3]


@pytest.mark.slow
@pytest.mark.usefixtures("groups")
def test_where_what_was_read_breaks_one_run_the_others_go_on(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = alone("helm", tmp_path / "alone", inputs)
    company, reading = Company("helm", tmp_path / "together", inputs), helm.HopfieldReader.reading
    broken: list[Any] = []

    def read(self: helm.HopfieldReader, images: Any, *, learn: bool = False) -> Any:
        found = yield from reading(self, images, learn=learn)
        if not broken:
            broken.append(self)
        calls.append(self)
        if self is broken[0] and calls.count(self) == 6:
            raise Stopped("here")
        return found

    calls: list[Any] = []
    monkeypatch.setattr(helm.HopfieldReader, "reading", read)
    assert {place: type(error) for place, error in company.train().items()} == {0: Stopped}
    assert sorted(company.policies) == [1, 2]
    company.policies[0], company.runs[0] = wanted.policies[0], wanted.runs[0]
    assert_near(company, wanted)


@pytest.mark.slow
def test_more_seeds_than_there_is_room_for_take_turns(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = alone("helm", tmp_path / "alone", inputs)
    company, most = Company("helm", tmp_path / "together", inputs), []
    going = together.Together._go_on

    def counted(self: together.Together, progress: Any) -> None:
        most.append(len(self.trainers))
        going(self, progress)

    monkeypatch.setattr(together.Together, "_go_on", counted)
    row_bytes = getattr(language_memory(XL, memory_length=6), "row_bytes", 0)
    monkeypatch.setitem(together.RING_BYTES, "cpu", 2.5 * 4 * row_bytes)
    assert company.train() == {} and most == [2, 1]
    assert_near(company, wanted)


def test_where_the_first_seed_cannot_begin_the_others_still_take_turns(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    company, turns = Company("helm", tmp_path, inputs), []
    begun, going = together.Together._resumed, together.Together._go_on

    def refused(self: together.Together, place: int) -> None:
        if place == 0:
            raise UserError("it cannot begin", where="here", do="nothing")
        begun(self, place)

    def counted(self: together.Together, progress: Any) -> None:
        turns.append(len(self.trainers))
        going(self, progress)

    monkeypatch.setattr(together.Together, "_resumed", refused)
    monkeypatch.setattr(together.Together, "_go_on", counted)
    row_bytes = getattr(language_memory(XL, memory_length=6), "row_bytes", 0)
    monkeypatch.setitem(together.RING_BYTES, "cpu", 1.5 * 4 * row_bytes)
    assert list(company.train()) == [0] and turns == [1, 1]


@pytest.mark.slow
def test_a_run_that_was_begun_alone_goes_on_with_others_and_the_other_way_round(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So members are at different places, and end at different times."""
    wanted = alone("helm", tmp_path / "alone", inputs)
    company = Company("helm", tmp_path / "together", inputs, checkpoint_every=16)
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        stop_behind(patch, SEEDS[0], 2)
        company.train_alone(0)
    with monkeypatch.context() as patch:
        stop_behind(patch, SEEDS[1], 1)
        assert {place: type(error) for place, error in company.train().items()} == {1: Stopped}
    assert company.runs[0].resumed and sorted(company.policies) == [0, 2]
    tables = [company.runs[0], company.runs[2]]
    company.train_alone(1)
    assert company.runs[1].resumed
    company.runs = [tables[0], company.runs[1], tables[1]]
    assert_near(company, wanted)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["shelm", *(pytest.param(name, marks=pytest.mark.slow) for name in ("helm", "helmv2"))]
)
def test_runs_that_were_killed_together_end_with_the_same_bytes(
    method: str, inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, killed = (Company(method, tmp_path / name, inputs, checkpoint_every=16) for name in ("whole", "killed"))
    whole.train()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_behind(patch, SEEDS[2], 2, KeyboardInterrupt)  # type: ignore[arg-type]
        killed.train()
    assert killed.train() == {} and all(run.resumed for run in killed.runs)
    for place in range(len(SEEDS)):
        assert_same(killed.policies[place], whole.policies[place])
        pd.testing.assert_frame_equal(killed.runs[place].table(), whole.runs[place].table())


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"language_model": "random"}, "only keys and values of Transformer-XL's"),
        ({"bootstrap_truncation": True}, "read by each seed alone"),
    ],
)
def test_what_cannot_be_trained_together_is_said(
    chosen: dict[str, Any], said: str, inputs: Inputs, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=said):
        Company("helm", tmp_path, inputs, **chosen).train()


@pytest.mark.usefixtures("in_the_repository")
def test_the_paper_scale_lists_what_can_be_trained_together() -> None:
    listed = scale_settings("paper").ensembles
    found = set()
    for pairs in packs.packs("paper", hours={}).values():
        for env, method in pairs:
            if method in listed:
                hp: Any = resolve("paper", env, method, 0).method.hyperparameters
                if hasattr(hp, "language_model"):
                    found.add(method)
                    assert hp.language_model == "transfo-xl-wt103" and not hp.bootstrap_truncation
                elif method.startswith("ppo"):
                    found.add(method)
    assert {"helm", "helmv2", "shelm", "ppo_cnn", "ppo_lstm"} <= found
