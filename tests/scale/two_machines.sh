#!/bin/sh
# Run a command on two machines: network namespaces with a cable between them. MACHINE is 0 or 1
# there, the addresses are 10.77.0.1 and 10.77.0.2, and `ip link set cable down` cuts the cable.
# It fails if one of the two commands fails.
#
#   sh two_machines.sh sh -c 'ip -brief address'
set -eu
if [ -z "${MACHINE:-}" ]; then
    export MACHINE=both
    exec unshare --user --map-root-user --net --mount --pid --fork --kill-child --mount-proc sh "$0" "$@"
fi
mount -t tmpfs tmpfs /run
ip netns add machine0
ip netns add machine1
ip link add cable netns machine0 type veth peer name cable netns machine1
for machine in 0 1; do
    ip -n "machine$machine" address add "10.77.0.$((machine + 1))/24" dev cable
    ip -n "machine$machine" link set cable up
    ip -n "machine$machine" link set lo up
done
# The name of this machine is not an address of its cable: gloo has to be told.
export GLOO_SOCKET_IFNAME=cable
MACHINE=1 nsenter --net=/run/netns/machine1 "$@" &
other=$!
MACHINE=0 nsenter --net=/run/netns/machine0 "$@"
wait "$other"
