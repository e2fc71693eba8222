#!/usr/bin/env bash
# Install Docker Engine and Compose v2 from the distribution's packages, and start the engine, unless it runs already.
#
#   scripts/engine.sh           install and start what is missing (as root), with iproute2 and iptables, which shape links
#   scripts/engine.sh --check   print the version of the engine, or (on stderr) why it does not answer; exit status 0 or 1
#   scripts/engine.sh --log     print the last lines of the engine's log
set -euo pipefail

OLDEST_COMPOSE=2.20
LOG=/var/log/composesim-dockerd.log
START_TIMEOUT_S=60

main() {
    case "${1:-}" in
        --check) check ;;
        --log) show_log ;;
        "") ensure ;;
        *) fail "unknown option '$1': --check, --log or none" ;;
    esac
}

ensure() {
    if check 2>/dev/null; then install_network_tools; return; fi
    [ "$(id -u)" = 0 ] || fail "$(check 2>&1 || true)
    Only root can install and start an engine. Type: sudo make engine"
    [ -z "${DOCKER_HOST:-}" ] || fail "DOCKER_HOST is '$DOCKER_HOST' and does not answer. Type: unset DOCKER_HOST; make engine"
    if ! { has dockerd && compose_is_new_enough 2>/dev/null; }; then install_packages; fi
    install_network_tools
    engine_version >/dev/null 2>&1 || start
    check || fail "the engine was installed and started, and still does not serve. Type: scripts/engine.sh --log"
}

# --- What is there ---

check() {
    local engine
    engine=$(engine_version) || return 1
    compose_is_new_enough || return 1
    echo "Docker Engine $engine and Compose $(compose_version) answer."
}

# `docker version`, not `docker info`: it fails where only the client is there.
engine_version() {
    if has docker && timeout 20 docker version --format '{{.Server.Version}}'; then return; fi
    echo "No Docker Engine answers." >&2
    return 1
}

compose_version() { docker compose version --short 2>/dev/null | sed 's/^v//'; }

compose_is_new_enough() {
    local found
    found=$(compose_version) || true
    if [ -n "$found" ] && is_at_least "$OLDEST_COMPOSE" "$found"; then return; fi
    echo "'docker compose' is ${found:-missing}; composesim needs $OLDEST_COMPOSE or newer." >&2
    return 1
}

is_at_least() { [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }

has() { command -v "$1" >/dev/null; }

# --- Install ---

install_packages() {
    has apt-get || fail "this script knows Debian and Ubuntu. Install Docker Engine and Compose $OLDEST_COMPOSE, then: make engine"
    apt update -q
    # Where the maker's own packages are, the distribution's would clash with them.
    if is_installed docker-ce; then apt install docker-compose-plugin docker-buildx-plugin; return; fi
    local packages=(iptables ca-certificates)
    # With AppArmor in the kernel but without its parser, every container fails to start.
    if grep -qs Y /sys/module/apparmor/parameters/enabled; then packages+=(apparmor); fi
    case "$(distribution)" in
        ubuntu) apt install docker.io docker-compose-v2 docker-buildx "${packages[@]}" ;;
        debian) install_on_debian "${packages[@]}" ;;
        *) fail "this script knows Debian and Ubuntu. Install Docker Engine and Compose $OLDEST_COMPOSE, then: make engine" ;;
    esac
}

install_on_debian() {
    local packages=(docker.io docker-cli docker-compose docker-buildx)
    if is_at_least "$OLDEST_COMPOSE" "$(candidate docker-compose)"; then
        apt install "${packages[@]}" "$@"
        return
    fi
    # Debian 12 has Compose v1: these four come from Debian 13. They run on Debian 12's C library; its iptables would not.
    if ! debian_sources | grep -q ' trixie$'; then add_trixie; fi
    apt install "${packages[@]/%//trixie}" "$@"
}

# What links and network faults are made with; a cluster runs without them.
install_network_tools() {
    local missing=()
    has tc || [ -x /usr/sbin/tc ] || missing+=(iproute2)
    has iptables || [ -x /usr/sbin/iptables ] || missing+=(iptables)
    [ "${#missing[@]}" -gt 0 ] || return 0
    if [ "$(id -u)" = 0 ] && has apt-get; then
        apt update -q
        apt install "${missing[@]}"
    else
        echo "engine.sh: links and network faults need ${missing[*]}, which only root can install." >&2
    fi
}

add_trixie() {
    local uri keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    uri=$(debian_sources | awk '$2 !~ /-/ { print $1; exit }') # the mirror that this machine already uses
    [ -n "$uri" ] || fail "no Debian mirror among this machine's apt sources. See: apt-get indextargets"
    {
        printf 'Types: deb\nURIs: %s\nSuites: trixie\nComponents: main\n' "$uri"
        if [ -f "$keyring" ]; then echo "Signed-By: $keyring"; fi
    } >/etc/apt/sources.list.d/composesim-trixie.sources
    # Below every installed and every other offered version: nothing moves to Debian 13 by itself.
    printf 'Package: *\nPin: release n=trixie\nPin-Priority: 50\n' >/etc/apt/preferences.d/composesim-trixie
    apt update -q
}

# Lines of "mirror release" for Debian's own main component, as apt reads its configuration.
debian_sources() {
    apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT) $(LABEL)' 'Created-By: Packages' |
        awk '$3 == "main" && $4 == "Debian" { print $1, $2 }' | sort -u
}

candidate() { apt-cache policy "$1" | awk '$1 == "Candidate:" { print $2 }' | sed 's/(none)/0/'; }

distribution() {
    (
        . /etc/os-release
        case " $ID ${ID_LIKE:-} " in
            *" ubuntu "*) echo ubuntu ;;
            *" debian "*) echo debian ;;
            *) echo "$ID" ;;
        esac
    )
}

is_installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

apt() {
    local verb=$1
    shift
    DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=a \
        apt-get "$verb" -y -o DPkg::Lock::Timeout=120 $([ "$verb" = install ] && echo --no-install-recommends) "$@" </dev/null
}

# --- Start ---

start() {
    if [ -d /run/systemd/system ]; then
        systemctl enable --now docker
    elif ! daemon_is_running; then # one that is only slow to start is left alone
        echo "Starting dockerd, which logs to $LOG."
        setsid dockerd >>"$LOG" 2>&1 </dev/null &
        started=$!
    fi
    wait_for_answer && return
    show_log >&2
    fail "the Docker Engine did not answer within $START_TIMEOUT_S s; its last words are above."
}

wait_for_answer() {
    local deadline=$((SECONDS + START_TIMEOUT_S))
    until timeout 20 docker version >/dev/null 2>&1; do
        if [ "$SECONDS" -ge "$deadline" ]; then return 1; fi
        if [ -n "${started:-}" ] && ! [ -d "/proc/$started" ] && ! daemon_is_running; then return 1; fi
        sleep 0.5
    done
}

# By dockerd's own file: pgrep is not on every machine.
daemon_is_running() {
    local pid
    pid=$(cat /var/run/docker.pid 2>/dev/null) && [ -d "/proc/$pid" ]
}

show_log() {
    if [ -d /run/systemd/system ]; then
        journalctl --unit docker --no-pager --lines 40
    elif [ -f "$LOG" ]; then
        tail -n 40 "$LOG"
    else
        echo "No log of an engine that this script started: there is no $LOG."
    fi
}

fail() {
    echo "engine.sh: $1" >&2
    exit 1
}

main "$@"
