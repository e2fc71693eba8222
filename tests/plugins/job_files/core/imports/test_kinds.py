"""Job files as people write them: what is taken, changed and ignored, and errors with their lines."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

from compose_sim.errors import SpecError
from compose_sim.plugins.job_files.core.imports.draft import JobFile
from compose_sim.plugins.job_files.core.imports.kinds import is_job_file, read_job_file

TRAINJOB = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: demo}
spec:
  runtimeRef: {name: RUNTIME}
  trainer: {numNodes: 3, command: [torchrun], args: [src/train.py, --lr, "0.1"]}
"""
RUNTIME = """
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata: {name: own}
spec:
  mlPolicy: {numNodes: 9, torch: {numProcPerNode: 2}}
  template:
    spec:
      replicatedJobs:
        - name: node
          template: {spec: {template: {spec: {containers: [{name: node, image: "team/base:1", resources: {limits: {memory: 2Gi}}}]}}}}
"""
PYTORCHJOB = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: demo}
spec:
  pytorchReplicaSpecs:
    Master: &node
      replicas: 1
      template:
        spec:
          containers:
            - {name: sidecar, image: proxy}
            - name: pytorch
              image: team/train:1
              command: [python3, /opt/mnist.py, --epochs=1]
              env: [{name: NCCL_SOCKET_IFNAME, value: eth0}, {name: MODE, value: fast}]
              resources: {limits: {nvidia.com/gpu: 1, cpu: 500m, memory: MEMORY}}
    Worker:
      <<: *node
      replicas: 2
"""
SBATCH = """\
#!/bin/bash
#SBATCH -N 2 --ntasks-per-node=1
#SBATCH --gres=gpu:a100:4
#SBATCH -c 8 --mem-per-cpu=2G
#SBATCH -t 1-12
#SBATCH -p gpu
module load cuda
export OMP_NUM_THREADS=8 MASTER_ADDR=$(hostname)
srun --mpi=none torchrun --nnodes $SLURM_NNODES --nproc_per_node $SLURM_GPUS_ON_NODE \\
  --rdzv_backend c10d -m team.train --out out-$SLURM_JOB_ID
"""
SKYPILOT = """
num_nodes: 2
resources: {accelerators: {H100: 4}, cpus: 8+, memory: 64+, image_id: "docker:team/train:1"}
envs: {MODE: fast, HF_TOKEN: null}
setup: pip install -r requirements.txt
run: |
  cd project
  accelerate launch --num_processes 8 --num_machines $SKYPILOT_NUM_NODES --multi_gpu train.py
