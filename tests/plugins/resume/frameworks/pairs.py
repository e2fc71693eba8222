"""Scripts of four frameworks that resume rightly, and wrong twins of them."""

from __future__ import annotations

from pathlib import Path

from tests.plugins.resume.pairs import Pair, wrong

SCRIPTS = Path(__file__).with_name("scripts")
_FROM_WEIGHTS = (
    '    trainer.fit(module, DataLoader(data, batch_size=4, shuffle=True), ckpt_path="last" if last.exists() else None)\n',
    '    if last.exists():\n        module.load_state_dict(torch.load(last)["state_dict"])\n'
    "    trainer.fit(module, DataLoader(data, batch_size=4, shuffle=True))\n",
)

PAIRS = (
    Pair(name="lightning", script="lightning_epochs.py"),
    wrong("lightning_epochs.py", "restart-failed", ("save_top_k=-1", "save_top_k=-1, save_weights_only=True")),
    wrong("lightning_epochs.py", "off-by-one", _FROM_WEIGHTS),
    wrong("lightning_epochs.py", "average", ("    def state_dict(self)", "    def own_state(self)")),
    wrong("lightning_epochs.py", "sampler-position", ("save_top_k=-1", "save_top_k=-1, every_n_train_steps=3")),
    Pair(name="accelerate", script="accelerate_steps.py"),
    wrong(
        "accelerate_steps.py", "random", ("dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True)", "")
    ),
    wrong(
        "accelerate_steps.py",
        "sampler-epoch",
        ("        loader.set_epoch(epoch)\n", "        loader.set_epoch(epoch - begun)\n"),
        ("    first = progress", "    begun = progress.steps // len(loader)\n    first = progress"),
    ),
    wrong("accelerate_steps.py", "sampler-position", ("    first = progress.steps % len(loader)\n", "    first = 0\n")),
    wrong(
        "accelerate_steps.py",
        "scheduler",
        (
            "    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)\n",
            "    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)\n",
        ),
    ),
    wrong("accelerate_steps.py", "off-by-one", ("    accelerator.register_for_checkpointing(progress)\n", "")),
    Pair(name="trainer", script="trainer_steps.py"),
    wrong("trainer_steps.py", "sampler-position", ("use_cpu=True", "use_cpu=True,\n        ignore_data_skip=True")),
    wrong("trainer_steps.py", "optimizer", ("use_cpu=True", "use_cpu=True,\n        save_only_model=True")),
    Pair(name="stateful-loader", script="stateful_loader.py"),
    wrong(  # each rank has a Subset of its own, which it reads in the order of rank 0
        "stateful_loader.py",
        "random",
        ('f"loader-{rank}-{step}.pt", weights', 'f"loader-0-{step}.pt", weights'),
        name="of-rank-0",
    ),
    wrong(
        "stateful_loader.py",
        "sampler-position",
        ('        loader.load_state_dict(torch.load(SHARED / f"loader-{rank}-{step}.pt", weights_only=False))\n', ""),
    ),
    wrong(  # torchdata restores the order of this epoch only: a new iterator draws from the same generator
        "stateful_loader.py",
        "random",
        ("shuffle=True)", "shuffle=True, generator=torch.Generator().manual_seed(rank))"),
        name="generator",
    ),
)
