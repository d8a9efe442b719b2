#!/bin/sh
# Restarts the agent with items of agent.isolation laid over its configuration, and only with those.
#
#     agent.sh on ITEM KEY=VALUE...   adds the settings of an item
#     agent.sh off ITEM               leaves them out again; without any ITEM on, no isolation is
#     agent.sh end                    the agent is as its configuration has it
#
# By a drop-in of the unit in /run, which no reboot survives. It has deploy/isolation.conf and
# deploy/partitions.conf in it, without which the unit may not write what most items need. STATE is a
# directory for what is on.
set -eu
dropin=${DROPIN:-/run/systemd/system/numawarden.service.d/evidence.conf}
deploy=$(cd "$(dirname "$0")/.." && pwd)
config=/etc/numawarden/config.yaml
action=$1 item=${2:-}
mkdir -p "$STATE/agent"
case $action in
on) shift 2 && printf '%s\n' "$@" >"$STATE/agent/$item" ;;
off) rm -f "$STATE/agent/$item" ;;
end)
    [ -e "$dropin" ] || exit 0
    rm "$dropin"
    systemctl daemon-reload
    exec systemctl restart numawarden.service
    ;;
esac
none='agent.isolation.hostSlices=false
agent.isolation.kernelThreads=false
agent.isolation.interrupts=never
agent.isolation.smt=never
agent.isolation.memory=never
agent.isolation.partitions=never
agent.isolation.power=
agent.isolation.resctrl.defaultClass='
mkdir -p "$(dirname "$dropin")"
{
    cat "$deploy/isolation.conf" "$deploy/partitions.conf"
    printf '[Service]\nExecStart=\nExecStart=/opt/numawarden/bin/numawarden agent --config %s' "$config"
    { echo "$none" && find "$STATE/agent" -type f -exec cat {} +; } |
        while read -r setting; do printf ' "--set=%s"' "$setting"; done
    echo
} >"$dropin"
systemctl daemon-reload
# It is up once it has made all settings as they are to be.
systemctl restart numawarden.service
