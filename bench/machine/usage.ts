/*
 * CPU time and memory of processes, read from /proc (man 5 proc). The kernel counts CPU time in units of 10 ms, so a figure below about 200
 * ms of CPU time is noise.
 */
import { readdirSync, readFileSync } from 'node:fs'

const TICKS_PER_SECOND = 100
const PAGE_BYTES = 4_096
const MIB = 1024 * 1024
/** Interval between two samples of memory, in milliseconds. Memory that is freed within this interval may be missed. */
const SAMPLE_INTERVAL_MS = 50

/** Returns the CPU time that a process has used so far, in milliseconds. The value is 0 if the process has ended. */
export function cpuMs(pid: number): number {
  const fields = statOf(pid)
  return ticksToMs(Number(fields[11]) + Number(fields[12]))
}

/** Returns the CPU time of a process and of all its descendants, including those that have ended, in milliseconds. */
export function treeCpuMs(pid: number): number {
  return treeOf(pid).reduce((sum, each) => {
    const fields = statOf(each)
    return sum + cpuMs(each) + ticksToMs(Number(fields[13]) + Number(fields[14]))
  }, 0)
}

export function residentMib(pid: number): number {
  return (Number(statOf(pid)[21]) * PAGE_BYTES) / MIB
}

export function machineCpuMs(): number {
  const [line = ''] = readFileSync('/proc/stat', 'utf8').split('\n')
  const [user = 0, nice = 0, system = 0, , , irq = 0, softirq = 0] = line.split(/ +/).slice(1).map(Number)
  return ticksToMs(user + nice + system + irq + softirq)
}

/** Samples the memory of a process and of its child processes. `stop` returns both maxima, in MiB. */
export function watchMemory(pid: number): { stop(): { readonly own: number; readonly started: number } } {
  const max = { own: 0, started: 0 }
  const sample = () => {
    max.own = Math.max(max.own, residentMib(pid))
    const started = treeOf(pid).slice(1)
    max.started = Math.max(
      max.started,
      started.reduce((sum, each) => sum + residentMib(each), 0),
    )
  }
  sample()
  const timer = setInterval(sample, SAMPLE_INTERVAL_MS)
  return {
    stop() {
      clearInterval(timer)
      return max
    },
  }
}

export function parentOf(pid: number): number | undefined {
  const parent = Number(statOf(pid)[1])
  return parent > 0 ? parent : undefined
}

function treeOf(pid: number): number[] {
  const all = readdirSync('/proc').map(Number).filter(Number.isInteger)
  const children = Map.groupBy(all, parentOf)
  const tree = [pid]
  for (const parent of tree) tree.push(...(children.get(parent) ?? []))
  return tree
}

function ticksToMs(ticks: number): number {
  return (ticks / TICKS_PER_SECOND) * 1_000
}

/** Returns the fields of /proc/PID/stat after the name, which may contain spaces. The first returned field is the state. */
function statOf(pid: number): string[] {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'utf8')
    return text.slice(text.lastIndexOf(')') + 2).split(' ')
  } catch {
    return Array(22).fill('0')
  }
}
