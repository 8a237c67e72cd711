# SPDX-License-Identifier: Apache-2.0
"""The lab: boots a real Debian kernel under QEMU and runs one command in it as root.

kernels, packages   tables: which kernel with which user space, and what is in it
host                programs this needs, errors, child processes that cannot outlive the lab
cache               where images live: named by content hash, built once, atomically
rootfs              the guest's Debian root as an ext4 image
kernelimage         kernel, modules and initrd out of Debian's packages (bzimage, cpio: formats)
guestfiles          what is told to the guest at each boot: its init, the environment, the command
qemu                the virtual machine's command line
share               a directory of the host in the guest
boot                one run: start it, stream its output, collect the status, clean up
accel               KVM or emulation, found out once per boot of this machine
cli                 the command `vagrant/lab/lab`
"""
