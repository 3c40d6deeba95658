# Read by both kinds of guest: readies what every case needs, then works through /plan.
# The reader defines `as_root` and `as_user`, each of which runs one command line for the shell.

prepare() {
    for module in /guest/modules/*.ko; do
        insmod "$module" || echo "::note module $module did not load"
    done
    # On a file system with changed owners, as most hosts have; a tmpfs cannot do that before Linux 6.3.
    if [ -x /usr/bin/mkfs.ext4 ]; then
        truncate -s 1500M /disk.img
        mkfs.ext4 -q -F /disk.img && mount -o loop /disk.img /tmp && chmod 1777 /tmp || echo "::note no disk"
    fi
    chmod 1777 /var/tmp
    ip link set lo up
    chown -R 1000:1000 /home/user
    echo "::note kernel $(uname -r), controllers: $(cat /sys/fs/cgroup/cgroup.controllers)"
    echo "::note security modules: $(cat /sys/kernel/security/lsm 2>/dev/null || echo unknown)"
}

one() {
    name=$1 who=$2 limit=$3 folder=$4 command=$5
    echo "::begin $name"
    begun=$(cut -d. -f1 /proc/uptime)
    "as_$who" "$limit" "cd $folder && $command"
    status=$?
    echo "::end $name $status $(($(cut -d. -f1 /proc/uptime) - begun))"
}

work() {
    tab=$(printf '\t')
    while IFS="$tab" read -r name who limit folder command; do
        one "$name" "$who" "$limit" "$folder" "$command" &
        wait $!
    done </plan
    echo "::done"
    poweroff -f
}
