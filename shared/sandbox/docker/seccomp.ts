import { readFileSync } from 'node:fs'

/*
 * System calls that a sandbox container may make: an allow-list in the format of Docker's `--security-opt seccomp=`. The list applies to
 * the whole container. The process of the program drops further rights before the program starts (fork, exec, sockets).
 *
 * Excluded on purpose are namespaces, mounts, keys, tracing, other processes' memory, BPF, io_uring, performance counters and userfaultfd.
 * Also excluded are kernel modules, clocks, host names, SysV IPC, file locks and all sockets, whose buffers are kernel memory. Asyncio
 * therefore wakes up without a socket (asyncio_wakeup.py).
 */

const CALLS = new URL('../python/seccomp/calls.txt', import.meta.url)
/** Additional calls for the first process of the container, which starts, limits and ends the program. */
const SUPERVISING = `
  capget capset execve fork kill pidfd_open pipe pipe2 seccomp setpgid setrlimit setsid sync_file_range tkill vfork`
/** Flags of clone(2) that create a namespace. */
const CLONE_NEW = 0x7e020080
/** ioctl(2) that injects input into a terminal. */
const TIOCSTI = 0x5412
const ENOSYS = 38
const EPERM = 1

const ALLOW = 'SCMP_ACT_ALLOW'
const REFUSE = 'SCMP_ACT_ERRNO'

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
    // With ENOSYS ("not implemented"), glibc falls back to older calls. A filter can inspect the arguments of the older calls.
    { names: ['clone3', 'openat2'], action: REFUSE, errnoRet: ENOSYS },
  ],
})

function programCalls(): string[] {
  const [, allowed = ''] = readFileSync(CALLS, 'utf8').split(/^\[\w+\]$/m)
  return [...allowed.matchAll(/(\w+)=/g)].map(([, name]) => String(name)).filter((name) => name !== 'ioctl')
}
