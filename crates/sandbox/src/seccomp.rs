//! Which system calls a cell does without, as a program for the kernel. Calls through another architecture's door end
//! the process; the listed ones fail; the making of threads is asked about; everything else goes through.
//!
//! Threads and not processes, because a question can be interrupted by a signal, and no program expects that of `fork`;
//! around the making of a thread all libraries block signals. The number of processes is limited by the kernel, which
//! counts threads as well: whoever is asked makes room for each.

use std::ffi::c_long;

use libc::sock_filter;

/// Whether processes can be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forks {
    /// No; threads can, as many as the kernel allows.
    Refused,
    /// As many as the kernel allows; about threads the filter asks.
    Limited,
}

/// Never needed by a program that minds its own business: reaching into others, changing the machine, leaving.
const REFUSED: &[c_long] = &[
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    // Namespaces and mounts.
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_fanotify_mark,
    OPEN_TREE_ATTR,
    // A second door to most other calls.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // The kernel itself.
    libc::SYS_bpf,
    libc::SYS_add_key,
    libc::SYS_keyctl,
    libc::SYS_request_key,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_nfsservctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    // Which processors it runs on is part of its limits.
    libc::SYS_sched_setaffinity,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    libc::SYS_mbind,
    libc::SYS_set_mempolicy,
    // Memory that nobody can look into, not even to count it.
    libc::SYS_memfd_secret,
    // Out of a store that all users of the machine share.
    libc::SYS_io_setup,
];

/// Newer than the table of the library.
const OPEN_TREE_ATTR: c_long = 467;

#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[c_long] = &[
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_uselib,
    libc::SYS_ustat,
    libc::SYS_sysfs,
    libc::SYS__sysctl,
];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[c_long] = &[];

/// Libraries fall back to older calls, whose arguments the filter can see.
const ABSENT: &[c_long] = &[libc::SYS_clone3, libc::SYS_openat2];

/// A file that runs as its owner or group wherever it is started, also outside.
const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;

/// Calls that set permissions, and in which argument.
const MODES: &[(c_long, usize)] = &[
    (libc::SYS_fchmod, 1),
    (libc::SYS_fchmodat, 2),
    (libc::SYS_fchmodat2, 2),
    (libc::SYS_mknodat, 2),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mknod, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_creat, 1),
];

/// Calls that may make a file: where their flags and where the permissions are.
const OPENS: &[(c_long, usize, usize)] = &[
    (libc::SYS_openat, 2, 3),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, 1, 2),
];

const NEW_NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP) as u32;

/// Kinds of sockets that stay within the cell's own network. Others reach past it, or into the kernel.
/// Protocols of sockets: those whose buffers are counted, and ICMP, which sends nothing large. 1 is also that of unix sockets.
const PROTOCOLS: &[u32] =
    &[0, libc::IPPROTO_ICMP as u32, libc::IPPROTO_TCP as u32, libc::IPPROTO_UDP as u32, libc::IPPROTO_ICMPV6 as u32];
const FAMILIES: &[u32] = &[libc::AF_UNIX as u32, libc::AF_INET as u32, libc::AF_INET6 as u32];

