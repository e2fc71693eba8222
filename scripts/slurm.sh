#!/usr/bin/env bash
# Run a Slurm cluster of four nodes on this machine, as root and without systemd: Debian 13's slurmctld and slurmd, unpacked.
#
#   scripts/slurm.sh install        unpack the packages into ~/.cache/composesim, once; nothing else of this machine changes
#   scripts/slurm.sh --check        say whether they are there; exit status 0 or 1
#   scripts/slurm.sh start FOLDER   start a cluster that keeps its state in FOLDER; then type: . FOLDER/environment
#   scripts/slurm.sh stop FOLDER    end it and its jobs, and delete FOLDER
set -euo pipefail

NODES=4
START_TIMEOUT_S=60
STOP_TIMEOUT_S=10
MEMORY_GROUPS=/sys/fs/cgroup/memory
PACKAGES="slurmctld slurmd slurm-client slurm-wlm-basic-plugins patchelf"
UNPACKED=${XDG_CACHE_HOME:-$HOME/.cache}/composesim/slurm-trixie
SYSTEM=$UNPACKED/root/usr

main() {
    case "${1:-}" in
        install) install ;;
        --check) check ;;
        start) start "${2:?start needs a folder}" ;;
        stop) stop "${2:?stop needs a folder}" ;;
        *) fail "unknown command '${1:-}': install, --check, start FOLDER or stop FOLDER" ;;
    esac
}

check() {
    [ "$(id -u)" = 0 ] || { echo "Only root can start slurmd." >&2; return 1; }
    [ -x "$UNPACKED/bin/sbatch" ] || { echo "Slurm is not in '$UNPACKED'. Type: scripts/slurm.sh install" >&2; return 1; }
    echo "Slurm is in $UNPACKED."
}

# --- The packages ---

