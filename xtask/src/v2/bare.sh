#!/bin/busybox sh
# PID 1 of the guest without any manager: mounts a pure cgroup v2 host and works through the plan.
set -u
export PATH=/usr/bin:/usr/sbin:/bin:/sbin
. /guest/plan.sh

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t securityfs security /sys/kernel/security
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts -o ptmxmode=666 pts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t tmpfs -o mode=755 run /run
mount -t tmpfs -o mode=1777 tmp /tmp
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ln -sf /proc/self/fd /dev/fd
exec </dev/null >/dev/ttyS1 2>&1
stty -F /dev/ttyS1 -opost 2>/dev/null
hostname v2host
mkdir -p /run/user/1000 && chown 1000:1000 /run/user/1000 && chmod 700 /run/user/1000
prepare

# Where root works: an ordinary group, as a login session has, with nothing prepared for us.
mkdir /sys/fs/cgroup/session
# Where the ordinary user works: a subtree that was delegated.
delegate() {
    echo "+memory +pids +cpu" >/sys/fs/cgroup/cgroup.subtree_control
    mkdir -p /sys/fs/cgroup/user/login
    echo "+memory +pids +cpu" >/sys/fs/cgroup/user/cgroup.subtree_control
    for file in . cgroup.procs cgroup.threads cgroup.subtree_control \
        login login/cgroup.procs login/cgroup.threads login/cgroup.subtree_control; do
        chown 1000:1000 "/sys/fs/cgroup/user/$file"
    done
}

as_root() {
    echo 0 >/sys/fs/cgroup/session/cgroup.procs
    HOME=/root timeout -s KILL "$1" sh -c "$2"
}

as_user() {
    [ -e /sys/fs/cgroup/user ] || delegate
    echo 0 >/sys/fs/cgroup/user/login/cgroup.procs
    HOME=/home/user XDG_RUNTIME_DIR=/run/user/1000 timeout -s KILL "$1" \
        /usr/bin/setpriv --reuid 1000 --regid 1000 --clear-groups --inh-caps=-all --bounding-set=+all \
        sh -c "$2"
}

work
