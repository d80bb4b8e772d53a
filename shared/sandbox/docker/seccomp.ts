import { readFileSync } from 'node:fs'

/*
 * The system calls a sandbox container may make: an allow-list, in the format of Docker's `--security-opt seccomp=`. It is
 * for the container as a whole; the program's own process forbids itself more before it starts (fork, exec, sockets).
 *
 * What is left out on purpose: everything with namespaces, mounts, keys, tracing, other processes' memory, BPF, io_uring,
 * performance counters, userfaultfd, loading of modules, setting of clocks and names, SysV IPC, locks on files, and sockets
 * of any kind, whose buffers are memory of the kernel: asyncio wakes itself without (asyncio_wakeup.py).
 */

const CALLS = new URL('../python/seccomp/calls.txt', import.meta.url)
/** What the container's first process does beside: it starts the program's, limits it and ends it. */
const SUPERVISING = `
  capget capset execve fork kill pidfd_open pipe pipe2 seccomp setpgid setrlimit setsid sync_file_range tkill vfork`
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
    { names: [...programCalls(), ...SUPERVISING.trim().split(/\s+/)], action: ALLOW },
    { names: ['clone'], action: ALLOW, args: [{ index: 0, value: CLONE_NEW, valueTwo: 0, op: 'SCMP_CMP_MASKED_EQ' }] },
    { names: ['ioctl'], action: ALLOW, args: [{ index: 1, value: TIOCSTI, op: 'SCMP_CMP_NE' }] },
    // "Not known here" makes glibc use the older calls, whose arguments a filter can see.
    { names: ['clone3', 'openat2'], action: REFUSE, errnoRet: ENOSYS },
  ],
})

/** What the filter of a program allows as well (calls.txt); ioctl has a rule of its own. */
function programCalls(): string[] {
  const [, allowed = ''] = readFileSync(CALLS, 'utf8').split(/^\[\w+\]$/m)
  return [...allowed.matchAll(/(\w+)=/g)].map(([, name]) => String(name)).filter((name) => name !== 'ioctl')
}
