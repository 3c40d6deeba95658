#!/bin/busybox sh
# The plan's service of the guest that systemd manages.
set -u
export PATH=/usr/bin:/usr/sbin:/bin:/sbin
. /guest/plan.sh

exec </dev/null >/dev/ttyS1 2>&1
stty -F /dev/ttyS1 -opost 2>/dev/null
prepare
echo "::note $(systemctl --version | head -1), $(cut -d. -f1 /proc/uptime) s after boot"

as_root() {
    HOME=/root timeout -s KILL "$1" sh -c "$2"
}

as_user() {
    timeout -s KILL "$1" /guest/session "$2"
}

work
