import { readdirSync, readFileSync } from 'node:fs'
import { cpuMs, endedChildrenCpuMs, proportionalMib, residentMib } from './usage.ts'

/** How often memory is read: an allocation that lives shorter is missed. */
const SAMPLE_MS = 50

/** CPU that a process and all that it started have used so far, in seconds. */
export function treeCpuSeconds(pid: number): number {
  return treeOf(pid).reduce((sum, each) => sum + cpuMs(each) + endedChildrenCpuMs(each), 0) / 1_000
}

/** Memory of a process, and of what it started, read again and again until it is stopped. */
export interface MemoryWatch {
  /** Most MiB at once: of the process itself, and of all that it started together. */
  stop(): { readonly own: number; readonly started: number }
}

/** Resident memory of all that a process started, in MiB: a page that several of them have counts for each. */
export function startedMib(pid: number): number {
  return startedPids(pid).reduce((sum, each) => sum + residentMib(each), 0)
}

/** All processes that a process started, directly or not, and that run now. */
export function startedPids(pid: number): number[] {
  return treeOf(pid).slice(1)
}

/** Resident memory of processes together, in MiB: a page that several of them have counts once. */
export function togetherMib(pids: readonly number[]): number {
  return pids.reduce((sum, each) => sum + proportionalMib(each), 0)
}

/** Watches a process and its children. */
export function watchMemory(pid: number): MemoryWatch {
  const most = { own: 0, started: 0 }
  const look = () => {
    most.own = Math.max(most.own, residentMib(pid))
    most.started = Math.max(most.started, startedMib(pid))
  }
  look()
  const timer = setInterval(look, SAMPLE_MS)
  return {
    stop() {
      clearInterval(timer)
      return most
    },
  }
}

/** A process and all that it started, directly or not. */
function treeOf(pid: number): number[] {
  const children = childrenByParent()
  const tree = [pid]
  for (const parent of tree) tree.push(...(children.get(parent) ?? []))
  return tree
}

function childrenByParent(): Map<number, number[]> {
  const children = new Map<number, number[]>()
  for (const name of readdirSync('/proc')) {
    const pid = Number(name)
    if (!Number.isInteger(pid)) continue
    const parent = parentOf(pid)
    if (parent !== undefined) children.set(parent, [...(children.get(parent) ?? []), pid])
  }
  return children
}

/** The process that started this one, or took it over from there. Undefined when it is gone. */
export function parentOf(pid: number): number | undefined {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'utf8')
    return Number(text.slice(text.lastIndexOf(')') + 2).split(' ')[1])
  } catch {
    // It has ended meanwhile.
    return undefined
  }
}
