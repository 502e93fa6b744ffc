"""Run inside a cell: tries to do what nobody in a cell may do. Prints a line for each attempt: its name, a tab, and
"refused: why" or "DONE: what". The tests read the lines, and look at the machine afterwards."""

import ctypes
import errno
import mmap
import os
import resource
import signal
import socket
import struct
import sys
import threading

workspace, outside, port, abstract, pathname, host_pid = sys.argv[1:7]
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


class Refused(Exception):
    pass


def call(number, *arguments):
    done = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    if done < 0:
        raise Refused(errno.errorcode.get(ctypes.get_errno(), ctypes.get_errno()))
    return done


def attempt(name, what):
    try:
        done = what()
        print(f"{name}\tDONE: {done!r}")
    except Refused as e:
        print(f"{name}\trefused: {e}")
    except OSError as e:
        print(f"{name}\trefused: {errno.errorcode.get(e.errno, e.errno)}")
    except (ValueError, PermissionError) as e:
        print(f"{name}\trefused: {e}")
    sys.stdout.flush()


def write(path):
    def what():
        with open(path, "w") as f:
            f.write("x")
        return path
    return what


def read(path):
    def what():
        with open(path, "rb") as f:
            return f.read(20)
    return what


def child(what):
    """The signal that ended a child which did it, or what it exited with."""
    pid = os.fork()
    if pid == 0:
        try:
            what()
        except BaseException:
            os._exit(9)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def refused_in_child(what):
    def run():
        code = child(what)
        if code != 0:
            raise Refused(f"ended with {code}")
        return code
    return run


# Files.
for path in ["/etc/actum-attack", "/usr/actum-attack", "/var/tmp/actum-attack", "/actum-attack", "/bin/actum-attack",
             "/dev/actum-attack", "/proc/actum-attack", f"{outside}/new"]:
    attempt(f"1 write {path}", write(path))
for path in ["/etc/shadow", "/root/.ssh/id_rsa", "/root/.bashrc", "/root/.profile", f"{outside}/secret", "/etc/sudoers",
             "/etc/gshadow", "/var/log/dpkg.log", "/etc/fstab"]:
    attempt(f"2 read {path}", read(path))
attempt("3 up and out", write("../../../../../../../../etc/actum-attack"))


def through_link():
    os.symlink(outside, f"{workspace}/link")
    return write(f"{workspace}/link/new")()


attempt("4 through a link", through_link)


def swap():
    os.mkdir(f"{workspace}/real")
    os.symlink(outside, f"{workspace}/fake")
    stop = threading.Event()

    def swapping():
        while not stop.is_set():
            libc.renameat2(-100, f"{workspace}/real".encode(), -100, f"{workspace}/fake".encode(), 2)
    thread = threading.Thread(target=swapping)
    thread.start()
    hits = 0
    for _ in range(5000):
        try:
            with open(f"{workspace}/real/new", "w"):
                pass
            hits += os.path.exists(f"{outside}/new")
        except OSError:
            pass
    stop.set()
    thread.join()
    if hits == 0:
        raise Refused("never got out")
    return hits


attempt("5 swap a folder for a link", swap)
attempt("7 /proc/self/root", write("/proc/self/root/etc/actum-attack"))
attempt("7 /proc/self/cwd", write("/proc/self/cwd/../../../../../../etc/actum-attack"))
attempt("7 /proc/1/root", lambda: os.listdir("/proc/1/root"))
attempt("8 hard link", lambda: os.link(f"{outside}/secret", f"{workspace}/hard"))
attempt("9 rename over a protected file", lambda: os.rename(f"{workspace}/mine", f"{workspace}/.git/config"))
attempt("9 remove a protected file", lambda: os.remove(f"{workspace}/.git/config"))
attempt("10 rename a repository", lambda: os.rename(f"{workspace}/.git", f"{workspace}/git2"))
attempt("11 a hook", write(f"{workspace}/.git/hooks/pre-commit"))
attempt("11 settings", write(f"{workspace}/.git/config"))
attempt("11 a nested hook", write(f"{workspace}/vendor/x/.git/hooks/pre-commit"))
attempt("11 a worktree's pointer", write(f"{workspace}/tree/.git"))