install() {
    if check >/dev/null 2>&1; then check; return; fi
    mkdir -p "$(dirname "$UNPACKED")"
    work=$(mktemp -d "$UNPACKED.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    chmod 755 "$work"
    download "$work/apt"
    for package in "$work"/apt/debs/*.deb; do dpkg-deb --extract "$package" "$work/root"; done
    rm -rf "$work/apt"
    write_commands "$work"
    rm -rf "$UNPACKED"
    mv "$work" "$UNPACKED"
    check
}

# apt with lists, packages and a status of its own: it resolves dependencies as on an empty machine, and installs nothing here.
download() {
    mkdir -p "$1/lists/partial" "$1/debs/partial"
    : >"$1/status"
    local mirror # the one that this machine already uses
    mirror=$(apt-get indextargets --format '$(REPO_URI) $(COMPONENT) $(LABEL)' 'Created-By: Packages' |
        awk '$2 == "main" && $3 == "Debian" && !done { print $1; done = 1 }')
    [ -n "$mirror" ] || { echo "slurm.sh: no Debian mirror among this machine's apt sources. See: apt-get indextargets" >&2; exit 4; }
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie main" >"$1/sources"
    local apt=(apt-get --quiet --assume-yes --no-install-recommends
        -o Dir::State="$1" -o Dir::State::status="$1/status" -o Dir::Cache="$1" -o Dir::Cache::archives="$1/debs"
        -o Dir::Etc::sourcelist="$1/sources" -o Dir::Etc::sourceparts=/dev/null -o Dir::Etc::preferencesparts=/dev/null
        -o Acquire::Languages=none -o APT::Sandbox::User=root -o APT::Update::Post-Invoke::=)
    "${apt[@]}" update
    # shellcheck disable=SC2086 # a list
    "${apt[@]}" --download-only install $PACKAGES
}

# The programs need the C library of Debian 13. They name its loader and folder themselves, so what they start is not affected.
write_commands() {
    mkdir "$1/bin"
    local program libraries=lib/x86_64-linux-gnu
    for program in "$1"/root/usr/bin/{sacct,salloc,sbatch,scancel,scontrol,sinfo,squeue,srun} "$1"/root/usr/sbin/{slurmctld,slurmd,slurmstepd}-wlm; do
        patch "$1/root/usr" --set-interpreter "$SYSTEM/lib64/ld-linux-x86-64.so.2" \
            --force-rpath --set-rpath "$SYSTEM/$libraries:$SYSTEM/$libraries/slurm-wlm" "$program"
        mv "$program" "$1/bin/$(basename "${program%-wlm}")"
    done
}

patch() { "$1/lib64/ld-linux-x86-64.so.2" --library-path "$1/lib/x86_64-linux-gnu" "$1/bin/patchelf" "${@:2}"; }

# --- The cluster ---

start() {
    check >/dev/null
    [ ! -e "$1" ] || fail "'$1' exists. Type: scripts/slurm.sh stop $1"
    # The last node has a disk of its own at FOLDER/local, which the others do not see. There, Slurm itself looks for processes that use too
    # much memory; on the other nodes, the kernel kills them, if this machine has control groups.
    mkdir -p "$1/state" "$1/local"
    local folder number own configuration
    folder=$(cd "$1" && pwd)
    configure "$folder"
    export SLURM_CONF=$folder/slurm.conf
    "$UNPACKED/bin/slurmctld" -D -c >"$folder/slurmctld.out" 2>&1 &
    for ((number = 0; number < NODES; number++)); do
        mkdir "$folder/spool.node-$number"
        own=() configuration=$SLURM_CONF
        if [ "$number" = $((NODES - 1)) ]; then
            own=(unshare --mount sh -c 'mount -t tmpfs disk "$0" && exec "$@"' "$folder/local")
            configuration=$folder/polling/slurm.conf
        fi
        "${own[@]}" "$UNPACKED/bin/slurmd" -D -f "$configuration" -d "$UNPACKED/bin/slurmstepd" -N "node-$number" >"$folder/slurmd.$number.out" 2>&1 &
    done
    printf 'export SLURM_CONF=%q PATH=%q:$PATH\n' "$SLURM_CONF" "$UNPACKED/bin" >"$folder/environment"
    await_idle "$folder"
}

configure() {
    local host ports
    host=$(hostname -s)
    ports=$(free_ports $((NODES + 1)))
    cat >"$1/slurm.conf" <<END
ClusterName=composesim
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$(cut -d ' ' -f 1 <<<"$ports")
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
PluginDir=$SYSTEM/lib/x86_64-linux-gnu/slurm-wlm
StateSaveLocation=$1/state
SlurmdSpoolDir=$1/spool.%n
SlurmctldPidFile=$1/slurmctld.pid
SlurmdPidFile=$1/slurmd.%n.pid
SlurmctldLogFile=$1/slurmctld.log
SlurmdLogFile=$1/slurmd.%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
DefMemPerNode=50000
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
ReturnToService=2
KillWait=3
MinJobAge=300
SlurmdTimeout=10
MessageTimeout=5
EnforcePartLimits=ALL
NodeName=node-[0-$((NODES - 1))] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$(cut -d ' ' -f 2- <<<"$ports" | tr ' ' ,)] CPUs=8 RealMemory=1000000 State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES State=UP PriorityTier=1 GraceTime=60 MaxTime=60
PartitionName=urgent Nodes=ALL State=UP PriorityTier=10 PreemptMode=OFF
END
    mkdir "$1/polling"
    sed 's,^JobAcctGatherFrequency,JobAcctGatherParams=OverMemoryKill\n&,' "$1/slurm.conf" >"$1/polling/slurm.conf"
    if [ -w "$MEMORY_GROUPS/cgroup.procs" ]; then
        sed -i 's,^TaskPlugin=.*,TaskPlugin=task/cgroup,' "$1/slurm.conf"
        printf '%s\n' CgroupPlugin=cgroup/v1 "CgroupMountpoint=$1/groups" ConstrainRAMSpace=yes >"$1/cgroup.conf"
        mkdir "$1/groups"
        ln -s "$(mktemp -d "$MEMORY_GROUPS/composesim.XXXXXX")" "$1/groups/memory" # else clusters would share the groups of equal jobs
    fi
}

free_ports() {
    python3 -c 'import socket, sys
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[1]))]
print(*(each.getsockname()[1] for each in sockets))' "$1"
}

await_idle() {
    local deadline=$((SECONDS + START_TIMEOUT_S))
    until [ "$("$UNPACKED/bin/sinfo" --noheader --partition debug --Node --states idle 2>/dev/null | wc -l)" = "$NODES" ]; do
        if [ "$SECONDS" -ge "$deadline" ]; then
            tail -n 20 "$1"/*.out "$1"/*.log >&2
            stop "$1"
            fail "the cluster did not become idle within $START_TIMEOUT_S s"
        fi
        sleep 0.2
    done
}

stop() {
    [ -e "$1/slurm.conf" ] || return 0
    local folder deadline=$((SECONDS + STOP_TIMEOUT_S))
    folder=$(cd "$1" && pwd)
    export SLURM_CONF=$folder/slurm.conf
    # shellcheck disable=SC2046 # a list
    kill -CONT $(daemons "$folder") 2>/dev/null || true
    for signal in --signal=KILL --quiet; do
        timeout "$STOP_TIMEOUT_S" "$UNPACKED/bin/scancel" --full "$signal" --user "$(id -un)" 2>/dev/null || true
    done
    until [ -z "$(timeout "$STOP_TIMEOUT_S" "$UNPACKED/bin/squeue" --noheader 2>/dev/null)" ] || [ "$SECONDS" -ge "$deadline" ]; do
        sleep 0.1
    done
    # Their state is deleted: none has to be saved, which takes seconds.
    # shellcheck disable=SC2046 # a list
    while kill -KILL $(daemons "$folder") 2>/dev/null; do sleep 0.05; done
    if [ -e "$folder/groups/memory" ]; then find "$(readlink "$folder/groups/memory")" -depth -type d -exec rmdir {} +; fi
    rm -rf "$folder"
}

# The controller, the daemons of nodes and those of steps. A zombie, which this machine may never collect, has no program and does not count.
daemons() {
    local process name
    for process in /proc/[0-9]*; do
        for name in slurmctld slurmd slurmstepd; do
            if [ "$process/exe" -ef "$UNPACKED/bin/$name" ] && grep -qzxF "SLURM_CONF=$1/slurm.conf" "$process/environ"; then
                echo "${process#/proc/}"
            fi
        done
    done
}

fail() {
    echo "slurm.sh: $1" >&2
    exit 1
}

main "$@"