"""


def read(text: str, **options: Any) -> JobFile:
    assert is_job_file(text)
    return read_job_file(textwrap.dedent(text), "job", {}, **options)


def verdicts(job: JobFile, verdict: str) -> set[tuple[str, int]]:
    return {(note.key, note.line) for note in job.notes if note.verdict == verdict}


def test_a_trainjob_gets_from_its_runtime_what_it_does_not_say() -> None:
    job = read(TRAINJOB.replace("RUNTIME", "own") + RUNTIME)

    assert (job.values["nodes"], job.values["nproc_per_node"], job.values["memory"]) == (3, 2, 2 << 30)
    assert (job.values["image"], job.values["script"], job.values["gpus"]) == ("team/base:1", "src/train.py", "none")
    assert ("spec.mlPolicy.numNodes", 14) in verdicts(job, "ignored")


def test_a_trainjob_may_name_a_runtime_that_kubeflow_installs() -> None:
    assert read(TRAINJOB.replace("RUNTIME", "torch-distributed")).values["nproc_per_node"] == 1


def test_a_pytorchjob_without_torchrun_has_one_rank_per_pod() -> None:
    job = read(PYTORCHJOB.replace("MEMORY", "512Mi"))

    assert (job.values["nodes"], job.values["nproc_per_node"], job.values["cpus"]) == (3, 1, 0.5)
    assert (job.values["script"], job.values["args"]) == ("/opt/mnist.py", ["--epochs=1"])
    assert job.values["env"] == {"MODE": "fast"}
    containers = "spec.pytorchReplicaSpecs.Master.template.spec.containers"
    assert {(f"{containers}[1].env[0]", 16), (f"{containers}[0]", 12)} <= verdicts(job, "ignored")


def test_a_script_for_sbatch_is_read_as_slurm_does() -> None:
    job = read(SBATCH)

    expected = {
        "nodes": 2,
        "nproc_per_node": 4,
        "cpus": 8,
        "memory": 16 << 30,
        "timeout": 36 * 3600,
        "module": "team.train",
    }
    assert {key: job.values[key] for key in expected} == expected
    assert job.values["args"] == ["--out", "out-${SLURM_JOB_ID}"]
    assert job.values["env"] == {"OMP_NUM_THREADS": "8"}
    assert {("--partition", 6), ("module load cuda", 7), ("export MASTER_ADDR", 8)} <= verdicts(job, "ignored")
    assert ("the script", 9) in verdicts(job, "changed")


def test_a_skypilot_task_names_its_lines() -> None:
    job = read(SKYPILOT)

    expected = {
        "nodes": 2,
        "nproc_per_node": 4,
        "cpus": "8",
        "memory": "64g",
        "image": "team/train:1",
        "script": "train.py",
    }
    assert {key: job.values[key] for key in expected} == expected
    assert job.lines["script"] == 8
    assert {("envs.HF_TOKEN", 4), ("setup", 5), ("cd project", 7)} <= verdicts(job, "ignored")


def test_replicas_of_a_stack_are_nodes() -> None:
    service = "{image: team/train:1, command: torchrun train.py, environment: [A=1, B=$$2], deploy: {replicas: 3}}"
    job = read(f"services:\n  train: {service}\n  board: {{image: tensorboard}}\n")

    assert (job.values["nodes"], job.values["env"]) == (3, {"A": "1", "B": "$2"})
    assert ("services.board", 3) in verdicts(job, "ignored")


def test_every_value_of_a_file_is_mentioned_or_known() -> None:
    """A key that nobody reads is listed, not dropped."""
    text = TRAINJOB.replace("RUNTIME", "torch-distributed") + "  suspend: true\n  future: {field: 1}\n"

    assert {("spec.suspend", 8), ("spec.future", 9)} <= verdicts(read(text), "ignored")


def test_what_a_file_leaves_to_its_cluster_is_mentioned() -> None:
    stack = read(
        "services:\n  a:\n    command: torchrun train.py\n    environment:\n      A:\n      B: x\n"
        "    deploy: {restart_policy: {condition: on-failure}}\n"
    )
    pods = read(
        PYTORCHJOB.replace("MEMORY", "1Gi").replace(
            "          containers:", "          hostNetwork: true\n          containers:"
        )
    )

    assert verdicts(read("services:\n  a: {command: torchrun train.py}\n"), "ignored") == set()
    assert verdicts(stack, "ignored") == {("services.a.environment.A", 5), ("services.a.deploy.restart_policy", 7)}
    assert ("spec.pytorchReplicaSpecs.Master.template.spec.hostNetwork", 11) in verdicts(pods, "ignored")


def test_only_the_value_that_counts_is_taken() -> None:
    policies = (
        "spec:\n  elasticPolicy: {minReplicas: 1, maxReplicas: 3, maxRestarts: 5}\n  runPolicy: {backoffLimit: 2}"
    )
    job = read(PYTORCHJOB.replace("MEMORY", "1Gi").replace("spec:", policies, 1))

    assert job.values["max_restarts"] == 2
    assert ("spec.runPolicy.backoffLimit", 7) in verdicts(job, "taken")
    assert ("spec.elasticPolicy.maxRestarts", 6) in verdicts(job, "ignored")


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("apiVersion: apps/v1\nkind: Deployment\n", 2, "'Deployment'"),
        ("kind: JobSet\napiVersion: jobset.x-k8s.io/v9\n", 2, "jobset.x-k8s.io/v1alpha2"),
        (TRAINJOB.replace("RUNTIME", "mine"), 6, "'mine'"),
        (PYTORCHJOB.replace("MEMORY", "512m"), 17, "0.512 bytes"),
        (PYTORCHJOB.replace("MEMORY", "much"), 17, "'much'"),
        (PYTORCHJOB.replace("replicas: 2", "replicas: two"), 20, "'two'"),
        (PYTORCHJOB + "---" + TRAINJOB, 22, "TrainJob"),
        (PYTORCHJOB.replace("Master", "Mistress").replace("Worker", "Slave"), 6, "Master"),
        (SBATCH.replace("-N 2", "-N many"), 2, "'many'"),
        (SBATCH.replace("=2G", "=2X"), 4, "'2X'"),
        ("#!/bin/bash\n#SBATCH -t 1:2:3:4\nsrun torchrun train.py\n", 2, "'1:2:3:4'"),
        ("#!/bin/bash\n#SBATCH -N 2\n#SBATCH hetjob\n#SBATCH -N 1\nsrun torchrun train.py\n", 3, "heterogeneous"),
        ("#!/bin/bash\n#SBATCH -N 2\nmodule load x\nmake all\n", 1, "torchrun"),
        ("run: |\n  echo $[\nnum_nodes: 0\n", 3, "'0'"),
        ("services:\n  web: {image: nginx}\n", 1, "command"),
        ("resources: [\n", 2, "YAML"),
    ],
)
def test_what_cannot_be_honored_is_an_error_with_its_line(text: str, line: int, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(text)

    assert caught.value.message.startswith(f"job, line {line}: ")
    assert said in caught.value.message
    assert caught.value.hint or "YAML" in said


@pytest.mark.parametrize("text", ["nodes: 2\nscript: train.py\n", "", "# run: x\nname: demo\n", "env: {run: x}\n"])
def test_a_spec_of_composesim_is_no_job_file(text: str) -> None:
    assert not is_job_file(text)


def test_a_container_without_a_python_program_runs_its_command_on_every_node() -> None:
    job = read(
        PYTORCHJOB.replace("MEMORY", "1Gi").replace(
            "[python3, /opt/mnist.py, --epochs=1]", "[sh, -c, 'make; ./simulate']"
        )
    )

    assert (job.values["recipe"], job.values["script"], job.values["args"]) == (
        "exec",
        "sh",
        ["-c", "make; ./simulate"],
    )


def test_arguments_without_a_command_belong_to_the_program_of_the_image() -> None:
    with pytest.raises(SpecError) as caught:
        read(PYTORCHJOB.replace("MEMORY", "1Gi").replace("command: [python3, /opt/mnist.py,", "args: ["))

    assert caught.value.message.startswith("job, line 15: ")


def test_a_file_need_not_name_a_program_that_the_user_names() -> None:
    job = read("#!/bin/bash\n#SBATCH -N 2 --gpus-per-node=2\nmake all\nmake more\n", has_program=True)

    assert (job.values["nodes"], job.values["nproc_per_node"]) == (2, 2)


def sbatch(directives: str, *lines: str) -> JobFile:
    return read(f"#!/bin/bash\n#SBATCH {directives}\n" + "\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("directives", "line", "nodes", "ranks"),
    [
        ("-N 2 --ntasks-per-node=4", "srun python train.py", 2, 4),
        ("-N 2 --ntasks-per-node=4", "python train.py", 1, 1),
        ("-N 4", "srun -N 2 -n6 python train.py", 2, 3),
        ("-N 4", "srun --ntasks=1 python train.py", 1, 1),
        ("-N 4", "srun --nodes=1 --ntasks=1 --nodelist=$node python train.py --rank $i &", 4, 1),
        ("-N 2", "/usr/bin/time srun -l --mpi=pmix --no-container-remap-root -N 2 python train.py", 2, 1),
        ("-N 2", "srun --container-mount-home --label composer -n 4 --world_size 8 train.py", 2, 4),
    ],
)
def test_a_program_has_the_ranks_that_slurm_starts(directives: str, line: str, nodes: int, ranks: int) -> None:
    job = sbatch(directives, line)

    assert (job.values["nodes"], job.values["nproc_per_node"], job.values["script"]) == (nodes, ranks, "train.py")


@pytest.mark.parametrize(
    "lines",
    [
        ['if [[ "$X" != python || -z "$1" ]]; then echo torchrun other.py; fi', "srun python train.py"],
        ["docker build -t deepspeed .", "cp -r deepspeed /tmp", "pip install deepspeed wheel", "srun python train.py"],
        ["python prepare_data.py", "python train.py"],
        ["srun python train.py", "python evaluate.py"],
        [
            "export PORT=$(python -c \"s.bind(('', 0)); print(s.getsockname()[1])\")",
            "torchrun --master-port $PORT train.py",
        ],
        ['NAME="${1:-${NAME:-train}}"', "srun python $NAME.py"],
        [': "${NAME:=train.py}"', "srun python $NAME"],
    ],
    ids=lambda lines: lines[0],
)
def test_the_program_that_trains_is_found(lines: list[str]) -> None:
    assert sbatch("-N 1", *lines).values["script"] == "train.py"


def test_a_loop_runs_once_and_what_wraps_a_program_is_mentioned() -> None:
    job = sbatch("-N 2", "for lr in 0.1 0.2; do", "srun apptainer exec --nv torch.sif python train.py --lr $lr", "done")

    assert job.values["args"] == ["--lr", "0.1"]
    assert ("for lr in 0.1 0.2", 3) in verdicts(job, "changed")
    assert ("apptainer exec --nv torch.sif", 4) in verdicts(job, "ignored")


def test_a_command_behind_srun_runs_on_its_nodes() -> None:
    job = sbatch("-N 4", "module load gcc", "make", "srun -N 3 ./simulate --steps 5")

    assert (job.values["recipe"], job.values["nodes"], job.values["script"]) == ("exec", 3, "./simulate")


def test_a_program_that_is_named_at_submission_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        sbatch("-N 2", "name=$1", "srun python $name")

    assert caught.value.message.startswith("job, line 4: ")
    assert "train.py" in caught.value.hint


def test_whole_nodes_may_have_gpus() -> None:
    assert "gpus" not in sbatch("-N 2 --exclusive", "srun torchrun --nnodes 2 --nproc-per-node 8 train.py").values
    assert sbatch("-N 2", "srun torchrun --nnodes 2 --nproc-per-node 8 train.py").values["gpus"] == "none"


@pytest.mark.parametrize(
    "start", ["srun -N 1 -n 1 ray start --head --block &", "apptainer run image.sif ray start --address $head"]
)
def test_a_job_that_starts_ray_is_a_ray_cluster(start: str) -> None:
    job = sbatch("-N 3 --ntasks-per-node=1", start, "python -m team.main")

    assert (job.values["recipe"], job.values["nodes"], job.values["module"]) == ("ray", 3, "team.main")
    assert "nproc_per_node" not in job.values


def test_the_head_of_a_ray_cluster_without_workers_is_a_node() -> None:
    pod = "{spec: {containers: [{name: ray-head, image: team/ray:1, resources: {limits: {nvidia.com/gpu: 2}}}]}}"
    job = read(
        "apiVersion: ray.io/v1\nkind: RayJob\nspec:\n  entrypoint: python main.py\n"
        f"  rayClusterSpec: {{headGroupSpec: {{rayStartParams: {{}}, template: {pod}}}}}\n"
    )

    assert (job.values["nodes"], job.values["image"], job.values["gpus_per_node"]) == (1, "team/ray:1", 2)


def test_a_template_is_to_be_filled_in_first() -> None:
    with pytest.raises(SpecError) as caught:
        read(PYTORCHJOB.replace("replicas: 2", "replicas: $WORKERS"))

    assert "envsubst" in caught.value.hint


def test_another_version_of_a_kind_names_the_one_that_is_read() -> None:
    with pytest.raises(SpecError) as caught:
        read(PYTORCHJOB.replace("kubeflow.org/v1", "kubeflow.org/v2"))

    assert caught.value.hint == "apiVersion: kubeflow.org/v1"


@pytest.mark.parametrize("launcher", ["python train.py", "python -m train"])
def test_a_task_of_srun_gets_the_variables_of_slurm(launcher: str) -> None:
    job = read("#!/bin/bash\n#SBATCH -N 2\nsrun --ntasks-per-node=1 " + launcher + "\n")

    assert job.values["env"] == {"SLURM_STEP_ID": "0"}
    assert "env" not in read("#!/bin/bash\n#SBATCH -N 2\nsrun torchrun --nnodes=2 train.py\n").values


@pytest.mark.parametrize(
    "line", ["# SBATCH --ntasks-per-node=4", "##SBATCH --ntasks-per-node=4", " #SBATCH --ntasks-per-node=4"]
)
def test_a_comment_that_looks_like_a_directive_is_mentioned(line: str) -> None:
    job = read(f"#!/bin/bash\n#SBATCH -N 2\n{line}\nsrun python train.py\n")

    assert (line.strip(), 3) in verdicts(job, "ignored")
    assert job.values.get("nproc_per_node", 1) == 1


def test_services_of_one_program_are_nodes_though_their_variables_differ() -> None:
    service = "{{image: 'team/train:1', command: [python, train.py], environment: {{RANK: {0}}}, hostname: node{0}{1}}}"
    text = f"services:\n  first: {service.format(0, '')}\n  second: {service.format(1, ', depends_on: [first]')}\n"
    job = read(text + "  db: {image: postgres, command: [postgres]}\n")

    assert job.values["nodes"] == 2
    assert [note.key for note in job.notes if note.text == "only the services that train run here"] == ["services.db"]
