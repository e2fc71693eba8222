"""Which learning rate teaches a game of your own best? A custom environment, and a search by Ray Tune with limits for each trial.

    composesim up --recipe ray --nodes 4 ray_environment.py
    python ray_environment.py

The game: a ball falls, and a bat on the last row is to be under it. The policy sees a picture, drawn `--pixels` to a cell: with
few of them the samplers send little to the learner, with many they send megabytes, and a slow link between them starves it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import ray
from ray import tune
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.tune import Callback, FailureConfig, RunConfig, TuneConfig, Tuner


class Catch(gymnasium.Env[np.ndarray, int]):
    """1 for a ball that is caught, -1 for one that is not. What gymnasium asks for: two spaces, reset and step."""

    def __init__(self, config: dict[str, Any]) -> None:
        """`cells` a side, each drawn as `pixels` times `pixels`."""
        self.cells, self.pixels = config["cells"], config["pixels"]
        side = self.cells * self.pixels
        self.observation_space = gymnasium.spaces.Box(0, 1, (side * side,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(3)  # left, stay, right

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)  # makes self.np_random
        self.row, self.column, self.bat = 0, int(self.np_random.integers(self.cells)), self.cells // 2
        return self.picture(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.bat = min(max(self.bat + int(action) - 1, 0), self.cells - 1)
        self.row += 1
        over = self.row == self.cells - 1
        reward = (1.0 if self.bat == self.column else -1.0) if over else 0.0
        return self.picture(), reward, over, False, {}

    def picture(self) -> np.ndarray:
        cells = np.zeros((self.cells, self.cells), np.float32)
        cells[self.row, self.column] = cells[-1, self.bat] = 1
        return cells.repeat(self.pixels, axis=0).repeat(self.pixels, axis=1).ravel()


def main() -> None:
    arguments = parse_arguments()
    ray.init()  # the cluster of RAY_ADDRESS, if that is set; else one on this machine alone
    tuner = Tuner(
        "PPO",
        param_space=configure(arguments),
        tune_config=TuneConfig(max_concurrent_trials=arguments.together),
        run_config=RunConfig(
            name="catch",
            storage_path=arguments.storage,
            stop={"env_runners/episode_return_mean": arguments.goal, "training_iteration": arguments.iterations},
            failure_config=FailureConfig(max_failures=3),
            callbacks=[Metrics()],
            verbose=0,
        ),
    )
    trials = tuner.fit()
    if trials.errors:
        raise trials.errors[0]
    best = trials.get_best_result("env_runners/episode_return_mean", "max")
    reached = best.metrics["env_runners"]["episode_return_mean"]
    print(f"the best of {len(trials)}: learning rate {best.config['lr']}, mean return {reached:.2f}")


def parse_arguments() -> argparse.Namespace:
    shared = os.environ.get("COMPOSESIM_SHARED", Path("checkpoints").absolute())
    parser = argparse.ArgumentParser(description="Learn to catch a ball, with one learning rate after another.")
    parser.add_argument("--lr", type=float, nargs="+", default=[3e-3, 3e-4], help="learning rates, a trial for each")
    parser.add_argument("--together", type=int, default=2, help="trials at the same time")
    parser.add_argument("--goal", type=float, default=0.9, help="stop a trial at this mean return; 1 is the most")
    parser.add_argument("--samplers", type=int, default=2, help="of each trial")
    parser.add_argument("--batch", type=int, default=1000, help="steps of all samplers in an iteration")
    parser.add_argument("--iterations", type=int, default=40, help="stop a trial after so many")
    parser.add_argument("--cells", type=int, default=8, help="a side of the game")
    parser.add_argument("--pixels", type=int, default=1, help="a side of each cell")
    parser.add_argument("--storage", default=str(shared), metavar="DIR", help="a folder that all nodes share")
    return parser.parse_args()


def configure(arguments: argparse.Namespace) -> PPOConfig:
    # The limit of each trial: a CPU for the learner and each sampler; where there are fewer, as many as must share each.
    processes = arguments.together * (arguments.samplers + 1)
    cpus = round(1 / math.ceil(processes / ray.cluster_resources()["CPU"]) - 0.005, 2)
    return (
        PPOConfig()
        .environment(Catch, env_config={"cells": arguments.cells, "pixels": arguments.pixels})
        .env_runners(num_env_runners=arguments.samplers, num_envs_per_env_runner=5, num_cpus_per_env_runner=cpus)
        .learners(num_learners=0, num_cpus_per_learner=cpus)
        .resources(num_cpus_for_main_process=cpus, placement_strategy="SPREAD")  # over all nodes, not few full ones
        .training(train_batch_size_per_learner=arguments.batch, lr=tune.grid_search(arguments.lr), num_epochs=4)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64], vf_share_layers=True))
        .fault_tolerance(restart_failed_env_runners=True)
        .debugging(seed=1)
    )


class Metrics(Callback):
    """After each iteration a JSON line with a "step": composesim shows it, and puts it into its report."""

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: Any) -> None:
        played = result["env_runners"]
        speed = played["num_env_steps_sampled_lifetime_throughput"]["throughput_since_last_reduce"]
        line = {
            "step": result["training_iteration"],
            "lr": result["config"]["lr"],
            "return": round(played["episode_return_mean"], 2),
            "samples_per_s": round(speed),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
