#!/bin/busybox sh
# PID 1 of the guest, twice: from the initramfs it copies itself to a tmpfs (an initramfs root cannot
# be pivoted away from), then it mounts a pure cgroup v2 host and works through /plan.
set -u
export PATH=/usr/bin:/usr/sbin:/bin:/sbin
bb=/usr/bin/busybox

if [ ! -e /moved ]; then
    $bb mkdir /new && $bb mount -t tmpfs -o size=70%,mode=755 root /new
    for entry in bin sbin lib lib64 usr etc home guest init plan; do
        $bb cp -a "/$entry" /new/
    done
    $bb mkdir -p /new/proc /new/sys /new/dev /new/run /new/tmp /new/root /new/var/tmp /new/var/lib
    $bb touch /new/moved
    exec $bb switch_root /new /init
fi

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t securityfs security /sys/kernel/security
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts -o ptmxmode=666 pts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t tmpfs -o mode=755 run /run
mount -t tmpfs -o mode=1777 tmp /tmp
chmod 1777 /var/tmp
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ln -sf /proc/self/fd /dev/fd
exec </dev/null >/dev/ttyS1 2>&1
stty -F /dev/ttyS1 -opost 2>/dev/null
for module in /guest/modules/*.ko; do
    insmod "$module" || echo "::note module $module did not load"
done
# On a file system with changed owners, as most hosts have; a tmpfs cannot do that before Linux 6.3.
if [ -x /usr/bin/mkfs.ext4 ]; then
    truncate -s 1500M /disk.img
    mkfs.ext4 -q -F /disk.img && mount -o loop /disk.img /tmp && chmod 1777 /tmp || echo "::note no disk"
fi
ip link set lo up
hostname v2host
chown -R 1000:1000 /home/user
mkdir -p /run/user/1000 && chown 1000:1000 /run/user/1000 && chmod 700 /run/user/1000

echo "::note kernel $(uname -r), controllers: $(cat /sys/fs/cgroup/cgroup.controllers)"
echo "::note security modules: $(cat /sys/kernel/security/lsm 2>/dev/null || echo unknown)"

# Where root works: an ordinary group, as a login session has, with nothing prepared for us.
mkdir /sys/fs/cgroup/session
# Where the ordinary user works: a subtree that was delegated, as a systemd user session has.
delegate() {
    echo "+memory +pids +cpu" >/sys/fs/cgroup/cgroup.subtree_control
    mkdir -p /sys/fs/cgroup/user/login
    echo "+memory +pids +cpu" >/sys/fs/cgroup/user/cgroup.subtree_control
    for file in . cgroup.procs cgroup.threads cgroup.subtree_control \
        login login/cgroup.procs login/cgroup.threads login/cgroup.subtree_control; do
        chown 1000:1000 "/sys/fs/cgroup/user/$file"
    done
}

one() {
    name=$1 who=$2 limit=$3 folder=$4 command=$5
    echo "::begin $name"
    begun=$(cut -d. -f1 /proc/uptime)
    case $who in
    root)
        echo 0 >/sys/fs/cgroup/session/cgroup.procs
        HOME=/root timeout -s KILL "$limit" sh -c "cd $folder && $command"
        ;;
    user)
        [ -e /sys/fs/cgroup/user ] || delegate
        echo 0 >/sys/fs/cgroup/user/login/cgroup.procs
        HOME=/home/user XDG_RUNTIME_DIR=/run/user/1000 timeout -s KILL "$limit" \
            /usr/bin/setpriv --reuid 1000 --regid 1000 --clear-groups --inh-caps=-all --bounding-set=+all \
            sh -c "cd $folder && $command"
        ;;
    esac
    status=$?
    echo "::end $name $status $(($(cut -d. -f1 /proc/uptime) - begun))"
}

tab=$(printf '\t')
while IFS="$tab" read -r name who limit folder command; do
    one "$name" "$who" "$limit" "$folder" "$command" &
    wait $!
done </plan
echo "::done"
poweroff -f
