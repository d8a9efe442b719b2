#!/bin/sh
# Measures on this host what disturbs exclusive CPUs, with and without each item of isolation.
#
#     measure.sh [-t TIME] [-c CPUS] [-o DIRECTORY] [-l] [ITEM...]
#
# A pod of CPUS exclusive CPUs that does nothing is watched by `numawarden interference --probe`: without
# any item, with each alone, and with all. Each of these phases takes its share of TIME (24h, 90m, 600s).
# -l lets one task for each CPU of the host run in system.slice meanwhile. An ITEM is a script of items/
# beside this file (all of them without a name), called with `on` or `off` and the variables CPUS, the
# pod's CPUs, OTHERS, all others that are online, and KIT, this directory. Those that are there switch the
# keys of agent.isolation (agent.sh); without an item the agent isolates nothing, whatever its configuration
# says. DIRECTORY gets a document (JSON) for each phase, and report.txt, the comparison. Root, with the
# package's unit. What was changed is taken back at the end, also of an interrupted measurement.
set -eu
PATH=/opt/numawarden/bin:$PATH
here=$(cd "$(dirname "$0")" && pwd)
time=24h cpus=2 directory=evidence-$(uname -n)-$(date -u +%Y%m%dT%H%M%SZ) load=
pod=numawarden-evidence unit=numawarden-evidence-load

usage() {
    echo "usage: measure.sh [-t TIME] [-c CPUS] [-o DIRECTORY] [-l] [ITEM...]" >&2
    exit 2
}
while getopts t:c:o:l option; do
    case $option in
    t) time=$OPTARG ;;
    c) cpus=$OPTARG ;;
    o) directory=$OPTARG ;;
    l) load=yes ;;
    *) usage ;;
    esac
done
shift $((OPTIND - 1))
case $time in
*[0-9]h) seconds=$((${time%h} * 3600)) ;;
*[0-9]m) seconds=$((${time%m} * 60)) ;;
*[0-9]s) seconds=${time%s} ;;
*) usage ;;
esac
items=${*:-$(cd "$here/items" && ls)}
for item in $items; do
    [ -f "$here/items/$item" ] || { echo "measure.sh: there is no $here/items/$item" >&2 && exit 2; }
done
phase=$((seconds / ($(echo "$items" | wc -w) + 2)))
[ "$phase" -ge 1 ] || { echo "measure.sh: $time is too short for $items" >&2 && exit 2; }

mkdir -p "$directory"
export KIT="$here" STATE="$directory/state"
mkdir -p "$STATE"
owner=
restore() {
    for item in $items; do
        sh "$here/items/$item" off || echo "measure.sh: $item could not be taken back" >&2
    done
    sh "$here/agent.sh" end || echo "measure.sh: the agent could not be restarted" >&2
    [ -z "$load" ] || systemctl stop "$unit.service" 2>/dev/null || true
    [ -z "$owner" ] || kill "$owner" 2>/dev/null || true
}
trap restore EXIT
trap 'exit 130' INT TERM

sh "$here/agent.sh" off none
numawarden run --quiet --name "$pod" --cpus "$cpus" -- sleep infinity &
owner=$!
for _ in $(seq 300); do
    [ "$(cat "/proc/$owner/comm" 2>/dev/null)" != sleep ] || break
    sleep 0.1
done
[ "$(cat "/proc/$owner/comm" 2>/dev/null)" = sleep ] || { echo "measure.sh: the pod did not start" >&2 && exit 1; }
CPUS=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' "/proc/$owner/status")
OTHERS=$(
    expand() { tr , '\n' | awk -F- '{ for (n = $1; n <= (NF > 1 ? $2 : $1); n++) print n }'; }
    { echo "$CPUS" | expand; echo "$CPUS" | expand; expand </sys/devices/system/cpu/online; } |
        sort -n | uniq -u | paste -sd, -
)
export CPUS OTHERS
if [ -n "$load" ]; then
    # shellcheck disable=SC2016  # expanded in the unit
    systemd-run --quiet --collect --unit="$unit" --slice=system.slice \
        sh -c 'for _ in $(seq "$(nproc --all)"); do while :; do :; done & done; wait'
fi

watch() { # NAME: one phase
    numawarden interference "$pod" --for "${phase}s" --probe -o json >"$directory/$1.json" || [ $? -eq 1 ]
    python3 "$here/compare.py" "$directory" >"$directory/report.txt"
}
{ uname -a; cat /proc/cmdline; numawarden --version; echo "CPUs $CPUS, others $OTHERS, load ${load:-no}"; } >"$directory/host.txt"
watch 0-nothing
for item in $items; do
    sh "$here/items/$item" on
    watch "1-$item"
    sh "$here/items/$item" off
done
for item in $items; do sh "$here/items/$item" on; done
watch 2-all
cat "$directory/report.txt"
