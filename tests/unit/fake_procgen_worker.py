"""A worker that speaks the protocol of `procgen_worker.py` and needs no package: simple games in Procgen's place.

A game counts steps from a random number of its seed. Its picture is all of one colour, which follows from its state; action
4 pays 1 where the state is even; episodes end after 6 to 12 steps, and the next begins at once. What RECOLLECT_FAKE says
goes wrong goes wrong.
"""

import json
import os
import random
import runpy
import sys
import time
from pathlib import Path

WORKER = runpy.run_path(str(Path(__file__).parents[2] / "src/recollect/environments/procgen_worker.py"))
FAULT = os.environ.get("RECOLLECT_FAKE", "")


class Game:
    def __init__(self, level, levels, seed):
        self.draws, self.levels = random.Random(seed), (level, levels)
        self.again()

    def again(self):
        self.state, self.left = (
            self.levels[0] * 7 + self.draws.randrange(self.levels[1] or 2**31) * 3,
            self.draws.randint(6, 12),
        )

    def act(self, action):
        self.state += 1 + action
        self.left -= 1
        reward, first = float(action == 4 and self.state % 2 == 0), self.left == 0 or action == -1
        if first:
            self.again()
        return reward, first


class Games(WORKER["Games"]):
    def begin(self, which):
        for new in which:
            self.games[new["place"]] = Game(new["start_level"], new["num_levels"], new["seed"])
            self.show(new["place"], 0.0, True)

    def step(self):
        self.steps = getattr(self, "steps", 0) + 1
        if FAULT == "crash" and self.steps == 3:
            print("about to fall over", file=sys.stderr, flush=True)
            os.abort()
        if FAULT == "raise" and self.steps == 3:
            raise KeyError("something inside")
        if FAULT == "slow":
            time.sleep(1.5)
        if FAULT == "hang":
            time.sleep(3600)
        for place, action in enumerate(self.arrays["action"].tolist()):
            if action != -2:
                self.show(place, *self.games[place].act(action))

    def show(self, place, reward, first):
        self.arrays["reward"][place], self.arrays["first"][place] = reward, first
        self.arrays["frame"][place] = self.games[place].state * 37 % 256

    def get_state(self):
        return [b"" if g is None else json.dumps([g.state, g.left, g.draws.getstate()]).encode() for g in self.games]

    def set_state(self, states):
        for place, state in enumerate(states):
            if state:
                game = self.games[place]
                game.state, game.left, draws = json.loads(state)
                game.draws.setstate((draws[0], tuple(draws[1]), draws[2]))
                self.show(place, 0.0, False)


def load():
    if FAULT == "no package":
        raise ModuleNotFoundError("No module named 'procgen'")
    return "fake"


if __name__ == "__main__":
    WORKER["Server"](Games, load, protocol=99 if FAULT == "protocol" else WORKER["PROTOCOL"]).run()
