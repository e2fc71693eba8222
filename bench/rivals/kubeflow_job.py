"""Run one job with the Kubeflow SDK, as in its guide: train, follow the logs, wait. Runs in the SDK's Python."""

import sys

from kubeflow.trainer import ContainerBackendConfig, CustomTrainer, TrainerClient
from kubeflow.trainer.backends.container.types import TrainingRuntimeSource
from kubeflow.trainer.options import Name


def run_script(path: str) -> None:
    # The SDK pastes the text of this function into each node, so it imports all that it needs.
    import runpy
    import sys

    sys.argv = [path]
    runpy.run_path(path, run_name="__main__")


def main(name: str, image: str, script: str, threads: str) -> None:
    no_sources = TrainingRuntimeSource(sources=[])  # leaves the built-in runtimes of the SDK
    config = ContainerBackendConfig(container_runtime="docker", pull_policy="Never", runtime_source=no_sources)
    client = TrainerClient(backend_config=config)
    trainer = CustomTrainer(
        func=run_script,
        func_args={"path": script},
        num_nodes=4,
        image=image,
        env={"OMP_NUM_THREADS": threads},
    )
    job = client.train(runtime="torch-distributed", trainer=trainer, options=[Name(name)])
    for line in client.get_job_logs(job, follow=True):
        print(line, end="")
    client.wait_for_job_status(job, status={"Complete"}, polling_interval=1)


if __name__ == "__main__":
    main(*sys.argv[1:])
