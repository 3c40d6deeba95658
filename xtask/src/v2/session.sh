#!/bin/busybox sh
# Runs one command line as the ordinary user in a scope of the system's manager, as a login session
# is one: nothing there is writable for him.
exec systemd-run --quiet --scope --collect --slice=user-1000.slice \
    --unit="session-$(cut -c1-8 /proc/sys/kernel/random/uuid)" --uid=1000 --gid=1000 \
    env HOME=/home/user XDG_RUNTIME_DIR=/run/user/1000 sh -c "$1"
