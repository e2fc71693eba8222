"""How soon do many samplers and one learner balance a pole? Reinforcement learning: PPO of RLlib on CartPole, run by Ray Tune.

    composesim up --recipe ray --nodes 4 ray_rllib.py
    python ray_rllib.py

In each iteration the samplers play, each in some environments at once, and the learner betters the policy by what they saw. Every
five iterations Tune saves a checkpoint where all nodes find it. When a node is lost, its samplers are started anew elsewhere, or
when it is back; with the learner's node the whole trial is, and goes on from the last checkpoint.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from pathlib import Path
from typing import Any

import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.tune import Callback, CheckpointConfig, FailureConfig, RunConfig, Tuner


def main() -> None:
    arguments = parse_arguments()
    ray.init()  # the cluster of RAY_ADDRESS, if that is set; else one on this machine alone
    tuner = Tuner(
        "PPO",
        param_space=configure(arguments),
        run_config=RunConfig(
            name="cartpole",
            storage_path=arguments.storage,
            # Whichever comes first; RLlib's results are nested, and "/" leads into them.
            stop={"env_runners/episode_return_mean": arguments.goal, "training_iteration": arguments.iterations},
            checkpoint_config=CheckpointConfig(checkpoint_frequency=5, checkpoint_at_end=True, num_to_keep=2),
            failure_config=FailureConfig(max_failures=3),  # how often the trial may be started anew
            callbacks=[Metrics()],
            verbose=0,
        ),
    )
    trial = tuner.fit()[0]
    if trial.error:
        raise trial.error
    reached = trial.metrics["env_runners"]["episode_return_mean"]
    if reached < arguments.goal:
        raise SystemExit(f"the mean return is {reached:.0f} after {arguments.iterations} iterations")
    print(f"the policy is in {trial.checkpoint.path}")


def parse_arguments() -> argparse.Namespace:
    shared = os.environ.get("COMPOSESIM_SHARED", Path("checkpoints").absolute())
    parser = argparse.ArgumentParser(description="Balance a pole, by PPO.")
    parser.add_argument(
        "--goal", type=float, default=480, help="stop at this mean return; no episode has more than 500"
    )
    parser.add_argument("--samplers", type=int, default=8)
    parser.add_argument("--environments", type=int, default=5, help="that each sampler plays in at once")
    parser.add_argument("--batch", type=int, default=4000, help="steps of all samplers in an iteration")
    parser.add_argument("--iterations", type=int, default=100, help="give up after so many")
    parser.add_argument("--storage", default=str(shared), metavar="DIR", help="a folder that all nodes share")
    return parser.parse_args()


def configure(arguments: argparse.Namespace) -> PPOConfig:
    # What a trial may take of the cluster: Ray starts it when so much is free, and tells PyTorch of no other GPU.
    # One CPU for the learner and each sampler; where there are fewer, as many of them share each as must.
    available = ray.cluster_resources()
    cpus = round(1 / math.ceil((arguments.samplers + 1) / available["CPU"]) - 0.005, 2)
    gpus = min(1, available.get("GPU", 0))
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(
            num_env_runners=arguments.samplers,
            num_envs_per_env_runner=arguments.environments,
            num_cpus_per_env_runner=cpus,
        )
        # No learner of its own: the trial's main process learns.
        .learners(num_learners=0, num_cpus_per_learner=cpus, num_gpus_per_learner=gpus)
        .resources(num_cpus_for_main_process=cpus, placement_strategy="SPREAD")  # over all nodes, not few full ones
        .training(train_batch_size_per_learner=arguments.batch, lr=3e-4, num_epochs=6, vf_loss_coeff=0.01)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[32], fcnet_activation="linear", vf_share_layers=True))
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
            "return": round(played["episode_return_mean"], 1),
            "samples": int(result["num_env_steps_sampled_lifetime"]),
            "samples_per_s": round(speed),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