/// Modes of `fallocate` that make a file smaller. All others take room faster than it can be counted; libraries write instead.
const GIVES_BACK: &[u32] =
    &[(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u32, libc::FALLOC_FL_COLLAPSE_RANGE as u32];

/// Requests that type into a terminal for its user, stop its output, or change it for later programs.
const TERMINAL: &[u32] =
    &[libc::TIOCSTI as u32, libc::TIOCLINUX as u32, libc::TIOCEXCL as u32, libc::TCXONC as u32, libc::TIOCSETD as u32];

/// Requests of file systems that a program may make: to share blocks of files, to tell how a file is stored, and its flags. By
/// others of the same kinds it could take snapshots that show what is covered, or room on the disk that is not counted.
const FILE_REQUESTS: &[u32] = &[
    // FICLONE, FICLONERANGE and FIDEDUPERANGE.
    0x4004_9409,
    0x4020_940D,
    0xC018_9436,
    // FS_IOC_GETFLAGS, FS_IOC_SETFLAGS and FS_IOC_FIEMAP.
    0x8008_6601,
    0x4008_6602,
    0xC020_660B,
    // FS_IOC_FSGETXATTR.
    0x801C_581F,
];
/// The kinds: of btrfs, of XFS and all that take its requests, of ext4 and of F2FS; of consoles and of keyboards.
const FILE_KINDS: &[u32] = &[0x9400, 0x5800, 0x6600, 0xF500, 0x5600, 0x4B00];
const KIND: u32 = 0xFF00;

/// Commands of `fcntl` by which a reader of a file makes other programs wait, or watches them.
const LEASES: &[u32] = &[libc::F_SETLEASE as u32, libc::F_NOTIFY as u32, SET_DELEGATION];
/// Newer than the table of the library.
const SET_DELEGATION: u32 = 1024 + 16;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xC000_00B7;

/// Calls with this bit are those of another convention, which no list here knows.
#[cfg(target_arch = "x86_64")]
const OTHER_CONVENTION: u32 = 0x4000_0000;

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;
const ASK: u32 = libc::SECCOMP_RET_USER_NOTIF;

const fn fail(error: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | error as u32
}

/// Where the kernel shows the call to the filter.
const AT_CALL: u32 = 0;
const AT_ARCHITECTURE: u32 = 4;

/// The lower half of an argument. The calls looked at here take no more than that, and ignore the rest.
const fn at_argument(index: usize) -> u32 {
    16 + 8 * index as u32
}

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const IS: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const IS_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const HAS: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;

#[derive(Default)]
struct Program(Vec<sock_filter>);

impl Program {
    fn push(&mut self, code: u16, k: u32) {
        self.0.push(sock_filter { code, jt: 0, jf: 0, k });
    }

    /// Does the steps if the loaded number passes the test, else goes on after them.
    fn when(&mut self, test: u16, k: u32, steps: impl FnOnce(&mut Self)) {
        let at = self.0.len();
        self.push(test, k);
        steps(self);
        let skipped = self.0.len() - at - 1;
        self.0[at].jf = u8::try_from(skipped).unwrap_or(u8::MAX);
    }

    /// Does the steps if it does not pass the test.
    fn unless(&mut self, test: u16, k: u32, steps: impl FnOnce(&mut Self)) {
        let at = self.0.len();
        self.push(test, k);
        steps(self);
        let skipped = self.0.len() - at - 1;
        self.0[at].jt = u8::try_from(skipped).unwrap_or(u8::MAX);
    }

    fn ends(&mut self, verdict: u32) {
        self.push(RETURN, verdict);
    }

    fn load_argument(&mut self, index: usize) {
        self.push(LOAD, at_argument(index));
    }
}

/// The filter. `has_group`: the system counts memory; where it does not, there is none that we could not find.
pub(crate) fn program(forks: Forks, has_group: bool) -> Vec<sock_filter> {
    let mut p = Program::default();
    p.push(LOAD, AT_ARCHITECTURE);
    let at = p.0.len();
    p.push(IS, ARCHITECTURE);
    p.ends(KILL);
    p.0[at].jt = 1;
    p.push(LOAD, AT_CALL);
    #[cfg(target_arch = "x86_64")]
    p.when(IS_AT_LEAST, OTHER_CONVENTION, |p| p.ends(KILL));
    // The kernel walks through the filter once for every call there is when it is put up, so the way has to be short:
    // in the order of their numbers, a few at a time.
    let mut rules = rules(forks, has_group);
    rules.sort_by_key(|(call, _)| *call);
    for some in rules.chunks(CHUNK) {
        let end = some.last().map_or(0, |(call, _)| *call as u32 + 1);
        p.unless(IS_AT_LEAST, end, |p| {
            for (call, rule) in some {
                p.when(IS, *call as u32, |p| rule.put(p));
            }
            p.ends(ALLOW);
        });
    }
    p.ends(ALLOW);
    p.0
}

/// Calls that are compared one after the other. A test cannot jump further than 255 steps.
const CHUNK: usize = 6;

/// What becomes of a call.
#[derive(Debug, Clone, Copy)]
enum Rule {
    Ends(u32),
    /// Permissions in this argument must not have a program run as its owner.
    Mode(usize),
    /// The same, if the flags in the first argument say that a file is made.
    Open(usize, usize),
    Family,
    Request,
    Lease,
    /// Open files of a thread alone would not be counted.
    CloseRange,
    Personality,
    /// Room on the disk is taken by writing only, so that it can be counted as it is taken. It may be given back.
    Allocate,
    Clone {
        forking: u32,
        threading: u32,
    },
    SetLimit,
    SetLimitOf,
}

fn rules(forks: Forks, has_group: bool) -> Vec<(c_long, Rule)> {
    let (forking, threading) = match forks {
        Forks::Refused => (fail(libc::EPERM), ALLOW),
        Forks::Limited => (ALLOW, ASK),
    };
    let mut rules: Vec<(c_long, Rule)> = Vec::new();
    rules.extend(REFUSED.iter().chain(REFUSED_HERE).map(|call| (*call, Rule::Ends(fail(libc::EPERM)))));
    rules.extend(ABSENT.iter().map(|call| (*call, Rule::Ends(fail(libc::ENOSYS)))));
    if !has_group {
        // Sent to oneself in a message, it would be held by nobody that can be looked at.
        rules.push((libc::SYS_memfd_create, Rule::Ends(fail(libc::ENOSYS))));
        // Held by the kernel for no process: only a control group counts it.
        rules.extend([libc::SYS_semget, libc::SYS_msgget].map(|call| (call, Rule::Ends(fail(libc::ENOSYS)))));
    }
    rules.extend(MODES.iter().map(|(call, argument)| (*call, Rule::Mode(*argument))));
    rules.extend(OPENS.iter().map(|(call, flags, mode)| (*call, Rule::Open(*flags, *mode))));
    rules.extend([
        (libc::SYS_socket, Rule::Family),
        (libc::SYS_socketpair, Rule::Family),
        (libc::SYS_ioctl, Rule::Request),
        (libc::SYS_fcntl, Rule::Lease),
        (libc::SYS_close_range, Rule::CloseRange),
        (libc::SYS_personality, Rule::Personality),
        (libc::SYS_fallocate, Rule::Allocate),
        (libc::SYS_clone, Rule::Clone { forking, threading }),
        (libc::SYS_setrlimit, Rule::SetLimit),
        (libc::SYS_prlimit64, Rule::SetLimitOf),
    ]);
    #[cfg(target_arch = "x86_64")]
    rules.extend([libc::SYS_fork, libc::SYS_vfork].map(|call| (call, Rule::Ends(forking))));
    rules
}

impl Rule {
    fn put(self, p: &mut Program) {
        match self {
            Self::Ends(verdict) => p.ends(verdict),
            Self::Mode(argument) => {
                p.load_argument(argument);
                p.when(HAS, SET_ID, |p| p.ends(fail(libc::EPERM)));
                p.ends(ALLOW);
            }
            Self::Open(flags, mode) => {
                p.load_argument(flags);
                p.when(HAS, (libc::O_CREAT | (libc::O_TMPFILE & !libc::O_DIRECTORY)) as u32, |p| {
                    p.load_argument(mode);
                    p.when(HAS, SET_ID, |p| p.ends(fail(libc::EPERM)));
                });
                p.ends(ALLOW);
            }
            Self::Family => {
                p.load_argument(0);
                for family in FAMILIES {
                    p.when(IS, *family, |p| {
                        p.load_argument(2);
                        for protocol in PROTOCOLS {
                            p.when(IS, *protocol, |p| p.ends(ALLOW));
                        }
                        p.ends(fail(libc::EPROTONOSUPPORT));
                    });
                }
                p.ends(fail(libc::EAFNOSUPPORT));
            }
            Self::Request => {
                p.load_argument(1);
                for request in TERMINAL {
                    p.when(IS, *request, |p| p.ends(fail(libc::EPERM)));
                }
                for request in FILE_REQUESTS {
                    p.when(IS, *request, |p| p.ends(ALLOW));
                }
                p.push(AND, KIND);
                for kind in FILE_KINDS {
                    // The answer of a file system that does not know the request.
                    p.when(IS, *kind, |p| p.ends(fail(libc::ENOTTY)));
                }
                p.ends(ALLOW);
            }
            Self::CloseRange => {
                p.load_argument(2);
                p.when(HAS, libc::CLOSE_RANGE_UNSHARE, |p| p.ends(fail(libc::EPERM)));
                p.ends(ALLOW);
            }
            Self::Lease => {
                p.load_argument(1);
                for command in LEASES {
                    p.when(IS, *command, |p| p.ends(fail(libc::EPERM)));
                }
                p.ends(ALLOW);
            }
            Self::Personality => {
                p.load_argument(0);
                p.when(IS, 0, |p| p.ends(ALLOW));
                p.when(IS, u32::MAX, |p| p.ends(ALLOW));
                p.ends(fail(libc::EPERM));
            }
            Self::Allocate => {
                p.load_argument(1);
                for mode in GIVES_BACK {
                    p.when(IS, *mode, |p| p.ends(ALLOW));
                }
                p.ends(fail(libc::EOPNOTSUPP));
            }
            Self::Clone { forking, threading } => {
                p.load_argument(0);
                p.when(HAS, NEW_NAMESPACES, |p| p.ends(fail(libc::EPERM)));
                p.when(HAS, libc::CLONE_THREAD as u32, |p| {
                    // Open files are counted once for a process.
                    p.unless(HAS, libc::CLONE_FILES as u32, |p| p.ends(fail(libc::EPERM)));
                    p.ends(threading);
                });
                p.ends(forking);
            }
            // The limit of processes is changed by one only: who answers the questions.
            Self::SetLimit => {
                p.load_argument(0);
                p.when(IS, libc::RLIMIT_NPROC, |p| p.ends(fail(libc::EPERM)));
                p.ends(ALLOW);
            }
            // Limits of others are not its own: the first process is of the same user.
            Self::SetLimitOf => {
                // To be asked for they may be: then there is no new one, and the whole of the pointer is nothing.
                p.load_argument(2);
                p.when(IS, 0, |p| {
                    p.push(LOAD, at_argument(2) + 4);
                    p.when(IS, 0, |p| p.ends(ALLOW));
                });
                p.load_argument(0);
                p.when(IS, 0, |p| {
                    p.load_argument(1);
                    p.when(IS, libc::RLIMIT_NPROC, |p| p.ends(fail(libc::EPERM)));
                    p.ends(ALLOW);
                });
                p.ends(fail(libc::EPERM));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel would say, by a reading of the program of our own.
    fn verdict(program: &[sock_filter], architecture: u32, call: u32, arguments: [u64; 6]) -> u32 {
        let mut loaded = 0;
        let mut at = 0;
        loop {
            let step = &program[at];
            at += 1;
            let test = |passed: bool| usize::from(if passed { step.jt } else { step.jf });
            match step.code {
                LOAD => {
                    loaded = match step.k {
                        AT_CALL => call,
                        AT_ARCHITECTURE => architecture,
                        k if (k - 16) % 8 == 4 => (arguments[(k as usize - 16) / 8] >> 32) as u32,
                        k => arguments[(k as usize - 16) / 8] as u32,
                    }
                }
                RETURN => return step.k,
                IS => at += test(loaded == step.k),
                IS_AT_LEAST => at += test(loaded >= step.k),
                HAS => at += test(loaded & step.k != 0),
                AND => loaded &= step.k,
                other => panic!("{other}"),
            }
        }
    }

    fn asked(forks: Forks, call: c_long, arguments: [u64; 6]) -> u32 {
        verdict(&program(forks, true), ARCHITECTURE, call as u32, arguments)
    }

    #[test]
    fn no_test_jumps_further_than_it_can() {
        assert!(program(Forks::Limited, true).len() < 4096);
        for step in program(Forks::Limited, true) {
            assert!(step.jt < u8::MAX && step.jf < u8::MAX);
        }
    }

    #[test]
    fn listed_calls_fail_and_others_go_through() {
        for call in REFUSED.iter().chain(REFUSED_HERE) {
            assert_eq!(asked(Forks::Limited, *call, [0; 6]), fail(libc::EPERM), "{call}");
        }
        for call in [libc::SYS_read, libc::SYS_execve, libc::SYS_futex, libc::SYS_getdents64, libc::SYS_memfd_create] {
            assert_eq!(asked(Forks::Refused, call, [0; 6]), ALLOW, "{call}");
        }
        assert_eq!(asked(Forks::Limited, libc::SYS_clone3, [0; 6]), fail(libc::ENOSYS));
    }

    #[test]
    fn other_doors_end_the_process() {
        let filter = program(Forks::Limited, true);
        assert_eq!(verdict(&filter, 0x4000_0003, libc::SYS_read as u32, [0; 6]), KILL);
        #[cfg(target_arch = "x86_64")]
        assert_eq!(verdict(&filter, ARCHITECTURE, 0x4000_0000 | 1, [0; 6]), KILL);
    }

    #[test]
    fn arguments_are_looked_at_without_their_upper_half() {
        let high = 0xdead_beef_0000_0000;
        let ioctl = |request: u64| asked(Forks::Limited, libc::SYS_ioctl, [0, request, 0, 0, 0, 0]);
        assert_eq!(ioctl(libc::TIOCSTI), fail(libc::EPERM));
        assert_eq!(ioctl(high | libc::TIOCSTI), fail(libc::EPERM), "the kernel looks at the lower half only");
        assert_eq!(ioctl(libc::TCGETS), ALLOW);
        let family = |family: i32| asked(Forks::Limited, libc::SYS_socket, [family as u64, 0, 0, 0, 0, 0]);
        assert_eq!(family(libc::AF_INET6), ALLOW);
        for other in [libc::AF_NETLINK, libc::AF_PACKET, libc::AF_VSOCK, libc::AF_ALG, libc::AF_BLUETOOTH, 44, 30] {
            assert_eq!(family(other), fail(libc::EAFNOSUPPORT), "{other}");
        }
    }

    #[test]
    fn room_on_the_disk_is_given_back_but_not_reserved() {
        let with = |mode: i32| asked(Forks::Limited, libc::SYS_fallocate, [3, mode as u64, 0, 1 << 40, 0, 0]);
        for mode in [0, libc::FALLOC_FL_KEEP_SIZE, libc::FALLOC_FL_ZERO_RANGE, libc::FALLOC_FL_INSERT_RANGE] {
            assert_eq!(with(mode), fail(libc::EOPNOTSUPP), "{mode}");
        }
        assert_eq!(with(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE), ALLOW);
    }

    #[test]
    fn no_call_makes_a_file_that_runs_as_its_owner() {
        for (call, at) in MODES {
            let with = |mode: u64| {
                let mut arguments = [0; 6];
                arguments[*at] = mode;
                asked(Forks::Limited, *call, arguments)
            };
            assert_eq!([with(0o755), with(0o4755), with(0o2755)], [ALLOW, fail(libc::EPERM), fail(libc::EPERM)]);
        }
        for (call, flags, mode) in OPENS {
            let with = |how: i32, bits: u64| {
                let mut arguments = [0; 6];
                (arguments[*flags], arguments[*mode]) = (how as u64, bits);
                asked(Forks::Limited, *call, arguments)
            };
            assert_eq!(with(libc::O_CREAT, 0o4755), fail(libc::EPERM));
            assert_eq!(with(libc::O_TMPFILE | libc::O_WRONLY, 0o2755), fail(libc::EPERM));
            assert_eq!(with(libc::O_DIRECTORY, 0o4755), ALLOW, "without O_CREAT that argument is anything");
            assert_eq!(with(libc::O_CREAT, 0o644), ALLOW);
        }
    }

    #[test]
    fn threads_are_asked_about_and_processes_are_as_told() {
        let alone = (libc::CLONE_THREAD | libc::CLONE_VM | libc::CLONE_SIGHAND) as u64;
        let thread = alone | libc::CLONE_FILES as u64;
        for (forks, forking, threading) in [(Forks::Refused, fail(libc::EPERM), ALLOW), (Forks::Limited, ALLOW, ASK)] {
            assert_eq!(asked(forks, libc::SYS_clone, [thread, 0, 0, 0, 0, 0]), threading);
            assert_eq!(
                asked(forks, libc::SYS_clone, [alone, 0, 0, 0, 0, 0]),
                fail(libc::EPERM),
                "with files of its own"
            );
            assert_eq!(asked(forks, libc::SYS_clone, [libc::SIGCHLD as u64, 0, 0, 0, 0, 0]), forking);
            let own_users = (libc::CLONE_NEWUSER | libc::SIGCHLD) as u64;
            assert_eq!(asked(forks, libc::SYS_clone, [own_users, 0, 0, 0, 0, 0]), fail(libc::EPERM));
            #[cfg(target_arch = "x86_64")]
            assert_eq!(asked(forks, libc::SYS_vfork, [0; 6]), forking);
        }
    }

    #[test]
    fn file_systems_and_terminals_are_asked_for_little() {
        let request = |request: u64| asked(Forks::Limited, libc::SYS_ioctl, [0, request, 0, 0, 0, 0]);
        for allowed in [libc::TCGETS, libc::TIOCGWINSZ, libc::FIONREAD, 0x4004_9409, 0x8008_6601, 0xC020_660B] {
            assert_eq!(request(allowed), ALLOW, "{allowed:x}");
        }
        // Room on the disk, snapshots and subvolumes.
        for refused in [0x4030_5828_u64, 0x4030_582A, 0x4030_5839, 0x5000_9401, 0x5000_9417, 0x5000_940E] {
            assert_eq!(request(refused), fail(libc::ENOTTY), "{refused:x}");
        }
        for refused in [libc::TIOCSTI, libc::TIOCEXCL, libc::TCXONC] {
            assert_eq!(request(refused), fail(libc::EPERM), "{refused:x}");
        }
        let command = |command: u64| asked(Forks::Limited, libc::SYS_fcntl, [0, command, 0, 0, 0, 0]);
        assert_eq!((command(libc::F_SETLEASE as u64), command(libc::F_GETFL as u64)), (fail(libc::EPERM), ALLOW));
    }

    #[test]
    fn the_limit_of_processes_can_only_be_read() {
        let processes = u64::from(libc::RLIMIT_NPROC);
        let files = u64::from(libc::RLIMIT_NOFILE);
        let prlimit =
            |of: u64, resource: u64, new: u64| asked(Forks::Limited, libc::SYS_prlimit64, [of, resource, new, 0, 0, 0]);
        assert_eq!([prlimit(0, processes, 0), prlimit(1, files, 0), prlimit(0, files, 7)], [ALLOW; 3]);
        for new in [7, 0x7f00_0000_0000] {
            assert_eq!(prlimit(0, processes, new), fail(libc::EPERM));
            assert_eq!(prlimit(1, files, new), fail(libc::EPERM), "those of others");
        }
        assert_eq!(asked(Forks::Limited, libc::SYS_setrlimit, [processes, 7, 0, 0, 0, 0]), fail(libc::EPERM));
    }
}
