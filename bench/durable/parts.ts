import { readdirSync, readFileSync } from 'node:fs'
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

/** Every process of this machine that runs that program, as a server does that has one for each connection. */
export function programPart(name: string, program: string): DurablePart {
  return {
    name,
    cpuMs: () => pidsOf(program).reduce((sum, pid) => sum + cpuMs(pid), 0),
  }
}

function pidsOf(program: string): number[] {
  const pids = readdirSync('/proc').filter((entry) => /^\d+$/.test(entry))
  return pids.filter((pid) => programOf(pid) === program).map(Number)
}

function programOf(pid: string): string | undefined {
  try {
    return readFileSync(`/proc/${pid}/comm`, 'utf8').trim()
  } catch {
    // It has ended meanwhile.
    return undefined
  }
}
