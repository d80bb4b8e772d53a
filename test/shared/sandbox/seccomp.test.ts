/** Tests the two filters of system calls with a model of the kernel, which can also simulate other processor types than that of this machine. */
import { execFile } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { describe, expect, test } from 'vitest'

const execute = promisify(execFile)
const CODE = fileURLToPath(new URL('../../../shared/sandbox/python/', import.meta.url))
/**
 * Python program that reads system calls from standard input, and evaluates the two filters on each call, as the kernel evaluates classic BPF. The
 * stricter of the two results counts.
 */
const MODEL = `
import json, os, sys
sys.path.insert(0, sys.argv[1])
from seccomp import assembler as s, calls, filters

def run(rules, call):
    at, value = 0, 0
    while True:
        code, yes, no, operand = rules[at]
        if code == s.RETURN: return operand
        if code == s.LOAD: value = call[operand]
        else: at += yes if {s.JUMP_EQUAL: value == operand, s.JUMP_FROM: value >= operand, s.JUMP_BITS: value & operand}[code] else no
        at += 1

def words(architecture, number, arguments):
    call = {s.NUMBER: number, s.ARCHITECTURE: architecture}
    for index in range(6):
        argument = arguments[index] if index < len(arguments) else 0
        call |= {s.ARGUMENTS + 8 * index: argument & 0xffffffff, s.ARGUMENTS + 8 * index + 4: argument >> 32}
    return call

def answer(action):
    return {s.ALLOW: 'allowed', s.KILL: 'killed'}.get(action) or os.strerror(action & 0xffff)

column, architecture = s.ARCHITECTURES[sys.argv[2]]
programs = [s.head_rules(column) + rules(column) for rules in (filters.known_rules, filters.escape_rules)]
assert all(len(rules) <= 4096 and all(yes < 256 and no < 256 for _, yes, no, _ in rules) for rules in programs)
table = {**calls.ALLOWED, **calls.DENIED, 'clone': calls.CLONE, 'clone3': calls.CLONE3}
answers = []
for name, arguments in json.load(sys.stdin):
    number = name if isinstance(name, int) else table[name][column]
    arguments = [os.getpid() if argument == 'itself' else argument for argument in arguments]
    given = [answer(run(rules, words(architecture, number, arguments))) for rules in programs]
    answers.append(next((one for one in reversed(given) if one != 'allowed'), 'allowed'))
json.dump([*answers, answer(run(programs[0], words(1, 0, [])))], sys.stdout)
`
const EPERM = 'Operation not permitted'
const ENOSYS = 'Function not implemented'
/** Result of a call that the filter skips: the kernel returns 0 without running it. */
const PRETENDED = 'Success'
const [F_GETLK, F_SETLK, F_SETLKW, F_OFD_SETLK] = [5, 6, 7, 37]
const [F_SETLEASE, F_DUPFD_CLOEXEC, F_SETPIPE_SZ] = [1024, 1030, 1031]
const HIGH_HALF = 2 ** 40

type Call = readonly [call: string | number, ...args: (number | 'itself')[]]

async function answersFor(machine: string, calls: readonly Call[]): Promise<string[]> {
  const child = execute('python3', ['-c', MODEL, CODE, machine], { timeout: 20_000 })
  child.child.stdin?.end(JSON.stringify(calls.map(([name, ...args]) => [name, args])))
  return JSON.parse((await child).stdout)
}

describe.each(['x86_64', 'aarch64'])('the system call filter on %s', (machine) => {
  const cases: readonly (readonly [Call, string])[] = [
    [['read'], 'allowed'],
    [['openat'], 'allowed'],
    [['clone', 0x3d_0f00], 'allowed'],
    [['clone', 17], EPERM],
    [['clone', 0x1001_0000], EPERM],
    [['clone3'], ENOSYS],
    [['execve'], EPERM],
    [['socket', 1], EPERM],
    ...['socketpair', 'sendmsg', 'recvmsg', 'setsockopt', 'pipe2', 'flock'].map((name): [Call, string] => [
      [name, 1],
      EPERM,
    ]),
    [['fcntl', 1, F_DUPFD_CLOEXEC], 'allowed'],
    [['fcntl', 1, F_GETLK], 'allowed'],
    [['fcntl', 1, F_SETLK], PRETENDED],
    [['fcntl', 1, F_SETLKW], PRETENDED],
    [['fcntl', 1, F_OFD_SETLK], EPERM],
    [['fcntl', 1, F_SETLEASE], EPERM],
    [['fcntl', 1, F_SETPIPE_SZ], EPERM],
    [['tgkill', 'itself'], 'allowed'],
    [['tgkill', 1], EPERM],
    [['kill', 1], EPERM],
    [['prlimit64', 0, 7, 0], 'allowed'],
    [['prlimit64', 0, 7, 4096], EPERM],
    [['prlimit64', 0, 7, HIGH_HALF], EPERM],
    [['prctl', 22], EPERM],
    [['memfd_create'], EPERM],
    [['unshare'], EPERM],
    [['io_uring_setup'], EPERM],
    [[999], ENOSYS],
    [[0x4000_0000], ENOSYS],
  ]

  test('returns the specified result for each system call, and kills a process that uses another ABI', async () => {
    const answers = await answersFor(
      machine,
      cases.map(([call]) => call),
    )
    expect(answers.slice(0, -1)).toEqual(cases.map(([, answer]) => answer))
    expect(answers.at(-1)).toBe('killed')
  })
})
