#!/bin/sh
# Boots systemd as process 1 of namespaces of its own, with an overlay above this root: DIRECTORY has root, written and work. Ends with this
# process. What would change the clock or the network, which are this machine's, is masked.
set -e
directory=$1
# A control group of its own, so that the machine's are not touched.
groups=/sys/fs/cgroup
[ -f $groups/cgroup.procs ] || groups=$groups/unified
[ -f $groups/cgroup.procs ]
mine=$groups/idlewood-test-$$
mkdir "$mine"
echo $$ >"$mine/cgroup.procs"
exec unshare --mount --propagation private --pid --fork --kill-child --cgroup --uts --ipc sh -c '
set -e
root=$0/root
mount -t overlay idlewood -o "lowerdir=/,upperdir=$0/written,workdir=$0/work" "$root"
mount -t proc proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/pts" "$root/dev/shm" && mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"; ln -s /proc/self/fd "$root/dev/fd"
mount -t tmpfs tmpfs "$root/dev/shm"
hostname idlewood-test
cd "$root"
: >etc/fstab
rm -f usr/sbin/policy-rc.d
# What would configure the network and the clock that this machine has.
for unit in networking systemd-networkd systemd-resolved systemd-timesyncd systemd-udevd ifupdown-pre systemd-sysctl apparmor; do
    ln -sf /dev/null "etc/systemd/system/$unit.service"
done
exec env -i container=idlewood PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin chroot "$root" /lib/systemd/systemd --system --unit=multi-user.target --log-target=console' "$directory"