mine = f"{workspace}/mine"
attempt("13 chmod u+s", lambda: os.chmod(mine, 0o4755))
attempt("13 chmod g+s", lambda: os.chmod(mine, 0o2755))
fd = os.open(mine, os.O_RDWR)
attempt("13 fchmod", lambda: os.fchmod(fd, 0o4755))
attempt("13 fchmodat", lambda: call(268, -100, mine.encode(), 0o6755))
attempt("13 fchmodat2", lambda: call(452, -100, mine.encode(), 0o6755, 0))
attempt("13 open", lambda: os.open(f"{workspace}/suid", os.O_CREAT | os.O_WRONLY, 0o4755))
attempt("13 creat", lambda: call(85, f"{workspace}/suid".encode(), 0o4755))
attempt("13 tmpfile", lambda: os.open(workspace, os.O_TMPFILE | os.O_WRONLY, 0o4755))
attempt("13 mknod", lambda: os.mknod(f"{workspace}/suid", 0o104755))
attempt("13 openat2", lambda: call(437, -100, f"{workspace}/suid".encode(), struct.pack("QQQ", os.O_CREAT | 1, 0o4755, 0), 24))
capability = struct.pack("<IIIII", 0x02000001, 0xffffffff, 0, 0xffffffff, 0)
attempt("15 a capability on a file", lambda: os.setxattr(mine, "security.capability", capability))
attempt("15 trusted attributes", lambda: os.setxattr(mine, "trusted.overlay.opaque", b"y"))
attempt("16 a block device", lambda: os.mknod(f"{workspace}/disk", 0o060600, os.makedev(254, 0)))
attempt("16 a character device", lambda: os.mknod("/tmp/kmsg", 0o020600, os.makedev(1, 11)))
for device in ["vda", "sda", "mem", "kmem", "port", "kvm", "net/tun", "fuse", "vsock", "kmsg", "loop0", "loop-control",
               "console", "tty1", "mapper/control", "vhost-vsock", "uinput", "nvram"]:
    attempt(f"17 /dev/{device}", lambda device=device: os.open(f"/dev/{device}", os.O_RDONLY))
attempt("18 open_by_handle_at", lambda: call(304, fd, b"\0" * 128, 0))
attempt("18 name_to_handle_at", lambda: call(303, -100, b"/", b"\0" * 128, ctypes.byref(ctypes.c_int()), 0))
for name in ["kernel/core_pattern", "kernel/printk_ratelimit_burst", "kernel/hostname", "vm/overcommit_memory",
             "net/ipv4/ip_forward", "kernel/modprobe", "fs/suid_dumpable", "kernel/ns_last_pid"]:
    attempt(f"19 /proc/sys/{name}", write(f"/proc/sys/{name}"))
attempt("20 sysrq", write("/proc/sysrq-trigger"))
for name in ["kcore", "kmsg", "kallsyms", "timer_list", "keys", "key-users", "slabinfo", "vmallocinfo", "kpagecount"]:
    attempt(f"20 /proc/{name}", read(f"/proc/{name}"))
attempt("21 a control group", lambda: os.mkdir("/sys/fs/cgroup/actum-attack"))
attempt("21 /sys", lambda: os.listdir("/sys"))
attempt("22 a denied path", read(f"{workspace}/denied/secret"))
attempt("22 by an alias", read(f"{workspace}/./denied//secret"))
attempt("22 through /proc", read(f"/proc/self/root{workspace}/denied/secret"))
attempt("22 through a link", lambda: (os.symlink("denied", f"{workspace}/alias"), read(f"{workspace}/alias/secret")())[1])
attempt("22 a denied file", read(f"{workspace}/denied-file"))
attempt("22 rename of it", lambda: os.rename(f"{workspace}/denied", f"{workspace}/other"))
attempt("22 chmod of it", lambda: os.chmod(f"{workspace}/denied", 0o777))
attempt("22 own keys of the project", read(f"{workspace}/.actum/key.pem"))

