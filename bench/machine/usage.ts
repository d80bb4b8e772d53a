import { readFileSync } from 'node:fs'

/** The kernel's unit of CPU time in /proc, on every architecture Node runs on: 100 a second (man 5 proc). */
const TICKS_PER_SECOND = 100
const PAGE_BYTES = 4_096

/** CPU time a process has used so far, all its threads, user and system, in milliseconds. 0 when it is gone. */
export function cpuMs(pid: number): number {
  const fields = statOf(pid)
  return ((Number(fields[11]) + Number(fields[12])) / TICKS_PER_SECOND) * 1_000
}

/** CPU time of the children of a process that have ended, and of theirs, in milliseconds. */
export function endedChildrenCpuMs(pid: number): number {
  const fields = statOf(pid)
  return ((Number(fields[13]) + Number(fields[14])) / TICKS_PER_SECOND) * 1_000
}

/** Memory of a process that is resident now, in MiB. */
export function residentMib(pid: number): number {
  return (Number(statOf(pid)[21]) * PAGE_BYTES) / 1024 / 1024
}

/** The share of a process in the memory that is resident now, in MiB: a page that several have is divided among them. */
export function proportionalMib(pid: number): number {
  try {
    const [, kib] = /^Pss: +(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8')) ?? []
    return kib === undefined ? residentMib(pid) : Number(kib) / 1024
  } catch {
    // Another user's, or gone.
    return residentMib(pid)
  }
}

/** CPU time that all processes of the machine have used so far, in milliseconds. */
export function machineCpuMs(): number {
  const [line = ''] = readFileSync('/proc/stat', 'utf8').split('\n')
  const [user = 0, nice = 0, system = 0, , , irq = 0, softirq = 0] = line.split(/ +/).slice(1).map(Number)
  return ((user + nice + system + irq + softirq) / TICKS_PER_SECOND) * 1_000
}

/** The fields of /proc/pid/stat after the name, which may hold spaces: the state is the first. */
function statOf(pid: number): string[] {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'utf8')
    return text.slice(text.lastIndexOf(')') + 2).split(' ')
  } catch {
    return Array(22).fill('0')
  }
}
