import { treeCpuSeconds } from '../machine/process-tree.ts'
import { cpuMs } from '../machine/usage.ts'

/** One of the processes behind a system, or all of one server. */
export interface DurablePart {
  readonly name: string
  /** CPU time that it has used so far, in milliseconds. */
  cpuMs(): number
}

/** A process of which the id is known. */
export function processPart(name: string, pid: number | undefined): DurablePart[] {
  return pid === undefined ? [] : [{ name, cpuMs: () => cpuMs(pid) }]
}

/** A process and all that it started, also what of that has ended, as a server has that starts one for each connection. */
export function treePart(name: string, pid: number | undefined): DurablePart[] {
  return pid === undefined ? [] : [{ name, cpuMs: () => treeCpuSeconds(pid) * 1_000 }]
}