# Processes and the kernel.
for name in ["environ", "mem", "fd", "exe", "maps", "cmdline", "status", "cwd"]:
    attempt(f"27 /proc/1/{name}", lambda name=name: os.listdir(f"/proc/1/{name}") if name == "fd" else read(f"/proc/1/{name}")())


def variable(name):
    def what():
        if name not in os.environ:
            raise Refused("absent")
        return os.environ[name]
    return what


def end_the_first():
    for each in [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM]:
        os.kill(1, each)
    os.kill(1, 0)
    raise Refused("it lives on")


def inherited():
    found = [n for n in os.listdir("/proc/self/fd") if int(n) > 2 and int(n) != fd]
    readable = []
    for n in found:
        try:
            readable.append(os.readlink(f"/proc/self/fd/{n}"))
        except OSError:
            pass
    readable = [to for to in readable if "/proc/" not in to and "attacks.py" not in to]
    if not readable:
        raise Refused("none")
    return readable


attempt("28 a secret of the environment", variable("ACTUM_TEST_SECRET"))
attempt("29 inherited files", inherited)
attempt("30 signal a process outside", lambda: os.kill(int(host_pid), 0))
attempt("30 end the first process", end_the_first)
attempt("31 ptrace", lambda: call(101, 0, 0, 0, 0))
attempt("31 ptrace attach", lambda: call(101, 16, os.getppid() or 1, 0, 0))
attempt("31 process_vm_readv", lambda: call(310, 1, 0, 0, 0, 0, 0))
attempt("31 process_vm_writev", lambda: call(311, 1, 0, 0, 0, 0, 0))
attempt("31 pidfd_getfd", lambda: call(438, 0, 0, 0))
attempt("31 kcmp", lambda: call(312, 1, 1, 0, 0, 0))
for name, flag in [("user", 0x10000000), ("mount", 0x20000), ("net", 0x40000000), ("pid", 0x20000000)]:
    attempt(f"32 unshare {name}", lambda flag=flag: call(272, flag))
attempt("32 clone with a user namespace", lambda: call(56, 0x10000000 | 17, 0, 0, 0, 0))
attempt("32 clone3", lambda: call(435, struct.pack("Q" * 11, 0x10000000, *[0] * 10), 88))
attempt("32 setns", lambda: call(308, fd, 0))
attempt("33 mount", lambda: call(165, b"x", b"/tmp", b"tmpfs", 0, 0))
attempt("33 remount", lambda: call(165, b"", b"/usr", b"", 32 | 4096, 0))
attempt("33 umount2", lambda: call(166, f"{workspace}/.git/hooks".encode(), 0))
attempt("33 pivot_root", lambda: call(155, b"/tmp", b"/tmp"))
attempt("33 chroot", lambda: call(161, b"/tmp"))
for name, number in [("open_tree", 428), ("move_mount", 429), ("fsopen", 430), ("fsconfig", 431), ("fsmount", 432),
                     ("fspick", 433), ("mount_setattr", 442), ("open_tree_attr", 467)]:
    attempt(f"33 {name}", lambda number=number: call(number, -100, b"/", 0, 0, 0))
for name, number in [("io_uring_setup", 425), ("io_uring_enter", 426), ("io_uring_register", 427), ("bpf", 321),
                     ("perf_event_open", 298), ("userfaultfd", 323), ("add_key", 248), ("request_key", 249), ("keyctl", 250),
                     ("init_module", 175), ("finit_module", 313), ("delete_module", 176), ("kexec_load", 246),
                     ("kexec_file_load", 320), ("reboot", 169), ("swapon", 167), ("swapoff", 168), ("quotactl", 179),
                     ("acct", 163), ("syslog", 103), ("iopl", 172), ("ioperm", 173), ("modify_ldt", 154), ("fanotify_init", 300),
                     ("settimeofday", 164), ("clock_settime", 227), ("adjtimex", 159), ("vhangup", 153), ("memfd_secret", 447),
                     ("sched_setaffinity", 203), ("sethostname", 170)]:
    attempt(f"34-42 {name}", lambda number=number: call(number, 0, 0, 0, 0, 0))


