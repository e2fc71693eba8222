"""Render the script that closes this machine to the nodes of a run, and the nodes to its users, or opens both again.

Docker leaves this to the firewall of the machine: a bridge leads to every service that listens on all addresses, and to the metadata
address of a cloud, which hands out credentials. Nodes have no NET_RAW, so they cannot send from an address outside their subnet.
In the other direction, every user could reach the store of torch, which accepts everybody.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection

_NEW = "-m conntrack --ctstate NEW"
# Link-local addresses, which all clouds use, and those that Alibaba and Azure use as well.
_METADATA = ("169.254.0.0/16", "100.100.100.200/32", "168.63.129.16/32")

SETTLED_S = 600  # rules are installed before the network of their run exists; nothing takes that long in between

# Docker may use either kind of tables: those that have the chain DOCKER-USER. One transaction replaces all rules of the run, and
# removes those of runs that are gone: a user may have removed their network by hand. A comment is `composesim:RUN@SECONDS`.
# A transaction fails as a whole if another run removed one of these rules since they were listed; then it is made anew.
# Tables that cannot be listed take no rule of ours either, such as where an extension is missing; 4 means that they are locked.
# Rules are listed before the transaction begins: `iptables-legacy-restore` locks the tables as soon as it has read the first line.
_SCRIPT = """
for found in iptables-nft iptables-legacy iptables none; do
  $found -w 5 -S DOCKER-USER >/dev/null 2>&1 && break
done
[ $found = none ] && { echo "no iptables here shows Docker's chain DOCKER-USER" >&2; exit STATUS; }
replace() {
  rules=$($found -w 5 -S) || { [ $? = 4 ] && return 4 || return STATUS; }
  { echo '*filter'
    echo "$rules" | sed -n '/ --comment "*composesim:/s/^-A/-D/p' | while read -r rule; do
      name=${rule#*composesim:} name=${name%%[!a-z0-9_@-]*}
      run=${name%@*} began=${name##*@}
      case LIVE in *" $run "*) is_live=yes ;; *) is_live=no ;; esac
      [ "$run" = RUN ] || { [ $is_live = no ] && [ "$began" -lt OLD ]; } || continue
      echo "$rule"
    done
    cat <<'END'
RULES
END
    echo COMMIT
  } | $found-restore -w 5 --noflush
}
for attempt in 1 2 3 4 5; do
  said=$(replace 2>&1) && exit
done
echo "$said" >&2
exit 1
"""


def render_firewall(run: str, closed_to: str | None, *, now: float, live: Collection[str] | None = None) -> str:
    """
    Return a shell script for the network namespace of the daemon.

    `closed_to` is the subnet of the nodes; None removes the rules of the run. Port 53 stays open, so that names are resolved.
    `live` are the runs that have a network; rules of all others are removed, unless they are new. `now` is in seconds
    of the monotonic clock: like the rules, it begins when the machine is started.
    """
    rules = _rules(closed_to, f"composesim:{run}@{now:.0f}") if closed_to else []
    values = {
        "STATUS": "1" if closed_to else "0",  # where no rule can be added, there is none to remove
        "RUN": shlex.quote(run),
        "LIVE": shlex.quote(f" {' '.join(live or ())} "),
        "OLD": f"{now - SETTLED_S:.0f}" if live is not None else "0",
        "RULES": "\n".join(rules),
    }
    return re.sub("|".join(values), lambda match: values[match[0]], _SCRIPT)


def _rules(subnet: str, comment: str) -> list[str]:
    matches = [f"DOCKER-USER 1 -s {subnet} -d {address}" for address in _METADATA]
    # Answers to connections that this machine opened, such as to a published port, must arrive.
    matches += [f"INPUT 1 -s {subnet} ! -i lo {_NEW}"]
    to_machine = [f"{match} -p {protocol} ! --dport 53" for match in matches for protocol in ("tcp", "udp")]
    # What root opens goes on, such as Docker's proxy for a published port, and what the kernel forwards to such a port.
    to_nodes = [f"OUTPUT 1 -d {subnet} ! -o lo {_NEW} -m conntrack ! --ctstate DNAT -m owner ! --uid-owner 0"]
    return [f"-I {match} -m comment --comment {comment} -j REJECT" for match in (*to_machine, *to_nodes)]
