# The cases of the guest that systemd manages, one function each. Each line must hold: `must` tells
# which one did not.

leasehold=/guest/leasehold
groups=/sys/fs/cgroup
report=/tmp/report-$(id -u)

must() {
    "$@" || {
        echo "did not hold: $*"
        exit 1
    }
}

# Waits for a command to be true.
soon() {
    for _ in $(seq 100); do
        "$@" && return
        sleep 0.2
    done
    return 1
}

nothing_left() { test -z "$(find $groups -name 'leasehold-*')"; }
gone() { soon nothing_left || { find $groups -name 'leasehold-*'; return 1; }; }
no_scope() { ! find $groups -name 'leasehold-*.scope' | grep .; }
one_scope() { test "$(find $groups -name 'leasehold-*.scope' | wc -l)" = 1; }
units() { systemctl --user list-units --plain --no-legend 'leasehold-*.scope'; }
manager_listens() { test -S /run/user/1000/systemd/private; }

# The doctor's report must have each of these lines.
doctor() {
    $leasehold doctor >"$report"
    status=$?
    cat "$report"
    must test $status = 0
    for line in "$@"; do
        must grep -Eq "$line" "$report"
    done
}
all_enforced() { test "$(grep -c '^  enforced ' "$report")" = 10; }

# Takes four times the memory it is given.
hog() {
    $leasehold run --memory 64M --json -- dd if=/dev/zero of=/dev/null bs=256M count=1 >"$report"
    status=$?
    cat "$report"
}

is_up() {
    must systemctl is-active user@1000.service
    must manager_listens
}

session_is_not_delegated() {
    must test "$(id -u)" = 1000
    must grep '/session-.*[.]scope$' /proc/self/cgroup
    ! mkdir "$groups$(cut -d: -f3 /proc/self/cgroup)/x" 2>/dev/null || must false
}

scope_limits() {
    doctor '^  ok +delegation +scope leasehold-[0-9a-f]+-[0-9]+[.]scope: '
    must all_enforced
    must gone
}

scope_memory() {
    hog
    must test $status = 137
    must grep -q '"reason": *"resource_exceeded"' "$report"
    must grep -q '"which": *"memory"' "$report"
    units
    must test "$(units | grep -c ' active ')" = 1
    must $leasehold stop
    must gone
    must test -z "$(units)"
}

scope_after_kill() {
    must $leasehold run -q -- true
    must one_scope
    must kill -9 "$(pidof leasehold | tr ' ' '\n' | sort -n | head -1)"
    must gone
    must $leasehold sweep
    must test -z "$(units)"
}

# Without a scope everything is as on any host where nothing may be made.
scope_off() {
    export LEASEHOLD_SCOPE=off
    doctor '^  refused +memory ' '^  refused +pids ' '^  refused +cpu ' '^  missing +delegation ' \
        'unset LEASEHOLD_SCOPE'
    hog
    must test $status = 125
    must no_scope
    must $leasehold stop
    must gone
}

root_limits() {
    doctor '^  ok +delegation +own groups, in /sys/fs/cgroup'
    must all_enforced
    must gone
}

as_user() { /guest/session ". /guest/cases.sh; $*"; }
refused_for_silence() {
    $leasehold run --memory 64M -- true >"$report" 2>&1
    status=$?
    cat "$report"
    must test $status = 125
    must grep -q 'systemd did not answer within 2000 ms' "$report"
    must $leasehold stop
}

scope_silent() {
    pid=$(systemctl show -P MainPID user@1000.service)
    must kill -STOP "$pid"
    as_user refused_for_silence
    status=$?
    kill -CONT "$pid"
    must test $status = 0
    must gone
}

# What the doctor says mends it does.
mend() {
    doctor '^  refused +memory ' 'no systemd manager of this user' 'mend: sudo loginctl enable-linger user$'
}
no_manager() {
    must systemctl stop user@1000.service
    must as_user mend
    must loginctl enable-linger user
    must soon manager_listens
    must as_user scope_limits
}