def machine_code(code):
    def what():
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(code)
        ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
    return what


if os.uname().machine == "x86_64":
    attempt("38 int 0x80", refused_in_child(machine_code(b"\xb8\x14\0\0\0\xcd\x80\xc3")))
    attempt("38 x32", refused_in_child(lambda: libc.syscall(ctypes.c_long(0x40000000 | 39))))
attempt("39 personality", lambda: call(135, 0x0040000))


def type_for_others():
    master, slave = os.openpty()
    import fcntl
    return fcntl.ioctl(slave, 0x5412, b"x")


attempt("40 TIOCSTI", type_for_others)
attempt("40 the terminal", lambda: os.open("/dev/tty", os.O_RDWR))
attempt("41 real time", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10)))
attempt("41 nice", lambda: os.nice(-5))
attempt("43 more files", lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1 << 20, 1 << 20)))
attempt("43 more processes", lambda: resource.setrlimit(resource.RLIMIT_NPROC, (1 << 20, 1 << 20)))
attempt("43 core dumps", lambda: resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20)))
for name, which in [("files", 7), ("time", 0), ("memory", 9), ("processes", 6)]:
    attempt(f"43 limit the first process's {name}", lambda which=which: call(302, 1, which, struct.pack("QQ", 0, 0), 0))
attempt("43 room for more processes", lambda: call(302, 0, 6, struct.pack("QQ", 500, 500), 0))
attempt("44 shared memory of others", lambda: call(29, 0x00ac7030, 0, 0))
attempt("44 queues of others", lambda: call(68, 0x00ac7030, 0))
attempt("45 a dangerous variable", variable("LD_PRELOAD"))


# Network.
def connect(family, address, kind=socket.SOCK_STREAM):
    def what():
        s = socket.socket(family, kind)
        s.settimeout(3)
        s.connect(address)
        s.send(b"hello")
        if kind == socket.SOCK_DGRAM:
            s.recv(10)
        return address
    return what


for address in ["127.0.0.1", "127.0.0.2", "10.0.0.1", "169.254.169.254", "100.100.100.200", "192.168.1.1", "1.1.1.1", "0.0.0.0"]:
    attempt(f"48 tcp {address}", connect(socket.AF_INET, (address, int(port))))
for address in ["::1", "::ffff:127.0.0.1", "fd00:ec2::254", "2606:4700::1111"]:
    attempt(f"48 tcp {address}", connect(socket.AF_INET6, (address, int(port))))
attempt("50 udp", connect(socket.AF_INET, ("8.8.8.8", 53), socket.SOCK_DGRAM))
attempt("50 udp to the host", connect(socket.AF_INET, ("127.0.0.1", int(port)), socket.SOCK_DGRAM))
attempt("50 raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
attempt("50 ping", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP))


def resolves():
    try:
        return socket.getaddrinfo("data.evil.example", 80)
    except socket.gaierror as e:
        raise Refused(str(e))


attempt("51 a name", resolves)
for name, family in [("netlink", 16), ("packet", 17), ("vsock", 40), ("alg", 38), ("bluetooth", 31), ("xdp", 44), ("tipc", 30),
                     ("can", 29), ("key", 15), ("rds", 21), ("kcm", 41), ("smc", 43), ("qipcrtr", 42)]:
    attempt(f"52 {name}", lambda family=family: call(41, family, 3, 0))
    attempt(f"52 pair of {name}", lambda family=family: call(53, family, 1, 0, ctypes.byref((ctypes.c_int * 2)())))
attempt("53 a socket of the host", connect(socket.AF_UNIX, pathname))
for path in ["/var/run/docker.sock", "/run/docker.sock", "/run/dbus/system_bus_socket", "/run/systemd/private"]:
    attempt(f"53 {path}", connect(socket.AF_UNIX, path))
attempt("54 an abstract socket of the host", connect(socket.AF_UNIX, "\0" + abstract))
print("end")
