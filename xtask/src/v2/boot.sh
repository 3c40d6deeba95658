#!/bin/busybox sh
# /init of the guest: copies the initramfs to a tmpfs (an initramfs root cannot be pivoted away from)
# and goes on as /next from there.
bb=/usr/bin/busybox
$bb mkdir /new && $bb mount -t tmpfs -o size=70%,mode=755 root /new
for entry in bin sbin lib lib64 usr etc var home guest next plan; do
    [ -e "/$entry" ] && $bb cp -a "/$entry" /new/
done
$bb mkdir -p /new/proc /new/sys /new/dev /new/run /new/tmp /new/root /new/var/tmp /new/var/lib
exec $bb switch_root /new /next
