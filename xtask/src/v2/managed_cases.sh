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

# Groups come and go while they are looked for.
ours() { find $groups -name "$1" 2>/dev/null; }
nothing_left() { test -z "$(ours 'leasehold-*')"; }
gone() { soon nothing_left || { ours 'leasehold-*'; return 1; }; }
no_scope() { test -z "$(ours 'leasehold-*.scope')"; }
one_scope() { test "$(ours 'leasehold-*.scope' | wc -l)" = 1; }
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

# The doctor without its probes: status, then lines that must be there.
look() {
    $leasehold doctor --no-probes >"$report"
    status=$?
    cat "$report"
    must test $status = "$1"
    shift
    for line in "$@"; do
        must grep -Eq "$line" "$report"
    done
}

# Carries out the command of the last report that names this word.
carry_out() {
    command=$(sed -n 's/^  mend: //p' "$report" | grep "$1" | head -1 | sed 's/sudo //g')
    echo "mending: $command"
    must test -n "$command"
    must sh -c "$command"
}

# Bad settings of a host, each made for real, seen, and mended as the doctor says.
bad_settings() {
    look 0 '^  ok +core dumps ' '^  ok +user namespaces ' '^  ok +delegation ' '^  ok +Landlock +version [1-5]: '
    echo '|/bin/false' >/proc/sys/kernel/core_pattern
    look 0 '^  missing +core dumps +kernel[.]core_pattern starts a host program [(]./bin/false[)]'
    carry_out core_pattern
    look 0 '^  ok +core dumps '
    echo 0 >/proc/sys/user/max_user_namespaces
    look 1 '^  missing +user namespaces +user[.]max_user_namespaces is 0'
    carry_out max_user_namespaces
    look 0 '^  ok +user namespaces '
}
only_root_may() { look 0 '^  missing +user namespaces +kernel[.]unprivileged_userns_clone is 0'; }
everybody_may() { look 0 '^  ok +user namespaces +an ordinary user may make them'; }
closed_to_users() {
    must as_user everybody_may
    echo 0 >/proc/sys/kernel/unprivileged_userns_clone
    must as_user only_root_may
    report=/tmp/report-1000
    carry_out unprivileged_userns_clone
    must as_user everybody_may
}

# As most containers have it: groups that can be seen and not written.
in_a_container() {
    must mount -o remount,ro,bind /sys/fs/cgroup
    touch /run/.containerenv
    look 0 '^  missing +delegation +none: .*' 'mounted read-only' '^  ok +container +we are in a container [(]podman[)]'
    rm /run/.containerenv
    carry_out remount
    look 0 '^  ok +delegation ' '^  ok +memory '
}
read_only_groups() { must unshare -m /bin/sh -c '. /guest/cases.sh; in_a_container'; }

# What the doctor says mends it does.
told() { tr -s ' \n' ' ' <"$report" | grep -q "$1"; }
mend() {
    doctor '^  refused +memory ' 'mend: sudo loginctl enable-linger user$'
    must told 'no systemd manager of this user listens at /run/user/1000/systemd/private'
}
no_manager() {
    must systemctl stop user@1000.service
    must as_user mend
    must loginctl enable-linger user
    must soon manager_listens
    must as_user scope_limits
}
