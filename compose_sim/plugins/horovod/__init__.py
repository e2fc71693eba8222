"""Horovod: the recipe `horovod` lets horovodrun start the ranks by ssh."""

ENTRY_POINTS = {
    "composesim.recipes": {"horovod": "compose_sim.plugins.horovod.core"},
    "composesim.timelines": {"horovod": "compose_sim.plugins.horovod.core.timeline:parse_timeline"},
    "composesim.observers": {"horovod": "compose_sim.plugins.horovod.node.observer"},
    "composesim.roles": {
        "horovod-driver": "compose_sim.plugins.horovod.node.driver",
        "horovodrun": "compose_sim.plugins.horovod.node.horovodrun",
        "sshd-starter": "compose_sim.plugins.horovod.node.sshd_starter",
        "ssh-rank": "compose_sim.plugins.horovod.node.ssh_rank",
    },
}
