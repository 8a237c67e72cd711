# SPDX-License-Identifier: Apache-2.0
"""The lab: boots a real Debian kernel under QEMU and runs one command in it as root.

kernels, packages   tables: the kernels with their user space, and its packages
host                programs that the lab needs, errors, child processes that end with the lab
cache               the directory of images: named by content hash, built once, atomically
rootfs              the guest's Debian root as an ext4 image
kernelimage         kernel, modules and initrd from Debian's packages (bzimage, cpio: formats)
guestfiles          files for the guest at each boot: its init, the environment, the command
qemu                the virtual machine's command line
share               a directory of the host in the guest
boot                one run: start the machine, stream its output, collect the status, clean up
accel               KVM or emulation, determined once per boot of this machine
cli                 the command `vagrant/lab/lab`
"""
