#!/bin/sh
# usage: dist/first-hour.sh PACKAGE.deb
# Measures the first hour: three clean machines (network namespaces a, b and c, each with a root of its own), from the installation of
# the package to a job under `kofm run`. Prints each command that a user types, their number and the time. Needs root, ip and overlayfs.
set -eu

package=$(realpath "$1")
work=$(mktemp -d)
id=kofm-fh-$$
typed=0
pids=

leave() {
    for pid in $pids; do kill "$pid" 2>/dev/null || true; done
    wait
    for host in a b c; do
        umount -l "$work/$host/root/proc" "$work/$host/root/dev" "$work/$host/root" 2>/dev/null || true
        ip netns del "$id-$host" 2>/dev/null || true
    done
    ip netns del "$id" 2>/dev/null || true
    umount -l "$work" 2>/dev/null || true
    rmdir "$work" 2>/dev/null || true
}
trap leave EXIT
trap 'exit 1' HUP INT TERM

# The machines: a bridge in a namespace of its own, and a copy of this root that is gone afterwards.
mount -t tmpfs tmpfs "$work"
ip netns add "$id"
ip -n "$id" link add switch type bridge
ip -n "$id" link set switch up
number=0
for host in a b c; do
    number=$((number + 1))
    ip netns add "$id-$host"
    ip -n "$id" link add "p$number" type veth peer name eth0 netns "$id-$host"
    ip -n "$id" link set "p$number" master switch up
    ip -n "$id-$host" addr add "10.214.0.$number/24" dev eth0
    ip -n "$id-$host" link set lo up
    ip -n "$id-$host" link set eth0 up
    ip -n "$id-$host" route add default via 10.214.0.254
    mkdir -p "$work/$host/upper" "$work/$host/work" "$work/$host/root"
    mount -t overlay overlay -o "lowerdir=/,upperdir=$work/$host/upper,workdir=$work/$host/work" "$work/$host/root"
    mount --bind /proc "$work/$host/root/proc"
    mount --bind /dev "$work/$host/root/dev"
    # Nothing of another installation.
    rm -rf "$work/$host/root/var/lib/kofm" "$work/$host/root/root/.config/kofm"
    cp "$package" "$work/$host/root/root/kofm.deb"
done

# Runs a command on a machine, as its root.
on() {
    host=$1
    shift
    ip netns exec "$id-$host" unshare --uts chroot "$work/$host/root" env -i HOME=/root \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        sh -c "echo $host >/proc/sys/kernel/hostname; cd /root; $*"
}

# A command that the user types, and waits for.
user() {
    typed=$((typed + 1))
    echo "$typed  $1\$ $2"
    on "$1" "$2"
}

# A command that the user types with `&`.
user_starts() {
    typed=$((typed + 1))
    echo "$typed  $1\$ $2 &"
    on "$1" "exec $2" >"$work/$1/log" 2>&1 &
    pids="$pids $!"
}

# Waits until a command succeeds, as a user reads what the one before has printed.
soon() {
    tries=0
    until on "$1" "$2" >"$work/$1/soon" 2>&1; do
        tries=$((tries + 1))
        if [ "$tries" -gt 300 ]; then
            echo "$1: $2:"
            cat "$work/$1/soon" "$work/$1/log"
            exit 1
        fi
        sleep 0.2
    done
}

start=$(date +%s)
user a 'dpkg -i kofm.deb >/dev/null 2>&1'
user_starts a 'kofm init --serve'
soon a 'kofm status'
user a 'kofm pool set gpu --units 4 >/dev/null'
for host in b c; do
    code=$(user a 'kofm invite' | tee "$work/invited" | tail -n 1)
    typed=$((typed + 1))
    head -n 1 "$work/invited"
    user "$host" 'dpkg -i kofm.deb >/dev/null 2>&1'
    user_starts "$host" "kofm join $code"
    soon "$host" 'kofm status'
done
soon a '[ "$(kofm members | grep -c " up \| self ")" = 3 ]'
user c "kofm run gpu:2 -- sh -c 'echo job on \$KOFM_UNITS_GPU'"
echo "commands=$typed seconds=$(($(date +%s) - start))"
[ "$typed" -le 10 ]
