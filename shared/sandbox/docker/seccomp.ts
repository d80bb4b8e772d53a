/*
 * The system calls a sandbox container may make: an allow-list, in the format of Docker's `--security-opt seccomp=`. It is
 * for the container as a whole; the program's own process forbids itself more before it starts (fork, exec, sockets).
 *
 * What is left out on purpose: everything with namespaces, mounts, keys, tracing, other processes' memory, BPF, io_uring,
 * performance counters, userfaultfd, loading of modules, setting of clocks and names, SysV IPC, locks on files, and sockets
 * of any kind, whose buffers are memory of the kernel: asyncio wakes itself without (asyncio_wakeup.py).
 */

const FILES = `
  access chdir chmod close close_range copy_file_range dup dup2 dup3 faccessat faccessat2 fadvise64 fallocate fchdir fchmod
  fchmodat fcntl fdatasync fstat fstatfs fsync ftruncate getcwd getdents getdents64 link linkat lseek lstat mkdir
  mkdirat newfstatat open openat pipe pipe2 pread64 preadv pwrite64 pwritev read readlink readlinkat readv rename renameat
  renameat2 rmdir sendfile stat statfs statx symlink symlinkat sync_file_range truncate umask unlink unlinkat utime
  utimensat utimes write writev`
const WAITING = `
  alarm clock_getres clock_gettime clock_nanosleep epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait
  eventfd eventfd2 futex getitimer gettimeofday nanosleep pause poll ppoll pselect6 select setitimer time timerfd_create
  timerfd_gettime timerfd_settime times`
const MEMORY = 'brk madvise membarrier mincore mlock mmap mprotect mremap msync munlock munmap'
const PROCESSES = `
  arch_prctl capget capset execve exit exit_group fork get_robust_list getcpu getegid geteuid getgid getgroups getpgid
  getpgrp getpid getppid getpriority getrandom getresgid getresuid getrlimit getrusage getsid gettid getuid kill pidfd_open
  prctl prlimit64 restart_syscall rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigreturn rt_sigsuspend
  rt_sigtimedwait sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getparam sched_getscheduler
  sched_setaffinity sched_yield seccomp set_robust_list set_tid_address setpgid setpriority setrlimit setsid sigaltstack
  sysinfo tgkill tkill uname vfork wait4 waitid`

/** Flags of clone(2) that make a namespace. */
const CLONE_NEW = 0x7e020080
/** ioctl(2) that types into a terminal as if its user did. */
const TIOCSTI = 0x5412
const ENOSYS = 38
const EPERM = 1

const ALLOW = 'SCMP_ACT_ALLOW'
const REFUSE = 'SCMP_ACT_ERRNO'

/** The profile as JSON text. */
export const SECCOMP_PROFILE = JSON.stringify({
  defaultAction: REFUSE,
  defaultErrnoRet: EPERM,
  archMap: [
    { architecture: 'SCMP_ARCH_X86_64', subArchitectures: [] },
    { architecture: 'SCMP_ARCH_AARCH64', subArchitectures: [] },
  ],
  syscalls: [
    { names: namesOf(FILES, WAITING, MEMORY, PROCESSES), action: ALLOW },
    { names: ['clone'], action: ALLOW, args: [{ index: 0, value: CLONE_NEW, valueTwo: 0, op: 'SCMP_CMP_MASKED_EQ' }] },
    { names: ['ioctl'], action: ALLOW, args: [{ index: 1, value: TIOCSTI, op: 'SCMP_CMP_NE' }] },
    // "Not known here" makes glibc use the older calls, whose arguments a filter can see.
    { names: ['clone3', 'openat2'], action: REFUSE, errnoRet: ENOSYS },
  ],
})

function namesOf(...groups: string[]): string[] {
  return groups.join(' ').trim().split(/\s+/)
}
