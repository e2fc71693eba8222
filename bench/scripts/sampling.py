"""Measure how many steps per second RLlib's samplers produce, all sent to the driver: PPO's on CartPole, without learning."""

import json
import logging
import time

import ray
from ray.rllib.algorithms.ppo import PPOConfig

SAMPLERS, ENVIRONMENTS, STEPS, WARM_UP, TURNS = 2, 5, 2000, 2, 8

ray.init(logging_level=logging.ERROR, log_to_driver=False)
config = (
    PPOConfig()
    .environment("CartPole-v1")
    .env_runners(num_env_runners=SAMPLERS, num_envs_per_env_runner=ENVIRONMENTS)
    .debugging(seed=1, log_level="ERROR")
)
algorithm = config.build_algo()
samplers = algorithm.env_runner_group
for turn in range(WARM_UP + TURNS):
    began = time.perf_counter()
    taken = samplers.foreach_env_runner(lambda sampler: sampler.sample(num_timesteps=STEPS), local_env_runner=False)
    steps = sum(len(episode) for episodes in taken for episode in episodes)
    speed = steps / (time.perf_counter() - began)
    if turn >= WARM_UP:
        print(json.dumps({"step": turn, "samples_per_s": round(speed, 1)}), flush=True)
algorithm.stop()
ray.shutdown()
